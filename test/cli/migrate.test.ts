/** `auth-admin migrate`: the tables, as a step of its own. */
import test from 'ava'
import { runCli } from '../_helpers/cli.js'
import { freshDatabase } from '../_helpers/database.js'

test('migrate makes the tables and nothing in them; --status says before and after, and changes nothing', async t => {
  const env = {
    DATABASE_URL: await freshDatabase(t, { from: 'template0' }),
    AUTH_MASTER_KEY: Buffer.alloc(32, 7).toString('base64'),
  }
  const status = async () => JSON.parse((await runCli(env, ['migrate', 'status', '--json'])).stdout)
  const before = await status()
  t.deepEqual([before.done, before.newer], [[], []])
  t.deepEqual(before.pending[0], { name: '0001-registry.sql', kind: 'expand' })
  t.deepEqual(await status(), before)

  t.deepEqual(JSON.parse((await runCli(env, ['migrate', 'plan', '--json'])).stdout), before.pending)
  t.regex((await runCli(env, ['migrate', 'plan'])).stdout, /0010-audit\.sql +contract +stop all processes/)
  t.deepEqual(await status(), before)

  const { code, stdout } = await runCli(env, ['migrate', '--json'])
  t.is(code, 0)
  t.deepEqual(
    JSON.parse(stdout).migrations,
    before.pending.map(({ name }: { name: string }) => name),
  )
  const after = await status()
  t.deepEqual(
    after.done.map(({ name, kind }: { name: string; kind: string }) => ({ name, kind })),
    before.pending,
  )
  for (const { run_at } of after.done) t.true(Math.abs(Date.parse(run_at) - Date.now()) < 600_000)
  t.deepEqual([after.pending, after.newer], [[], []])
  t.deepEqual(JSON.parse((await runCli(env, ['migrate', 'status', '--json'])).stdout), after)
  t.deepEqual(JSON.parse((await runCli(env, ['migrate', 'up', '--json'])).stdout), { migrations: [] })
  t.is((await runCli(env, ['migrate', 'plan'])).stdout, 'The tables are up to date.\n')
  t.deepEqual(await runCli(env, ['migrate']), {
    code: 0,
    stderr: '',
    stdout: 'The tables are up to date; nothing changed.\n',
  })
  t.regex(
    (await runCli(env, ['migrate', 'status'])).stdout,
    /^MIGRATION +KIND +STATE +RUN AT\n0001-registry\.sql +expand +done +\d{4}-/,
  )
  for (const command of [
    ['questions', 'list'],
    ['issuer', 'show'],
  ]) {
    t.regex((await runCli(env, command)).stderr, /not installed yet: run `auth-admin install`/)
  }
})
