/** Abuse of the change of an e-mail address: to take an account over, or to mail other people. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import type { Email } from 'postal-mime'
import { usernameKey } from '../../server/rules/names.js'
import { openLocal } from '../_helpers/administration.js'
import { anyAddress } from '../_helpers/crowd.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { changeTokens, endsOrWaits } from '../_helpers/models.js'
import { refused } from '../_helpers/problem.js'
import { password, type SignedUp, serviceForFile, serviceWithClock, type TestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { waitFor } from '../_helpers/wait.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ SMTP_URL: mailbox.url }))

const newEmail = () => `ana.${randomUUID()}@example.org`
const post = (path: string, token: string, body: unknown, { at = anyAddress(), on = service } = {}) =>
  on.request('POST', path, { token, body, headers: { 'x-forwarded-for': at }, once: true })
const setEmail = (
  token: string,
  email: string,
  { secret = password, ...more }: { secret?: string; at?: string; on?: TestService } = {},
) => post('/users/setemail', token, { email, password: secret }, more)
const confirmEmail = (token: string, code: string, at?: string, on?: TestService) =>
  post('/users/confirmemail', token, { code }, { ...(at && { at }), ...(on && { on }) })
const codeIn = ({ text }: Email) => /: ([2-9A-HJ-NP-Z]{8})$/m.exec(text ?? '')?.[1] ?? ''
const emailOf = async (token: string, { registry } = service) => (await registry.users.byId(idOf(token)))?.email
const wrongCode = (code: string) => (code.startsWith('2') ? `3${code.slice(1)}` : `2${code.slice(1)}`)
const forget = ({ username }: SignedUp) =>
  service.registry.attempts.clear([service.registry.counterKeys.account('password', usernameKey(username))])

/** Until nothing is left in the queue. */
async function quiet({ registry }: TestService): Promise<void> {
  const left = async () =>
    registry.database.run<object>({ name: 'test-left', text: 'SELECT id, attempts FROM emails ORDER BY id' }, [])
  await waitFor(async () => (await left()).length === 0, left)
}

/** Queues and holds an e-mail that starts a change, for a user of the first token generation. */
async function hold(kind: 'email-request' | 'email-code', userId: number, to: string): Promise<string> {
  const { database } = service.registry
  const parameters = { userId, to, generation: 0 }
  const text = `INSERT INTO emails (kind, parameters, locale, next_attempt_at) VALUES ($1, $2, 'en', now() + interval '1 hour')
    RETURNING id`
  const [row] = await database.run<{ id: string }>({ name: 'test-hold', text }, [kind, parameters])
  return row!.id
}

/** A code that was mailed for another address. */
async function mailedCode(token: string, on = service): Promise<{ email: string; code: string }> {
  const email = newEmail()
  const { status, text } = await setEmail(token, email, { on })
  if (status !== 200) throw new Error(text)
  return { email, code: codeIn(await mailbox.nextEmail(email)) }
}

test('a stolen token without the password changes no e-mail address and sends no e-mail, and guessing the password locks', async t => {
  const before = newEmail()
  const victim = await service.signUp('ROLE_CLIENT', { email: before })
  const email = newEmail()
  for (let index = 0; index < 10; index++) {
    refused(t, await setEmail(victim.token, email, { secret: `guess number ${index}` }), 404, 'INVALID_CREDENTIALS')
  }
  // Now even the correct password is refused, there and at login.
  refused(t, await setEmail(victim.token, email), 429, 'TOO_MANY_ATTEMPTS')
  const login = await service.request('POST', '/users/login', { query: { username: victim.username, password } })
  refused(t, login, 429, 'TOO_MANY_ATTEMPTS')
  await forget(victim)
  await quiet(service)
  t.false(mailbox.emails.some(({ to }) => to?.[0]?.address === email))
  t.is(await emailOf(victim.token), before)
  const filter = { subjectId: idOf(victim.token), action: 'user.ask-email', outcome: 'refused', limit: 100 }
  t.deepEqual(
    (await service.registry.audit.list(filter)).map(({ reason, object }) => [reason, object]),
    [
      ['INVALID_CREDENTIALS', null],
      ['TOO_MANY_ATTEMPTS', 'failures:10'],
    ],
  )
})

test('an address has five guesses at a code, a code works for its own account only, and failures elsewhere don’t void it', async t => {
  const [user, other] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  const { code } = await mailedCode(user.token)
  refused(t, await confirmEmail(other.token, code), 422, 'INVALID_KEY')
  const address = anyAddress()
  for (let index = 0; index < 5; index++) {
    refused(t, await confirmEmail(user.token, wrongCode(code), address), 422, 'INVALID_KEY')
  }
  refused(t, await confirmEmail(user.token, code, address), 422, 'INVALID_KEY')
  for (let index = 0; index < 12; index++) {
    refused(t, await confirmEmail(user.token, wrongCode(code), anyAddress()), 422, 'INVALID_KEY')
  }
  for (let index = 0; index < 10; index++) await setEmail(user.token, newEmail(), { secret: 'a guess' })
  refused(t, await setEmail(user.token, newEmail()), 429, 'TOO_MANY_ATTEMPTS')
  t.is(await emailOf(user.token), null)
  t.is((await confirmEmail(user.token, code)).status, 200)
})

test('only the newest code is valid, and it expires after 15 minutes', async t => {
  const service = await serviceWithClock(t, { SMTP_URL: mailbox.url })
  const { token } = await service.signUp('ROLE_CLIENT')
  const first = await mailedCode(token, service)
  await service.clock.pass(61)
  const second = await mailedCode(token, service)
  refused(t, await confirmEmail(token, first.code, undefined, service), 422, 'INVALID_KEY')
  await service.clock.pass(15 * 60)
  refused(t, await confirmEmail(token, second.code, undefined, service), 422, 'INVALID_KEY')
  const third = await mailedCode(token, service)
  await service.clock.pass(14 * 60)
  t.is((await confirmEmail(token, third.code, undefined, service)).status, 200)
  t.is(await emailOf(token, service), third.email)
})

test('of 20 simultaneous confirmations with one code, one changes the address, and the former address gets one notice', async t => {
  const before = newEmail()
  const { token } = await service.signUp('ROLE_CLIENT', { email: before })
  const { email, code } = await mailedCode(token)
  const answers = await Promise.all(Array.from({ length: 20 }, () => confirmEmail(token, code)))
  t.is(answers.filter(({ status }) => status === 200).length, 1)
  t.true(answers.every(({ status }) => [200, 422, 429].includes(status)))
  t.is(await emailOf(token), email)
  await mailbox.nextEmail(before)
  await quiet(service)
  t.is(mailbox.emails.filter(({ to }) => to?.[0]?.address === before).length, 1)
  const filter = { subjectId: idOf(token), action: 'user.change-email', outcome: 'ok', limit: 100 }
  t.is((await service.registry.audit.list(filter)).length, 1)
})

test('revoking the tokens voids the code: by a new password, and by logging out everywhere', async t => {
  const ways = [
    (token: string) =>
      service.request('POST', '/forgotpasswords/passwordupdatebyusername', {
        token,
        query: { newPassword: 'tatu-canastra 12' },
      }),
    (token: string) => service.request('POST', '/users/revokemytokens', { token }),
  ]
  for (const [index, way] of ways.entries()) {
    const { token, username } = await service.signUp('ROLE_CLIENT')
    const { code } = await mailedCode(token)
    t.is((await way(token)).status, 200)
    refused(t, await confirmEmail(token, code), 500, 'INVALID_TOKEN')
    const again = await service.login(username, index === 0 ? 'tatu-canastra 12' : password)
    refused(t, await confirmEmail(again, code), 422, 'INVALID_KEY')
    t.is(await emailOf(again), null)
  }
})

const newPassword = 'tatu-canastra 12'
const update = (token: string, on: TestService, username?: string) =>
  on.request('POST', '/forgotpasswords/passwordupdatebyusername', {
    token,
    query: { newPassword, ...(username && { username }) },
  })

test('a stolen token that sets a new password can’t set an e-mail address for a day', async t => {
  const service = await serviceWithClock(t, { SMTP_URL: mailbox.url })
  const { token, username } = await service.signUp('ROLE_CLIENT')
  t.is((await update(token, service)).status, 200)
  const session = await service.login(username, newPassword)
  const email = newEmail()
  const answer = await setEmail(session, email, { secret: newPassword, on: service })
  refused(t, answer, 409, 'WRONG_STATE')
  const [time = ''] = /\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)/.exec(answer.json.detail) ?? []
  t.true(Math.abs(Date.parse(time) - service.clock.now() - 86_400_000) < 1000, answer.json.detail)
  // No password is compared, so none is counted or hashed.
  for (let index = 0; index < 11; index++) {
    refused(t, await setEmail(session, email, { secret: 'wrong one 1', on: service }), 409, 'WRONG_STATE')
  }
  t.deepEqual(await service.registry.audit.list({ subjectId: idOf(token), action: 'user.ask-email', limit: 9 }), [])

  await service.clock.pass(86_400 - 2)
  const late = await service.login(username, newPassword)
  refused(t, await setEmail(late, email, { secret: newPassword, on: service }), 409, 'WRONG_STATE')
  await service.clock.pass(2)
  t.is((await setEmail(late, email, { secret: newPassword, on: service })).status, 200)
  await quiet(service)
  t.is(mailbox.emails.filter(({ to }) => to?.[0]?.address === email).length, 1)
})

test('a password update with an administrator’s token counts as one with a token', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  t.is((await update(await service.adminToken(), service, username)).status, 200)
  const session = await service.login(username, newPassword)
  refused(t, await setEmail(session, newEmail(), { secret: newPassword }), 409, 'WRONG_STATE')
})

test('a password update by a mailed key, or by SetPassword, lets the owner change the address at once', async t => {
  const { registry } = service
  const byKey = async (username: string, id: number) => {
    await registry.mailedKeys.replace(id, 'recovery', 'ABCD2345')
    const query = { username, key: 'ABCD2345' }
    const { text: token } = await service.request('POST', '/forgotpasswords/loginbyusernameandkey', { query })
    t.is((await update(token, service)).status, 200)
  }
  const byAdministrator = async (username: string) => {
    await (await openLocal(t, service, { reason: 'teste' })).setPassword({ user: username, password: newPassword })
  }
  for (const way of [byKey, byAdministrator]) {
    // Regardless of earlier uses of the token.
    const { token, username } = await service.signUp('ROLE_CLIENT')
    t.is((await update(token, service)).status, 200)
    await way(username, idOf(token))
    const session = await service.login(username, newPassword)
    t.is((await setEmail(session, newEmail(), { secret: newPassword })).status, 200)
  }
})

test('a password update by a mailed key of more than 15 minutes ago counts as one with a token, for address, username and deletion', async t => {
  const service = await serviceWithClock(t, { SMTP_URL: mailbox.url })
  const { registry, clock } = service
  const { username, token } = await service.signUp('ROLE_CLIENT')
  for (const [seconds, reason] of [
    [15 * 60 + 1, 'WRONG_STATE'],
    [15 * 60, undefined],
  ] as const) {
    await registry.mailedKeys.replace(idOf(token), 'recovery', 'ABCD2345')
    const query = { username, key: 'ABCD2345' }
    const entered = await service.request('POST', '/forgotpasswords/loginbyusernameandkey', { query })
    await clock.pass(seconds / 2)
    const { text: refreshed } = await service.request('GET', '/users/refresh', { token: entered.text })
    await clock.pass(seconds / 2)
    t.is((await update(refreshed, service)).status, 200)
    const session = await service.login(username, newPassword)
    t.is((await setEmail(session, newEmail(), { secret: newPassword, on: service })).json?.reason, reason)
    const own = { username: randomUUID(), password: newPassword }
    if (!reason) continue
    t.is((await post('/users/me/username', session, own, { on: service })).json?.reason, reason)
    t.is((await post('/users/me/delete', session, { password: newPassword }, { on: service })).json?.reason, reason)
  }
})

test('a request that started before its session was revoked neither mails a code nor changes an address', async t => {
  const { database, users, audit } = service.registry
  const ways = {
    suspend: users.suspend,
    revokeTokens: users.revokeTokens,
    changePassword: (id: number, t: Parameters<typeof users.suspend>[1]) =>
      users.changePassword(id, 'x', { byToken: true }, t),
  }
  for (const revoke of ['suspend', 'revokeTokens', 'changePassword'] as const) {
    for (const what of ['setEmail', 'confirmEmail', 'revokeMyTokens'] as const) {
      const { token } = await service.signUp('ROLE_CLIENT')
      const id = idOf(token)
      const { code } = what === 'confirmEmail' ? await mailedCode(token) : { code: '' }
      const email = newEmail()
      const begin = {
        setEmail: () => setEmail(token, email),
        confirmEmail: () => confirmEmail(token, code),
        revokeMyTokens: () => post('/users/revokemytokens', token, undefined),
      }[what]
      let answer: ReturnType<typeof begin> | undefined
      await changeTokens(service.registry, id, async transaction => {
        await ways[revoke](id, transaction)
        answer = begin()
        // It has authenticated its caller, and waits where it writes, or has already written.
        await endsOrWaits(database, answer)
      })
      t.is((await answer)?.json?.reason, 'INVALID_TOKEN', `${what} ${revoke}`)
      t.is((await users.byId(id))?.email, null)
      await quiet(service)
      t.false(mailbox.emails.some(({ to }) => to?.[0]?.address === email))
      const events = await audit.list({ subjectId: id, action: 'user.*', outcome: 'ok', limit: 100 })
      const changes = events.filter(({ action }) => /change-email|revoke-own/.test(action))
      t.is(changes.length, 0, `${what} ${revoke}`)
    }
  }
})

test.serial(
  'an administrator’s change of the address voids a mailed or waiting code and notifies the former address',
  async t => {
    const admin = await openLocal(t, service)
    for (const waits of [false, true]) {
      for (const set of [newEmail(), undefined]) {
        const before = newEmail()
        const { token, username } = await service.signUp('ROLE_CLIENT', { email: before })
        const { email: wanted, code } = waits ? { email: newEmail(), code: '' } : await mailedCode(token)
        const change = () =>
          admin.updateUser({ user: username, form: set ? { email: set } : {}, updateMask: { paths: ['email'] } })
        if (waits) {
          // Both e-mails that start a change.
          const ids = [await hold('email-request', idOf(token), wanted), await hold('email-code', idOf(token), wanted)]
          await change()
          const text = 'UPDATE emails SET next_attempt_at = now() WHERE id = ANY($1)'
          await service.registry.database.run({ name: 'test-release', text }, [ids])
          await quiet(service)
          t.false(mailbox.emails.some(({ to }) => to?.[0]?.address === wanted))
        } else {
          await change()
          refused(t, await confirmEmail(token, code), 422, 'INVALID_KEY')
        }
        t.is(await emailOf(token), set ?? null)
        t.regex((await mailbox.nextEmail(before)).subject!, /foi alterado/)
      }
    }
  },
)

test('an account mails one code per minute and five per hour, and one recipient gets five per hour from all accounts', async t => {
  const service = await serviceWithClock(t, { SMTP_URL: mailbox.url })
  const { token } = await service.signUp('ROLE_CLIENT')
  const victim = newEmail()
  for (let index = 0; index < 5; index++) {
    t.is((await setEmail(token, `${index}.${victim}`, { on: service })).status, 200)
    const answer = await setEmail(token, `x.${victim}`, { on: service })
    refused(t, answer, 429, 'TOO_MANY_ATTEMPTS')
    // The first four wait for the minute, the fifth for the hour.
    t.is(Number(answer.headers.get('retry-after')) <= 60, index < 4)
    await service.clock.pass(61)
  }
  const answer = await setEmail(token, `x.${victim}`, { on: service })
  refused(t, answer, 429, 'TOO_MANY_ATTEMPTS')
  t.true(Number(answer.headers.get('retry-after')) > 60)

  // The answer doesn't reveal that the address reached its limit.
  for (let index = 0; index < 12; index++) {
    const { token } = await service.signUp('ROLE_CLIENT')
    t.is((await setEmail(token, victim, { on: service })).status, 200)
  }
  await quiet(service)
  t.is(mailbox.emails.filter(({ to }) => to?.[0]?.address === victim).length, 5)
})

test('each former address gets a notice of the change, however quickly changes follow each other', async t => {
  const service = await serviceWithClock(t, { SMTP_URL: mailbox.url })
  const first = newEmail()
  const { token } = await service.signUp('ROLE_CLIENT', { email: first })
  /** Mails codes from other accounts to an address. */
  const fill = async (address: string, times: number) => {
    for (let index = 0; index < times; index++) {
      const { token } = await service.signUp('ROLE_CLIENT')
      await setEmail(token, address, { on: service })
      await mailbox.nextEmail(address)
    }
  }
  // The first two recipients have reached the limit of this hour, so their notices wait.
  await fill(first, 5)
  const addresses = [first]
  for (let index = 0; index < 3; index++) {
    const { email, code } = await mailedCode(token, service)
    t.is((await confirmEmail(token, code, undefined, service)).status, 200)
    if (index === 0) await fill(email, 4)
    addresses.push(email)
    await service.clock.pass(61)
  }
  const noticesTo = (address: string) =>
    mailbox.emails.filter(({ to, subject }) => to?.[0]?.address === address && /foi alterado/.test(subject ?? ''))
  await mailbox.nextEmail(addresses[2]!)
  t.deepEqual([noticesTo(first).length, noticesTo(addresses[1]!).length], [0, 0])
  await service.clock.pass(3600)
  await quiet(service)
  t.deepEqual(
    addresses.map(address => noticesTo(address).length),
    [1, 1, 1, 0],
  )
})

test('a recovery key that waits in the queue isn’t sent to a replaced address', async t => {
  const { registry } = service
  const before = newEmail()
  const { token } = await service.signUp('ROLE_CLIENT', { email: before })
  const { code } = await mailedCode(token)
  t.is((await confirmEmail(token, code)).status, 200)
  await mailbox.nextEmail(before)
  await registry.emails.add({ kind: 'recovery-key', parameters: { userId: idOf(token), to: before } }, 'en')
  await quiet(service)
  t.is(mailbox.emails.filter(({ to }) => to?.[0]?.address === before).length, 1)
})
