/** A sign-up while too many hashes wait, on real buckets. */
import test from 'ava'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { createAdmission } from '../../server/limits/admission.js'
import { createPasswordPolicy } from '../../server/passwords/policy.js'
import { createRegistrar } from '../../server/registration/registrar.js'
import { Refusal } from '../../server/requests/refusal.js'
import { type SignUpDeps, signUp } from '../../server/users/sign-up.js'
import { openModels } from '../_helpers/models.js'
import { signUpForm } from '../_helpers/service.js'

test('a sign-up without time to hash is refunded to the bucket of its address, any other is not', async t => {
  const models = await openModels(t)
  const address = '198.51.100.9'
  let hash: () => Promise<string[]> = async () => ['hash']
  const deps = {
    ...models,
    registrar: createRegistrar(models),
    admission: createAdmission({ ...models, factor: 1, now: Date.now }),
    turns: { begin: async () => ({ [Symbol.dispose]() {} }) },
    pool: { check() {} },
    passwords: { hash: () => hash() },
    policy: createPasswordPolicy({ minLength: 8 }),
    tokens: { issue: async () => 'token' },
    timeZone: 'America/Sao_Paulo',
    now: Date.now,
  } as unknown as SignUpDeps
  const run = signUp(deps) as (request: object, context: object) => Promise<object>
  const call = { address, requestId: 'x', deadline: Date.now() + 60_000, malformedFields: [] }
  const level = async () => {
    const [[bucket]] = await models.database.sequelize.query('SELECT ceil(level) AS level FROM buckets')
    return Number((bucket as { level: number }).level)
  }
  const refuse = async (reason: Reason) => {
    hash = async () => {
      throw new Refusal(reason, { retryAfter: 1 })
    }
    t.is(((await t.throwsAsync(run(signUpForm(), { call }))) as Refusal).reason, reason)
  }
  await run(signUpForm(), { call })
  t.is(await level(), 1)
  await refuse(Reason.OVERLOADED)
  t.is(await level(), 1)
  await refuse(Reason.DEADLINE_EXCEEDED)
  t.is(await level(), 2)
})
