/** `auth-admin install`: a usable registry, even if it runs repeatedly or concurrently. */
import { chown, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import { newIdentity } from '../_helpers/backups.js'
import { documentsOf, keys, openTerminal, runCli, spawnCli } from '../_helpers/cli.js'
import { ask, freshDatabase } from '../_helpers/database.js'
import { createRequest } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { testWith } from '../_helpers/tools.js'
import { nextVersion, migrations as ownMigrations, runVersion } from '../_helpers/versions.js'
import { waitFor } from '../_helpers/wait.js'

const AUTH_MASTER_KEY = Buffer.alloc(32, 7).toString('base64')
const AUTH_ADMIN_PASSWORD = 'several words that are hard to guess'

async function emptyDatabase(t: ExecutionContext, env: Record<string, string> = {}) {
  const DATABASE_URL = await freshDatabase(t, { from: 'template0' })
  return { DATABASE_URL, AUTH_MASTER_KEY, AUTH_DATA_DIR: await temporaryFolder(t), AUTH_BCRYPT_COST: '4', ...env }
}

/** How a command names a database. */
const nameOf = ({ pathname, host }: URL) => `the database ${pathname.slice(1)} at ${host}`

test('install creates tables, a signing key, questions and the administrator in an empty database, and nothing the second time', async t => {
  const env = await emptyDatabase(t)
  const { json, run } = documentsOf({ env })
  const { passwordFile, administrator, signingKey, migrations } = await json('install')
  t.deepEqual([administrator, typeof signingKey, migrations], ['admin', 'string', ownMigrations])
  t.is(passwordFile, join(env.AUTH_DATA_DIR, 'initial-admin-password'))
  t.is((await stat(passwordFile)).mode & 0o777, 0o600)
  t.is(
    (await run('install')).stdout,
    `Installing in ${nameOf(new URL(env.DATABASE_URL))}.\nThe registry is installed already; nothing changed.\n`,
  )
  const { questions } = await json('questions', 'list')
  t.true(questions.length >= 5)
  t.regex(questions[0].question, /^Qual é/)
  const { users } = await json('users', 'list')
  t.is(users.length, 1)
  t.like(users, [{ username: 'admin', role: 'ROLE_ADMIN', active: 1, suspended: false }])
})

test('only a terminal shows the password that install generated, and otherwise where it is kept', async t => {
  const env = await emptyDatabase(t)
  const file = join(env.AUTH_DATA_DIR, 'initial-admin-password')
  for (const flags of [[], ['--json']]) {
    const { code, stdout, stderr } = await runCli({ ...env, DATABASE_URL: await freshDatabase(t) }, [
      'install',
      ...flags,
    ])
    t.deepEqual([code, stderr], [0, ''])
    t.true(stdout.includes(file))
    t.false(stdout.includes((await readFile(file, 'utf8')).trim()))
    await rm(file)
  }
  const terminal = openTerminal(env, ['install'])
  t.is(await terminal.ended, 0)
  t.regex(terminal.screen(), new RegExp(`password +${await readFile(file, 'utf8')}`))
})

test('install asks before it migrates an existing registry at a terminal, and doesn’t ask without one', async t => {
  const env = await emptyDatabase(t)
  await runCli(env, ['install'])
  const next = await nextVersion(t, '-- expand\nCREATE TABLE next ()')
  const declined = openTerminal(env, ['install'], { main: join(next, 'dist/cli/main.js') })
  await declined.shows('Update its tables (9999-next.sql)?')
  declined.type(`n${keys.enter}`)
  t.is(await declined.ended, 1)
  const tables = () => ask(env.DATABASE_URL, "SELECT FROM pg_tables WHERE tablename = 'next'")
  t.is((await tables()).length, 0)
  const { code, stderr } = await runVersion(next, env, ['install'])
  t.is(code, 0, stderr)
  t.is((await tables()).length, 1)
})

test('install prints the folder of an embedded database', async t => {
  const { AUTH_DATA_DIR } = await emptyDatabase(t)
  const { stdout } = await runCli({ AUTH_DATA_DIR: join(AUTH_DATA_DIR, 'new') }, ['install'])
  t.true(stdout.startsWith(`Installing in the embedded database in ${join(AUTH_DATA_DIR, 'new')}.\n`), stdout)
})

test('the default administrator is created once: no installation or start recreates an erased or renamed one', async t => {
  const env = await emptyDatabase(t, { AUTH_ADMIN_PASSWORD })
  await runCli(env, ['install'])
  const names = async () => (await ask(env.DATABASE_URL, 'SELECT username FROM users')).map(row => row.username)
  for (const [sql, left] of [
    [`UPDATE users SET username = 'ana', username_key = 'ana'`, ['ana']],
    ['DELETE FROM users', []],
  ] as const) {
    await ask(env.DATABASE_URL, sql)
    // Something else is also missing, so that it has work to do.
    await ask(env.DATABASE_URL, 'DELETE FROM questions')
    const { stdout, code } = await runCli(env, ['install', '--json'])
    t.is(code, 0)
    t.true(JSON.parse(stdout).questions > 0)
    t.false('administrator' in JSON.parse(stdout))
    t.deepEqual(await names(), left)
  }
  const service = await spawnService(t, env)
  t.deepEqual(await names(), [])
  const warning = /"level":"warn".*no active administrator.*`auth-admin users create .*--role ROLE_ADMIN --active/
  // Log and standard output use different pipes.
  await waitFor(() => warning.test(service.output()), service.output)
  t.is(service.output().split('no active administrator').length, 2)
})

test('a service that is started without a terminal says where to sign in and where the password is, not the password', async t => {
  const env = await emptyDatabase(t)
  const service = await spawnService(t, { ...env, AUTH_ADMIN_PASSWORD: '', AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const file = join(env.AUTH_DATA_DIR, 'initial-admin-password')
  const password = await readFile(file, 'utf8')
  t.is(password.length, 20)
  await waitFor(() => service.output().includes(`admin    admin, password kept in ${file}`), service.output)
  t.regex(service.output(), /^login {4}auth-admin login http:\/\/127\.0\.0\.1:[1-9]\d*$/m)
  t.false(service.output().includes(password))
})

test('registries that share a data folder each keep their password, and say so only where it is theirs', async t => {
  const env = await emptyDatabase(t)
  const usual = join(env.AUTH_DATA_DIR, 'initial-admin-password')
  const greeting = async (databaseUrl: string) => {
    const service = await spawnService(t, { ...env, DATABASE_URL: databaseUrl, AUTH_ADMIN_PASSWORD: '' })
    const line = await waitFor(() => /^admin .*$/m.exec(service.output())?.[0], service.output)
    const kept = /password kept in (\S+)$/.exec(line)?.[1]
    const token = async () => {
      const query = { username: 'admin', password: await readFile(kept!, 'utf8') }
      return (await createRequest(service.http)('POST', '/users/login', { query })).status
    }
    return { kept, token }
  }
  const first = await greeting(env.DATABASE_URL)
  t.is(first.kept, usual)
  const password = await readFile(usual, 'utf8')
  const other = await freshDatabase(t, { from: 'template0' })
  const second = await greeting(other)
  t.regex(String(second.kept), /\/initial-admin-password-[\da-f]{8}$/)
  t.is(await readFile(usual, 'utf8'), password, 'nothing of the first is overwritten')
  t.is((await stat(second.kept!)).mode & 0o777, 0o600)
  const { checks } = JSON.parse((await runCli(env, ['doctor', '--json'])).stdout)
  const { detail } = checks.find(({ check }: { check: string }) => check === 'initial password')
  for (const { kept } of [first, second]) t.true(detail.split(/[ ,.]+/).includes(basename(kept!)), detail)
  for (const [kept, url] of Object.entries({ [usual]: env.DATABASE_URL, [second.kept!]: other })) {
    const again = await greeting(url)
    t.is(again.kept, kept)
    t.is(await again.token(), 200)
  }

  // A registry whose password is in no file, and one whose password was changed since.
  const third = await freshDatabase(t, { from: 'template0' })
  t.is((await runCli({ ...env, DATABASE_URL: third, AUTH_ADMIN_PASSWORD }, ['install'])).code, 0)
  t.is((await greeting(third)).kept, undefined)
  const words = join(env.AUTH_DATA_DIR, 'words')
  await writeFile(words, 'other words that are hard to guess')
  const set = await runCli(env, ['users', 'set-password', 'admin', '--password-file', words, '--reason', 'a test'])
  t.is(set.code, 0, set.stderr)
  t.is((await greeting(env.DATABASE_URL)).kept, undefined)
})

for (const what of ['a link', 'a file of another user'] as const) {
  const isPossible = process.getuid?.() === 0 || what === 'a link'
  testWith('root', isPossible)(
    `${what} at the place of the first password is neither followed nor overwritten`,
    async t => {
      const env = await emptyDatabase(t)
      const [file, target] = [join(env.AUTH_DATA_DIR, 'initial-admin-password'), join(env.AUTH_DATA_DIR, 'target')]
      await writeFile(target, 'former content')
      if (what === 'a link') await symlink(target, file)
      else {
        await writeFile(file, 'former content')
        await chown(file, 12345, 12345)
      }
      const { code, stdout, stderr } = await runCli(env, ['install', '--json'])
      t.is(await readFile(target, 'utf8'), 'former content')
      t.is(await readFile(file, 'utf8'), 'former content')
      if (code === 0) t.not(JSON.parse(stdout).passwordFile, file)
      else t.regex(stderr, /initial-admin-password (is a symbolic link|belongs to another user)/)
    },
  )
}

test('install restores missing questions, and rotates a signing key that is due', async t => {
  const env = await emptyDatabase(t, { AUTH_ADMIN_PASSWORD })
  await runCli(env, ['install'])
  const missing = {
    questions: 'DELETE FROM questions',
    signingKey: `UPDATE signing_keys SET signs_at = now() - interval '91 days'`,
  }
  for (const [what, sql] of Object.entries(missing)) {
    await ask(env.DATABASE_URL, sql)
    const { stdout, stderr } = await runCli(env, ['install', '--json'])
    const { database, tokens, migrations, ...made } = JSON.parse(stdout)
    const some = Object.keys(made).filter(each => made[each] && made[each] !== 0)
    t.deepEqual([some, stderr], [[what], ''], what)
  }
})

test('concurrent installations create everything once, and all succeed', async t => {
  const env = await emptyDatabase(t)
  const runs = await Promise.all(Array.from({ length: 4 }, () => spawnCli(env, ['install', '--json'])))
  for (const { code, stderr } of runs) t.deepEqual([code, stderr], [0, ''])
  const [row] = await ask(
    env.DATABASE_URL,
    `SELECT (SELECT count(*)::int FROM users) AS users, (SELECT count(*)::int FROM signing_keys) AS keys,
      (SELECT count(*)::int FROM questions) AS questions`,
  )
  t.is(row!.users, 1)
  t.is(row!.keys, 1)
  const added = runs.map(({ stdout }) => JSON.parse(stdout).questions)
  t.deepEqual([...added].sort(), [0, 0, 0, row!.questions])
  const { events: audit } = JSON.parse((await runCli(env, ['audit', 'list', '--json'])).stdout)
  t.true(audit.every((event: { actor: string }) => event.actor.startsWith('cli:')))
  t.is(audit.filter((event: { action: string }) => event.action === 'user.add').length, 1)
})

test('install takes the administrator’s password from the settings, never prints it, and warns if it is weak', async t => {
  for (const [given, warning] of [
    ['um-cavalo-bem-azul-19', /^$/],
    ['fraca1', /^warning: AUTH_ADMIN_PASSWORD is weak: [^\n]+\n$/],
  ] as const) {
    for (const format of [[], ['--json']]) {
      const env = await emptyDatabase(t, { AUTH_ADMIN_USERNAME: 'Chefe', AUTH_ADMIN_PASSWORD: given })
      const { stdout, stderr, code } = await runCli(env, ['install', ...format])
      t.is(code, 0, stderr)
      t.regex(stderr, warning)
      t.true(stdout.includes('Chefe'))
      t.false((stdout + stderr).includes(given))
    }
  }
})

// `auth-admin migrate`: migrations as a separate step.

test('migrate creates empty tables, and status reports before and after without changes', async t => {
  const env = { DATABASE_URL: await freshDatabase(t, { from: 'template0' }), AUTH_MASTER_KEY }
  const { json, run } = documentsOf({ env }, 'migrate')
  t.regex((await run('status')).stdout, /0001-baseline\.sql +expand +pending +by migrate up, before the update/)
  const { pending, ...rest } = await json('status')
  t.deepEqual(rest, { done: [], newer: [] })
  t.deepEqual(
    pending.map(({ name }: { name: string }) => name),
    ownMigrations,
  )

  const database = nameOf(new URL(env.DATABASE_URL))
  t.deepEqual(await json(), { database, migrations: ownMigrations })
  t.like(await json('status'), { done: pending, pending: [], newer: [] })
  t.deepEqual(await json('up'), { database, migrations: [] })
  t.is((await run()).stdout, `Migrating ${database}.\nThe tables are up to date; nothing changed.\n`)
  t.regex((await run('status')).stdout, /^MIGRATION +KIND +STATE +RUN\n0001-baseline\.sql +expand +done +\d{4}-/)
  for (const command of ['questions list', 'audit list'])
    t.regex((await runCli(env, command.split(' '))).stderr, /not installed yet: run `auth-admin install`/)
})

test('migrate up --contract refuses with 5 while a process that doesn’t know the migration has been seen in 30 s', async t => {
  const next = await nextVersion(t, {
    '9998-next.sql': '-- expand\nALTER TABLE users ADD COLUMN extra text;',
    '9999-last.sql': '-- contract\nALTER TABLE users DROP COLUMN extra;',
  })
  const env = { DATABASE_URL: await freshDatabase(t), AUTH_MASTER_KEY }
  const migrate = async (...args: string[]) => {
    const { stdout, ...rest } = await runVersion(next, env, ['migrate', 'up', ...args])
    return { ...rest, stdout: stdout.replace(/^Migrating the database [^\n]+\.\n/, '') }
  }
  const seen = (id: string, migration: string, ago: string) =>
    ask(
      env.DATABASE_URL,
      `INSERT INTO processes VALUES ('${id}', 'server', '1.2.3', '${migration}', 'i', 'a', now() - interval '${ago}')
       ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at`,
    )
  // Ahead, as far as it counts: a busy machine may take longer than 30 s.
  await seen('web-1/7/abc', '0001-baseline.sql', '-29 s')
  await seen('web-2/7/abc', '9998-next.sql', '-29 s')
  await seen('web-3/7/abc', '9999-last.sql', '0 s')
  await seen('web-4/7/abc', '0001-baseline.sql', '31 s')
  t.deepEqual(await migrate('--contract'), {
    code: 5,
    stdout: '',
    stderr:
      'error: Processes of an older version would break by 9999-last.sql: server web-1/7/abc (version 1.2.3), ' +
      'server web-2/7/abc (version 1.2.3). Update or stop them first; one that crashed counts for 30 s.\n',
  })
  const left = 'warning: 9999-last.sql is left: run `migrate up --contract` once all processes are updated.\n'
  t.deepEqual(await migrate(), { code: 0, stdout: 'Done: 9998-next.sql.\n', stderr: left })
  t.deepEqual(await migrate(), { code: 0, stdout: 'Nothing changed.\n', stderr: left })
  t.regex(
    (await runVersion(next, env, ['migrate', 'status'])).stdout,
    /9999-last\.sql +contract +pending +by migrate up --contract, after the update/,
  )
  // Again, because the commands may take a while.
  await seen('web-1/7/abc', '0001-baseline.sql', '-29 s')
  t.is((await migrate('--contract')).code, 5)
  for (const id of ['web-1', 'web-2']) await seen(`${id}/7/abc`, '', '31 s')
  t.deepEqual(await migrate('--contract'), { code: 0, stdout: 'Done: 9999-last.sql.\n', stderr: '' })
})

test('a database of another baseline is refused with a one-sentence error that says what to do', async t => {
  const folder = await temporaryFolder(t)
  const { recipient } = await newIdentity(folder)
  const others = {
    '0001-baseline.sql': `UPDATE migrations SET digest = repeat('0', 64) WHERE name = '0001-baseline.sql'`,
    // Ledgers of earlier builds.
    '0001-registry.sql': `DELETE FROM migrations WHERE name <> '0001-baseline.sql'; ALTER TABLE migrations DROP COLUMN digest;
      UPDATE migrations SET name = '0001-registry.sql'; INSERT INTO migrations (name, kind) VALUES ('9999-letters.sql', 'expand')`,
  }
  for (const [name, sql] of Object.entries(others)) {
    const env = { DATABASE_URL: await freshDatabase(t), AUTH_MASTER_KEY, AUTH_DATA_DIR: folder }
    const { run } = documentsOf({ env })
    t.is((await run('install')).code, 0)
    await ask(env.DATABASE_URL, sql)
    const detail = `The database has another baseline than this version (${name})`
    const backup = `backup ${join(folder, 'registry.age')} --recipient ${recipient}`
    for (const command of ['migrate', 'migrate status', 'install', backup]) {
      const { code, stderr } = await run(...command.split(' '))
      t.is(stderr, `error: ${detail}: run the version that made it, or use an empty database.\n`, command)
      t.is(code, 5, command)
    }
    const { code, stdout } = await run('doctor', '--json')
    t.is(code, 1)
    const checks: { check: string }[] = JSON.parse(stdout).checks
    t.like(
      checks.find(({ check }) => check === 'migrations'),
      { status: 'failed', detail: `${detail}.`, fix: 'Run the version that made it, or use an empty database.' },
    )
  }
})
