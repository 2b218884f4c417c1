/** Abuse of the RPCs for a user's own account: to delete or to read the accounts of others. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { usernameKey } from '../../server/rules/names.js'
import { anyAddress } from '../_helpers/crowd.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { changeTokens, endsOrWaits } from '../_helpers/models.js'
import { refused } from '../_helpers/problem.js'
import { replicasForFile } from '../_helpers/replicas.js'
import { password, serviceForFile, serviceWithClock, type TestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ SMTP_URL: mailbox.url }))
const replicas = replicasForFile(2, { clocked: true })

const newEmail = () => `ana.${randomUUID()}@example.org`
const deleteMe = (token: string, secret = password, on: TestService = service) =>
  on.request('POST', '/users/me/delete', {
    token,
    body: { password: secret },
    headers: { 'x-forwarded-for': anyAddress() },
  })
const exportMe = (token: string, on: TestService = service) => on.request('GET', '/users/me/export', { token })
const eventsOf = async (id: number, action: string) =>
  (await service.registry.audit.list({ subjectId: id, action, limit: 99 })).map(({ outcome, reason, object }) =>
    [outcome, reason, object].filter(Boolean).join(' '),
  )
const emailsTo = (email: string) => mailbox.emails.filter(({ to }) => to?.[0]?.address === email).length

test('a stolen token without the password deletes no account, and guessing the password locks', async t => {
  const email = newEmail()
  const { token, username } = await service.signUp('ROLE_CLIENT', { email })
  for (let index = 0; index < 10; index++) {
    refused(t, await deleteMe(token, `guess number ${index}`), 404, 'INVALID_CREDENTIALS')
  }
  // Now even the correct password is refused, there and at login.
  refused(t, await deleteMe(token), 429, 'TOO_MANY_ATTEMPTS')
  const login = await service.request('POST', '/users/login', { query: { username, password } })
  refused(t, login, 429, 'TOO_MANY_ATTEMPTS')
  t.is((await service.request('GET', '/users/me', { token })).status, 200)
  t.deepEqual(await eventsOf(idOf(token), 'user.delete-own'), [
    'refused INVALID_CREDENTIALS',
    'refused TOO_MANY_ATTEMPTS failures:10',
  ])
  const { attempts, counterKeys } = service.registry
  await attempts.clear([counterKeys.account('password', usernameKey(username))])
  t.is((await deleteMe(token)).status, 200)
  await mailbox.nextEmail(email)
  t.is(emailsTo(email), 1)
})

test('the password of another account deletes nothing', async t => {
  const [thief, victim] = [
    await service.signUp('ROLE_CLIENT', { password: 'tatu-canastra 12' }),
    await service.signUp('ROLE_CLIENT'),
  ]
  refused(t, await deleteMe(victim.token, 'tatu-canastra 12'), 404, 'INVALID_CREDENTIALS')
  refused(t, await deleteMe(thief.token), 404, 'INVALID_CREDENTIALS')
  for (const { token } of [thief, victim]) t.is((await service.request('GET', '/users/me', { token })).status, 200)
})

test('a stolen token that sets a new password can’t delete the account for a day', async t => {
  const service = await serviceWithClock(t)
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const newPassword = 'tatu-canastra 12'
  const update = { token, query: { newPassword } }
  t.is((await service.request('POST', '/forgotpasswords/passwordupdatebyusername', update)).status, 200)
  const session = await service.login(username, newPassword)
  const answer = await deleteMe(session, newPassword, service)
  refused(t, answer, 409, 'WRONG_STATE')
  const [time = ''] = /\d{4}-\d\d-\d\dT[\d:.]+Z/.exec(answer.json.detail) ?? []
  t.true(Math.abs(Date.parse(time) - service.clock.now() - 86_400_000) < 1000, answer.json.detail)
  await service.clock.pass(86_400 - 2)
  const late = await service.login(username, newPassword)
  refused(t, await deleteMe(late, newPassword, service), 409, 'WRONG_STATE')
  await service.clock.pass(2)
  t.is((await deleteMe(late, newPassword, service)).status, 200)
})

test('of 8 simultaneous deletions with one token one succeeds, with one event and one e-mail', async t => {
  const email = newEmail()
  const { token } = await service.signUp('ROLE_CLIENT', { email })
  const answers = await Promise.all(Array.from({ length: 8 }, () => deleteMe(token)))
  t.deepEqual(answers.map(({ status }) => status).sort(), [200, ...Array(7).fill(500)])
  t.deepEqual(await eventsOf(idOf(token), 'user.delete-own'), ['ok'])
  await mailbox.nextEmail(email)
  t.is(emailsTo(email), 1)
})

test('of a concurrent deletion and another change with one token, one succeeds', async t => {
  const others = {
    '/users/revokemytokens': {},
    '/forgotpasswords/passwordupdatebyusername': { query: { newPassword: 'tatu-canastra 12' } },
  }
  for (const [path, more] of Object.entries(others)) {
    for (let round = 0; round < 5; round++) {
      const { token } = await service.signUp('ROLE_CLIENT')
      const [deletion, change] = await Promise.all([deleteMe(token), service.request('POST', path, { token, ...more })])
      const isDeleted = deletion.status === 200
      const [first, late] = isDeleted ? [deletion, change] : [change, deletion]
      t.is(first.status, 200, path)
      // A deletion that begins before the change of the password and compares it afterwards has a wrong one.
      if (late === deletion && 'query' in more && late.status === 404) refused(t, late, 404, 'INVALID_CREDENTIALS')
      else t.is(late.status, 500, path)
      t.is((await service.registry.users.byId(idOf(token))) === undefined, isDeleted, path)
    }
  }
})

test('a request deletes and exports nothing if its caller is suspended or logged out meanwhile', async t => {
  const { database, users } = service.registry
  for (const revoke of [users.suspend, users.revokeTokens]) {
    for (const [what, begin] of Object.entries({ deleteMe, exportMe })) {
      const email = newEmail()
      const { token } = await service.signUp('ROLE_CLIENT', { email })
      const id = idOf(token)
      let answer: ReturnType<typeof begin> | undefined
      await changeTokens(service.registry, id, async transaction => {
        await revoke(id, transaction)
        answer = begin(token)
        // It has authenticated its caller, and waits where it writes.
        await endsOrWaits(database, answer)
      })
      refused(t, (await answer)!, 500, 'INVALID_TOKEN')
      t.truthy(await users.byId(id), what)
      t.deepEqual(await eventsOf(id, '*-own'), [], what)
      t.is(emailsTo(email), 0)
    }
  }
})

test('an account has five exports a day over all replicas, independent of other accounts', async t => {
  const [one, other] = [replicas[0]!, replicas[1]! as TestService]
  const { token, username } = await one.signUp('ROLE_CLIENT')
  const outsider = await one.signUp('ROLE_CLIENT')
  const atOnce = await Promise.all([one, other, one, other, one, other, one].map(each => exportMe(token, each)))
  t.deepEqual(atOnce.map(({ status }) => status).sort(), [200, 200, 200, 200, 200, 429, 429])
  for (const each of [one, other]) {
    const answer = await exportMe(token, each)
    refused(t, answer, 429, 'TOO_MANY_ATTEMPTS')
    t.is(answer.headers.get('retry-after'), '86400')
    t.is((await exportMe(outsider.token, each)).status, 200)
  }
  const { clock } = one as TestService & { clock: { pass(seconds: number): Promise<void> } }
  await clock.pass(86_390)
  refused(t, await exportMe(await one.login(username), other), 429, 'TOO_MANY_ATTEMPTS')
  await clock.pass(11)
  t.is((await exportMe(await one.login(username), other)).status, 200)
  const events = await one.registry.audit.list({ subjectId: idOf(token), action: 'user.export-own', limit: 99 })
  t.deepEqual(
    events.map(({ actor, actor_id }) => [actor, actor_id]),
    Array(6).fill(['user', idOf(token)]),
  )
})
