/** Imported answers work before and after they are hashed, and two replicas hash them at once. */
import test from 'ava'
import { createHashing } from '../../server/application.js'
import { sql } from '../../server/database/sql.js'
import { startWrapping } from '../../server/jobs/wrapping.js'
import { createLog } from '../../server/observability/log.js'
import { startTestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

test('imported answers work before and after idle threads of two replicas have hashed them', async t => {
  const service = await startTestService(t)
  const { registry, settings, request } = service
  const { database } = registry
  const hashing = createHashing(registry, settings, { now: Date.now })
  t.teardown(() => hashing.pool.close())
  const { passwords } = hashing
  const users = await Promise.all(Array.from({ length: 30 }, () => service.signUp('ROLE_CLIENT')))
  const answer = (question: number) => ({ forgotpasswordquestionsid: question, answer: `Resposta ${question}` })
  await database.transact(async transaction => {
    for (const { token } of users)
      for (const question of [1, 2])
        await database.run(
          sql`INSERT INTO answers (user_id, question_id, answer_hash) VALUES (${idOf(token)}, ${question}, ${passwords.key(` resposta  ${question}`)})`,
          transaction,
        )
  })
  const recover = async ({ username }: { username: string }, ...answers: object[]) =>
    (await request('POST', '/forgotpasswords/loginbyusernameandanswers', { query: { username }, body: answers })).status
  const wrong = { ...answer(2), answer: 'outra' }
  t.deepEqual([await recover(users[0]!, answer(1), answer(2)), await recover(users[0]!, answer(1), wrong)], [200, 422])

  const times = { first: 0, interval: 1e9, afterFailure: 10 }
  const replicas = [0, 1].map(() => startWrapping(registry, passwords, createLog('silent'), times))
  const left = async () =>
    (
      await database.run<{ n: number }>(sql`SELECT count(*)::int AS n FROM answers WHERE answer_hash LIKE 'keyed1:%'`)
    )[0]!.n
  await waitForValue(left, 0)
  for (const stop of replicas) await stop()
  const hashes = await database.run<{ hash: string }>(sql`SELECT answer_hash AS hash FROM answers`)
  t.is(hashes.length, 60)
  t.true(hashes.every(({ hash }) => /^hmac1:\$2b\$04\$/.test(hash)))
  t.deepEqual([await recover(users[1]!, answer(1), answer(2)), await recover(users[1]!, answer(1), wrong)], [200, 422])
})

test('a sign-in doesn’t wait behind answers that are to be hashed, and a stop ends the round', async t => {
  const { registry, settings } = await startTestService(t)
  const { pool, passwords } = createHashing(registry, { ...settings, bcryptCost: 10 }, { now: Date.now, count: 1 })
  t.teardown(() => pool.close())
  const answer = { userId: 1, questionId: 1, keyed: passwords.key('x')! }
  let hashed = 0
  const questions = {
    ...registry.questions,
    lastKeyed: async () => 1,
    keyed: async () => Array.from({ length: 20 }, () => answer),
    wrap: async () => void hashed++,
  }
  const stop = startWrapping({ questions }, passwords, createLog('silent'), {
    first: 0,
    interval: 1e9,
    afterFailure: 1e9,
  })
  await waitForValue(() => hashed > 0, true)
  const waiter = { kind: 'other', networks: [], account: 'a', deadline: Date.now() + 60_000 } as const
  const before = hashed
  await passwords.hash([{ context: 'password', text: 'um cavalo azul' }], waiter)
  // At most the hashes in progress and one that started meanwhile.
  t.true(hashed - before <= 2, String(hashed - before))
  await stop()
  const after = hashed
  await passwords.hash([{ context: 'password', text: 'um cavalo azul' }], waiter)
  t.is(hashed, after)
})
