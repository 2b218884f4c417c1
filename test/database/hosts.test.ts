/** TLS to the database, and several hosts, in URLs as of libpq. */
import { chown, mkdtemp, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test from 'ava'
import pg from 'pg'
import { type Embedded, startEmbedded } from '../../server/embedded/start.js'
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
host auth,readonly all 127.0.0.1/32 scram-sha-256
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
  const at = host.includes(':') ? host.replaceAll('PORT', port) : `${host}:${port}`
  const query = parameters && `?${parameters.replaceAll('$', encodeURIComponent(folder))}`
  const env = {
    DATABASE_URL: `postgres://auth:${password}@${at}/${database}${query}`,
    AUTH_MASTER_KEY: 'a'.repeat(64),
  }
  const { stderr } = await runCli(env, ['questions', 'list'])
  if (stderr.includes(password)) throw new Error('the output contains the password')
  if (/not installed yet/.test(stderr)) return 'connected'
  if (/is read-only/.test(stderr)) return 'read-only'
  return /can’t be reached|refuses|doesn’t support TLS/.test(stderr) ? 'refused' : stderr
}

const modes: [database: string, parameters: string, outcome: 'connected' | 'refused', host?: string][] = [
  ['tls', 'sslmode=disable', 'refused'],
  ['plain', 'sslmode=disable', 'connected'],
  ['tls', '', 'connected'],
  ['plain', '', 'connected'],
  ['tls', 'sslmode=prefer', 'connected'],
  ['plain', 'sslmode=prefer', 'connected'],
  ['tls', 'sslmode=require', 'connected'],
  ['plain', 'sslmode=require', 'refused'],
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
]
for (const [database, parameters, expected, host] of modes) {
  test(`a database that wants ${database}, ${parameters || 'no mode'} at ${host ?? 'its address'}: ${expected}`, async t => {
    t.is(await outcome(database, parameters, host), expected)
  })
}

test('the first of several hosts that accepts is used', async t => {
  t.is(await outcome('auth', '', '127.0.0.1:1,127.0.0.1:PORT'), 'connected')
  t.is(await outcome('auth', '', '127.0.0.1:PORT,127.0.0.1:1'), 'connected')
  t.is(await outcome('auth', '', '127.0.0.1:1,[::1]:2'), 'refused')
})

test('a server with read-only sessions is used only if the URL asks for one', async t => {
  await ask('CREATE DATABASE readonly')
  await ask('ALTER DATABASE readonly SET default_transaction_read_only = on')
  const twice = '127.0.0.1:PORT,127.0.0.1:PORT'
  t.is(await outcome('readonly', ''), 'connected')
  t.is(await outcome('readonly', 'target_session_attrs=read-write'), 'read-only')
  t.is(await outcome('readonly', 'target_session_attrs=primary'), 'read-only')
  t.is(await outcome('readonly', '', twice), 'read-only')
  t.is(await outcome('readonly', 'target_session_attrs=any', twice), 'connected')
})

const wrong: [url: string, says: RegExp][] = [
  ['postgres://u:hunter2@a:5432,b:x/db', /invalid port/],
  ['postgres://u:hunter2@a:70000/db', /invalid port/],
  ['postgres://u:hunter2@a:1:2/db', /invalid host/],
  ['postgres://u:hunter2@a/db?sslmod=require', /unknown parameter sslmod: expected one of host, .*sslmode/],
  [
    'postgres://u:hunter2@a/db?sslmode=hunter2',
    /sslmode: expected disable, allow, prefer, require, verify-ca, verify-full/,
  ],
  ['postgres://u:hunter2@a/db?target_session_attrs=standby', /target_session_attrs: expected any, read-write, primary/],
  ['postgres://u:hunter2@a/db?sslmode=verify-ca', /verify-ca needs sslrootcert/],
  ['postgres://u:hunter2@a/db?sslrootcert=/there/is/none', /sslrootcert: the file can’t be read \(ENOENT\)/],
  ['postgres://u:hunter2@a/db?sslcert=$/client.crt', /set both or neither/],
  ['postgres://u:hunter2@a/db?sslcert=$/client.crt&sslkey=$/foreign.key', /can’t be used together/],
  ['postgres://u:hunter2@a/db?sslrootcert=$/client.key', /no PEM block of a certificate/],
  ['postgres://u:hunter2@a/db?connect_timeout=soon', /connect_timeout: expected seconds/],
  ['postgres://u:hunter2@a,b/db?host=a,b&port=1,2,3', /as many ports as hosts/],
  ['postgres://u:hunt?er2@a/db', /unknown parameter/],
  ['postgres://u:hunt?er2&more@a/db', /unknown parameter:/],
  ['postgres://u:hunter2@a/db?uselibpqcompat=true', /unknown parameter uselibpqcompat: /],
  ['postgres://u:hunter2@a/db?sslmode=require&pgbouncer=true', /unknown parameter pgbouncer: /],
  ['postgres://u:hunter2@a/db?gssencmode=require', /gssencmode: .*use sslmode=verify-full/],
  ['postgres://u:hunter2@a/db?gssencmode=hunter2', /gssencmode: /],
  ['postgres://u:hunter2@a/db?channel_binding=require&sslmode=disable', /channel_binding=require needs TLS/],
  ['postgres://u:hunter2@a/db?channel_binding=hunter2', /channel_binding: expected disable, prefer, require/],
  ['postgres://u:hunter2@a/db?require_auth=hunter2', /require_auth: expected password, md5/],
  ['postgres://u:hunter2@a/db?require_auth=!md5,password', /require_auth: begin all methods with !, or none/],
  ['postgres://u:hunter2@a/db?sslrootcert=system&sslmode=require', /sslrootcert=system needs sslmode=verify-full/],
  ['postgres://u:hunter2@a/db?sslnegotiation=direct', /sslnegotiation=direct needs sslmode=require or stricter/],
  ['postgres://u:hunter2@a/db?sslcertmode=require', /sslcertmode=require: /],
  ['postgres://u:hunter2@a/db?sslcrldir=/x', /sslcrldir: .*sslcrl/],
  ['postgres://u:hunter2@a/db?requirepeer=postgres', /requirepeer: /],
  ['postgres://u:hunter2@a/db?service=auth', /service: .*into the URL/],
  ['postgres://u:hunter2@a/db?passfile=/there/is/none', /passfile: the file can’t be read \(ENOENT\)/],
  ['postgres://u:hunter2@a/db?replication=database', /replication: /],
  ['postgres://u:hunter2@a/db?ssl=false', /ssl: expected true/],
  ['postgres://u:hunter2@a/db?ssl_min_protocol_version=SSLv3', /ssl_min_protocol_version: expected TLSv1/],
  ['postgres://u:hunter2@a/db?min_protocol_version=3.2', /min_protocol_version: /],
  ['postgres://u:hunter2@a/db?load_balance_hosts=yes', /load_balance_hosts: expected disable, random/],
  ['postgres://u:hunter2@a/db?hostaddr=example.org', /hostaddr: expected IP addresses/],
  ['postgres://u:hunter2@a/db?options=-c%20datestyle%3DGerman', /options: leave out DateStyle/],
  [
    'postgres://u:hunter2@a/db?options=--default-transaction-isolation%3Dserializable',
    /leave out default_transaction_isolation/,
  ],
]
test('an invalid URL fails the start with the name of its setting, without quoting the URL', async t => {
  for (const [url, says] of wrong) {
    const DATABASE_URL = url.replaceAll('$', folder)
    const { code, stderr } = await runCli({ DATABASE_URL, AUTH_MASTER_KEY: 'a'.repeat(64) }, ['questions', 'list'])
    t.is(code, 1, url)
    t.regex(stderr, /DATABASE_URL: /, url)
    t.regex(stderr, says, url)
    t.notRegex(stderr, /hunt|er2/, url)
  }
})

const parameters: [database: string, parameters: string, outcome: 'connected' | 'refused', host?: string][] = [
  ['tls', 'channel_binding=require', 'connected'],
  ['tls', 'channel_binding=require&sslmode=verify-full&sslrootcert=$/root.crt', 'connected'],
  ['plain', 'channel_binding=require', 'refused'],
  ['certificate', 'channel_binding=require&sslcert=$/client.crt&sslkey=$/client.key', 'refused'],
  ['cleartext', '', 'connected'],
  ['cleartext', 'channel_binding=require', 'refused'],
  ['cleartext', 'require_auth=scram-sha-256', 'refused'],
  ['cleartext', 'require_auth=!password', 'refused'],
  ['cleartext', 'require_auth=password,md5', 'connected'],
  ['trusted', '', 'connected'],
  ['trusted', 'require_auth=scram-sha-256', 'refused'],
  ['trusted', 'channel_binding=require', 'refused'],
  ['trusted', 'require_auth=none', 'connected'],
  ['tls', 'channel_binding=disable&require_auth=scram-sha-256', 'connected'],
  ['tls', 'channel_binding=prefer&require_auth=!none,!password', 'connected'],
  ['tls', 'sslnegotiation=direct&sslmode=require', 'connected'],
  ['tls', 'ssl=true', 'connected'],
  ['plain', 'ssl=true', 'refused'],
  ['plain', 'sslmode=allow', 'connected'],
  ['tls', 'sslmode=allow', 'connected'],
  ['tls', 'sslrootcert=system', 'refused'],
  ['tls', 'sslmode=require&ssl_min_protocol_version=TLSv1.3', 'connected'],
  ['tls', 'sslmode=require&ssl_max_protocol_version=TLSv1.1', 'refused'],
  ['tls', 'sslmode=verify-full&sslrootcert=$/root.crt&host=127.0.0.1', 'connected'],
  ['tls', 'sslmode=verify-full&sslrootcert=$/root.crt&host=127.0.0.1&hostaddr=127.0.0.1', 'connected'],
  ['tls', 'sslmode=verify-full&sslrootcert=$/root.crt&host=db.example&hostaddr=127.0.0.1', 'refused'],
  ['tls', 'sslmode=require&host=db.example&hostaddr=127.0.0.1', 'connected'],
  ['tls', 'gssencmode=disable', 'connected'],
  ['tls', 'gssencmode=prefer&krbsrvname=postgres&gsslib=gssapi&gssdelegation=0', 'connected'],
  [
    'tls',
    'keepalives=1&keepalives_idle=30&keepalives_interval=10&keepalives_count=3&tcp_user_timeout=5000',
    'connected',
  ],
  ['tls', 'keepalives=0', 'connected'],
  ['tls', 'client_encoding=UTF8', 'connected'],
  ['tls', 'client_encoding=auto', 'connected'],
  ['tls', 'client_encoding=LATIN1', 'connected'],
  ['tls', 'application_name=a%20b&fallback_application_name=c', 'connected'],
  ['tls', 'connect_timeout=0', 'connected'],
  ['tls', 'connect_timeout=300', 'connected'],
  ['tls', 'sslsni=0&sslcompression=0', 'connected'],
  ['tls', 'load_balance_hosts=random', 'connected', '127.0.0.1:PORT,127.0.0.1:PORT'],
  ['tls', 'sslcertmode=disable', 'connected'],
  ['tls', 'max_protocol_version=latest&min_protocol_version=3.0', 'connected'],
  ['tls', 'options=-c%20work_mem%3D8MB', 'connected'],
  ['tls', 'sslmode=disable&sslmode=require', 'connected'],
]
for (const [database, given, expected, host] of parameters) {
  test(`parameters as libpq means them: a database that wants ${database}, ${given || 'none'}: ${expected}`, async t => {
    t.is(await outcome(database, given, host), expected)
  })
}

test('a password file of the URL gives the password of its host, port, database and role', async t => {
  const { port, password } = new URL(server.url)
  const file = join(folder, 'passwords')
  const read = async (...lines: string[]) => {
    await writeFile(file, lines.join('\n'), { mode: 0o600 })
    const DATABASE_URL = `postgres://auth@127.0.0.1:${port}/plain?passfile=${encodeURIComponent(file)}`
    const { stderr } = await runCli({ DATABASE_URL, AUTH_MASTER_KEY: 'a'.repeat(64) }, ['questions', 'list'])
    return /not installed yet/.test(stderr) ? 'connected' : stderr
  }
  t.is(await read('# comment', `127.0.0.1:${port}:plain:auth:${password}`), 'connected')
  t.is(await read(`other:*:*:*:wrong`, `*:*:*:*:${password}`, `127.0.0.1:${port}:plain:auth:wrong`), 'connected')
  t.regex(await read(`127.0.0.1:${port}:plain:auth:wrong`), /refuses the user or password/)
  t.regex(await read(`127.0.0.1:${port}:other:auth:${password}`), /asks for a password/)
})

test('channel_binding=require sends no password to a server that asks for it, and trusts none that asks for nothing', async t => {
  const { createServer } = await import('node:net')
  const authentication = (kind: number) => Buffer.from([0x52, 0, 0, 0, 8, 0, 0, 0, kind])
  for (const [kind, says] of [
    [3, /password/],
    [5, /md5/],
    [0, /no authentication/],
  ] as const) {
    let heard = ''
    const liar = createServer(socket => {
      socket.on('error', () => {})
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
    await new Promise<void>(resolve => liar.listen(0, '127.0.0.1', resolve))
    t.teardown(() => void liar.close())
    const { port } = liar.address() as { port: number }
    // TLS doesn't matter here: the guard comes before the password.
    const DATABASE_URL = `postgres://auth:hunter2@127.0.0.1:${port}/x?sslmode=disable&require_auth=scram-sha-256`
    const { stderr } = await runCli({ DATABASE_URL, AUTH_MASTER_KEY: 'a'.repeat(64) }, ['questions', 'list'])
    t.regex(stderr, /require_auth=scram-sha-256/)
    t.regex(stderr, says)
    t.is(heard, '')
  }
})
