/** Sign-in without a password: mailed keys, answers to questions, which a thief may save, and the e-mails to the owner. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import type { Email } from 'postal-mime'
import type { Transaction } from '../../server/database/database.js'
import type { EmailIntent } from '../../server/models/email.js'
import type { Users } from '../../server/models/user.js'
import { usernameKey } from '../../server/rules/names.js'
import { openLocal } from '../_helpers/administration.js'
import { anyAddress, login, statuses } from '../_helpers/crowd.js'
import { ask } from '../_helpers/database.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { changeTokens, lockWaiters } from '../_helpers/models.js'
import { refused } from '../_helpers/problem.js'
import { enterByAnswers, enterByKey, saveAnswer, sendKey, updatePassword } from '../_helpers/recovery.js'
import type { TestService } from '../_helpers/service.js'
import {
  type Answer,
  password,
  type SignedUp,
  serviceForFile,
  serviceWithClock,
  startTestService,
} from '../_helpers/service.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ SMTP_URL: mailbox.url }))
const day = 86_400

const sql = (text: string) => ask(service.env.DATABASE_URL!, text)
const useKey = async ({ username }: { username: string }, key: string, address?: string) =>
  (await enterByKey(service, username, key, address)).status

/** A user with a unique recovery address. */
async function withEmail(): Promise<SignedUp & { email: string; id: number }> {
  const email = `pessoa${randomUUID().slice(0, 8)}@example.org`
  const user = await service.signUp('ROLE_CLIENT', { email })
  return { ...user, email, id: idOf(user.token) }
}

/** Requests a key and reads it from the e-mail. */
async function mailedKey({ username, email }: { username: string; email: string }, address?: string): Promise<string> {
  await sendKey(service, username, email, address)
  for (;;) {
    const { text }: Email = await mailbox.nextEmail(email)
    const key = /: ([2-9A-HJ-NP-Z]{8})\n/.exec(text ?? '')?.[1]
    if (key) return key
  }
}

/** An address that the account knows: its requests have a separate quota. */
async function knownAddress({ username }: { username: string }): Promise<string> {
  const address = anyAddress()
  await login(service, username, address)
  return address
}

/** Until nothing is left in the queue. */
async function quiet(): Promise<void> {
  const left = () => sql('SELECT id, attempts FROM emails ORDER BY id')
  await waitFor(async () => (await left()).length === 0, left)
}

const someone = 'ana@example.org'

test('90 users behind one address each request a key, and none is refused', async t => {
  const own = await startTestService(t)
  const carrier = anyAddress()
  const all = Array.from({ length: 90 }, (_, index) => sendKey(own, `ninguém${index}`, someone, carrier))
  t.deepEqual(statuses(await Promise.all(all)), { 200: 90 })
})

test('from one address 60 keys an hour are requested for an account, existing or not, and others aren’t refused', async t => {
  const own = await startTestService(t, { AUTH_LIMIT_FACTOR: '0.1' })
  const { username } = await own.signUp('ROLE_CLIENT')
  const address = anyAddress()
  // Without a username, an e-mail address stands for the account.
  for (const [name, email] of [
    [username, someone],
    ['ninguém', someone],
    ['', someone],
  ] as const) {
    for (let index = 0; index < 6; index++) t.is((await sendKey(own, name, email, address)).status, 200)
    const refusal = await sendKey(own, name.toUpperCase(), email.toUpperCase(), address)
    refused(t, refusal, 429, 'TOO_MANY_ATTEMPTS')
    const wait = Number(refusal.headers.get('retry-after'))
    t.true(wait > 500 && wait <= 600, String(wait))
    t.is((await sendKey(own, name, email)).status, 200, 'from elsewhere')
  }
  t.is((await sendKey(own, 'outra', someone, address)).status, 200)
  t.is((await sendKey(own, '', 'bia@example.org', address)).status, 200)
})

test('from one address 600 keys are requested at once, for whichever accounts, and then 300 an hour', async t => {
  const own = await serviceWithClock(t)
  const address = anyAddress()
  let last = 0
  const send = async () => (await sendKey(own, `ninguém${++last}`, someone, address)).status
  const { database, counterKeys } = own.registry
  const bind = { subject: counterKeys.address('recoveryRequests', address) }
  await database.sequelize.query('INSERT INTO buckets VALUES ($subject, 598, clock_timestamp())', { bind })
  for (const seconds of [0, 24]) {
    await own.clock.pass(seconds)
    t.deepEqual([await send(), await send(), await send()], [200, 200, 429])
  }
})

test('of 50 simultaneous sign-ins with the same key, one succeeds', async t => {
  const user = await withEmail()
  const key = await mailedKey(user)
  const all = await Promise.all(Array.from({ length: 50 }, () => enterByKey(service, user.username, key)))
  const { 200: succeeded, 422: wrong = 0, 429: waits = 0 } = statuses(all)
  t.deepEqual([succeeded, wrong + waits], [1, 49])
  const filter = { subjectId: user.id, action: 'session.login-by-key', outcome: 'ok', limit: 100 }
  t.is((await service.registry.audit.list(filter)).length, 1)
})

// Serial, because it counts sessions that wait for locks.
test.serial('parallel attempts are counted before they are compared', async t => {
  const user = await withEmail()
  const key = await mailedKey(user)
  const address = anyAddress()
  const { database, counterKeys, mailedKeys } = service.registry
  const guess = () => useKey(user, (key.startsWith('2') ? '3' : '2') + key.slice(1), address)
  const waiting = (count: number) => waitForValue(() => lockWaiters(database), count)
  t.is(await guess(), 422)
  const [wrong, right]: Promise<number>[][] = [[], []]
  await database.transact(
    async transaction => {
      const bind = [counterKeys.mailedKey(mailedKeys.digest(user.id, 'recovery', key), address)]
      await database.sequelize.query('SELECT FROM attempts WHERE subject = $1 FOR UPDATE', { bind, transaction })
      for (let index = 0; index < 5; index++) wrong!.push(guess())
      await waiting(5)
      right!.push(useKey(user, key, address))
      // No attempt can count while the counter is locked: one that compared first wouldn't wait.
      await waiting(6)
    },
    { unlimited: true },
  )
  t.deepEqual(await Promise.all(wrong!), Array(5).fill(422))
  // PostgreSQL wakes waiting sessions in any order.
  t.true([200, 422].includes(await right![0]!))
  t.is(await useKey(user, key, address), 422)
})

test('the newest two keys are valid until one is used, each for 15 minutes', async t => {
  const user = await withEmail()
  const keys = [await mailedKey(user)]
  for (let index = 0; index < 2; index++) keys.push(await mailedKey(user, await knownAddress(user)))
  const [oldest, former, newest] = keys as [string, string, string]
  t.is(await useKey(user, oldest), 422)
  t.is(await useKey(user, former), 200)
  t.is(await useKey(user, newest), 422)
  t.is(await useKey(user, former), 422)
  const later = await serviceWithClock(t)
  const users = [await later.signUp('ROLE_CLIENT'), await later.signUp('ROLE_CLIENT')]
  for (const { token } of users) await later.registry.mailedKeys.replace(idOf(token), 'recovery', 'ABCD2345')
  for (const [index, seconds] of [15 * 60 - 1, 1].entries()) {
    await later.clock.pass(seconds)
    t.is((await enterByKey(later, users[index]!.username, 'ABCD2345')).status, index === 0 ? 200 : 422)
  }
  const [one, two] = [await later.signUp('ROLE_CLIENT'), await later.signUp('ROLE_CLIENT')]
  const mail = async (key: string) => {
    for (const { token } of [one, two]) await later.registry.mailedKeys.replace(idOf(token), 'recovery', key)
  }
  await mail('ABCD2345')
  await later.clock.pass(10 * 60)
  await mail('WXYZ6789')
  await later.clock.pass(5 * 60)
  t.is((await enterByKey(later, one.username, 'ABCD2345')).status, 422, 'the key before ends at its own time')
  t.is((await enterByKey(later, one.username, 'WXYZ6789')).status, 200)
})

test('a try counts against both keys: each has 5 from an address', async t => {
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const user = { username }
  const mail = (key: string) => service.registry.mailedKeys.replace(idOf(token), 'recovery', key)
  const address = anyAddress()
  const fail = async (times: number) => {
    for (let index = 0; index < times; index++) t.is(await useKey(user, 'MMMM2222', address), 422)
  }
  await mail('ABCD2345')
  await fail(3)
  await mail('WXYZ6789')
  await fail(2)
  t.is(await useKey(user, 'ABCD2345', address), 422, '5 tries before')
  await fail(2)
  t.is(await useKey(user, 'WXYZ6789', address), 422, '5 tries before')
  t.is(await useKey(user, 'ABCD2345'), 200, 'from elsewhere')
})

test('of keys that two replicas mail at once, the last two are valid, and one of many simultaneous uses succeeds', async t => {
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const mail = (key: string) => service.registry.mailedKeys.replace(idOf(token), 'recovery', key)
  const keys = ['ABCD2345', 'WXYZ6789', 'FGHJ4567', 'PQRS8888']
  await Promise.all(keys.map(mail))
  await Promise.all(keys.map(mail))
  const all = await Promise.all([...keys, ...keys].map(key => useKey({ username }, key, anyAddress())))
  t.is(all.filter(status => status === 200).length, 1)
})

test('a server of version 1.0.0 beside this one replaces and spends keys as it always did', async t => {
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const id = idOf(token)
  const mail = (key: string) => service.registry.mailedKeys.replace(id, 'recovery', key)
  const digest = (key: string) => service.registry.mailedKeys.digest(id, 'recovery', key).toString('hex')
  await mail('ABCD2345')
  await mail('WXYZ6789')
  await sql(`INSERT INTO mailed_keys (user_id, purpose, key_digest, expires_at)
    VALUES (${id}, 'recovery', '\\x${digest('FGHJ4567')}', now() + interval '15 minutes')
    ON CONFLICT (user_id, purpose) DO UPDATE SET key_digest = excluded.key_digest, expires_at = excluded.expires_at`)
  t.is(await useKey({ username }, 'WXYZ6789', anyAddress()), 422)
  t.is(await useKey({ username }, 'FGHJ4567', anyAddress()), 200)
  await mail('ABCD2345')
  await mail('WXYZ6789')
  await sql(`DELETE FROM mailed_keys WHERE user_id = ${id} AND key_digest = '\\x${digest('WXYZ6789')}'`)
  t.is(await useKey({ username }, 'ABCD2345', anyAddress()), 422)
})

test('a key belongs to one user and one purpose, also when an insider copies it or changes its purpose', async t => {
  const [one, other] = [await withEmail(), await withEmail()]
  const key = await mailedKey(one)
  await mailedKey(other)
  t.is(await useKey(other, key), 422)
  await sql(`UPDATE mailed_keys SET key_digest = (SELECT key_digest FROM mailed_keys WHERE user_id = ${one.id})
    WHERE user_id = ${other.id}`)
  t.is(await useKey(other, key), 422)
  await sql(`DELETE FROM mailed_keys WHERE user_id = ${other.id}`)
  await service.registry.mailedKeys.replace(other.id, 'activation', 'ABCD2345')
  await sql(`UPDATE mailed_keys SET purpose = 'recovery' WHERE user_id = ${other.id}`)
  t.is(await useKey(other, 'ABCD2345'), 422)
  t.is(await useKey(one, key), 200)
})

type Revoke = (users: Users, user: { id: number }, t: Transaction) => Promise<unknown>
const clerk = { address: '192.0.2.1', locale: 'en' } as const

/** Changes by administrators that end mailed keys of a user, and whether activation keys are among them. */
const revocations: Record<string, readonly [endsActivation: boolean, Revoke]> = {
  'revoke-tokens': [false, (users, { id }, t) => users.revokeTokens(id, t)],
  'set-password': [
    false,
    (users, { id }, t) => users.changePassword({ id, usernameKey: 'x' }, 'x', { byToken: false }, t),
  ],
  'set-email': [false, (users, { id }, t) => users.setEmail({ id, email: null }, 'x@example.org', clerk, t)],
  suspend: [true, (users, { id }, t) => users.suspend(id, t)],
  'set-role': [true, (users, { id }, t) => users.setRole({ id, active: false }, 'ROLE_ADMIN', t)],
  'set-organization': [
    true,
    (users, { id }, t) =>
      users.setOrganization({ id, active: false, role: 'ROLE_CLIENT', email: null }, null, clerk, t),
  ],
  delete: [true, (users, { id }, t) => users.delete(id, t)],
}

for (const [name, [endsActivation, revoke]] of Object.entries(revocations)) {
  test.serial(`${name} voids keys that wait to be mailed`, async t => {
    const { id: organizationId } = await service.organization()
    const [user, other] = [await withEmail(), await withEmail()]
    const { id: userId, email: to } = user
    const request = { address: '192.0.2.1', requestId: 'r1' }
    const waiting: EmailIntent[] = [
      {
        kind: 'recovery-key',
        stage: 'requested',
        parameters: { ...request, usernameKey: usernameKey(user.username), email: to },
      },
      { kind: 'recovery-key', stage: 'ready', parameters: { userId, to } },
      { kind: 'email-code', stage: 'requested', parameters: { userId, to, generation: 0 } },
      { kind: 'email-code', stage: 'ready', parameters: { userId, to, generation: 0 } },
      { kind: 'activation-key', stage: 'ready', parameters: { userId, organizationId } },
      { kind: 'answer-saved', stage: 'requested', parameters: { userId, at: '2026-11-21', address: '192.0.2.1' } },
      // Of other users, one of whom has this user’s id as its name.
      { kind: 'recovery-key', stage: 'requested', parameters: { ...request, usernameKey: `${userId}`, email: to } },
      { kind: 'recovery-key', stage: 'ready', parameters: { userId: other.id, to: other.email } },
    ]
    const ids: string[] = []
    for (const { kind, stage, parameters } of waiting) {
      const text = `INSERT INTO emails (kind, stage, parameters, locale, next_attempt_at)
        VALUES ($1, $2, $3, 'en', now() + interval '1 hour') RETURNING id`
      const values = [kind, stage, parameters]
      ids.push((await service.registry.database.run<{ id: string }>({ text, values }))[0]!.id)
    }
    await changeTokens(service.registry, userId, t => revoke(service.registry.users, user, t))
    const left = await sql(`DELETE FROM emails WHERE id IN (${ids}) RETURNING kind`)
    const seen = left.map(({ kind }) => kind)
    t.deepEqual(seen, [...(endsActivation ? [] : ['activation-key']), 'answer-saved', 'recovery-key', 'recovery-key'])
  })
}

test('a request for a key to another user’s address gets the same answer and sends nothing', async t => {
  const user = await withEmail()
  const foreign = () => `mallory${randomUUID()}@example.org`
  for (const [username, email] of [
    [user.username, foreign()],
    [(await service.signUp('ROLE_CLIENT')).username, foreign()],
    ['', foreign()],
    [randomUUID(), foreign()],
    // Last, because a sent e-mail delays others for a minute.
    [user.username, user.email.toUpperCase()],
  ] as const) {
    const { status, text, headers } = await sendKey(service, username, email)
    t.deepEqual([status, text, headers.get('content-type')], [200, '', null], `${username} ${email}`)
  }
  await quiet()
  const sent = mailbox.emails.filter(({ text }) => text?.includes(user.username))
  const seen = sent.map(({ to }) => to?.[0]?.address)
  t.deepEqual(seen, [user.email])
})

test('the owner gets an e-mail about a saved answer, a changed password and every sign-in without it', async t => {
  const user = await withEmail()
  const { username, token, email, id } = user
  // The first key mailed to an address that isn’t proved would end the answers.
  await sql(`UPDATE users SET email_proved = true WHERE id = ${id}`)
  for (const question of [1, 2]) await saveAnswer(service, token, question, 'azul')
  // From a known address, because no more than five others are sent in an hour.
  t.is(await useKey(user, await mailedKey(user, await knownAddress(user))), 200)
  const entered = await enterByAnswers(service, username, 'AZUL ')
  t.deepEqual(claimsOf(entered.text).amr, ['kba'])
  await updatePassword(service, entered.text, 'tartaruga de couro 7')
  await quiet()
  const emails = mailbox.emails.filter(({ to }) => to?.[0]?.address === email)
  const subjects = emails.map(({ subject }) => subject)
  const count = (text: string) => subjects.filter(each => each === text).length
  t.is(count('Acesso à sua conta sem a senha'), 2)
  t.is(count('Sua senha foi alterada'), 1)
  t.true(emails.some(({ subject }) => /resposta/i.test(subject ?? '')))
  t.false(emails.some(({ text }) => text?.includes('tartaruga de couro 7')))
})

test('passwords, keys and answers are never stored in the clear', async t => {
  const user = await withEmail()
  const answer = `resposta ${randomUUID()}`
  await saveAnswer(service, user.token, 1, answer)
  const key = await mailedKey(user)
  const tables = await sql(`SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'public'`)
  for (const { name } of tables) {
    const dump = JSON.stringify(await sql(`SELECT row_to_json(x)::text AS row FROM "${name}" x`))
    for (const secret of [key, Buffer.from(key).toString('hex'), answer, password])
      t.false(dump.includes(secret), String(name))
  }
})

// Answers that a thief of a token may have saved.

const save = async (on: TestService, token: string, answer: string, more?: { password?: string; usersid?: number }) => {
  const all: Answer[] = []
  for (const question of [1, 2]) all.push(await saveAnswer(on, token, question, answer, more))
  for (const { status, text } of all) if (status !== 200) throw new Error(text)
}
const enters = async (on: TestService, username: string, answer: string) =>
  (await enterByAnswers(on, username, answer)).status === 200

/** A user whose two answers `azul` count, a day and a minute after its sign-up. */
async function established(on: Awaited<ReturnType<typeof serviceWithClock>>): Promise<SignedUp> {
  const user = await on.signUp('ROLE_CLIENT')
  await save(on, user.token, 'azul')
  await on.clock.pass(day + 60)
  return { ...user, token: await on.login(user.username) }
}

test('an answer saved on the first day counts at once, a later one after a day, or at once with the password', async t => {
  const on = await serviceWithClock(t)
  const { username, token } = await on.signUp('ROLE_CLIENT')
  await save(on, token, 'azul')
  t.true(await enters(on, username, 'azul'))
  await on.clock.pass(day + 60)
  await save(on, await on.login(username), 'verde')
  for (const seconds of [0, day - 60]) {
    await on.clock.pass(seconds)
    t.false(await enters(on, username, 'verde'))
    t.true(await enters(on, username, 'azul'))
  }
  await on.clock.pass(120)
  t.true(await enters(on, username, 'verde'))
  t.false(await enters(on, username, 'azul'))
  // The answer that counts by now is the former one of the next.
  const session = await on.login(username)
  await save(on, session, 'rosa')
  t.true(await enters(on, username, 'verde'))
  // Also instead of a waiting answer.
  await save(on, session, 'roxo', { password })
  for (const seconds of [0, 2 * day]) {
    await on.clock.pass(seconds)
    t.true(await enters(on, username, 'roxo'))
    for (const former of ['verde', 'rosa']) t.false(await enters(on, username, former))
  }
})

test('a password update in the session that saved an answer, refreshed or not, keeps it waiting, and one in another session ends it', async t => {
  const on = await serviceWithClock(t)
  const next: Record<string, (token: string, username: string) => Promise<string>> = {
    same: async token => token,
    refreshed: async token => (await on.request('GET', '/users/refresh', { token })).text,
    // Of the same second.
    other: (_, username) => on.login(username),
  }
  const users: Record<string, string> = {}
  for (const [what, session] of Object.entries(next)) {
    const { username } = await established(on)
    const token = await on.login(username)
    const other = await session(token, username)
    await save(on, token, 'verde')
    t.is((await updatePassword(on, other, password)).status, 200)
    users[what] = username
  }
  await on.clock.pass(day + 60)
  const { same, refreshed, other } = users as Record<keyof typeof users, string>
  for (const username of [same!, refreshed!]) t.true(await enters(on, username, 'verde'), username)
  t.false(await enters(on, other!, 'verde'))
  t.true(await enters(on, other!, 'azul'))
})

test('an answer that an administrator saved for a user waits unless with its password, and ends with the sessions or the account of either', async t => {
  const on = await serviceWithClock(t)
  const local = await openLocal(t, on, { reason: 'teste' })
  const revoke = (token: string) => on.request('POST', '/users/revokemytokens', { token })
  const ends: Record<string, (admin: string, username: string) => Promise<unknown>> = {
    stays: async () => {},
    user: async (_, username) => revoke(await on.login(username)),
    administrator: revoke,
    account: () => local.eraseUser({ user: 'eva', confirm: 'eva' }),
  }
  for (const [what, end] of Object.entries(ends)) {
    const { username, token } = await established(on)
    const form = { username: 'eva', role: 'ROLE_ADMIN', state: 'SP', city: 'Bauru', password }
    if (what === 'account') await local.createUser({ form, active: true, confirm: 'eva' })
    const admin = await on.login(what === 'account' ? 'eva' : 'admin')
    const usersid = idOf(token)
    // The password is that of the caller.
    t.is((await saveAnswer(on, admin, 1, 'rosa', { usersid, password: 'not this one' })).status, 404)
    await save(on, admin, 'verde', { usersid })
    t.true(await enters(on, username, 'azul'))
    await end(admin, username)
    await on.clock.pass(day + 60)
    t.is(await enters(on, username, 'verde'), what === 'stays')
    t.is(await enters(on, username, 'azul'), what !== 'stays')
    await save(on, await on.adminToken(), 'rosa', { usersid, password })
    t.true(await enters(on, username, 'rosa'))
  }
})

test('an answer given at sign-up counts once its question is linked, although another answer to that question waits', async t => {
  const on = await serviceWithClock(t)
  const text = 'Nome da sua primeira pipa?'
  const local = await openLocal(t, on)
  const { username, token } = await on.signUp('ROLE_CLIENT', { securityquestion: text, securityanswer: 'azul' })
  await saveAnswer(on, token, 2, 'azul')
  await on.clock.pass(day + 60)
  const session = await on.login(username)
  t.is((await saveAnswer(on, session, 1, 'roubado')).status, 200)
  t.is((await local.linkQuestion({ question: '1', text })).linked, 1)
  t.true(await enters(on, username, 'azul'))
  t.is((await on.request('POST', '/users/revokemytokens', { token: session })).status, 200)
  await on.clock.pass(2 * day)
  t.true(await enters(on, username, 'azul'))
})
