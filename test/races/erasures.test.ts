/** Sign-in during the erasure of the user: in either order no data of the user remains. */

import { randomUUID } from 'node:crypto'
import ava, { type ExecutionContext } from 'ava'
import bcrypt from 'bcrypt'
import type pg from 'pg'
import { isUnreachable } from '../../server/database/failures.js'
import { usernameKey } from '../../server/rules/names.js'
import { openLocal } from '../_helpers/administration.js'
import { login as loginFrom } from '../_helpers/crowd.js'
import { ask, hold } from '../_helpers/database.js'
import { enterByAnswers, enterByKey, saveAnswer, updatePassword } from '../_helpers/recovery.js'
import { type Answer, password, type SignedUp, serviceForFile } from '../_helpers/service.js'
import { stopEvents } from '../_helpers/stopped.js'
import { idOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

const test = ava.serial

const service = serviceForFile()
const once = { once: true }
const login = (username: string, secret?: string) => loginFrom(service, username, undefined, secret, once)

/** Sign-ins with right and wrong proofs, and their responses if the user is erased before and after. */
const ways: Record<string, { enter: (username: string) => Promise<Answer>; before: number; after: number }> = {
  'a login': { enter: name => login(name), before: 404, after: 200 },
  'a login with a wrong password': { enter: name => login(name, 'wrong'), before: 404, after: 404 },
  'a sign-in by answers': { enter: name => enterByAnswers(service, name, 'Rex', once), before: 404, after: 200 },
  'a sign-in by wrong answers': { enter: name => enterByAnswers(service, name, 'Toto', once), before: 422, after: 422 },
  'a sign-in by a mailed key': { enter: name => enterByKey(service, name, 'ABCDEFGH'), before: 422, after: 200 },
  'a sign-in by a wrong key': { enter: name => enterByKey(service, name, 'ABCDEFGJ'), before: 422, after: 422 },
}

/** A user with every kind of proof, its erasure, and its remaining data. */
async function victim(t: ExecutionContext, way: string) {
  const fields = { email: 'alguem@example.org', securityquestion: '1', securityanswer: 'Rex' }
  const { username, token } = await service.signUp('ROLE_CLIENT', fields)
  const id = idOf(token)
  await saveAnswer(service, token, 2, 'Rex')
  await service.registry.mailedKeys.replace(id, 'recovery', 'ABCDEFGH')
  const { attempts, counterKeys } = service.registry
  // The next failure leaves an event.
  for (let left = way === 'a sign-in by a wrong key' ? 9 : 0; left > 0; left--)
    await attempts.count(counterKeys.account('mailed key', usernameKey(username)), 900)
  const local = await openLocal(t, service)
  const count = async (sql: string) => (await ask(service.env.DATABASE_URL!, sql)).length
  const emailsGone = () => waitForValue(() => count(`SELECT FROM emails WHERE parameters ->> 'userId' = '${id}'`), 0)
  // The sender of one would also wait for the erasure.
  await emailsGone()
  return {
    signIn: () => ways[way]!.enter(username),
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

for (const [name, { before, after }] of Object.entries(ways)) {
  test(`${name} during an erasure finds no user, and one before it is erased, too`, async t => {
    for (const isLate of [true, false]) {
      const { signIn, erase, id, sessions, isGone } = await victim(t, name)
      const statuses = await stopEvents<unknown>(t, service, isLate ? [erase, signIn] : [signIn, erase])
      t.deepEqual(statuses, isLate ? [id, before] : [after, id])
      t.is(await sessions(), isLate ? 0 : 1)
      await isGone()
    }
  })
}

// Calls that need the same rows, paused at the worst moment: none deadlocks or overwrites another.

test('a login from a new address and the activation of the same user never deadlock', async t => {
  const { activationkey } = await service.organization()
  const { username, token } = await service.signUp('ROLE_INSTITUTION')
  const query = { username, activationkey }
  const activate = () => service.request('POST', '/users/activate', { token, query, once: true })
  t.deepEqual(await stopEvents(t, service, [() => login(username), activate]), [200, 200])
})

test('renewing a hash never restores a password that was updated in the meantime', async t => {
  const url = service.env.DATABASE_URL!
  const hashOf = async ({ token }: SignedUp) =>
    (await ask(url, `SELECT password_hash AS hash FROM users WHERE id = ${idOf(token)}`))[0]!.hash
  const old = bcrypt.hashSync(password, 4)
  const users = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')] as const
  const [{ username, token }, later] = users
  await ask(url, `UPDATE users SET password_hash = '${old}' WHERE id IN (${users.map(user => idOf(user.token))})`)
  const next = 'jararaca-verde-7'
  const seen = await stopEvents(t, service, [() => updatePassword(service, token, next), () => login(username)])
  t.deepEqual(seen, [200, 200])
  // Hashes are renewed one after the other, after the responses.
  t.is((await login(later.username)).status, 200)
  await waitForValue(
    () => hashOf(later),
    value => value !== old,
  )
  t.is((await login(username, next)).status, 200)
  t.is((await login(username)).status, 404)
})

test('a statement that PostgreSQL aborted for a deadlock may be retried', async t => {
  const url = service.env.DATABASE_URL!
  const [one, other] = [await hold(t, url), await hold(t, url)]
  const table = `"${randomUUID()}"`
  await one.query(`CREATE TABLE ${table} AS SELECT id, 0 AS n FROM generate_series(1, 2) id`)
  const change = (client: pg.Client, id: number) => client.query(`UPDATE ${table} SET n = n + 1 WHERE id = ${id}`)
  await Promise.all([one.query('BEGIN'), other.query('BEGIN')])
  await Promise.all([change(one, 1), change(other, 2)])
  const crossing = await Promise.allSettled([change(one, 2), change(other, 1)])
  const faults = crossing.filter(each => each.status === 'rejected').map(({ reason }) => reason)
  const seen = faults.map(({ code }) => code)
  t.deepEqual(seen, ['40P01'])
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
