/** Sign-in during the erasure of the user: in either order no data of the user remains. */
import test, { type ExecutionContext } from 'ava'
import { usernameKey } from '../../server/rules/names.js'
import { openLocal } from '../_helpers/administration.js'
import { anyAddress, from } from '../_helpers/crowd.js'
import { ask } from '../_helpers/database.js'
import { type Answer, password, serviceForFile } from '../_helpers/service.js'
import { stopEvents } from '../_helpers/stopped.js'
import { idOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

const service = serviceForFile()

/** Sign-ins with right and wrong proofs, and their responses if the user is erased before and after. */
const ways: Record<
  string,
  { path: string; query?: object; answer?: string; wrongKeys?: number; before: number; after: number }
> = {
  'a login': { path: '/users/login', query: { password }, before: 404, after: 200 },
  'a login with a wrong password': { path: '/users/login', query: { password: 'wrong' }, before: 404, after: 404 },
  'a sign-in by answers': {
    path: '/forgotpasswords/loginbyusernameandanswers',
    answer: 'Rex',
    before: 404,
    after: 200,
  },
  'a sign-in by wrong answers': {
    path: '/forgotpasswords/loginbyusernameandanswers',
    answer: 'Toto',
    before: 422,
    after: 422,
  },
  'a sign-in by a mailed key': {
    path: '/forgotpasswords/loginbyusernameandkey',
    query: { key: 'ABCDEFGH' },
    before: 422,
    after: 200,
  },
  'a sign-in by a wrong key': {
    path: '/forgotpasswords/loginbyusernameandkey',
    query: { key: 'ABCDEFGJ' },
    // The next failure leaves an event.
    wrongKeys: 9,
    before: 422,
    after: 422,
  },
}

/** A user with every kind of proof, the calls about it, and its remaining data. */
async function victim(t: ExecutionContext, { path, query, answer, wrongKeys = 0 }: (typeof ways)[string]) {
  const fields = { email: 'alguem@example.org', securityquestion: '1', securityanswer: 'Rex' }
  const { username, token } = await service.signUp('ROLE_CLIENT', fields)
  const id = idOf(token)
  const save = { forgotpasswordquestionsid: 2, answer: 'Rex' }
  await service.request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body: save })
  await service.registry.mailedKeys.replace(id, 'recovery', 'ABCDEFGH')
  const { attempts, counterKeys } = service.registry
  for (let index = 0; index < wrongKeys; index++)
    await attempts.count(counterKeys.account('mailed key', usernameKey(username)), 900)
  const local = await openLocal(t, service)
  const body = answer && [1, 2].map(forgotpasswordquestionsid => ({ forgotpasswordquestionsid, answer }))
  const count = async (sql: string) => (await ask(service.env.DATABASE_URL!, sql)).length
  const emailsGone = () => waitForValue(() => count(`SELECT FROM emails WHERE parameters ->> 'userId' = '${id}'`), 0)
  // The sender of one would also wait for the erasure.
  await emailsGone()
  return {
    signIn: (): Promise<Answer> =>
      service.request('POST', path, {
        query: { username, ...query },
        ...(body && { body }),
        headers: from(anyAddress()),
        once: true,
      }),
    erase: async () => ({ status: (await local.eraseUser({ user: `#${id}`, confirm: username })).user }),
    id,
    sessions: () =>
      count(`SELECT FROM audit_staged WHERE subject_id = ${id} AND action LIKE 'session.%'
        UNION ALL SELECT FROM audit_events WHERE subject_id = ${id} AND action LIKE 'session.%'`),
    async isGone() {
      const addresses = await count(`SELECT FROM audit_staged WHERE subject_id = ${id} AND address IS NOT NULL
        UNION ALL SELECT FROM audit_events WHERE subject_id = ${id} AND address IS NOT NULL`)
      t.is(addresses, 0)
      t.is(await count(`SELECT FROM known_addresses WHERE user_id = ${id}`), 0)
      t.is(await count(`SELECT FROM users WHERE id = ${id}`), 0)
      await emailsGone()
    },
  }
}

for (const [name, way] of Object.entries(ways)) {
  test.serial(`${name} during an erasure finds no user, and leaves no data`, async t => {
    const { signIn, erase, id, sessions, isGone } = await victim(t, way)
    t.deepEqual(await stopEvents(t, service, [erase, signIn]), [id, way.before])
    t.is(await sessions(), 0)
    await isGone()
  })

  test.serial(`an erasure waits until ${name} ends, and erases its result`, async t => {
    const { signIn, erase, id, sessions, isGone } = await victim(t, way)
    t.deepEqual(await stopEvents(t, service, [signIn, erase]), [way.after, id])
    t.is(await sessions(), 1)
    await isGone()
  })
}
