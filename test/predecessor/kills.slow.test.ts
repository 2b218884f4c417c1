/** A killed import resumes: each user exists once, and is counted once. */
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import { runCli, startCli } from '../_helpers/cli.js'
import { ask, createDatabase } from '../_helpers/database.js'
import { databaseFor, ownSettings } from '../_helpers/installed.js'
import { makePredecessor } from '../_helpers/predecessor.js'

const count = 12_000

test('an import that is killed repeatedly loses and duplicates no record', async t => {
  const from = await createDatabase({ from: 'template0' })
  t.teardown(async () => void (await from.drop()))
  await makePredecessor(from.url, count)
  const env = { ...ownSettings, DATABASE_URL: await databaseFor(t) }
  const args = ['import', 'database', from.url, '--json', '--yes', '--reason', 'moving in', '--on-collision', 'skip']
  const nextRow = async () => Number((await ask(env.DATABASE_URL, 'SELECT next_row FROM imports'))[0]?.next_row ?? 0)

  let kills = 0
  for (const target of [1, 3_000, 7_000]) {
    const child = startCli(env, args)
    const gone = once(child, 'exit')
    while ((await nextRow()) < target && child.exitCode === null) await sleep(20)
    if (child.exitCode === null) kills++
    child.kill('SIGKILL')
    await gone
  }
  t.is(kills, 3)
  const before = await nextRow()
  t.true(before >= 7_000 && before < count, String(before))

  const run = await runCli(env, args)
  t.is(run.code, 6, run.stderr)
  const done = JSON.parse(run.stdout)
  const imports = await ask(env.DATABASE_URL, 'SELECT id, state, next_row FROM imports')
  t.deepEqual(imports, [{ id: done.id, state: 'finished', next_row: count }])
  t.is(done.created + done.updated + done.unchanged + done.rejected, count)
  const [here] = await ask(env.DATABASE_URL, 'SELECT count(*)::int AS users, count(DISTINCT id)::int AS ids FROM users')
  t.deepEqual(here, { users: count - done.rejected, ids: count - done.rejected })
  // The answers of each user exist once, by question and by sign-up.
  const [answers] = await ask(env.DATABASE_URL, 'SELECT count(*)::int AS count FROM answers')
  const [there] = await ask(
    from.url,
    `SELECT count(DISTINCT (users_id, forgotpassword_questions_id))::int AS count
     FROM auth.forgotpassword_questions_users_answers`,
  )
  t.true(Number(answers!.count) <= Number(there!.count) && Number(answers!.count) > Number(there!.count) * 0.95)
  // A later run changes nothing.
  const again = JSON.parse((await runCli(env, args)).stdout)
  t.deepEqual([again.created, again.updated, again.rejected], [0, 0, done.rejected])
  t.is((await runCli(env, ['audit', 'verify', '--local'])).code, 0)
})
