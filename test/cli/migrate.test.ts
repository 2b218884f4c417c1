/** `auth-admin migrate`: migrations as a separate step. */
import { join } from 'node:path'
import test from 'ava'
import { newIdentity } from '../_helpers/backups.js'
import { runCli } from '../_helpers/cli.js'
import { ask, freshDatabase } from '../_helpers/database.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { nextVersion, runVersion } from '../_helpers/versions.js'

const AUTH_MASTER_KEY = Buffer.alloc(32, 7).toString('base64')

test('migrate creates empty tables, and status and plan report before and after without changes', async t => {
  const env = { DATABASE_URL: await freshDatabase(t, { from: 'template0' }), AUTH_MASTER_KEY }
  const status = async () => JSON.parse((await runCli(env, ['migrate', 'status', '--json'])).stdout)
  const before = await status()
  t.deepEqual(before, { done: [], pending: [{ name: '0001-baseline.sql', kind: 'expand' }], newer: [] })
  t.deepEqual(JSON.parse((await runCli(env, ['migrate', 'plan', '--json'])).stdout), { pending: before.pending })
  t.regex((await runCli(env, ['migrate', 'plan'])).stdout, /0001-baseline\.sql +expand +migrate up, before the update/)
  t.deepEqual(await status(), before)

  const { code, stdout, stderr } = await runCli(env, ['migrate', '--json'])
  t.is(code, 0, stderr)
  const database = `the database ${new URL(env.DATABASE_URL).pathname.slice(1)} at ${new URL(env.DATABASE_URL).host}`
  t.deepEqual(JSON.parse(stdout), { database, migrations: ['0001-baseline.sql'] })
  const after = await status()
  t.like(after, { done: before.pending, pending: [], newer: [] })
  for (const { runTime } of after.done) t.true(Math.abs(Date.parse(runTime) - Date.now()) < 600_000)
  t.deepEqual(JSON.parse((await runCli(env, ['migrate', 'up', '--json'])).stdout), { database, migrations: [] })
  t.is((await runCli(env, ['migrate', 'plan'])).stdout, 'The tables are up to date.\n')
  t.deepEqual(await runCli(env, ['migrate']), {
    code: 0,
    stderr: '',
    stdout: `Migrating ${database}.\nThe tables are up to date; nothing changed.\n`,
  })
  t.regex(
    (await runCli(env, ['migrate', 'status'])).stdout,
    /^MIGRATION +KIND +STATE +RUN AT\n0001-baseline\.sql +expand +done +\d{4}-/,
  )
  for (const command of [
    ['questions', 'list'],
    ['issuer', 'show'],
  ]) {
    t.regex((await runCli(env, command)).stderr, /not installed yet: run `auth-admin install`/)
  }
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
  // In an hour: a busy machine may take longer than 30 s.
  await seen('web-1/7/abc', '0001-baseline.sql', '-1 h')
  await seen('web-2/7/abc', '9998-next.sql', '-1 h')
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
    (await runVersion(next, env, ['migrate', 'plan'])).stdout,
    /9999-last\.sql +contract +migrate up --contract, after the update/,
  )
  // Again, because the commands may take a while.
  await seen('web-1/7/abc', '0001-baseline.sql', '15 s')
  t.is((await migrate('--contract')).code, 5)
  for (const id of ['web-1', 'web-2']) await seen(`${id}/7/abc`, '', '31 s')
  t.deepEqual(await migrate('--contract'), { code: 0, stdout: 'Done: 9999-last.sql.\n', stderr: '' })
})

test('a database of another baseline is refused with a one-sentence error that says what to do', async t => {
  const folder = await temporaryFolder(t)
  const { recipient } = await newIdentity(folder)
  const others = {
    '0001-baseline.sql': `UPDATE migrations SET digest = repeat('0', 64)`,
    // Ledgers of earlier builds.
    '0001-registry.sql': `ALTER TABLE migrations DROP COLUMN digest;
      UPDATE migrations SET name = '0001-registry.sql'; INSERT INTO migrations (name, kind) VALUES ('0002-letters.sql', 'expand')`,
  }
  for (const [name, sql] of Object.entries(others)) {
    const env = { DATABASE_URL: await freshDatabase(t), AUTH_MASTER_KEY, AUTH_DATA_DIR: folder }
    t.is((await runCli(env, ['install'])).code, 0)
    await ask(env.DATABASE_URL, sql)
    for (const [exitCode, ...args] of [
      [5, 'migrate'],
      [5, 'migrate', 'plan'],
      [5, 'migrate', 'status'],
      [5, 'install'],
      [5, 'backup', join(folder, 'registry.age'), '--recipient', recipient],
    ] as const) {
      const { code, stderr } = await runCli(env, args)
      t.is(code, exitCode, args.join(' '))
      t.is(
        stderr,
        `error: The database has another baseline than this version (${name}): run the version that made it, or use an empty database.\n`,
        args.join(' '),
      )
    }
    const { code, stdout } = await runCli(env, ['doctor', '--json'])
    t.is(code, 1)
    t.like(
      JSON.parse(stdout).checks.find(({ check }: { check: string }) => check === 'migrations'),
      {
        status: 'failed',
        detail: `The database has another baseline than this version (${name}).`,
        fix: 'Run the version that made it, or use an empty database.',
      },
    )
  }
})
