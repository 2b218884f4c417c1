import { join } from 'node:path'
import test from 'ava'
import pg from 'pg'
import { remoteUser, runCli } from '../_helpers/cli.js'
import { startTestService } from '../_helpers/service.js'

/** The fault, the exit code, and the error locally and at a server. */
const faults: {
  readonly what: string
  readonly code: number
  readonly local: RegExp
  readonly remote: RegExp
  /** Statements before and after. */
  readonly sql?: readonly [before: string, after: string]
  /** Whether the statements run in another database than `:name`. */
  readonly elsewhere?: true
  /** The command, if not an edit of the organization. */
  readonly args?: readonly string[]
}[] = [
  {
    what: 'no such record',
    code: 3,
    local: /no organization/,
    remote: /no organization/,
    args: ['organizations', 'show', 'Nenhuma'],
  },
  {
    what: 'a wrong field',
    code: 2,
    local: /page token/i,
    remote: /page token/i,
    args: ['users', 'list', '--page-token', 'x'],
  },
  {
    what: 'a refusal by the state',
    code: 5,
    local: /last active administrator/,
    remote: /last active administrator/,
    args: ['users', 'suspend', 'admin', '--yes', '--reason', 'teste'],
  },
  ...(
    [
      ['a read-only database', '25006', 7, /is read-only/],
      ['a conflict', '40001', 7, /can’t answer now/],
      ['a full disk', '53100', 7, /can’t answer now/],
      ['a statement that takes too long', '57014', 7, /can’t be reached/],
      ['no rights', '42501', 1, /lacks the rights/],
      ['an unforeseen fault', 'XX000', 1, /went wrong/],
    ] as const
  ).map(([what, state, code, local]) => ({
    what,
    code,
    local,
    remote:
      code === 7
        ? /can’t answer now; its database may be unreachable\. Try again later/
        : /failed\. Its log has the cause, under request [\w-]+\./,
    sql: [
      `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = '${state}'; END $$;
       CREATE TRIGGER fail BEFORE UPDATE ON organizations FOR EACH ROW EXECUTE FUNCTION fail()`,
      'DROP FUNCTION fail CASCADE',
    ] as const,
  })),
  {
    what: 'a lock that is held',
    code: 7,
    local: /holds a lock on this record: try again/,
    remote: /can’t answer now/,
    sql: ['SET idle_in_transaction_session_timeout = 0; BEGIN; SELECT FROM organizations FOR UPDATE', 'ROLLBACK'],
  },
  {
    what: 'a table that is missing',
    code: 5,
    local: /not installed/,
    remote: /tables of the database don’t match this version/,
    sql: ['ALTER TABLE organizations RENAME TO others', 'ALTER TABLE others RENAME TO organizations'],
  },
  {
    what: 'a column that is missing',
    code: 5,
    local: /older version/,
    remote: /tables of the database don’t match this version/,
    sql: ['ALTER TABLE organizations RENAME website TO site', 'ALTER TABLE organizations RENAME site TO website'],
  },
  {
    what: 'a database that takes no connections',
    code: 7,
    local: /database/,
    remote: /can’t answer now/,
    sql: [
      `ALTER DATABASE :name ALLOW_CONNECTIONS false;
       SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = ':name'`,
      'ALTER DATABASE :name ALLOW_CONNECTIONS true',
    ],
    elsewhere: true,
  },
]

test('a fault has the same exit code on the database itself and at a server, whose error never mentions DATABASE_URL', async t => {
  const service = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0', AUTH_LOG_LEVEL: 'silent' })
  const { env: away, config, login } = await remoteUser(t, service)
  // With the log of commands by default.
  const here = { ...service.env, AUTH_LOG_LEVEL: 'info', XDG_CONFIG_HOME: join(config, 'other') }
  t.is((await login('--context', 'prod')).code, 0)
  const { id } = await service.organization()
  const databaseUrl = service.env.DATABASE_URL!
  const connect = async (connectionString: string) => {
    const client = new pg.Client({ connectionString })
    await client.connect()
    t.teardown(() => client.end())
    return client.on('error', () => {})
  }
  const within = await connect(databaseUrl)
  const beside = await connect(Object.assign(new URL(databaseUrl), { pathname: '/postgres' }).href)
  const prepare = (sql: string, elsewhere?: true) =>
    (elsewhere ? beside : within).query(sql.replaceAll(':name', new URL(databaseUrl).pathname.slice(1)))

  for (const [index, { what, code, local, remote, sql, elsewhere, args }] of faults.entries()) {
    if (sql) await prepare(sql[0], elsewhere)
    const command = args ?? ['organizations', 'edit', String(id), '--phone', String(index)]
    const [byItself, byServer] = [await runCli(here, command), await runCli(away, command)]
    if (sql) await prepare(sql[1], elsewhere)
    t.deepEqual([byItself.code, byServer.code], [code, code], `${what}: ${byItself.stderr}${byServer.stderr}`)
    for (const { stderr } of [byItself, byServer]) t.regex(stderr, /^error: [^\n]+\n$/, what)
    t.regex(byItself.stderr, local, what)
    t.regex(byServer.stderr, remote, what)
    t.notRegex(byServer.stderr, /DATABASE_URL|PostgreSQL/, what)
  }
})
