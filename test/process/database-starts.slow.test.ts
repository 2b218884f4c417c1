import { type AddressInfo, createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import { runCli } from '../_helpers/cli.js'
import { ask, createDatabase, databaseOfRole, freshDatabase, type Teardown } from '../_helpers/database.js'
import { launch, serviceEnv } from '../_helpers/spawned.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { waitFor } from '../_helpers/wait.js'

const secret = 'verywrong'
const superUrl = (name: string) => Object.assign(new URL(process.env.TEST_DATABASE_URL!), { pathname: `/${name}` }).href
const nameOf = (url: string) => new URL(url).pathname.slice(1)
const as = (url: string, change: Partial<URL>) => Object.assign(new URL(url), change).href

/** The URL with this parameter. */
function withParameter(url: string, name: string, value: string): string {
  const changed = new URL(url)
  changed.searchParams.set(name, value)
  return changed.href
}

/** A database that its role doesn’t own. */
async function databaseForStranger(t: Teardown, ...statements: readonly string[]): Promise<string> {
  const url = await databaseOfRole(t, 'ALTER DATABASE :name OWNER TO CURRENT_USER')
  for (const each of statements) await ask(superUrl(nameOf(url)), each.replaceAll(':name', nameOf(url)))
  return url
}

/** An empty database with an encoding, of a role. */
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

/** A message of PostgreSQL's protocol. */
const errorMessage = (code: string, message: string) => {
  const body = `SFATAL\0VFATAL\0C${code}\0M${message}\0\0`
  const head = Buffer.alloc(5, 'E')
  head.writeInt32BE(Buffer.byteLength(body) + 4, 1)
  return head.toString('latin1') + body
}

interface Case {
  readonly what: string
  readonly url: (t: ExecutionContext) => Promise<string>
  readonly says: (url: string) => RegExp
  /** Exit code of the command line. */
  readonly code?: number
  readonly env?: Record<string, string>
}

const final: readonly Case[] = [
  {
    what: 'a role without CREATE on the schema',
    url: t => databaseForStranger(t),
    says: url => new RegExp(`\`GRANT CREATE ON SCHEMA public TO ${nameOf(url)}\` in the database ${nameOf(url)}`),
  },
  {
    what: 'a role without USAGE on the schema',
    url: t => databaseForStranger(t, 'REVOKE ALL ON SCHEMA public FROM PUBLIC'),
    says: url => new RegExp(`\`GRANT USAGE, CREATE ON SCHEMA public TO ${nameOf(url)}\``),
  },
  {
    what: 'a search_path without a schema',
    url: t => databaseOfRole(t, `ALTER ROLE :name SET search_path = 'missing'`),
    says: url => new RegExp(`search_path \\(missing\\).*\`GRANT USAGE, CREATE ON SCHEMA missing TO ${nameOf(url)}\``),
  },
  {
    what: 'a role whose name needs quotes, without CREATE',
    async url(t) {
      const url = await databaseForStranger(t)
      const role = `Auth Úser ${nameOf(url)}`
      t.teardown(async () => void (await ask(superUrl('postgres'), `DROP ROLE "${role}"`)))
      await ask(superUrl('postgres'), `CREATE ROLE "${role}" LOGIN PASSWORD 'x'`)
      return as(url, { username: encodeURIComponent(role) })
    },
    says: url => new RegExp(`\`GRANT CREATE ON SCHEMA public TO "Auth Úser ${nameOf(url)}"\``),
  },
  {
    what: 'a role without rights on the tables',
    async url(t) {
      const ready = await freshDatabase(t)
      const role = `${nameOf(ready)}_r`
      await ask(superUrl('postgres'), `CREATE ROLE ${role} LOGIN PASSWORD 'x'`)
      return as(ready, { username: role, password: 'x' })
    },
    says: url =>
      new RegExp(
        `lacks the rights.*\`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO ${nameOf(url)}_r\`.*\`GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO ${nameOf(url)}_r\``,
      ),
  },
  {
    what: 'a role that may not connect',
    url: t => databaseForStranger(t, 'REVOKE CONNECT ON DATABASE :name FROM PUBLIC'),
    says: url => new RegExp(`\`GRANT CONNECT ON DATABASE ${nameOf(url)} TO ${nameOf(url)}\``),
  },
  {
    what: 'a LATIN1 database',
    url: t => databaseWith(t, 'LATIN1'),
    says: () => /has the encoding LATIN1.*`CREATE DATABASE \S+ ENCODING 'UTF8' TEMPLATE template0`/,
  },
  {
    what: 'an SQL_ASCII database',
    url: t => databaseWith(t, 'SQL_ASCII'),
    says: () => /has the encoding SQL_ASCII.*ENCODING 'UTF8'/,
  },
  {
    what: 'tables of another application',
    url: t => databaseOfRole(t, 'CREATE TABLE users (id int)'),
    says: () => /already has a table or function.*of another application.*empty database/,
  },
  {
    what: 'a server of an old version',
    // A function in front of PostgreSQL's own.
    url: t =>
      databaseOfRole(
        t,
        `CREATE SCHEMA old; GRANT USAGE ON SCHEMA old TO PUBLIC;
         CREATE FUNCTION old.current_setting(text) RETURNS text LANGUAGE sql AS
           $$ SELECT CASE $1 WHEN 'server_version_num' THEN '130014' WHEN 'server_version' THEN '13.14' ELSE pg_catalog.current_setting($1) END $$;
         ALTER DATABASE :name SET search_path = public, old, pg_catalog`,
      ),
    says: () => /PostgreSQL 13\.14.*version 14 or newer/,
  },
  {
    what: 'no TLS at the server, with sslmode=require',
    url: async t => withParameter(await freshDatabase(t), 'sslmode', 'require'),
    says: () => /doesn’t support TLS.*sslmode=require.*`ssl = on`/,
  },
  {
    what: 'no TLS at the server, with sslmode=verify-full',
    url: async t => withParameter(await freshDatabase(t), 'sslmode', 'verify-full'),
    says: () => /doesn’t support TLS.*sslmode=verify-full/,
  },
  {
    what: 'a wrong password',
    url: async t => as(await databaseOfRole(t), { password: secret }),
    says: () => /refuses the user or password of DATABASE_URL/,
  },
  {
    what: 'no such role',
    url: async t => as(await freshDatabase(t), { username: 'there_is_none', password: secret }),
    says: () => /refuses the user or password of DATABASE_URL/,
  },
  {
    what: 'a role without LOGIN',
    url: t => databaseOfRole(t, 'ALTER ROLE :name NOLOGIN'),
    says: () => /refuses.*LOGIN.*pg_hba\.conf/,
  },
  {
    what: 'no password',
    url: async t => as(await databaseOfRole(t), { password: '' }),
    says: () => /asks for a password.*DATABASE_URL .*has none/,
  },
  {
    what: 'a line of pg_hba.conf that is missing',
    url: t => serverThatSays(t, errorMessage('28000', 'no pg_hba.conf entry for host')),
    says: () => /refuses.*pg_hba\.conf/,
    env: { PGSSLMODE: 'disable' },
  },
  {
    what: 'no such database',
    url: async t => as(await freshDatabase(t), { pathname: '/there_is_none' }),
    says: () => /The database that DATABASE_URL names (doesn’t|does not) exist/,
  },
  {
    what: 'a database that takes no connections',
    async url(t) {
      const url = await databaseOfRole(t)
      await ask(superUrl('postgres'), `ALTER DATABASE ${nameOf(url)} ALLOW_CONNECTIONS false`)
      return url
    },
    says: url => new RegExp(`takes no connections.*\`ALTER DATABASE ${nameOf(url)} ALLOW_CONNECTIONS true\``),
    code: 7,
  },
  {
    what: 'no such host',
    url: async t => as(await freshDatabase(t), { hostname: 'there-is-none.invalid' }),
    says: () => /host|can’t be reached/,
    code: 7,
  },
  {
    what: 'a pooler that refuses a startup parameter',
    url: t => serverThatSays(t, errorMessage('08P01', 'unsupported startup parameter: options')),
    says: () => /startup parameter options.*ignore_startup_parameters/,
    env: { PGSSLMODE: 'disable' },
  },
  {
    what: 'options with an unknown setting',
    url: async t => withParameter(await databaseOfRole(t), 'options', '-c there_is_none=1'),
    says: () => /refuses the connection \(42704\).*options/,
  },
  {
    what: 'a web server instead of a database',
    url: t => serverThatSays(t, 'HTTP/1.1 400 Bad Request\r\n\r\n'),
    says: () => /doesn’t answer as PostgreSQL/,
  },
  {
    what: 'a mail server instead of a database',
    url: t => serverThatSays(t, '', '220 mail.example ESMTP\r\n'),
    says: () => /doesn’t answer as PostgreSQL/,
  },
  {
    what: 'channel_binding=require at a server without TLS',
    url: async t =>
      withParameter(withParameter(await databaseOfRole(t), 'sslmode', 'prefer'), 'channel_binding', 'require'),
    says: () => /channel_binding=require/,
  },
  {
    what: 'require_auth with another method',
    url: async t => withParameter(await databaseOfRole(t), 'require_auth', 'md5'),
    says: () => /require_auth=md5.*scram-sha-256/,
  },
]

for (const { what, url: make, says, code: expected = 1, env = {} } of final) {
  test(`a start with ${what} ends at once: one sentence, exit code 1; the command line: ${expected}`, async t => {
    const DATABASE_URL = await make(t)
    const program = launch(t, await serviceEnv(t, { ...env, DATABASE_URL }))
    const code = await program.ended
    const said = program.output().replace(/^\{.*\n/gm, '')
    t.is(code, 1, program.output())
    t.regex(said, /^[A-Z][^\n]*\.\n$/)
    t.regex(said, says(DATABASE_URL))
    t.notRegex(said, new RegExp(`${secret}| {4}at |permission denied|SASL|self.signed certificate`))
    // Not waited for.
    t.notRegex(program.output(), /waiting for the database/)

    const dataDir = await temporaryFolder(t)
    const own = { ...env, DATABASE_URL, AUTH_MASTER_KEY: 'a'.repeat(64), AUTH_DATA_DIR: dataDir }
    const install = await runCli(own, ['install'])
    t.is(install.code, expected, install.stderr)
    t.regex(install.stderr, /^error: [^\n]+\.\n$/)
    t.regex(install.stderr, says(DATABASE_URL))
    t.notRegex(install.stderr, new RegExp(`${secret}| {4}at |Internal error`))
  })
}

const waiting: readonly Case[] = [
  { what: 'a port that refuses', url: async () => `postgres://u:${secret}@127.0.0.1:1/x`, says: () => /ECONNREFUSED/ },
  {
    what: 'no Unix socket',
    url: async () => `postgres://u:${secret}@/x?host=${encodeURIComponent(join(tmpdir(), 'there-is-none'))}`,
    says: () => /ENOENT/,
  },
  {
    what: 'a server that never answers',
    url: async t => `${await serverThatSays(t, '')}?connect_timeout=1`,
    says: () => /no answer/,
  },
  {
    what: 'a host out of reach',
    url: async () => `postgres://u:${secret}@[::ffff:203.0.113.1]:1,127.0.0.1:1/x?connect_timeout=1`,
    says: () => /E[A-Z]+|no answer/,
  },
  {
    what: 'a read-only standby',
    url: t => databaseOfRole(t, 'ALTER DATABASE :name SET default_transaction_read_only = on'),
    says: () => /25006/,
  },
  {
    what: 'no connection left',
    url: t => databaseOfRole(t, 'ALTER ROLE :name CONNECTION LIMIT 0'),
    says: () => /53300/,
  },
]

for (const { what, url: make, says } of waiting) {
  test(`a start with ${what} waits without work, and ends at once on SIGTERM; the command line: 7`, async t => {
    const DATABASE_URL = await make(t)
    const program = launch(t, await serviceEnv(t, { DATABASE_URL, AUTH_DRAIN: '10m' }))
    const line = await waitFor(() => /.*waiting for the database.*/.exec(program.output())?.[0], program.output)
    t.regex(line, says(DATABASE_URL))
    t.notRegex(line, new RegExp(secret))
    t.true(program.alive())
    program.child.kill('SIGTERM')
    t.is(await program.ended, 0)

    const { code, stderr } = await runCli({ DATABASE_URL, AUTH_MASTER_KEY: 'a'.repeat(64) }, ['install'])
    t.is(code, 7, stderr)
    t.regex(stderr, /^error: [^\n]+\.\n$/)
  })
}
