/** Sign-in during the erasure of the user: in either order no data of the user remains. */

import { randomUUID } from 'node:crypto'
import test, { type ExecutionContext } from 'ava'
import bcrypt from 'bcrypt'
import pg from 'pg'
import { isUnreachable } from '../../server/database/failures.js'
import { usernameKey } from '../../server/rules/names.js'
import { openLocal } from '../_helpers/administration.js'
import { anyAddress, from } from '../_helpers/crowd.js'
import { ask } from '../_helpers/database.js'
import { type Answer, password, type SignedUp, serviceForFile } from '../_helpers/service.js'
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

// Calls that need the same rows, paused at the worst moment: none deadlocks or overwrites another.

const login = (username: string, secret = password) =>
  service.request('POST', '/users/login', { query: { username, password: secret }, once: true })

async function connect(t: ExecutionContext): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: service.env.DATABASE_URL! })
  await client.connect()
  t.teardown(() => client.end())
  return client
}

test.serial('a login from a new address and the activation of the same user never deadlock', async t => {
  const { activationkey } = await service.organization()
  const { username, token } = await service.signUp('ROLE_INSTITUTION')
  const query = { username, activationkey }
  const activate = () => service.request('POST', '/users/activate', { token, query, once: true })
  t.deepEqual(await stopEvents(t, service, [() => login(username), activate]), [200, 200])
})

test.serial('renewing a hash never restores a password that was updated in the meantime', async t => {
  const { sequelize } = service.registry.database
  const hashOf = async ({ token }: SignedUp) => {
    const [rows] = await sequelize.query('SELECT password_hash FROM users WHERE id = $1', { bind: [idOf(token)] })
    return (rows as { password_hash: string }[])[0]!.password_hash
  }
  const old = bcrypt.hashSync(password, 4)
  const users = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')] as const
  const [{ username, token }, later] = users
  await sequelize.query('UPDATE users SET password_hash = $1 WHERE id = ANY($2)', {
    bind: [old, users.map(user => idOf(user.token))],
  })
  const query = { newPassword: 'jararaca-verde-7' }
  const update = () =>
    service.request('POST', '/forgotpasswords/passwordupdatebyusername', { token, query, once: true })
  t.deepEqual(await stopEvents(t, service, [update, () => login(username)]), [200, 200])
  // Hashes are renewed one after the other, after the responses.
  t.is((await login(later.username)).status, 200)
  await waitForValue(
    () => hashOf(later),
    value => value !== old,
  )
  t.is((await login(username, query.newPassword)).status, 200)
  t.is((await login(username)).status, 404)
})

test.serial('a statement that PostgreSQL aborted for a deadlock may be retried', async t => {
  const [one, other] = [await connect(t), await connect(t)]
  const table = `"${randomUUID()}"`
  await one.query(`CREATE TABLE ${table} AS SELECT id, 0 AS n FROM generate_series(1, 2) id`)
  const change = (client: pg.Client, id: number) => client.query(`UPDATE ${table} SET n = n + 1 WHERE id = ${id}`)
  await Promise.all([one.query('BEGIN'), other.query('BEGIN')])
  await Promise.all([change(one, 1), change(other, 2)])
  const crossing = await Promise.allSettled([change(one, 2), change(other, 1)])
  const faults = crossing.filter(each => each.status === 'rejected').map(({ reason }) => reason)
  t.deepEqual(
    faults.map(({ code }) => code),
    ['40P01'],
  )
  t.true(isUnreachable(faults[0]))
  await Promise.all([one.query('ROLLBACK'), other.query('ROLLBACK')])
  await one.query('BEGIN')
  await change(one, 1)
  await other.query(`SET lock_timeout = '10ms'`)
  t.true(isUnreachable(await t.throwsAsync(change(other, 1))))
  await one.query('ROLLBACK')
  // A wrong proof stays wrong.
  t.false(isUnreachable(await t.throwsAsync(other.query('SELECT 1 / 0'))))
})
