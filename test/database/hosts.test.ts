/** What a database URL is read as: TLS, authentication, and the parameters that are refused. */
import { chown, mkdtemp, rm, stat, writeFile } from 'node:fs/promises'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { TLSSocket } from 'node:tls'
import test from 'ava'
import pg from 'pg'
import { type Embedded, startEmbedded } from '../../server/embedded/start.js'
import { readSettings } from '../../server/process/settings.js'
import { createAuthority } from '../_helpers/certificates.js'
import { runCli } from '../_helpers/cli.js'
import { waitForValue } from '../_helpers/wait.js'

const authority = createAuthority('Test')
const other = createAuthority('Other')
let folder: string
let server: Embedded

/** The rules of pg_hba.conf for each database. */
const doors = `hostssl tls all 127.0.0.1/32 scram-sha-256
hostnossl plain all 127.0.0.1/32 scram-sha-256
hostssl certificate all 127.0.0.1/32 cert
hostssl cleartext all 127.0.0.1/32 password
hostssl trusted all 127.0.0.1/32 trust
host auth all 127.0.0.1/32 scram-sha-256
`

async function ask(sql: string): Promise<void> {
  const client = new pg.Client({ connectionString: server.url })
  await client.connect()
  await client.query(sql).finally(() => client.end())
}

test.before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'auth-tls-'))
  server = await startEmbedded({ dataDir: folder, log: { info() {}, warn() {} }, durable: false })
  const { uid, gid } = await stat(join(folder, 'postgres'))
  const own = authority.issue({ name: 'postgres', addresses: ['127.0.0.1'] })
  const client = authority.issue({ name: 'auth' })
  const foreign = other.issue({ name: 'auth' })
  const files = {
    'postgres/server.crt': own.cert,
    'postgres/server.key': own.key,
    'postgres/root.crt': authority.certificate,
    'postgres/pg_hba.conf': doors,
    'root.crt': authority.certificate,
    'other.crt': other.certificate,
    'client.crt': client.cert,
    'client.key': client.key,
    'foreign.crt': foreign.cert,
    'foreign.key': foreign.key,
  }
  for (const [name, content] of Object.entries(files)) {
    await writeFile(join(folder, name), content, { mode: 0o600 })
    if (name.startsWith('postgres/')) await chown(join(folder, name), uid, gid)
  }
  for (const name of ['tls', 'plain', 'certificate', 'cleartext', 'trusted']) await ask(`CREATE DATABASE ${name}`)
  for (const setting of [`ssl_ca_file = 'root.crt'`, 'ssl = on']) await ask(`ALTER SYSTEM SET ${setting}`)
  await ask('SELECT pg_reload_conf()')
  await waitForValue(() => outcome('tls', 'sslmode=require'), 'connected')
})

test.after.always(async () => {
  await server.stop()
  await rm(folder, { recursive: true, force: true })
})

/** The outcome of a command on a database with these parameters; `$` in them is the folder of the certificates. */
async function outcome(database: string, parameters: string, host = '127.0.0.1'): Promise<string> {
  const { port, password } = new URL(server.url)
  const query = parameters && `?${parameters.replaceAll('$', encodeURIComponent(folder))}`
  const env = {
    DATABASE_URL: `postgres://auth:${password}@${host}:${port}/${database}${query}`,
    AUTH_MASTER_KEY: 'a'.repeat(64),
  }
  const { stderr } = await runCli(env, ['questions', 'list'])
  if (stderr.includes(password)) throw new Error('the output contains the password')
  if (/not installed yet/.test(stderr)) return 'connected'
  return /can’t be reached|refuses|doesn’t support TLS/.test(stderr) ? 'refused' : stderr
}

const modes: [database: string, parameters: string, outcome: 'connected' | 'refused', host?: string][] = [
  ['tls', 'sslmode=disable', 'refused'],
  ['plain', 'sslmode=disable', 'connected'],
  ['tls', '', 'connected'],
  ['plain', '', 'connected'],
  ['tls', 'sslmode=', 'connected'],
  ['tls', 'sslmode=prefer', 'connected'],
  ['plain', 'sslmode=prefer', 'connected'],
  ['tls', 'sslmode=require', 'connected'],
  ['plain', 'sslmode=require', 'refused'],
  ['tls', 'sslmode=disable&sslmode=require', 'connected'],
  ['plain', 'sslmode=require&sslmode=disable', 'connected'],
  ['tls', 'sslmode=require&sslrootcert=$/root.crt', 'connected'],
  ['tls', 'sslmode=require&sslrootcert=$/other.crt', 'refused'],
  ['tls', 'sslmode=verify-ca&sslrootcert=$/root.crt', 'connected', 'localhost'],
  ['tls', 'sslmode=verify-ca&sslrootcert=$/other.crt', 'refused'],
  ['tls', 'sslmode=verify-full&sslrootcert=$/root.crt', 'connected'],
  ['tls', 'sslmode=verify-full&sslrootcert=$/root.crt', 'refused', 'localhost'],
  ['tls', 'sslmode=verify-full&sslrootcert=$/other.crt', 'refused'],
  ['tls', 'sslmode=verify-full', 'refused'],
  ['certificate', 'sslmode=require', 'refused'],
  ['certificate', 'sslmode=require&sslcert=$/client.crt&sslkey=$/client.key', 'connected'],
  ['certificate', 'sslmode=require&sslcert=$/foreign.crt&sslkey=$/foreign.key', 'refused'],
  ['tls', 'sslmode=require&channel_binding=require', 'connected'],
  ['tls', 'channel_binding=require&sslmode=verify-full&sslrootcert=$/root.crt', 'connected'],
  ['tls', 'channel_binding=disable', 'connected'],
  ['plain', 'sslmode=require&channel_binding=require', 'refused'],
  ['certificate', 'sslmode=require&channel_binding=require&sslcert=$/client.crt&sslkey=$/client.key', 'refused'],
  ['cleartext', '', 'connected'],
  ['cleartext', 'sslmode=require&channel_binding=require', 'refused'],
  ['trusted', '', 'connected'],
  ['trusted', 'sslmode=require&channel_binding=require', 'refused'],
  ['tls', 'sslmode=require&sslnegotiation=direct', 'connected'],
  ['tls', 'host=127.0.0.1&sslmode=verify-full&sslrootcert=$/root.crt', 'connected', 'there-is-none.invalid'],
  ['tls', 'application_name=a%20b&fallback_application_name=c&connect_timeout=0', 'connected'],
  ['tls', 'options=-c%20work_mem%3D8MB', 'connected'],
]
for (const [database, parameters, expected, host] of modes) {
  test(`a database that wants ${database}, ${parameters || 'no mode'} at ${host ?? 'its address'}: ${expected}`, async t => {
    t.is(await outcome(database, parameters, host), expected)
  })
}

const wrong: [url: string, says: RegExp][] = [
  ['mysql://u:hunter2@a/db', /expected a URL postgres:/],
  ['postgres://u:hunter2@a:70000/db', /invalid host or port/],
  ['postgres://u:hunter2@a:1:2/db', /invalid host or port/],
  ['postgres://u:hunter2@a,b/db', /expected one host/],
  ['postgres://u:hunter2@a:1,b:2/db', /expected one host/],
  ['postgres://u:hunter2@/db?host=a,b', /expected one host/],
  ['postgres://u:hunter%FF2@a/db', /invalid percent-encoding|invalid host/],
  ['postgres://u:hunter2@a/db?sslmode=hunter2', /sslmode: expected disable, prefer, require, verify-ca, verify-full/],
  ['postgres://u:hunter2@a/db?sslmode=allow', /sslmode: expected disable, prefer/],
  ['postgres://u:hunter2@a/db?sslmode=no-verify', /sslmode: expected disable, prefer/],
  ['postgres://u:hunter2@a/db?sslmode=verify-ca', /verify-ca needs sslrootcert/],
  ['postgres://u:hunter2@a/db?sslrootcert=/there/is/none', /sslrootcert: the file can’t be read \(ENOENT\)/],
  ['postgres://u:hunter2@a/db?sslcert=$/client.crt', /set both or neither/],
  ['postgres://u:hunter2@a/db?sslcert=$/client.crt&sslkey=$/foreign.key', /can’t be used together/],
  ['postgres://u:hunter2@a/db?sslrootcert=$/client.key', /no PEM block of a certificate/],
  ['postgres://u:hunter2@a/db?connect_timeout=soon', /connect_timeout: expected seconds/],
  ['postgres://u:hunt?er2@a/db', /unknown parameter/],
  ['postgres://u:hunt?er2&more@a/db', /unknown parameter:/],
  ['postgres://u:hunter2@a/db?channel_binding=require', /channel_binding=require needs TLS/],
  ['postgres://u:hunter2@a/db?channel_binding=hunter2', /channel_binding: expected disable, prefer, require/],
  ['postgres://u:hunter2@a/db?sslnegotiation=direct', /sslnegotiation=direct needs sslmode=require or stricter/],
  ['postgres://u:hunter2@a/db?options=-c%20datestyle%3DGerman', /options: leave out DateStyle/],
  [
    'postgres://u:hunter2@a/db?options=--default-transaction-isolation%3Dserializable',
    /leave out default_transaction_isolation/,
  ],
  // What libpq, the driver or others know, and what is mistyped.
  ...[
    ...['sslmod', 'target_session_attrs', 'hostaddr', 'passfile', 'dbname', 'ssl', 'sslcrl', 'require_auth', 'service'],
    ...[
      'gssencmode',
      'load_balance_hosts',
      'keepalives',
      'tcp_user_timeout',
      'replication',
      'ssl_min_protocol_version',
    ],
    ...['uselibpqcompat', 'pgbouncer', 'schema', 'statement_timeout', 'query_timeout', 'client_encoding', 'encoding'],
  ].map(
    name =>
      [`postgres://u:hunter2@a/db?${name}=hunter2`, new RegExp(`unknown parameter ${name}: expected one of host,`)] as [
        string,
        RegExp,
      ],
  ),
]
test('an invalid URL fails the start with the name of its setting, without quoting the URL', t => {
  for (const [url, says] of wrong) {
    const { message } = t.throws(() => readSettings({ DATABASE_URL: url.replaceAll('$', folder) }), undefined, url)!
    t.regex(message, /DATABASE_URL: /, url)
    t.regex(message, says, url)
    t.notRegex(message, /hunt|er2/, url)
  }
})

test('channel_binding=require sends no password to a server that asks for it otherwise, and trusts none that asks for nothing', async t => {
  const { cert, key } = authority.issue({ name: 'liar', addresses: ['127.0.0.1'] })
  const authentication = (kind: number) => Buffer.from([0x52, 0, 0, 0, 8, 0, 0, 0, kind])
  for (const [kind, says] of [
    [3, /password/],
    [5, /md5/],
    [0, /no authentication/],
  ] as const) {
    let heard = ''
    const liar = createServer(plain => {
      plain.on('error', () => {})
      plain.once('data', () => {
        plain.write('S')
        const socket = new TLSSocket(plain, { isServer: true, cert, key }).on('error', () => {})
        socket.once('data', () => {
          socket.write(
            kind === 5
              ? Buffer.concat([Buffer.from([0x52, 0, 0, 0, 12, 0, 0, 0, 5]), Buffer.from('salt')])
              : authentication(kind),
          )
          socket.on('data', bytes => {
            heard += bytes
          })
        })
      })
    })
    await new Promise<void>(resolve => liar.listen(0, '127.0.0.1', resolve))
    t.teardown(() => void liar.close())
    const { port } = liar.address() as AddressInfo
    const DATABASE_URL = `postgres://auth:hunter2@127.0.0.1:${port}/x?sslmode=require&channel_binding=require`
    const { stderr } = await runCli({ DATABASE_URL, AUTH_MASTER_KEY: 'a'.repeat(64) }, ['questions', 'list'])
    t.regex(stderr, /channel_binding=require/)
    t.regex(stderr, says)
    t.is(heard, '')
  }
})
