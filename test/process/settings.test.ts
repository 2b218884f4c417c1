import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test from 'ava'
import { readSettings, type Settings, settingNames } from '../../server/process/settings.js'
import { createAuthority, writePems } from '../_helpers/certificates.js'

const key = Buffer.alloc(32, 7)
const blocks = ['10.0.0.0/8', '::1', '::ffff:192.0.2.0/120']

function faults(env: Record<string, string>): string {
  try {
    readSettings(env)
    return ''
  } catch (error) {
    return (error as Error).message
  }
}

test('an empty environment gives the documented defaults, frozen', t => {
  const {
    origins,
    currentDatabaseUrl: _,
    currentSmtpUrl: __,
    ...settings
  } = readSettings({ PATH: '/bin', AUTH_CORS_ORIGINS: '' })
  t.true(Object.isFrozen(readSettings({})))
  t.true(origins.settings.every(({ origin, value, default: fallback }) => origin === 'default' && value === fallback))
  const unset = [
    'databaseUrl',
    'smtpUrl',
    'masterKey',
    'adminPassword',
    'passwordDenylist',
    'name',
    'issuer',
    'audience',
    'drain',
  ]
  const noFiles = ['httpTlsCert', 'httpTlsKey', 'serverName', 'tlsCert', 'tlsKey', 'tlsCa', 'compatibility']
  const host = '127.0.0.1'
  t.deepEqual<unknown, unknown>(settings, {
    ...Object.fromEntries([...unset, ...noFiles].map(name => [name, undefined])),
    ...{ grpcAddress: { host, port: 50051 }, adminAddress: { host, port: 50052 }, serverUrl: '127.0.0.1:50051' },
    ...{ httpAddress: { host, port: 8080 }, metricsAddress: { host, port: 9090 }, dataDir: './.auth' },
    ...{ mailFrom: 'auth@localhost', mailLocale: 'pt-BR', recoveryEmail: 'registered', adminUsername: 'admin' },
    ...{
      bcryptCost: 12,
      passwordMinLength: 8,
      limitFactor: 1,
      strict: 'off',
      tokenTtl: 3600,
      sessionDays: 30,
      auditRetention: 400 * 86_400,
    },
    ...{ unactivatedRetention: 90 * 86_400, migrate: 'on', corsOrigins: [], trustedProxies: [], docs: 'on' },
    ...{ timeZone: 'America/Sao_Paulo', defaultRevision: '1.0.2', logLevel: 'info', gatewayNames: ['auth-gateway'] },
  })
})

/** Values of a setting, as written in notations that mean the same. */
const parsed: [setting: keyof Settings, value: unknown, env: Record<string, string>][] = [
  ['masterKey', key, { AUTH_MASTER_KEY: key.toString('hex') }],
  ['masterKey', key, { AUTH_MASTER_KEY: key.toString('base64') }],
  ['grpcAddress', { host: '::1', port: 0 }, { AUTH_GRPC_ADDRESS: '[::1]:0' }],
  ['serverUrl', '[::1]:0', { AUTH_GRPC_ADDRESS: '[::1]:0' }],
  ['httpAddress', undefined, { AUTH_HTTP_ADDRESS: 'off' }],
  ['tokenTtl', 900, { AUTH_TOKEN_TTL: '15m' }],
  ['tokenTtl', 3600, { AUTH_TOKEN_TTL: '3600' }],
  ['tokenTtl', 3600, { AUTH_TOKEN_TTL: '3600s' }],
  ['unactivatedRetention', undefined, { AUTH_UNACTIVATED_RETENTION: 'off' }],
  ['unactivatedRetention', 30 * 86_400, { AUTH_UNACTIVATED_RETENTION: '30d' }],
  ['corsOrigins', ['https://a.example', 'http://b:3000'], { AUTH_CORS_ORIGINS: 'https://a.example, http://b:3000' }],
  [
    'corsOrigins',
    ['capacitor://localhost', 'ionic://localhost', 'tauri://localhost:8080', 'app://.', 'ftp://a.example'],
    {
      AUTH_CORS_ORIGINS: 'capacitor://localhost,Ionic://LocalHost,tauri://localhost:8080/,app://.,ftp://a.example',
    },
  ],
  ['audience', 'auth-administration', { AUTH_AUDIENCE: 'auth-administration' }],
  ...[',', ', ', ' ', '\n', ';', ' ; '].map(
    between => ['trustedProxies', blocks, { AUTH_TRUSTED_PROXIES: blocks.join(between) }] as (typeof parsed)[number],
  ),
  ['drain', 0, { AUTH_DRAIN: '0' }],
  ['drain', 5, { AUTH_DRAIN: '5s' }],
  ['drain', 600, { AUTH_DRAIN: '10m' }],
  ['timeZone', 'UTC', { AUTH_TIME_ZONE: 'UTC' }],
  ['timeZone', 'America/Rio_Branco', { AUTH_TIME_ZONE: 'America/Rio_Branco' }],
  ['timeZone', 'Etc/GMT+3', { AUTH_TIME_ZONE: 'Etc/GMT+3' }],
  // Servers as gRPC writes them.
  ['serverUrl', 'auth.example:50051', { AUTH_SERVER_URL: 'auth.example:50051' }],
  ['serverUrl', 'auth.example:50051', { AUTH_SERVER_URL: 'http://auth.example:50051/' }],
  ['serverUrl', '[::1]:1', { AUTH_SERVER_URL: '[::1]:1' }],
  ['serverUrl', 'dns:///auth.example:50051', { AUTH_SERVER_URL: 'dns:///auth.example:50051' }],
]

test('every setting is parsed in its own notation', t => {
  for (const [setting, value, env] of parsed) t.deepEqual(readSettings(env)[setting], value, JSON.stringify(env))
})

test('all invalid settings are reported together, and no message repeats a secret', t => {
  const wrong = {
    ...{ DATABASE_URL: 'mysql://u:hunter2@db/auth', SMTP_URL: 'http://u:hunter2@mail', AUTH_MASTER_KEY: 'hunter2' },
    ...{ AUTH_GRPC_ADDRESS: 'localhost', AUTH_HTTP_ADDRESS: '::1:80', AUTH_METRICS_ADDRESS: '127.0.0.1:70000' },
    ...{ AUTH_BCRYPT_COST: '3', AUTH_TOKEN_TTL: 'soon', AUTH_CORS_ORIGINS: 'https://a.example/path' },
    ...{ AUTH_TRUSTED_PROXIES: '10.0.0.0/33', AUTH_RECOVERY_EMAIL: 'all', AUTH_MAIL_LOCALE: 'fr' },
    ...{ AUTH_DEFAULT_REVISION: '2', AUTH_COMPATIBILITY: '1.0.4', AUTH_LOG_LEVEL: 'loud' },
    ...{ AUTH_MAIL_FROM: 'a@b\nBcc: c@d', AUTH_ADMIN_USERNAME: '#1' },
  }
  const message = faults({ ...wrong, AUTH_BCRIPT_COST: 'hunter2' })
  for (const name of Object.keys(wrong)) t.true(message.includes(`${name}: `), name)
  t.true(message.includes('did you mean AUTH_BCRYPT_COST?'))
  t.false(message.includes('hunter2'))
  for (const [name, meant] of Object.entries({
    AUTH_TRUSTED_PROXY: 'AUTH_TRUSTED_PROXIES',
    AUTH_SMTP_URL: 'SMTP_URL',
    AUTH_DATABASE_URL_FILE: 'DATABASE_URL_FILE',
    SMTP_URL_FIL: 'SMTP_URL_FILE',
    AUTH_ISSUER_FILE: 'AUTH_ISSUER',
  }))
    t.true(faults({ [name]: 'x' }).includes(`${name}: there is no such setting; did you mean ${meant}?`), name)
  // Of other programs, and of Kubernetes for the Services `auth`, `auth-server`, `auth-registry` and `auth-http-address`.
  for (const name of [
    ...['AUTH_NONSENSE_OF_OTHERS', 'DATABASE_URL_2', 'DATABASE_URLS', 'SMTP_HOST', 'SMTP_URL_TEST'],
    ...['AUTH_PORT', 'AUTH_SERVICE_HOST', 'AUTH_SERVICE_PORT', 'AUTH_SERVICE_PORT_HTTP', 'AUTH_PORT_8080_TCP'],
    ...['AUTH_REGISTRY_PORT_8080_TCP_ADDR', 'AUTH_REGISTRY_PORT_8080_TCP_PROTO', 'AUTH_REGISTRY_PORT_53_UDP_PORT'],
    ...['AUTH_SERVER_PORT', 'AUTH_SERVER_SERVICE_HOST', 'AUTH_SERVER_SERVICE_PORT', 'AUTH_HTTP_ADDRESS_PORT'],
  ])
    t.is(faults({ [name]: 'x' }), '', name)
})

/** Wrong values, and what is wrong with them; the quoted entries of a list are those that are wrong. */
const refused: [name: string, says: RegExp, ...values: string[]][] = [
  ['AUTH_AUDIENCE', /auth-admin is for tokens of administrators/, 'auth-admin', ' AUTH-Admin ', 'ａｕｔｈ-admin'],
  ['AUTH_ADMIN_USERNAME', /this username is reserved/, '#1'],
  ['AUTH_DRAIN', /expected a time from 0s to 10m/, 'off', '-1', '11m', '1.5'],
  ['AUTH_TOKEN_TTL', /expected a time from 1s to 30d/, '31d'],
  ['AUTH_TIME_ZONE', /expected the name of a/, 'Brazil', '-03:00', '+0300', 'America/Sao Paulo', '../etc/passwd'],
  ['AUTH_TRUSTED_PROXIES', /expected IP addresses or CIDR blocks, such as .*name$/, 'loopback', '*', 'true', '[::1]'],
  ['AUTH_TRUSTED_PROXIES', / instead of its name$/, '10.0.0.0/255.0.0.0', '10.0.0.1:8080'],
  ['AUTH_TRUSTED_PROXIES', /"proxy\.internal" is.*"10\.0\.0\.0\/33" is/, '10.0.0.0/8, proxy.internal, 10.0.0.0/33'],
  [
    'AUTH_SERVER_URL',
    /expected host:port, such as/,
    'nowhere',
    'ftp://a.example:1',
    'xds:///a.example:1',
    'ipv4:10.0.0.1:1',
  ],
  ['AUTH_SERVER_URL', /names several addresses; name one/, '10.0.0.1:1,10.0.0.2:2', 'a.example:1,b.example:1'],
  ['AUTH_SERVER_URL', /https needs AUTH_TLS_CA/, 'https://auth.example:50051'],
  ['AUTH_CORS_ORIGINS', /"app\.example\.org" has no scheme: write https:\/\/app/, 'http://a/,app.example.org'],
  ['AUTH_CORS_ORIGINS', /write https:\/\/localhost:3000/, 'localhost:3000'],
  ['AUTH_CORS_ORIGINS', /"https:\/\/a\.example\/app".*write https:\/\/a\.example$/, 'https://a.example/app'],
  ['AUTH_CORS_ORIGINS', /"\*".*list each/, 'https://a.example, *'],
  [
    'AUTH_CORS_ORIGINS',
    /"https:\/\/\*\.a\.example".*list each/,
    'https://*.a.example',
    'https://b.example,https://*.a.example',
  ],
  ['AUTH_SESSION_DAYS', /expected .*1.*400/, '0', '401', '1.5', '30d'],
  ['AUTH_CORS_ORIGINS', /"null".*list each/, 'null'],
  ['AUTH_CORS_ORIGINS', /"file:\/\/.*is a file/, 'file://', 'file:///a.html', 'file://host'],
  ['AUTH_CORS_ORIGINS', /has no host/, 'capacitor://', 'tauri:///x'],
  [
    'AUTH_CORS_ORIGINS',
    /more than scheme.*write capacitor:\/\/localhost$/,
    'capacitor://localhost/app',
    'capacitor://u@localhost',
  ],
  ['AUTH_CORS_ORIGINS', /is no URL/, 'https://a b'],
  ['AUTH_GATEWAY_NAMES', /"b\\u0007".*control characters/, 'a.example,b\u0007'],
]

test('a wrong value is refused with each wrong entry and what is wrong with it, together with other settings', t => {
  for (const [name, says, ...values] of refused) {
    for (const value of values) {
      const message = faults({ [name]: value, AUTH_BCRYPT_COST: '3' })
      const line = message.split('\n').find(each => each.includes(`${name}: `)) ?? ''
      t.regex(line.replace(/^.*?: /, ''), says, `${name}=${value}`)
      t.notRegex(line, /"(10\.0\.0\.0\/8|10\.0\.0\.1:1|a\.example|http:\/\/a\/|https:\/\/a\.example)"/, 'a right entry')
      t.true(message.includes('AUTH_BCRYPT_COST: '))
    }
  }
  t.regex(faults({ DATABASE_URL: 'postgresql://db/auth' }), /AUTH_MASTER_KEY: is required/)
  for (const audience of ['https://a.example', ' HTTPS://A.example '])
    t.regex(faults({ AUTH_ISSUER: 'https://a.example', AUTH_AUDIENCE: audience }), /AUTH_AUDIENCE: must not be equal/)
})

/** A file with a secret. */
function secretFile(content: string | Buffer): string {
  const file = join(mkdtempSync(join(tmpdir(), 'settings-')), 'secret')
  writeFileSync(file, content)
  return file
}

test('a value in quotation marks is refused, of any setting and in a file, with what to do and without the value', t => {
  for (const [before, after] of ['""', "''"].map(pair => [...pair]) as [string, string][]) {
    const given = (text: string) => `${before}${text}${after}`
    for (const name of ['AUTH_ISSUER', 'AUTH_DATA_DIR', 'AUTH_ADMIN_USERNAME', 'AUTH_ADMIN_PASSWORD', 'DATABASE_URL'])
      t.regex(
        faults({ [name]: given('planted') }),
        new RegExp(`${name}: the value is in quotation marks, ${before}…${after}: leave them out`),
      )
    const content = faults({ SMTP_URL_FILE: secretFile(given('smtp://planted')) })
    const path = faults({ SMTP_URL_FILE: given(secretFile('smtp://host')) })
    t.regex(content, /SMTP_URL: the content of the file that SMTP_URL_FILE names is in quotation marks/)
    t.regex(path, /SMTP_URL: SMTP_URL_FILE is in quotation marks/)
    t.false(content.includes('planted'))
  }
  t.is(faults({ AUTH_MAIL_FROM: '"Registro" <auth@example.org>', AUTH_ADMIN_PASSWORD: `it's "one"` }), '')
})

test('a secret can come from a file, but not from both file and variable', t => {
  const file = secretFile('correct horse\n')
  t.is(readSettings({ AUTH_ADMIN_PASSWORD_FILE: file }).adminPassword, 'correct horse')
  t.regex(faults({ AUTH_ADMIN_PASSWORD_FILE: file, AUTH_ADMIN_PASSWORD: 'x' }), /both set/)
  t.regex(faults({ SMTP_URL_FILE: `${file}.gone` }), /ENOENT/)
})

test('a byte order mark and one line end are no part of a secret or setting, in a file or a variable', t => {
  for (const frame of ['x\n', 'x\r\n', '\uFEFFx', '\uFEFFx\r\n']) {
    const given = (text: string) => frame.replace('x', text)
    const file = secretFile(given(' correct horse '))
    for (const env of [
      { AUTH_ADMIN_PASSWORD_FILE: file },
      { AUTH_ADMIN_PASSWORD_FILE: given(file) },
      { AUTH_ADMIN_PASSWORD: given(' correct horse ') },
    ])
      t.is(readSettings(env).adminPassword, ' correct horse ')
    const { origins, ...settings } = readSettings({
      DATABASE_URL: given('postgres://auth@db/auth'),
      AUTH_MASTER_KEY: given(key.toString('base64')),
      AUTH_HTTP_ADDRESS: given('off'),
      AUTH_BCRYPT_COST: given('10'),
      AUTH_ISSUER: given('https://a.example'),
      AUTH_CORS_ORIGINS: given('https://a.example'),
      AUTH_LOG_LEVEL: given(''),
    })
    t.like(settings, { databaseUrl: 'postgres://auth@db/auth', httpAddress: undefined, bcryptCost: 10 })
    // Nothing else is nothing.
    t.like(settings, { issuer: 'https://a.example', corsOrigins: ['https://a.example'], logLevel: 'info' })
    t.is(origins.settings.find(({ name }) => name === 'AUTH_ISSUER')?.value, 'https://a.example')
  }
  // Only one.
  t.regex(faults({ AUTH_ADMIN_PASSWORD: 'correct horse\n\n' }), /AUTH_ADMIN_PASSWORD: must not hold control characters/)
})

test('a secret that isn’t in UTF-8 is refused with what to do, without what it is', t => {
  const marked = Buffer.from('\uFEFFhunter2 é', 'utf16le')
  for (const bytes of [
    ...[marked, Buffer.from(marked).swap16(), Buffer.from('hunter2 é', 'latin1')],
    ...[Buffer.from('hunter2 é', 'utf16le'), Buffer.from('hunter2', 'utf16le')],
  ]) {
    const message = faults({ AUTH_ADMIN_PASSWORD_FILE: secretFile(bytes) })
    t.regex(message, /AUTH_ADMIN_PASSWORD: the file that AUTH_ADMIN_PASSWORD_FILE names .*: save it in UTF-8$/m)
    t.false(message.includes('hunter2'))
  }
})

test('the list of names is complete', t => {
  const { origins: _, currentDatabaseUrl: __, currentSmtpUrl: ___, ...settings } = readSettings({})
  t.is(settingNames.length, Object.keys(settings).length)
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
