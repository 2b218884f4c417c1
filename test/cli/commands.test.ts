import { hostname, userInfo } from 'node:os'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import pg from 'pg'
import { createProgram } from '../../cli/program.js'
import { openDatabase } from '../../server/database/connection.js'
import { createCounterKeys } from '../../server/models/attempt.js'
import { createStoredKeys } from '../../server/models/data-key.js'
import { installedRegistry, leaves, remoteUser, runCli, spawnCli } from '../_helpers/cli.js'
import { startTestService } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

interface Run {
  readonly args: readonly string[]
  /** The event that it leaves when it changes something. */
  readonly action?: string
  /** Whether it finds nothing to change the second time. */
  readonly once?: true
}

const newPassword = 'uma girafa bem alta 7'
const why = ['--reason', 'teste']

/** Every command except those below, in an order in which each change has an effect. */
const commands: Record<string, readonly Run[]> = {
  install: [{ args: [] }],
  migrate: [{ args: ['status'] }, { args: ['plan'] }, { args: ['up'] }],
  issuer: [
    { args: ['show'] },
    {
      args: ['set', '--issuer', 'https://b.example', '--audience', 'b', '--confirm', 'https://b.example'],
      action: 'registry.set-issuer',
      once: true,
    },
  ],
  organizations: [
    { args: ['create', '--name', 'Escola Azul'], action: 'organization.add' },
    { args: ['edit', 'Escola Azul', '--phone', '7'], action: 'organization.edit', once: true },
    { args: ['rotate-key', 'Escola Azul', '--yes'], action: 'organization.rotate-key' },
    { args: ['deactivate', 'Escola Azul', '--yes'], action: 'organization.deactivate', once: true },
    { args: ['activate', 'Escola Azul'], action: 'organization.activate', once: true },
    { args: ['list'] },
    { args: ['show', 'Escola Azul'], action: 'organization.show-key' },
    { args: ['members', 'list', 'Escola Azul'] },
    { args: ['delete', 'Escola Azul', '--confirm', 'Escola Azul'], action: 'organization.delete' },
  ],
  questions: [
    { args: ['create', '--question', 'Qual é a cor do mar?'], action: 'question.add' },
    { args: ['edit', '1', '--question', 'Qual era?'], action: 'question.edit', once: true },
    { args: ['retire', '1'], action: 'question.retire', once: true },
    { args: ['offer', '1'], action: 'question.restore', once: true },
    { args: ['link', 'Nome do primeiro pet', '1', '--yes'], action: 'question.link' },
    { args: ['order', '3', '1'], action: 'question.order', once: true },
    { args: ['list'] },
    { args: ['show', '1'] },
    { args: ['unmatched', 'list'] },
  ],
  users: [
    { args: ['unlock', 'admin'], action: 'user.unlock', once: true },
    { args: ['activate', 'admin', '--confirm', 'admin', ...why], action: 'user.activate', once: true },
    {
      args: ['create', '--username', 'ana', '--role', 'ROLE_CLIENT', '--state', 'SP', '--city', 'Bauru'],
      action: 'user.add',
    },
    { args: ['edit', 'ana', '--city', 'Santos'], action: 'user.edit', once: true },
    { args: ['suspend', 'ana', '--yes'], action: 'user.suspend', once: true },
    { args: ['resume', 'ana'], action: 'user.resume', once: true },
    { args: ['edit', 'ana', '--email', 'ana@example.org'], action: 'user.set-email', once: true },
    { args: ['set-password', 'ana', '--password-file', '-', ...why], action: 'user.set-password' },
    { args: ['set-role', 'ana', 'ROLE_INSTITUTION', '--yes'], action: 'user.set-role', once: true },
    { args: ['activate', 'ana'], action: 'user.activate', once: true },
    { args: ['rotate-provider-key', 'ana', '--yes'], action: 'user.rotate-provider-key' },
    { args: ['set-organization', 'ana', '--none', '--yes'] },
    { args: ['revoke-tokens', 'ana', '--yes'], action: 'user.revoke-tokens' },
    { args: ['clear-answers', 'ana', '--yes'] },
    { args: ['send-key', 'ana'], action: 'user.send-key' },
    { args: ['why', 'ana'] },
    { args: ['lockouts', 'list'] },
    { args: ['list'] },
    { args: ['show', 'admin'] },
    { args: ['export', 'ana'], action: 'user.export' },
    { args: ['delete', 'ana', '--yes'], action: 'user.delete', once: true },
    { args: ['undelete', 'ana'], action: 'user.undelete', once: true },
    { args: ['erase', 'ana', '--confirm', 'ana'], action: 'user.erase' },
  ],
  services: [
    { args: ['create', 'grades', '--may', 'users.read'], action: 'service.add' },
    { args: ['list'] },
    { args: ['show', 'grades'] },
    { args: ['edit', 'grades', '--may', 'tokens.verify'], action: 'service.edit', once: true },
    { args: ['keys', 'list', 'grades'] },
    { args: ['keys', 'create', 'grades'], action: 'service.add-key' },
    { args: ['keys', 'delete', 'grades', '1', '--yes'], action: 'service.delete-key' },
    { args: ['delete', 'grades', '--confirm', 'grades'], action: 'service.delete' },
  ],
  keys: [{ args: ['rotate'], action: 'signing-key.rotate' }, { args: ['list'] }],
  mail: [
    { args: ['list'] },
    { args: ['show', '1'] },
    { args: ['retry', '1'], action: 'email.retry' },
    { args: ['retry', '--failed'] },
    { args: ['delete', '1', '--yes'], action: 'email.discard' },
    { args: ['test', 'ana@example.org'], action: 'email.test' },
  ],
  audit: [{ args: ['list'] }, { args: ['show', '1'] }, { args: ['verify'] }, { args: ['export'] }],
  contexts: [{ args: ['list'] }],
  imports: [{ args: ['list'] }],
  whoami: [{ args: [] }],
  config: [{ args: [] }],
}

/** An installed registry whose administrator is inactive and locked. */
async function installed(t: ExecutionContext) {
  const env = await installedRegistry(t)
  const client = new pg.Client({ connectionString: env.DATABASE_URL })
  await client.connect()
  t.teardown(() => client.end())
  const ask = async (sql: string, values?: unknown[]) => (await client.query(sql, values)).rows
  const database = openDatabase(env.DATABASE_URL, 1)
  const masterKey = createStoredKeys(database, Buffer.from(env.AUTH_MASTER_KEY, 'base64'))
  await masterKey.load()
  await database.close()
  const subject = createCounterKeys(masterKey).account('password', 'admin')
  await ask('UPDATE users SET active = false')
  await ask("UPDATE users SET security_question = 'Nome do primeiro pet'")
  await ask("INSERT INTO unmatched_answers SELECT id, security_question, 'nome do primeiro pet', 'hash' FROM users")
  await ask(
    `INSERT INTO emails (kind, parameters, locale) VALUES ('recovery-key', '{"userId": 1, "to": "a@b.c"}', 'en')`,
  )
  await ask(`INSERT INTO attempts (subject, count, window_ends) VALUES ($1, 10, now() + interval '1 hour')`, [subject])
  return { env, ask }
}

/** They have separate tests. */
const elsewhere = [
  ...['audit tail', 'backup', 'completion', 'contexts delete', 'contexts show', 'contexts use', 'doctor'],
  ...['imports abort', 'imports show', 'keys retire', 'keys show', 'login', 'logout', 'manual'],
  ...['master-key rotate', 'organizations export', 'organizations import', 'import database', 'imports undo'],
  ...['restore', 'totp enroll', 'totp delete', 'users import'],
]

test('every command is run below', t => {
  const all = leaves(createProgram()).map(({ path }) => path)
  const run = Object.entries(commands).flatMap(([noun, runs]) =>
    runs.map(({ args }) => all.find(path => [noun, ...args, ''].join(' ').startsWith(`${path} `)) ?? noun),
  )
  t.deepEqual([...new Set(run), ...elsewhere].sort(), all.sort())
})

test('every command with `--yes` is also run without it below', t => {
  const asking = leaves(createProgram()).filter(({ command }) => command.options.some(({ long }) => long === '--yes'))
  const confirmed = Object.entries(commands).flatMap(([noun, runs]) =>
    runs.filter(({ args }) => args.includes('--yes')).map(({ args }) => [noun, ...args, ''].join(' ')),
  )
  t.deepEqual(
    asking.map(({ path }) => path).filter(path => !confirmed.some(run => run.startsWith(`${path} `))),
    // `install` and `master-key rotate` ask at a terminal only, `keys rotate` only with --now, `restore` only to replace;
    // `import database` reads another database.
    ['keys rotate', 'install', 'master-key rotate', 'restore', 'import database'],
  )
})

/** The names in a document that are neither in lowerCamelCase nor of the contract. */
function otherNames(value: unknown): string[] {
  if (typeof value !== 'object' || value === null) return []
  const contract = ['creation_date', 'inep_code']
  return Object.entries(value).flatMap(([name, each]) => [
    ...(Array.isArray(value) || /^[a-z]+([A-Z][a-z]+)*$/.test(name) || contract.includes(name) ? [] : [name]),
    ...otherNames(each),
  ])
}

for (const [noun, runs] of Object.entries(commands)) {
  test(`${noun} prints one JSON document, and leaves one event if it changes something, otherwise none`, async t => {
    const { env, ask } = await installed(t)
    const newest = async () => (await ask('SELECT max(id)::int AS id FROM audit_events'))[0]!.id as number
    for (const [index, { args, action, once }] of runs.entries()) {
      // A program starts for one command of each noun: its start is the same for all.
      const start = index === 0 ? spawnCli : runCli
      const before = await newest()
      if (args.includes('--yes')) {
        const unconfirmed = await runCli(env, [noun, ...args.filter(arg => arg !== '--yes'), '--json'])
        t.deepEqual([unconfirmed.code, await newest()], [2, before], args.join(' '))
        t.regex(unconfirmed.stderr, /pass --yes\.\n$/)
      }
      const { code, stdout, stderr } = await start(env, [noun, ...args, '--json'], newPassword)
      t.deepEqual([code, stderr], [0, ''], args.join(' '))
      // Never an array: a list has its noun, and how it continues.
      t.is(Object.prototype.toString.call(JSON.parse(stdout)), '[object Object]', args.join(' '))
      t.deepEqual(otherNames(JSON.parse(stdout)), [], args.join(' '))
      const left = await ask('SELECT action, outcome, actor FROM audit_events WHERE id > $1', [before])
      const actor = `cli:${userInfo().username}@${hostname()}`
      const expected = action === undefined ? [] : [{ action, outcome: 'ok', actor }]
      t.deepEqual(left, expected, args.join(' '))
      if (!once) continue
      t.is((await runCli(env, [noun, ...args])).code, 0)
      t.is(await newest(), before + 1, args.join(' '))
    }
  })
}

interface Failing {
  readonly args: readonly string[]
  readonly code: 1 | 2 | 3 | 4 | 5 | 7
  /** For errors of the service. */
  readonly reason?: string
  /** Without a reachable database. */
  readonly away?: true
}

const missing = (...args: string[]): Failing => ({ args, code: 3, reason: 'RECORD_NOT_FOUND' })
const unknownUser = (...args: string[]): Failing => ({ args: ['unknown', ...args], code: 3, reason: 'USER_NOT_FOUND' })
const invalidArguments = (...args: string[]): Failing => ({ args, code: 2 })
const wrong = (...args: string[]): Failing => ({ args, code: 2, reason: 'INVALID_ARGUMENT' })
const unreached: Failing = { args: [], code: 7, away: true }

/** One failure of every command. */
const failures: Record<string, Failing> = {
  'audit export': { args: ['--user', 'unknown'], code: 3, reason: 'USER_NOT_FOUND' },
  'audit list': wrong('--page-token', 'forged'),
  'audit show': missing('999999'),
  'audit tail': invalidArguments('--limit', '0'),
  'audit verify': invalidArguments('--known', `1:${'0'.repeat(63)}g`),
  backup: { ...unreached, args: ['registry.age', '--passphrase-file', '-'] },
  completion: invalidArguments('tcsh'),
  config: invalidArguments('extra'),
  'contexts list': invalidArguments('extra'),
  'contexts delete': { args: ['nowhere'], code: 3 },
  'contexts show': { args: ['nowhere'], code: 3 },
  'contexts use': { args: ['nowhere'], code: 3 },
  doctor: { ...unreached, code: 1 },
  'imports abort': missing('99'),
  'imports list': wrong('--page-token', 'forged'),
  'imports show': missing('99'),
  'imports undo': missing('99', '--confirm', '99'),
  install: unreached,
  'issuer set': {
    args: ['--issuer', 'https://b.example', '--confirm', 'https://c.example'],
    code: 2,
    reason: 'CONFIRMATION_NEEDED',
  },
  'issuer show': unreached,
  'keys list': unreached,
  'keys retire': invalidArguments('none', '--confirm', 'other'),
  'keys rotate': unreached,
  'keys show': missing('none'),
  login: invalidArguments('ftp://server'),
  logout: { args: [], code: 4 },
  'mail delete': missing('99', '--yes'),
  'mail list': wrong('--page-token', 'forged'),
  'mail retry': missing('99'),
  'mail show': missing('99'),
  'mail test': wrong('invalid'),
  manual: invalidArguments('extra'),
  'master-key rotate': { args: ['--new-key-file', '-'], code: 1 },
  'migrate plan': { ...unreached, reason: 'UNAVAILABLE' },
  'migrate status': { ...unreached, reason: 'UNAVAILABLE' },
  'migrate up': unreached,
  'organizations activate': missing('Nenhuma'),
  'organizations create': invalidArguments(),
  'organizations deactivate': missing('Nenhuma', '--yes'),
  'organizations delete': missing('Nenhuma', '--confirm', 'Nenhuma'),
  'organizations edit': missing('Nenhuma', '--phone', '7'),
  'organizations export': invalidArguments('-'),
  'organizations import': { args: ['none.csv'], code: 1 },
  'organizations list': wrong('--page-token', 'forged'),
  'organizations members list': missing('Nenhuma'),
  'organizations rotate-key': missing('Nenhuma', '--yes'),
  'organizations show': missing('Nenhuma'),
  'questions create': invalidArguments(),
  'questions edit': missing('99', '--question', 'Qual?'),
  'questions link': missing('Qual?', '99', '--yes'),
  'questions list': unreached,
  'questions offer': missing('99'),
  'questions order': missing('99'),
  'questions retire': missing('99'),
  'questions show': missing('99'),
  'questions unmatched list': unreached,
  'import database': { args: ['postgres://127.0.0.1:1/none', '--yes', '--reason', 'teste'], code: 1 },
  restore: { args: ['none.age', '--passphrase-file', '-'], code: 1 },
  'services create': wrong('gr ades', '--may', 'users.read'),
  'services keys create': missing('none'),
  'services edit': missing('none', '--may', 'users.read'),
  'services keys delete': missing('none', '1', '--yes'),
  'services keys list': missing('none'),
  'services list': unreached,
  'services delete': missing('none', '--confirm', 'none'),
  'services show': missing('none'),
  'totp enroll': { args: ['--code-file', 'none'], code: 5, reason: 'WRONG_STATE' },
  'totp delete': unknownUser('--confirm', 'unknown'),
  'users activate': unknownUser(),
  'users clear-answers': unknownUser('--yes'),
  'users create': {
    args: ['--username', 'ADMIN', '--role', 'ROLE_CLIENT', '--state', 'SP', '--city', 'Bauru'],
    code: 2,
    reason: 'INVALID_SIGN_UP',
  },
  'users delete': { args: ['admin', '--yes', '--reason', 'teste'], code: 5, reason: 'LAST_ADMINISTRATOR' },
  'users edit': unknownUser('--city', 'Bauru'),
  'users erase': { args: ['admin', '--confirm', 'outro', '--reason', 'teste'], code: 2, reason: 'CONFIRMATION_NEEDED' },
  'users export': unknownUser(),
  'users import': { args: ['none.csv'], code: 1 },
  'users list': wrong('--page-token', 'forged'),
  'users lockouts list': wrong('--page-token', 'forged'),
  'users resume': unknownUser(),
  'users revoke-tokens': unknownUser('--yes'),
  'users rotate-provider-key': { args: ['admin', '--yes'], code: 5, reason: 'WRONG_STATE' },
  'users send-key': { args: ['admin'], code: 5, reason: 'WRONG_STATE' },
  'users set-organization': unknownUser('--none'),
  'users set-password': { args: ['admin', '--password-file', '-'], code: 2, reason: 'JUSTIFICATION_NEEDED' },
  'users set-role': invalidArguments('admin', 'ROLE_KING'),
  'users show': unknownUser(),
  'users suspend': { args: ['admin', '--yes'], code: 5, reason: 'LAST_ADMINISTRATOR' },
  'users undelete': unknownUser(),
  'users unlock': unknownUser(),
  'users why': unknownUser(),
  whoami: unreached,
}

test('every failed command prints a sentence, and with `--json` a document with that sentence, the exit code and the reason', async t => {
  t.deepEqual(
    Object.keys(failures).sort(),
    leaves(createProgram())
      .map(({ path }) => path)
      .sort(),
  )
  const env = await installedRegistry(t)
  const folder = await temporaryFolder(t)
  const here = { ...env, XDG_CONFIG_HOME: folder, AUTH_DATA_DIR: join(folder, 'none') }
  const away = { ...here, DATABASE_URL: 'postgres://127.0.0.1:1/none' }
  for (const [path, { args, away: isAway, ...expected }] of Object.entries(failures)) {
    // Commands without a run above start as a program.
    const start = elsewhere.includes(path) ? spawnCli : runCli
    const words = [...path.split(' '), ...args, '--json']
    const { code, stdout, stderr } = await start(isAway ? away : here, words, 'umas 16 letras ou mais')
    const document = JSON.parse(stdout)
    // It reports failures as checks.
    if (path === 'doctor') t.true(document.checks.some(({ status }: { status: string }) => status === 'failed'))
    const { error = { exitCode: code } } = document
    // The service in the same process logs unexpected errors before the command prints them.
    if (path !== 'doctor') t.is(stderr.replace('error: call failed\n', ''), `error: ${error.message}\n`, path)
    t.is(error.exitCode, code, path)
    t.deepEqual({ code, reason: error.reason }, { reason: undefined, ...expected }, path)
  }
})

test('a change whose event can’t be written is rolled back', async t => {
  const { env, ask } = await installed(t)
  const tables = await ask("SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
  const contents = tables.map(({ name }) => `SELECT '${name}' AS name, t::text FROM ${name} t`).join(' UNION ALL ')
  const rows = () => ask(`${contents} ORDER BY 1, 2`)
  const changes = Object.entries(commands).flatMap(([noun, runs]) =>
    runs.filter(({ action }) => action).map(({ args }) => [noun, ...args]),
  )
  for (const command of changes) {
    await ask('ALTER TABLE audit_staged ADD CONSTRAINT closed CHECK (seq < 0) NOT VALID')
    const before = await rows()
    const { code, stdout } = await runCli(env, command, newPassword)
    t.deepEqual([code, stdout], [1, ''], command.join(' '))
    t.deepEqual(await rows(), before, command.join(' '))
    await ask('ALTER TABLE audit_staged DROP CONSTRAINT closed')
    // Now it succeeds, so that the next command has an effect.
    t.is((await runCli(env, command, newPassword)).code, 0, command.join(' '))
    t.notDeepEqual(await rows(), before, command.join(' '))
  }
})

// Faults of the database and of the network, at both places.

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
