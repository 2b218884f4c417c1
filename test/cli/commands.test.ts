import { hostname, userInfo } from 'node:os'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import { createProgram } from '../../cli/program.js'
import { openDatabase } from '../../server/database/database.js'
import { createCounterKeys } from '../../server/models/attempt.js'
import { createStoredKeys } from '../../server/models/data-key.js'
import { installedRegistry, leaves, remoteUser, runCli, spawnCli } from '../_helpers/cli.js'
import { ask, hold } from '../_helpers/database.js'
import { startTestService } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

interface Run {
  readonly args: readonly string[]
  /** The event that it leaves when it changes something. */
  readonly action?: string | undefined
  /** Whether it finds nothing to change the second time. */
  readonly once: boolean
}

const newPassword = 'uma girafa bem alta 7'

/**
 * Every command except those below, by its noun, in an order in which each change has an effect: `=` is followed by the event of
 * a change, and by `!` if the command finds nothing to change the second time.
 */
const commands = Object.entries({
  install: '',
  migrate: 'status; up',
  organizations: `create Azul = organization.add; edit Azul --phone 7 = organization.edit !;
    rotate-key Azul --yes = organization.rotate-key; deactivate Azul --yes = organization.deactivate !;
    activate Azul = organization.activate !; list; show Azul = organization.show-key;
    delete Azul --confirm Azul = organization.delete`,
  questions: `create Cor? = question.add; edit 1 --question Qual? = question.edit !; retire 1 = question.retire !;
    offer 1 = question.restore !; link Pet? 1 --yes = question.link; order 3 1 = question.order !; list; show 1; unmatched list`,
  users: `unlock admin = user.unlock !; activate admin --confirm admin --reason teste = user.activate !;
    create ana --role ROLE_CLIENT --state SP --city Bauru = user.add; edit ana --city Santos = user.edit !;
    edit ana --email ana@example.org = user.set-email !;
    set-password ana --password-file - --reason teste = user.set-password;
    set-role ana ROLE_INSTITUTION --yes = user.set-role !; activate ana = user.activate !; revoke-tokens ana --yes = user.revoke-tokens;
    rotate-provider-key ana --yes = user.rotate-provider-key; move ana --organization Verde = user.set-organization !;
    clear-answers admin --yes --reason teste = user.clear-answers; issue-keys --organization Verde --reason teste;
    issue-key ana --reason teste = user.issue-key; grant ana desk --yes --reason teste = user.grant-desk !; revoke ana desk --reason teste = user.revoke-desk !; locked;
    send-key ana = user.send-key; why ana; suspend ana --yes = user.suspend !; resume ana = user.resume !; list; show admin; export ana = user.export;
    delete ana --yes = user.delete !; restore ana = user.undelete !; erase ana --confirm ana = user.erase`,
  services: `create grades --may users.read = service.add; list; show grades; edit grades --may users.watch = service.edit !;
    keys add grades = service.add-key; keys delete grades 1 --yes = service.delete-key;
    delete grades --confirm grades = service.delete`,
  mail: 'list; test ana@example.org = email.test; retry 1 = email.retry; retry --failed; delete 1 --yes = email.discard',
  keys: 'list; rotate --yes = signing-key.rotate',
  imports: 'list',
  audit: 'list; verify',
  contexts: '',
  whoami: '',
  config: '',
}).map(([noun, all]): readonly [string, readonly Run[]] => [
  noun,
  all.split(/;\s+/).map(text => {
    const [command = '', action] = text.replace(' !', '').split(' = ')
    return { args: command.split(' ').filter(Boolean), action, once: text.endsWith(' !') }
  }),
])

/** An installed registry whose administrator is inactive and locked. */
async function installed(t: ExecutionContext) {
  const env = await installedRegistry(t)
  const sql = (text: string) => ask(env.DATABASE_URL, text)
  const database = openDatabase(env.DATABASE_URL, 1)
  const dataKeys = createStoredKeys(database, Buffer.from(env.AUTH_MASTER_KEY, 'base64'))
  await dataKeys.load()
  await database.close()
  const subject = createCounterKeys(dataKeys).account('password', 'admin').toString('hex')
  await sql(`
    UPDATE users SET active = false, security_question = 'Pet?';
    INSERT INTO unmatched_answers SELECT id, security_question, 'pet?', 'hash' FROM users;
    INSERT INTO emails (kind, parameters, locale) VALUES ('recovery-key', '{"userId": 1, "to": "a@b.c"}', 'en');
    INSERT INTO organizations (name, name_key, activation_key_digest, activation_key_sealed) VALUES ('Verde', 'verde', '', '');
    INSERT INTO attempts (subject, count, window_ends) VALUES ('\\x${subject}', 10, now() + interval '1 hour')`)
  return { env, sql }
}

/** They have separate tests. */
const elsewhere = [
  ...['imports abort', 'keys retire', 'totp remove'],
  ...['api', 'backup', 'completion', 'doctor', 'login', 'logout'],
  ...['master-key rotate', 'organizations export', 'organizations import', 'restore', 'totp enroll', 'users import'],
]

test('every command is run below', t => {
  const all = leaves(createProgram()).map(({ path }) => path)
  const run = commands.flatMap(([noun, runs]) =>
    runs.map(({ args }) => all.find(path => [noun, ...args, ''].join(' ').startsWith(`${path} `)) ?? noun),
  )
  t.deepEqual([...new Set(run), ...elsewhere].sort(), all.sort())
})

test('every command with `--yes` is also run without it below', t => {
  const asking = leaves(createProgram()).filter(({ command }) => command.options.some(({ long }) => long === '--yes'))
  const confirmed = commands.flatMap(([noun, runs]) =>
    runs.filter(({ args }) => args.includes('--yes')).map(({ args }) => [noun, ...args, ''].join(' ')),
  )
  t.deepEqual(
    asking.map(({ path }) => path).filter(path => !confirmed.some(run => run.startsWith(`${path} `))),
    // `install` and `master-key rotate` ask at a terminal only, `api` only for changes, `restore` only to replace,
    // `organizations create` only if the name exists. `imports abort` needs an import.
    ['organizations create', 'imports abort', 'api', 'install', 'master-key rotate', 'restore'],
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

for (const [noun, runs] of commands) {
  test(`${noun} prints one JSON document, and leaves one event if it changes something, otherwise none`, async t => {
    const { env, sql } = await installed(t)
    const newest = async () => (await sql('SELECT max(id)::int AS id FROM audit_events'))[0]!.id as number
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
      const left = await sql(`SELECT action, outcome, actor FROM audit_events WHERE id > ${before}`)
      const actor = `cli:${userInfo().username}@${hostname()}`
      const expected = action === undefined ? [] : [{ action, outcome: 'ok', actor }]
      t.deepEqual(left, expected, args.join(' '))
      if (!once) continue
      t.is((await runCli(env, [noun, ...args])).code, 0)
      t.is(await newest(), before + 1, args.join(' '))
    }
  })
}

/** One failure of every command, by its exit code, the reason if it is an error of the service, and `away` without a database. */
const failures: Record<string, string> = {
  '1': `master-key rotate --new-key-file -, organizations import none.csv, restore none.age --passphrase-file -, users import none.csv`,
  '1 away': 'doctor',
  '2': `audit verify --known 1:0g, completion tcsh, config extra, login ftp://server, organizations create, organizations export -,
    questions create, users issue-keys, users move admin, users set-role admin ROLE_KING`,
  '2 CONFIRMATION_NEEDED':
    'totp remove admin --confirm outro --reason teste, users erase admin --confirm outro --reason teste',
  '2 INVALID_ARGUMENT': `mail list --page-token forged, organizations list --page-token forged, services create gr+ades --may users.read,
    imports list --page-token forged, mail test nobody, users list --page-token forged,
    users locked --page-token forged`,
  '2 INVALID_SIGN_UP': 'users create ADMIN --role ROLE_CLIENT --state SP --city Bauru',
  '2 JUSTIFICATION_NEEDED': 'users set-password admin --password-file -',
  '3': 'contexts nowhere',
  '3 RECORD_NOT_FOUND': `api GetQuestion {"question":"#99"}, organizations activate Nenhuma, organizations deactivate Nenhuma --yes,
    organizations delete Nenhuma --confirm Nenhuma, organizations edit Nenhuma --phone 7,
    organizations rotate-key Nenhuma --yes, organizations show Nenhuma, questions edit 99 --question Qual?,
    imports abort 99 --yes, keys retire none --confirm none, mail delete 99 --yes, mail retry 99,
    services delete none --confirm none, services edit none --title x, services keys add none, services keys delete none 7 --yes, services show none,
    questions link Qual? 99 --yes, questions offer 99, questions order 99, questions retire 99, questions show 99`,
  '3 USER_NOT_FOUND': `audit list --user unknown, users activate unknown, users edit unknown --city Bauru, users export unknown,
    users clear-answers unknown --yes, users grant unknown desk --yes, users issue-key unknown --reason teste,
    users revoke unknown desk, users restore unknown, users resume unknown, users revoke-tokens unknown --yes,
    users rotate-provider-key unknown --yes, users show unknown,
    users unlock unknown, users why unknown`,
  '4': 'logout',
  '5 LAST_ADMINISTRATOR': 'users delete admin --yes --reason teste, users suspend admin --yes',
  '5 WRONG_STATE': 'totp enroll --code-file none, users send-key admin',
  '7 away': `backup registry.age --passphrase-file -, install, keys list, keys rotate --yes, migrate up, questions list,
    questions unmatched list, services list, whoami`,
  '7 UNAVAILABLE away': 'migrate status',
}

test('every failed command prints a sentence, and with `--json` a document with that sentence, the exit code and the reason', async t => {
  const paths = leaves(createProgram()).map(({ path }) => path)
  const failing = Object.entries(failures).flatMap(([outcome, all]) =>
    all.split(/,\s+/).map(command => {
      const path = paths.find(each => `${command} `.startsWith(`${each} `)) ?? command
      return { path, command, outcome: outcome.replace(' away', ''), isAway: outcome.endsWith('away') }
    }),
  )
  t.deepEqual(failing.map(({ path }) => path).sort(), paths.sort())
  const env = await installedRegistry(t)
  const folder = await temporaryFolder(t)
  const here = { ...env, XDG_CONFIG_HOME: folder, AUTH_DATA_DIR: join(folder, 'none') }
  const away = { ...here, DATABASE_URL: 'postgres://127.0.0.1:1/none' }
  for (const { path, command, outcome, isAway } of failing) {
    // Commands without a run above start as a program.
    const start = elsewhere.includes(path) ? spawnCli : runCli
    const { code, stdout, stderr } = await start(
      isAway ? away : here,
      [...command.split(' '), '--json'],
      'umas 16 letras ou mais',
    )
    const document = JSON.parse(stdout)
    // It reports failures as checks.
    if (path === 'doctor') t.true(document.checks.some(({ status }: { status: string }) => status === 'failed'))
    const { error = { exitCode: code } } = document
    // The service in the same process logs unexpected errors before the command prints them.
    if (path !== 'doctor') t.is(stderr.replace('error: call failed\n', ''), `error: ${error.message}\n`, path)
    t.deepEqual([error.exitCode, [code, error.reason].filter(Boolean).join(' ')], [code, outcome], path)
  }
})

test('a change whose event can’t be written is rolled back', async t => {
  const { env, sql } = await installed(t)
  const tables = await sql("SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
  const contents = tables.map(({ name }) => `SELECT '${name}' AS name, t::text FROM ${name} t`).join(' UNION ALL ')
  const rows = () => sql(`${contents} ORDER BY 1, 2`)
  const changes = commands.flatMap(([noun, runs]) =>
    runs.filter(({ action }) => action).map(({ args }) => [noun, ...args]),
  )
  for (const command of changes) {
    await sql('ALTER TABLE audit_staged ADD CONSTRAINT closed CHECK (seq < 0) NOT VALID')
    const before = await rows()
    const { code, stdout } = await runCli(env, command, newPassword)
    t.deepEqual([code, stdout], [1, ''], command.join(' '))
    t.deepEqual(await rows(), before, command.join(' '))
    await sql('ALTER TABLE audit_staged DROP CONSTRAINT closed')
    // Now it succeeds, so that the next command has an effect.
    t.is((await runCli(env, command, newPassword)).code, 0, command.join(' '))
    t.notDeepEqual(await rows(), before, command.join(' '))
  }
})

// Faults of the database and of the network, at both places.

/** Statements that cause the fault and end it, the exit code, and the error locally and at a server. */
const faults: Record<string, [before: string, after: string, code: number, local: RegExp, remote: RegExp]> = {
  ...Object.fromEntries(
    (
      [
        ['a read-only database', '25006', 7, /is read-only/],
        ['a conflict', '40001', 7, /can’t answer now/],
        ['a full disk', '53100', 7, /can’t answer now/],
        ['a statement that takes too long', '57014', 7, /didn’t complete a statement within its time limit: try again/],
        ['no rights', '42501', 1, /lacks the rights/],
        ['an unforeseen fault', 'XX000', 1, /went wrong/],
      ] as const
    ).map(([what, state, code, local]) => [
      what,
      [
        `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = '${state}'; END $$;
         CREATE TRIGGER fail BEFORE UPDATE ON organizations FOR EACH ROW EXECUTE FUNCTION fail()`,
        'DROP FUNCTION fail CASCADE',
        code,
        local,
        code === 7
          ? /can’t answer now; its database may be unreachable\. Try again later/
          : /failed\. Its log has the cause, under request [\w-]+\./,
      ],
    ]),
  ),
  'a lock that is held': [
    'SET idle_in_transaction_session_timeout = 0; BEGIN; SELECT FROM organizations FOR UPDATE',
    ...(['ROLLBACK', 7, /holds a lock on this record: try again/, /can’t answer now/] as const),
  ],
  'a table that is missing': [
    'ALTER TABLE organizations RENAME TO others',
    ...([
      'ALTER TABLE others RENAME TO organizations',
      5,
      /not installed/,
      /tables of the database don’t match/,
    ] as const),
  ],
  'a column that is missing': [
    'ALTER TABLE organizations RENAME website TO site',
    ...([
      'ALTER TABLE organizations RENAME site TO website',
      5,
      /older version/,
      /tables of the database don’t match/,
    ] as const),
  ],
}

/** What finds or changes nothing the second time: the same at both places. */
const alike = `users list, users show admin, users why ana, users show unknown, users list --page-token x,
  users suspend admin --yes, organizations list, organizations show Escola, organizations show 999,
  organizations members list Escola, questions list, questions show 1, questions show 999, questions unmatched list,
  services list, services show unknown, mail list, mail show 999, migrate status, audit verify,
  organizations edit Escola --phone 7, organizations activate Escola, questions offer 1`

/** Without what changes meanwhile. */
const still = (text: string) => text.replace(/"(etag|newest|events|seconds|token)": ("[^"]*"|\d+)/g, '"$1"')

test('a command has one output on the database itself and at a server, and a fault one exit code and no mention of DATABASE_URL at a server', async t => {
  const service = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0', AUTH_LOG_LEVEL: 'silent' })
  const { env: away, config, login } = await remoteUser(t, service)
  // With the log of commands by default.
  const here = { ...service.env, AUTH_LOG_LEVEL: 'info', XDG_CONFIG_HOME: join(config, 'other') }
  t.is((await login('--context', 'prod')).code, 0)
  const { id } = await service.organization({ name: 'Escola' })
  await service.signUp('ROLE_CLIENT', { username: 'ana' })
  for (const command of alike.split(/,\s+/)) {
    const [local, far] = [here, away].map(env => runCli(env, [...command.split(' '), '--json']))
    const { stdout, ...rest } = await local!
    t.is(typeof JSON.parse(stdout), 'object', command)
    t.deepEqual({ ...(await far!), stdout: still((await far!).stdout) }, { ...rest, stdout: still(stdout) }, command)
  }

  const holder = await hold(t, service.env.DATABASE_URL!)
  for (const [what, [before, after, code, local, remote]] of Object.entries(faults)) {
    await holder.query(before)
    const command = ['organizations', 'edit', String(id), '--phone', String(Math.random())]
    const [byItself, byServer] = [await runCli(here, command), await runCli(away, command)]
    await holder.query(after)
    t.deepEqual([byItself.code, byServer.code], [code, code], `${what}: ${byItself.stderr}${byServer.stderr}`)
    for (const { stderr } of [byItself, byServer]) t.regex(stderr, /^error: [^\n]+\n$/, what)
    t.regex(byItself.stderr, local, what)
    t.regex(byServer.stderr, remote, what)
    t.notRegex(byServer.stderr, /DATABASE_URL|PostgreSQL/, what)
  }
})
