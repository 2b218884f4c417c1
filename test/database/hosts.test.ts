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
  for (const name of ['tls', 'plain', 'certificate']) await ask(`CREATE DATABASE ${name}`)
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
  return /can’t be reached|refuses/.test(stderr) ? 'refused' : stderr
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
  ['postgres://u:hunter2@a/db?sslmod=require', /unknown parameter: expected one of host, .*sslmode/],
  ['postgres://u:hunter2@a/db?sslmode=hunter2', /sslmode: expected disable, prefer, require, verify-ca, verify-full/],
  ['postgres://u:hunter2@a/db?target_session_attrs=standby', /target_session_attrs: expected any, read-write, primary/],
  ['postgres://u:hunter2@a/db?sslmode=verify-ca', /verify-ca needs sslrootcert/],
  ['postgres://u:hunter2@a/db?sslrootcert=/there/is/none', /sslrootcert: the file can’t be read \(ENOENT\)/],
  ['postgres://u:hunter2@a/db?sslcert=$/client.crt', /set both or neither/],
  ['postgres://u:hunter2@a/db?sslcert=$/client.crt&sslkey=$/foreign.key', /can’t be used together/],
  ['postgres://u:hunter2@a/db?sslrootcert=$/client.key', /no PEM block of a certificate/],
  ['postgres://u:hunter2@a/db?connect_timeout=soon', /connect_timeout: expected seconds/],
  ['postgres://u:hunter2@a,b/db?host=a,b&port=1,2,3', /as many ports as hosts/],
  ['postgres://u:hunt?er2@a/db', /unknown parameter/],
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
