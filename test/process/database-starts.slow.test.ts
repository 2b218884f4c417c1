/** Starts of the service, and a command, on a database that isn't as it should be: one sentence, and no wait without a reason. */
import { readFileSync } from 'node:fs'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test from 'ava'
import { done, newIdentity } from '../_helpers/backups.js'
import { runCli } from '../_helpers/cli.js'
import { ask, createDatabase, databaseOfRole, freshDatabase, type Teardown } from '../_helpers/database.js'
import { launch, serviceEnv, spawnService } from '../_helpers/spawned.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { waitFor } from '../_helpers/wait.js'

const secret = 'verywrong'
const superUrl = (name: string) => Object.assign(new URL(process.env.TEST_DATABASE_URL!), { pathname: `/${name}` }).href
const nameOf = (url: string) => new URL(url).pathname.slice(1)
const as = (url: string, change: Partial<URL>) => Object.assign(new URL(url), change).href

/** The URL with these parameters. */
function withParameters(url: string, parameters: Record<string, string>): string {
  const changed = new URL(url)
  for (const [name, value] of Object.entries(parameters)) changed.searchParams.set(name, value)
  return changed.href
}

/** A database that its role doesn’t own. */
async function databaseForStranger(t: Teardown, statement = ''): Promise<string> {
  const url = await databaseOfRole(t, 'ALTER DATABASE :name OWNER TO CURRENT_USER')
  await ask(superUrl(nameOf(url)), statement.replaceAll(':name', nameOf(url)))
  return url
}

/** A database that an additional role uses. */
async function databaseFor(t: Teardown, url: string, role: string): Promise<string> {
  await ask(superUrl('postgres'), `CREATE ROLE "${role}" LOGIN PASSWORD 'x'`)
  t.teardown(async () => void (await ask(superUrl('postgres'), `DROP ROLE "${role}"`)))
  return as(url, { username: encodeURIComponent(role), password: 'x' })
}

/** An empty database with an encoding. */
async function databaseWith(t: Teardown, encoding: string): Promise<string> {
  const { url, drop } = await createDatabase({
    from: `template0 ENCODING '${encoding}' LOCALE_PROVIDER libc LOCALE 'C'`,
    name: `test_${encoding.toLowerCase()}_${process.pid}_${Date.now()}`,
  })
  t.teardown(async () => void (await drop()))
  return url
}

/** A server that answers the first bytes with a text, or with none, and keeps the connection. */
async function serverThatSays(t: Teardown, text: string, first?: string): Promise<string> {
  const sockets = new Set<Socket>()
  const server = createServer(socket => {
    sockets.add(socket.on('error', () => {}))
    if (first) socket.write(first)
    socket.on('data', () => text && socket.write(text))
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(async () => {
    server.close()
    for (const socket of sockets) socket.destroy()
  })
  return `postgres://u:${secret}@127.0.0.1:${(server.address() as AddressInfo).port}/x`
}

/** A server that refuses the connection with an error of PostgreSQL's protocol. */
async function serverThatRefuses(t: Teardown, code: string, message: string): Promise<string> {
  const body = `SFATAL\0VFATAL\0C${code}\0M${message}\0\0`
  const head = Buffer.alloc(5, 'E')
  head.writeInt32BE(Buffer.byteLength(body) + 4, 1)
  return `${await serverThatSays(t, head.toString('latin1') + body)}?sslmode=disable`
}

/** The URL of a database; and what is said of it, where NAME is the name of database and role. */
type Case = readonly [url: (t: Teardown) => Promise<string>, says: string, code?: number]

const final: Readonly<Record<string, Case>> = {
  'a role without CREATE on the schema': [
    databaseForStranger,
    '`GRANT CREATE ON SCHEMA public TO NAME` in the database NAME',
  ],
  'a role without USAGE on the schema': [
    t => databaseForStranger(t, 'REVOKE ALL ON SCHEMA public FROM PUBLIC'),
    '`GRANT USAGE, CREATE ON SCHEMA public TO NAME`',
  ],
  'a search_path without a schema': [
    t => databaseOfRole(t, `ALTER ROLE :name SET search_path = 'missing'`),
    'search_path \\(missing\\).*`GRANT USAGE, CREATE ON SCHEMA missing TO NAME`',
  ],
  'a role whose name needs quotes, without CREATE': [
    async t => {
      const url = await databaseForStranger(t)
      return databaseFor(t, url, `Auth Úser ${nameOf(url)}`)
    },
    '`GRANT CREATE ON SCHEMA public TO "Auth Úser NAME"`',
  ],
  'a role without rights on the tables': [
    async t => {
      const url = await freshDatabase(t)
      return databaseFor(t, url, `${nameOf(url)}_r`)
    },
    'lacks the rights.*`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO NAME_r`.*`GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO NAME_r`',
  ],
  'a role that may not connect': [
    t => databaseForStranger(t, 'REVOKE CONNECT ON DATABASE :name FROM PUBLIC'),
    '`GRANT CONNECT ON DATABASE NAME TO NAME`',
  ],
  'a LATIN1 database': [
    t => databaseWith(t, 'LATIN1'),
    "has the encoding LATIN1.*`CREATE DATABASE \\S+ ENCODING 'UTF8' TEMPLATE template0`",
  ],
  'an SQL_ASCII database': [t => databaseWith(t, 'SQL_ASCII'), "has the encoding SQL_ASCII.*ENCODING 'UTF8'"],
  'tables of another application': [
    t => databaseOfRole(t, 'CREATE TABLE users (id int)'),
    'already has a table or function.*of another application.*empty database',
  ],
  'a server of an old version': [
    // A function in front of PostgreSQL's own.
    t =>
      databaseOfRole(
        t,
        `CREATE SCHEMA old; GRANT USAGE ON SCHEMA old TO PUBLIC;
         CREATE FUNCTION old.current_setting(text) RETURNS text LANGUAGE sql AS
           $$ SELECT CASE $1 WHEN 'server_version_num' THEN '130014' WHEN 'server_version' THEN '13.14' ELSE pg_catalog.current_setting($1) END $$;
         ALTER DATABASE :name SET search_path = public, old, pg_catalog`,
      ),
    'PostgreSQL 13\\.14.*version 14 or newer',
  ],
  'no TLS at the server, with sslmode=verify-full': [
    async t => withParameters(await freshDatabase(t), { sslmode: 'verify-full' }),
    'doesn’t support TLS.*sslmode=verify-full.*`ssl = on`',
  ],
  'a wrong password': [
    async t => as(await databaseOfRole(t), { password: secret }),
    'refuses the user or password of DATABASE_URL',
  ],
  'no such role': [
    async t => as(await freshDatabase(t), { username: 'there_is_none', password: secret }),
    'refuses the user or password of DATABASE_URL',
  ],
  'a role without LOGIN': [t => databaseOfRole(t, 'ALTER ROLE :name NOLOGIN'), 'refuses.*LOGIN.*pg_hba\\.conf'],
  'no password': [
    async t => as(await databaseOfRole(t), { password: '' }),
    'asks for a password.*DATABASE_URL .*has none',
  ],
  'a line of pg_hba.conf that is missing': [
    t => serverThatRefuses(t, '28000', 'no pg_hba.conf entry for host'),
    'refuses.*pg_hba\\.conf',
  ],
  'no such database': [
    async t => as(await freshDatabase(t), { pathname: '/there_is_none' }),
    'The database of DATABASE_URL.* doesn’t exist',
  ],
  'a database that takes no connections': [
    async t => {
      const url = await databaseOfRole(t)
      await ask(superUrl('postgres'), `ALTER DATABASE ${nameOf(url)} ALLOW_CONNECTIONS false`)
      return url
    },
    ...(['takes no connections.*`ALTER DATABASE NAME ALLOW_CONNECTIONS true`', 7] as const),
  ],
  'no such host': [
    async t => as(await freshDatabase(t), { hostname: 'there-is-none.invalid' }),
    ...(['host|can’t be reached', 7] as const),
  ],
  'a pooler that refuses a startup parameter': [
    t => serverThatRefuses(t, '08P01', 'unsupported startup parameter: options'),
    'startup parameter options.*ignore_startup_parameters',
  ],
  'options with an unknown setting': [
    async t => withParameters(await databaseOfRole(t), { options: '-c there_is_none=1' }),
    'refuses the connection \\(42704\\).*options',
  ],
  'a web server instead of a database': [
    t => serverThatSays(t, 'HTTP/1.1 400 Bad Request\r\n\r\n'),
    'doesn’t answer as PostgreSQL',
  ],
  'a mail server instead of a database': [
    t => serverThatSays(t, '', '220 mail.example ESMTP\r\n'),
    'doesn’t answer as PostgreSQL',
  ],
  'channel_binding=require at a server without TLS': [
    async t => withParameters(await databaseOfRole(t), { sslmode: 'require', channel_binding: 'require' }),
    'channel_binding=require',
  ],
}

const AUTH_MASTER_KEY = 'a'.repeat(64)

for (const [what, [make, says, expected = 1]] of Object.entries(final)) {
  test(`a start with ${what} ends at once: one sentence, exit code 1; the command line: ${expected}`, async t => {
    const DATABASE_URL = await make(t)
    const program = launch(t, await serviceEnv(t, { DATABASE_URL }))
    const pattern = new RegExp(says.replaceAll('NAME', nameOf(DATABASE_URL)))
    t.is(await program.ended, 1, program.output())
    // Not waited for.
    t.notRegex(program.output(), /waiting for the database/)
    const said = program.output().replace(/^\{.*\n/gm, '')
    t.regex(said, /^[A-Z][^\n]*\.\n$/)
    const install = await runCli({ DATABASE_URL, AUTH_MASTER_KEY }, ['install'])
    t.is(install.code, expected, install.stderr)
    t.regex(install.stderr, /^error: [^\n]+\.\n$/)
    for (const text of [said, install.stderr]) t.regex(text, pattern)
    const unwanted = new RegExp(`${secret}| {4}at |permission denied|SASL|self.signed certificate|Internal error`)
    t.notRegex(said + install.stderr, unwanted)
  })
}

const at = (host: string) => async () => `postgres://u:${secret}@${host}`

const waiting: Readonly<Record<string, Case>> = {
  'a port that refuses': [at('127.0.0.1:1/x'), 'ECONNREFUSED'],
  'a password among the parameters': [async () => `postgres://u@127.0.0.1:1/x?password=${secret}`, 'ECONNREFUSED'],
  'no Unix socket': [at(`/x?host=${encodeURIComponent(join(tmpdir(), 'there-is-none'))}`), 'ENOENT'],
  'a server that never answers': [async t => `${await serverThatSays(t, '')}?connect_timeout=1`, 'no answer'],
  'an IPv6 address': [at('[::ffff:127.0.0.1]:1/x'), 'ECONNREFUSED'],
  'a read-only standby': [
    t => databaseOfRole(t, 'ALTER DATABASE :name SET default_transaction_read_only = on'),
    '25006',
  ],
  'no connection left': [t => databaseOfRole(t, 'ALTER ROLE :name CONNECTION LIMIT 0'), '53300'],
}

for (const [what, [make, says]] of Object.entries(waiting)) {
  test(`a start with ${what} waits without work, and ends at once on SIGTERM; the command line: 7`, async t => {
    const DATABASE_URL = await make(t)
    const program = launch(t, await serviceEnv(t, { DATABASE_URL, AUTH_DRAIN: '10m' }))
    const line = await waitFor(() => /.*waiting for the database.*/.exec(program.output())?.[0], program.output)
    t.regex(line, new RegExp(says))
    t.notRegex(line, new RegExp(secret))
    t.true(program.alive())
    program.child.kill('SIGTERM')
    t.is(await program.ended, 0)
    const { code, stderr } = await runCli({ DATABASE_URL, AUTH_MASTER_KEY }, ['install'])
    t.is(code, 7, stderr)
    t.regex(stderr, /^error: [^\n]+\.\n$/)
    if (!/^(25006|53300)$/.test(says)) t.regex(stderr, new RegExp(`can’t be reached \\((${says})\\)`))
  })
}

test('with the two roles of the handbook, the owner migrates and restores, and the service runs, backs up and starts again', async t => {
  const handbook = readFileSync(new URL('../../../docs/operations.md', import.meta.url), 'utf8')
  const [create = '', grant = ''] = [...handbook.matchAll(/```sql\n([\s\S]*?)```/g)].map(
    ([, statements]) => statements!,
  )
  const name = `test_${process.pid}_${Date.now()}`
  const owner = `${name}_owner`
  const service = `${name}_service`
  const own = (text: string) =>
    text
      .replaceAll('auth_owner', owner)
      .replaceAll('auth_service', service)
      .replace(/DATABASE auth\b/, `DATABASE ${name}`)
  t.teardown(async () => {
    await ask(superUrl('postgres'), `DROP DATABASE IF EXISTS ${name} WITH (FORCE)`)
    for (const role of [owner, service]) await ask(superUrl('postgres'), `DROP ROLE IF EXISTS ${role}`)
  })
  for (const statement of own(create).split(/;\n/).filter(Boolean)) await ask(superUrl('postgres'), statement)
  for (const role of [owner, service]) await ask(superUrl('postgres'), `ALTER ROLE ${role} PASSWORD 'x'`)
  await ask(superUrl(name), own(grant))

  const settings = (username: string) => {
    const DATABASE_URL = as(superUrl(name), { username, password: 'x' })
    return { DATABASE_URL, AUTH_MASTER_KEY, AUTH_MIGRATE: 'off' }
  }
  const [asOwner, asService] = [settings(owner), settings(service)]
  const start = async () => {
    const process = await spawnService(t, asService)
    process.child.kill('SIGTERM')
    t.is(await process.ended, 0)
  }
  done(await runCli(asOwner, ['migrate', 'up']))
  await start()
  const folder = await temporaryFolder(t)
  const file = join(folder, 'registry.age')
  const { recipient, identity } = await newIdentity(folder)
  done(await runCli(asService, ['backup', file, '--recipient', recipient]))
  const restore = ['restore', file, '--identity', identity, '--replace', '--yes']
  const refused = async (command: string[]) => {
    const { code, stderr } = await runCli(asService, command)
    t.is(code, 1)
    const says = 'error: Only the role that owns the tables may do this: set DATABASE_URL to the URL of'
    t.true(stderr.endsWith(`${says} ${owner}.\n`), stderr)
  }
  await refused(restore)
  done(await runCli(asOwner, restore))
  await start()
  done(await runCli(asService, ['audit', 'verify', '--local']))
  await ask(superUrl(name), 'DELETE FROM migrations')
  await refused(['migrate', 'up'])
})
