/** `auth-admin migrate`: the tables, as a step of its own. */
import { join } from 'node:path'
import test from 'ava'
import { newIdentity, temporaryFolder } from '../_helpers/backups.js'
import { runCli } from '../_helpers/cli.js'
import { ask, freshDatabase } from '../_helpers/database.js'

const AUTH_MASTER_KEY = Buffer.alloc(32, 7).toString('base64')

test('migrate makes the tables and nothing in them; status and plan say before and after, and change nothing', async t => {
  const env = { DATABASE_URL: await freshDatabase(t, { from: 'template0' }), AUTH_MASTER_KEY }
  const status = async () => JSON.parse((await runCli(env, ['migrate', 'status', '--json'])).stdout)
  const before = await status()
  t.deepEqual(before, { done: [], pending: [{ name: '0001-baseline.sql', kind: 'expand' }], newer: [] })
  t.deepEqual(JSON.parse((await runCli(env, ['migrate', 'plan', '--json'])).stdout), { pending: before.pending })
  t.regex(
    (await runCli(env, ['migrate', 'plan'])).stdout,
    /0001-baseline\.sql +expand +processes of the previous version/,
  )
  t.deepEqual(await status(), before)

  const { code, stdout } = await runCli(env, ['migrate', '--json'])
  t.is(code, 0)
  t.deepEqual(JSON.parse(stdout), { migrations: ['0001-baseline.sql'] })
  const after = await status()
  t.like(after, { done: before.pending, pending: [], newer: [] })
  for (const { runTime } of after.done) t.true(Math.abs(Date.parse(runTime) - Date.now()) < 600_000)
  t.deepEqual(JSON.parse((await runCli(env, ['migrate', 'up', '--json'])).stdout), { migrations: [] })
  t.is((await runCli(env, ['migrate', 'plan'])).stdout, 'The tables are up to date.\n')
  t.deepEqual(await runCli(env, ['migrate']), {
    code: 0,
    stderr: '',
    stdout: 'The tables are up to date; nothing changed.\n',
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

test('a database of another baseline is refused in one sentence that says what to do', async t => {
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
