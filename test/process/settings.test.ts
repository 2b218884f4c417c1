import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test from 'ava'
import { readSettings, settingNames } from '../../server/process/settings.js'
import { createAuthority, writePems } from '../_helpers/certificates.js'

const key = Buffer.alloc(32, 7)

function faults(env: Record<string, string>): string {
  try {
    readSettings(env)
    return ''
  } catch (error) {
    return (error as Error).message
  }
}

test('an empty environment gives the documented defaults, frozen', t => {
  const { origins, ...settings } = readSettings({ PATH: '/bin', AUTH_CORS_ORIGINS: '' })
  t.true(Object.isFrozen(readSettings({})))
  t.true(origins.settings.every(({ origin, value, default: fallback }) => origin === 'default' && value === fallback))
  t.deepEqual(settings, {
    databaseUrl: undefined,
    dataDir: './.auth',
    grpcAddress: { host: '127.0.0.1', port: 50051 },
    adminAddress: { host: '127.0.0.1', port: 50052 },
    httpAddress: { host: '127.0.0.1', port: 8080 },
    metricsAddress: { host: '127.0.0.1', port: 9090 },
    serverUrl: '127.0.0.1:50051',
    smtpUrl: undefined,
    mailFrom: 'auth@localhost',
    masterKey: undefined,
    adminUsername: 'admin',
    adminPassword: undefined,
    bcryptCost: 12,
    passwordMinLength: 8,
    passwordDenylist: undefined,
    tokenTtl: 3600,
    issuer: undefined,
    limitFactor: 1,
    auditRetention: 400 * 86_400,
    unactivatedRetention: 90 * 86_400,
    audience: undefined,
    migrate: 'on',
    drain: undefined,
    corsOrigins: [],
    trustedProxies: [],
    recoveryEmail: 'registered',
    mailLocale: 'pt-BR',
    timeZone: 'America/Sao_Paulo',
    defaultRevision: '1.0.2',
    compatibility: undefined,
    docs: 'on',
    logLevel: 'info',
    httpTlsCert: undefined,
    httpTlsKey: undefined,
    serverName: undefined,
    tlsCert: undefined,
    tlsKey: undefined,
    tlsCa: undefined,
    gatewayNames: ['auth-gateway'],
  })
})

test('the audience of administrators and a reserved username are refused in any spelling, with everything else', t => {
  for (const audience of ['auth-admin', ' AUTH-Admin ', 'ａｕｔｈ-admin']) {
    const message = faults({ AUTH_AUDIENCE: audience, AUTH_ADMIN_USERNAME: '#1', AUTH_BCRYPT_COST: 'many' })
    t.regex(message, /AUTH_AUDIENCE: auth-admin is for tokens of administrators/)
    t.regex(message, /AUTH_ADMIN_USERNAME: this username is reserved/)
    t.regex(message, /AUTH_BCRYPT_COST/)
  }
  t.is(readSettings({ AUTH_AUDIENCE: 'auth-administration' }).audience, 'auth-administration')
})

test('every setting is parsed in its own notation', t => {
  const settings = readSettings({
    DATABASE_URL: 'postgres://auth:pw@db/auth',
    AUTH_MASTER_KEY: key.toString('hex'),
    AUTH_GRPC_ADDRESS: '[::1]:0',
    AUTH_HTTP_ADDRESS: 'off',
    AUTH_METRICS_ADDRESS: 'off',
    AUTH_TOKEN_TTL: '15m',
    AUTH_CORS_ORIGINS: 'https://a.example, http://localhost:3000',
    AUTH_TRUSTED_PROXIES: '10.0.0.0/8,::1',
    AUTH_MAIL_FROM: 'Cadastro <auth@example.org>',
    AUTH_BCRYPT_COST: '4',
    AUTH_TIME_ZONE: 'America/Rio_Branco',
    AUTH_UNACTIVATED_RETENTION: 'off',
  })
  t.is(settings.timeZone, 'America/Rio_Branco')
  t.deepEqual(settings.masterKey, key)
  t.deepEqual(settings.grpcAddress, { host: '::1', port: 0 })
  t.is(settings.serverUrl, '[::1]:0')
  t.is(settings.httpAddress, undefined)
  t.is(settings.tokenTtl, 900)
  t.is(settings.unactivatedRetention, undefined)
  t.is(readSettings({ AUTH_UNACTIVATED_RETENTION: '30d' }).unactivatedRetention, 30 * 86_400)
  t.deepEqual(settings.corsOrigins, ['https://a.example', 'http://localhost:3000'])
  t.deepEqual(settings.trustedProxies, ['10.0.0.0/8', '::1'])
  t.deepEqual(readSettings({ AUTH_MASTER_KEY: key.toString('base64') }).masterKey, key)
  t.is(readSettings({ AUTH_TOKEN_TTL: '3600' }).tokenTtl, readSettings({ AUTH_TOKEN_TTL: '3600s' }).tokenTtl)
})

test('all invalid settings are reported together, and no message repeats a secret', t => {
  const message = faults({
    DATABASE_URL: 'mysql://root:hunter2@db/auth',
    SMTP_URL: 'http://user:hunter2@mail',
    AUTH_MASTER_KEY: 'hunter2',
    AUTH_GRPC_ADDRESS: 'localhost',
    AUTH_HTTP_ADDRESS: '::1:80',
    AUTH_METRICS_ADDRESS: '127.0.0.1:70000',
    AUTH_BCRYPT_COST: '3',
    AUTH_TOKEN_TTL: 'soon',
    AUTH_CORS_ORIGINS: 'https://a.example/path',
    AUTH_TRUSTED_PROXIES: '10.0.0.0/33',
    AUTH_RECOVERY_EMAIL: 'all',
    AUTH_MAIL_LOCALE: 'fr',
    AUTH_DEFAULT_REVISION: '2',
    AUTH_COMPATIBILITY: '1.0.4',
    AUTH_LOG_LEVEL: 'loud',
    AUTH_MAIL_FROM: 'a@b\nBcc: c@d',
    AUTH_BCRIPT_COST: 'hunter2',
  })
  for (const name of [
    ...['DATABASE_URL: ', 'SMTP_URL: ', 'AUTH_MASTER_KEY: ', 'AUTH_GRPC_ADDRESS: ', 'AUTH_HTTP_ADDRESS: '],
    ...['AUTH_METRICS_ADDRESS: ', 'AUTH_BCRYPT_COST: ', 'AUTH_TOKEN_TTL: ', 'AUTH_CORS_ORIGINS: '],
    ...['AUTH_TRUSTED_PROXIES: ', 'AUTH_RECOVERY_EMAIL: ', 'AUTH_MAIL_LOCALE: ', 'AUTH_DEFAULT_REVISION: '],
    ...['AUTH_COMPATIBILITY: ', 'AUTH_LOG_LEVEL: ', 'AUTH_MAIL_FROM: ', 'did you mean AUTH_BCRYPT_COST?'],
  ])
    t.true(message.includes(name), name)
  t.false(message.includes('hunter2'))
})

test('proxies may be listed with commas, spaces or semicolons; names and wildcards are refused with a hint', t => {
  const blocks = ['10.0.0.0/8', '::1', '::ffff:192.0.2.0/120']
  for (const between of [',', ', ', ' ', '\n', ';', ' ; '])
    t.deepEqual(readSettings({ AUTH_TRUSTED_PROXIES: blocks.join(between) }).trustedProxies, blocks, between)
  for (const value of ['loopback', 'proxy.internal', '*', 'true', '10.0.0.0/255.0.0.0', '[::1]', '10.0.0.1:8080']) {
    const message = faults({ AUTH_TRUSTED_PROXIES: `10.0.0.0/8, ${value}` })
    t.regex(
      message,
      /AUTH_TRUSTED_PROXIES: expected IP addresses or CIDR blocks, such as .* instead of its name$/,
      value,
    )
  }
})

test('a drain time is in seconds, or has a unit, or is none', t => {
  for (const [given, seconds] of [
    ['0', 0],
    ['5s', 5],
    ['1m', 60],
    ['10m', 600],
  ] as const)
    t.is(readSettings({ AUTH_DRAIN: given }).drain, seconds)
  for (const given of ['off', '-1', '11m', '1.5'])
    t.regex(faults({ AUTH_DRAIN: given }), /AUTH_DRAIN: expected a time from 0s to 10m/, given)
  t.regex(faults({ AUTH_TOKEN_TTL: '31d' }), /AUTH_TOKEN_TTL: expected a time from 1s to 30d/)
})

test('a time zone must have a known name', t => {
  for (const zone of ['UTC', 'America/Noronha', 'Etc/GMT+3'])
    t.is(readSettings({ AUTH_TIME_ZONE: zone }).timeZone, zone)
  for (const zone of ['Brazil', '-03:00', '+0300', 'America/Sao Paulo', '../etc/passwd'])
    t.regex(faults({ AUTH_TIME_ZONE: zone }), /AUTH_TIME_ZONE: expected the name of a time zone/, zone)
})

test('an external database needs a master key', t => {
  t.regex(faults({ DATABASE_URL: 'postgresql://db/auth' }), /AUTH_MASTER_KEY: is required/)
})

test('a secret can come from a file, but not from both file and variable', t => {
  const file = join(mkdtempSync(join(tmpdir(), 'settings-')), 'secret')
  writeFileSync(file, 'correct horse\n')
  t.is(readSettings({ AUTH_ADMIN_PASSWORD_FILE: file }).adminPassword, 'correct horse')
  t.regex(faults({ AUTH_ADMIN_PASSWORD_FILE: file, AUTH_ADMIN_PASSWORD: 'x' }), /both set/)
  t.regex(faults({ AUTH_ADMIN_PASSWORD_FILE: `${file}.gone` }), /ENOENT/)
})

test('a byte order mark and one line end are no part of a secret or setting, in a file or a variable', t => {
  const file = join(mkdtempSync(join(tmpdir(), 'settings-')), 'secret')
  for (const [before, after] of [
    ['', '\n'],
    ['', '\r\n'],
    ['\uFEFF', ''],
    ['\uFEFF', '\r\n'],
  ] as const) {
    const given = (text: string) => `${before}${text}${after}`
    writeFileSync(file, given(' correct horse '))
    t.is(readSettings({ AUTH_ADMIN_PASSWORD_FILE: file }).adminPassword, ' correct horse ')
    t.is(readSettings({ AUTH_ADMIN_PASSWORD_FILE: given(file) }).adminPassword, ' correct horse ')
    t.is(readSettings({ AUTH_ADMIN_PASSWORD: given(' correct horse ') }).adminPassword, ' correct horse ')
    const settings = readSettings({
      DATABASE_URL: given('postgres://auth@db/auth'),
      AUTH_MASTER_KEY: given(key.toString('base64')),
      AUTH_HTTP_ADDRESS: given('off'),
      AUTH_BCRYPT_COST: given('10'),
      AUTH_ISSUER: given('https://a.example'),
      AUTH_CORS_ORIGINS: given('https://a.example'),
      AUTH_LOG_LEVEL: given(''),
    })
    t.is(settings.databaseUrl, 'postgres://auth@db/auth')
    t.is(settings.httpAddress, undefined)
    t.is(settings.bcryptCost, 10)
    t.is(settings.issuer, 'https://a.example')
    t.deepEqual(settings.corsOrigins, ['https://a.example'])
    t.is(settings.logLevel, 'info', 'and nothing else is nothing')
    t.is(settings.origins.settings.find(({ name }) => name === 'AUTH_ISSUER')?.value, 'https://a.example')
  }
  // Only one.
  t.regex(faults({ AUTH_ADMIN_PASSWORD: 'correct horse\n\n' }), /AUTH_ADMIN_PASSWORD: must not hold control characters/)
})

test('a secret that isn’t in UTF-8 is refused with what to do, without what it is', t => {
  const file = join(mkdtempSync(join(tmpdir(), 'settings-')), 'secret')
  const text = 'hunter2 é'
  const be = Buffer.from(`\uFEFF${text}`, 'utf16le').swap16()
  for (const bytes of [
    Buffer.from(`\uFEFF${text}`, 'utf16le'),
    be,
    Buffer.from(text, 'utf16le'),
    Buffer.from('hunter2', 'utf16le'),
    Buffer.from(text, 'latin1'),
  ]) {
    writeFileSync(file, bytes)
    const message = faults({ AUTH_ADMIN_PASSWORD_FILE: file })
    t.regex(message, /AUTH_ADMIN_PASSWORD: the file that AUTH_ADMIN_PASSWORD_FILE names .*: save it in UTF-8$/m)
    t.false(message.includes('hunter2'))
  }
})

const wrongEntries: [name: string, value: string, entries: string[], says: RegExp][] = [
  [
    'AUTH_CORS_ORIGINS',
    'http://a/,app.example.org',
    ['app.example.org'],
    /has no scheme: write https:\/\/app\.example\.org/,
  ],
  ['AUTH_CORS_ORIGINS', 'localhost:3000', ['localhost:3000'], /write https:\/\/localhost:3000/],
  ['AUTH_CORS_ORIGINS', 'https://a.example/app', ['https://a.example/app'], /write https:\/\/a\.example$/],
  [
    'AUTH_CORS_ORIGINS',
    'https://a.example, ftp://b.example, *',
    ['ftp://b.example', '*'],
    /another scheme.*list each origin/,
  ],
  ['AUTH_CORS_ORIGINS', 'https://a b', ['https://a b'], /is no URL/],
  [
    'AUTH_TRUSTED_PROXIES',
    '10.0.0.0/8, proxy.internal, 10.0.0.0/33',
    ['proxy.internal', '10.0.0.0/33'],
    /instead of its name/,
  ],
  ['AUTH_GATEWAY_NAMES', 'a.example,b\u0007', ['b\\u0007'], /control characters/],
  ['AUTH_SERVER_URL', '10.0.0.1:1,10.0.0.2', ['10.0.0.2'], /is neither/],
  ['AUTH_SERVER_URL', '10.0.0.1:1,[::1]:1', ['[::1]:1'], /isn’t IPv4/],
  ['AUTH_SERVER_URL', 'a.example:1,10.0.0.1:1', ['a.example:1'], /has no IP address/],
]
for (const [name, value, entries, says] of wrongEntries) {
  test(`${name}=${JSON.stringify(value)} is refused with each wrong entry and what is wrong with it`, t => {
    const message = faults({ [name]: value, AUTH_BCRYPT_COST: '3' })
    const line = message.split('\n').find(each => each.includes(`${name}: `))!
    t.regex(line, says)
    const quoted = [...line.matchAll(/"([^"]*)"/g)].map(([, entry]) => entry)
    t.deepEqual(quoted, entries)
    t.true(message.includes('AUTH_BCRYPT_COST: '), 'and all other wrong settings')
  })
}

test('a variable whose name isn’t similar to a setting is ignored', t => {
  t.is(faults({ AUTH_NONSENSE_OF_OTHERS: 'x' }), '')
})

test('the list of names is complete', t => {
  const { origins: _, ...settings } = readSettings({})
  t.is(settingNames.length, Object.keys(settings).length)
})

test('servers are one address, several IP addresses of one version, or a name as gRPC writes it', t => {
  for (const [given, target] of [
    ['auth.example:50051', 'auth.example:50051'],
    ['http://auth.example:50051/', 'auth.example:50051'],
    ['10.0.0.1:1, 10.0.0.2:2', 'ipv4:10.0.0.1:1,10.0.0.2:2'],
    ['[::1]:1,[::2]:2', 'ipv6:[::1]:1,[::2]:2'],
    ['dns:///auth.example:50051', 'dns:///auth.example:50051'],
  ] as const) {
    t.is(readSettings({ AUTH_SERVER_URL: given }).serverUrl, target)
  }
  for (const wrong of [
    'nowhere',
    '10.0.0.1:1,[::1]:1',
    'a.example:1,b.example:1',
    '10.0.0.1:1,',
    'ftp://a.example:1',
    'xds:///auth.example:50051',
  ]) {
    t.regex(faults({ AUTH_SERVER_URL: wrong }), /AUTH_SERVER_URL: expected host:port, several/, wrong)
  }
  t.regex(faults({ AUTH_SERVER_URL: 'https://auth.example:50051' }), /AUTH_SERVER_URL: https needs AUTH_TLS_CA/)
})

test('TLS files must exist, hold valid content, and match each other', async t => {
  const authority = createAuthority('Authority')
  const { cert, key } = await writePems(t, authority.issue({ name: 'a' }))
  const other = await writePems(t, authority.issue({ name: 'b' }))
  for (const name of ['AUTH_TLS', 'AUTH_HTTP_TLS']) {
    readSettings({ [`${name}_CERT`]: cert, [`${name}_KEY`]: key })
    for (const [env, says] of [
      [{ CERT: cert }, /_CERT, \w+_KEY: set both or neither/],
      [{ CERT: cert, KEY: other.key }, /_CERT, \w+_KEY: can’t be used together/],
      [{ CERT: cert, KEY: `${key}.gone` }, /_KEY: the file can’t be read \(ENOENT\)/],
      [{ CERT: key, KEY: key }, /_CERT: the file holds no PEM block of a certificate/],
    ] as const) {
      const message = faults(Object.fromEntries(Object.entries(env).map(([part, path]) => [`${name}_${part}`, path])))
      t.regex(message, says)
      t.true(message.includes(name))
      // One sentence for one fault.
      t.is(message.split('\n').length, 2, message)
    }
  }
})
