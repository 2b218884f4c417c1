/** `auth-admin migrate`: the tables, as a step of its own. */
import test from 'ava'
import { runCli } from '../_helpers/cli.js'
import { freshDatabase } from '../_helpers/database.js'

test('migrate makes the tables and nothing in them; --status says before and after, and changes nothing', async t => {
  const env = {
    DATABASE_URL: await freshDatabase(t, { from: 'template0' }),
    AUTH_MASTER_KEY: Buffer.alloc(32, 7).toString('base64'),
  }
  const status = async () => JSON.parse((await runCli(env, ['migrate', '--status', '--json'])).stdout)
  const before = await status()
  t.deepEqual([before.done, before.newer], [[], []])
  t.deepEqual(before.pending[0], { name: '0001-registry.sql', kind: 'expand' })
  t.deepEqual(await status(), before)

  const { code, stdout } = await runCli(env, ['migrate', '--json'])
  t.is(code, 0)
  t.deepEqual(
    JSON.parse(stdout).migrations,
    before.pending.map(({ name }: { name: string }) => name),
  )
  t.deepEqual(await status(), { done: before.pending, pending: [], newer: [] })
  t.deepEqual(await runCli(env, ['migrate']), {
    code: 0,
    stderr: '',
    stdout: 'The tables are up to date; nothing was changed.\n',
  })
  t.regex(
    (await runCli(env, ['migrate', '--status'])).stdout,
    /^MIGRATION +KIND +STATE\n0001-registry\.sql +expand +done\n/,
  )
  for (const command of [
    ['questions', 'list'],
    ['issuer', 'show'],
  ]) {
    t.regex((await runCli(env, command)).stderr, /not installed yet: run `auth-admin install`/)
  }
})
