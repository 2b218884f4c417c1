/** Sign-in without a password: mailed keys, answers to questions, and the e-mails that notify the owner. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import type { Email } from 'postal-mime'
import type { Transaction } from '../../server/database/connection.js'
import type { EmailIntent, RecoveryRequest } from '../../server/models/email.js'
import type { Users } from '../../server/models/user.js'
import { usernameKey } from '../../server/rules/names.js'
import { anyAddress } from '../_helpers/crowd.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { changeTokens, lockWaiters } from '../_helpers/models.js'
import { type Answer, password, type SignedUp, serviceForFile, serviceWithClock } from '../_helpers/service.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ SMTP_URL: mailbox.url }))
let questions: number[]
test.serial.before(async () => {
  const list = await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')
  questions = list.json.map(({ id }: { id: number }) => id)
})

const send = (
  path: string,
  query: Record<string, string>,
  more: { token?: string; body?: unknown } = {},
  address = anyAddress(),
) => service.request('POST', `/forgotpasswords/${path}`, { query, headers: { 'x-forwarded-for': address }, ...more })
const sendKey = (username: string, email: string, address?: string) =>
  send('sendkeybyemail', { username, email }, {}, address)
const useKey = (username: string, key: string, address?: string) =>
  send('loginbyusernameandkey', { username, key }, {}, address)
const useAnswers = (username: string, body: unknown) => send('loginbyusernameandanswers', { username }, { body })
const gist = ({ status, text, headers }: Answer) => ({ status, text, type: headers.get('content-type') })
const sql = async (text: string) =>
  (await service.registry.database.sequelize.query(text))[0] as Record<string, unknown>[]

/** A user with a unique recovery address. */
async function withEmail(): Promise<SignedUp & { email: string; id: number }> {
  const email = `pessoa${randomUUID().slice(0, 8)}@example.org`
  const user = await service.signUp('ROLE_CLIENT', { email })
  return { ...user, email, id: idOf(user.token) }
}

const keyIn = ({ text }: Email) => /: ([2-9A-HJ-NP-Z]{8})\n/.exec(text ?? '')?.[1] ?? ''

/** The key in the next e-mail that has one. */
async function nextKey(email: string): Promise<string> {
  for (;;) {
    const key = keyIn(await mailbox.nextEmail(email))
    if (key !== '') return key
  }
}

/** Requests a key and reads it from the e-mail. */
async function mailedKey({ username, email }: { username: string; email: string }, address?: string): Promise<string> {
  await sendKey(username, email, address)
  return nextKey(email)
}

/** An address that the account knows: its requests have a separate quota. */
async function knownAddress({ username }: { username: string }): Promise<string> {
  const address = anyAddress()
  const query = { username, password }
  await service.request('POST', '/users/login', { query, headers: { 'x-forwarded-for': address } })
  return address
}

/** Until nothing is left in the queue. */
async function quiet(): Promise<void> {
  const left = () => sql('SELECT id, attempts FROM emails ORDER BY id')
  await waitFor(async () => (await left()).length === 0, left)
}

const wrongKey = (key: string) => (key.startsWith('2') ? `3${key.slice(1)}` : `2${key.slice(1)}`)

test('of 50 simultaneous sign-ins with the same key, one succeeds', async t => {
  const user = await withEmail()
  const key = await mailedKey(user)
  const answers = await Promise.all(Array.from({ length: 50 }, () => useKey(user.username, key)))
  t.is(answers.filter(({ status }) => status === 200).length, 1)
  t.true(answers.every(({ status }) => [200, 422, 429].includes(status)))
  const filter = { subjectId: user.id, action: 'session.login-by-key', outcome: 'ok', limit: 100 }
  t.is((await service.registry.audit.list(filter)).length, 1)
})

// Serial, because it counts sessions that wait for locks.
test.serial('parallel attempts are counted before they are compared', async t => {
  const user = await withEmail()
  const key = await mailedKey(user)
  const address = anyAddress()
  const { database, counterKeys, mailedKeys } = service.registry
  const guess = (given = wrongKey(key)) => useKey(user.username, given, address)
  const waiting = (count: number) => waitForValue(() => lockWaiters(database), count)
  t.is((await guess()).status, 422)
  const wrong: ReturnType<typeof guess>[] = []
  let right: ReturnType<typeof guess> | undefined
  let answered = false
  await database.transact(async transaction => {
    const bind = [counterKeys.mailedKey(mailedKeys.digest(user.id, 'recovery', key), address)]
    await database.sequelize.query('SELECT FROM attempts WHERE subject = $1 FOR UPDATE', { bind, transaction })
    for (let index = 0; index < 5; index++) wrong.push(guess())
    await waiting(5)
    right = guess(key).finally(() => {
      answered = true
    })
    // No attempt can count while the counter is locked: one that compared first wouldn't wait.
    await waiting(6)
    t.false(answered)
  })
  for (const { status } of await Promise.all(wrong)) t.is(status, 422)
  // PostgreSQL wakes waiting sessions in any order.
  t.true([200, 422].includes((await right!).status))
  t.is((await guess(key)).status, 422)
})

test('a key expires after 15 minutes', async t => {
  const later = await serviceWithClock(t)
  const users = [await later.signUp('ROLE_CLIENT'), await later.signUp('ROLE_CLIENT')]
  const key = 'ABCD2345'
  for (const { token } of users) await later.registry.mailedKeys.replace(idOf(token), 'recovery', key)
  const useKey = async ({ username }: SignedUp) =>
    (await later.request('POST', '/forgotpasswords/loginbyusernameandkey', { query: { username, key } })).status
  await later.clock.pass(15 * 60 - 1)
  t.is(await useKey(users[0]!), 200)
  await later.clock.pass(1)
  t.is(await useKey(users[1]!), 422)
})

test('only the newest key is valid', async t => {
  const user = await withEmail()
  const old = await mailedKey(user)
  const fresh = await mailedKey(user, await knownAddress(user))
  t.is((await useKey(user.username, old)).status, 422)
  t.is((await useKey(user.username, fresh)).status, 200)
})

test('a key belongs to one user and one purpose', async t => {
  const [one, other] = [await withEmail(), await withEmail()]
  const key = await mailedKey(one)
  await mailedKey(other)
  t.is((await useKey(other.username, key)).status, 422)
  // Nor when an insider copies it to the other user, or changes its purpose.
  await sql(`UPDATE mailed_keys SET key_digest = (SELECT key_digest FROM mailed_keys WHERE user_id = ${one.id})
    WHERE user_id = ${other.id}`)
  t.is((await useKey(other.username, key)).status, 422)
  await sql(`DELETE FROM mailed_keys WHERE user_id = ${other.id}`)
  await service.registry.mailedKeys.replace(other.id, 'activation', 'ABCD2345')
  await sql(`UPDATE mailed_keys SET purpose = 'recovery' WHERE user_id = ${other.id}`)
  t.is((await useKey(other.username, 'ABCD2345')).status, 422)
  await sql(`UPDATE mailed_keys SET purpose = 'activation' WHERE user_id = ${one.id}`)
  t.is((await useKey(one.username, key)).status, 422)
  await sql(`UPDATE mailed_keys SET purpose = 'recovery' WHERE user_id = ${one.id}`)
  t.is((await useKey(one.username, key)).status, 200)
})

const requestOf = ({ username, email }: { username: string; email: string }): RecoveryRequest => ({
  usernameKey: usernameKey(username),
  email,
  address: '192.0.2.1',
  requestId: 'r1',
})

/** Queues an e-mail that is not due yet. Returns its number. */
async function held({ kind, stage, parameters }: EmailIntent): Promise<string> {
  const text = `INSERT INTO emails (kind, stage, parameters, locale, next_attempt_at)
    VALUES ($1, $2, $3, 'en', now() + interval '1 hour') RETURNING id`
  const [row] = await service.registry.database.run<{ id: string }>({ text, values: [kind, stage, parameters] })
  return row!.id
}

/** Every change by administrators that revokes the tokens of a user, and whether it voids mailed activation keys. */
const revocations = {
  'revoke-tokens': [false, (users, { id }, t) => users.revokeTokens(id, t)],
  'set-password': [false, (users, { id }, t) => users.changePassword(id, 'x', { byToken: false }, t)],
  suspend: [true, (users, { id }, t) => users.suspend(id, t)],
  'set-role': [true, (users, { id }, t) => users.setRole({ id, active: false }, 'ROLE_ADMIN', t)],
  'set-organization': [
    true,
    (users, { id }, t) => {
      const member = { id, active: false, role: 'ROLE_CLIENT', email: null } as const
      return users.setOrganization(member, null, { address: '192.0.2.1', locale: 'en' }, t)
    },
  ],
  delete: [true, (users, { id }, t) => users.delete(id, t)],
} as const satisfies Record<
  string,
  readonly [boolean, (users: Users, user: { id: number }, t: Transaction) => Promise<unknown>]
>

for (const [name, [endsActivation, revoke]] of Object.entries(revocations)) {
  test.serial(`${name}: revoking the tokens voids keys that were mailed or wait to be mailed`, async t => {
    const { mailedKeys, database, users } = service.registry
    const { id: organizationId } = await service.organization()
    const user = await withEmail()
    await mailedKeys.replace(user.id, 'recovery', 'ABCD2345')
    await database.transact(t => mailedKeys.replaceEmail(user.id, 'EFGH6789 0', 'x@example.org', t))
    await mailedKeys.replace(user.id, 'activation', randomUUID(), organizationId)
    const waiting: EmailIntent[] = [
      { kind: 'recovery-key', stage: 'requested', parameters: requestOf(user) },
      { kind: 'recovery-key', stage: 'ready', parameters: { userId: user.id, to: user.email } },
      { kind: 'email-code', stage: 'requested', parameters: { userId: user.id, to: user.email, generation: 0 } },
      { kind: 'email-code', stage: 'ready', parameters: { userId: user.id, to: user.email, generation: 0 } },
      { kind: 'activation-key', stage: 'ready', parameters: { userId: user.id, organizationId } },
      {
        kind: 'answer-saved',
        stage: 'requested',
        parameters: { userId: user.id, at: '2026-11-21', address: '192.0.2.1' },
      },
    ]
    // Keys of other users stay valid, including those of a user whose name is this user’s id.
    const other = await withEmail()
    await mailedKeys.replace(other.id, 'recovery', 'ABCD2345')
    const alike: EmailIntent = {
      kind: 'recovery-key',
      stage: 'requested',
      parameters: requestOf({ username: String(user.id), email: 'x@example.org' }),
    }
    const others: EmailIntent[] = [
      alike,
      { kind: 'recovery-key', stage: 'ready', parameters: { userId: other.id, to: other.email } },
    ]
    const ids: string[] = []
    for (const intent of [...waiting, ...others]) ids.push(await held(intent))
    await changeTokens(service.registry, user.id, t => revoke(users, user, t))
    const left = await sql(`SELECT kind FROM emails WHERE id IN (${ids}) ORDER BY id`)
    t.deepEqual(
      left.map(({ kind }) => kind),
      [...(endsActivation ? [] : ['activation-key']), 'answer-saved', 'recovery-key', 'recovery-key'],
    )
    const keys = await sql(`SELECT purpose FROM mailed_keys WHERE user_id = ${user.id}`)
    t.deepEqual(
      keys.map(({ purpose }) => purpose),
      endsActivation ? [] : ['activation'],
    )
    t.is((await sql(`SELECT purpose FROM mailed_keys WHERE user_id = ${other.id}`)).length, 1)
    await sql(`DELETE FROM emails WHERE id IN (${ids})`)
    t.is((await useKey(user.username, 'ABCD2345')).status, 422)
  })
}

test('a request for a key to another user’s address gets the same answer and sends nothing', async t => {
  const user = await withEmail()
  const answers: Record<string, unknown> = {}
  for (const [name, [username, email]] of Object.entries({
    foreign: [user.username, `mallory${randomUUID()}@example.org`],
    'a user without an address': [(await service.signUp('ROLE_CLIENT')).username, `mallory${randomUUID()}@example.org`],
    'no name': ['', `mallory${randomUUID()}@example.org`],
    'an unknown name': [`ninguém ${randomUUID()}`, `mallory${randomUUID()}@example.org`],
    // Last, because a sent e-mail delays others for a minute.
    registered: [user.username, user.email.toUpperCase()],
  } as Record<string, [string, string]>)) {
    answers[name] = gist(await sendKey(username, email))
  }
  for (const [name, answer] of Object.entries(answers)) t.deepEqual(answer, { status: 200, text: '', type: null }, name)
  await quiet()
  const sent = mailbox.emails.filter(({ text }) => text?.includes(user.username))
  t.deepEqual(
    sent.map(({ to }) => to?.[0]?.address),
    [user.email],
  )
  for (const hostile of [
    '',
    'x',
    `${user.email}\r\nBcc: mallory@example.org`,
    `${user.email},mallory@example.org`,
    '"mallory@example.org, x"@example.org',
    `<${user.email}>`,
  ]) {
    t.is((await sendKey(user.username, hostile)).status, 422, hostile)
  }
})

test('a client address may request 60 e-mails per hour, for all users together', async t => {
  const address = anyAddress()
  const user = await withEmail()
  const statuses: number[] = []
  for (let index = 0; index < 64; index++) {
    const username = index % 2 ? user.username : randomUUID()
    const { status, headers } = await sendKey(username, `mallory${index}@example.org`, address)
    statuses.push(status)
    if (status === 429) t.true(Number(headers.get('retry-after')) > 0 && Number(headers.get('retry-after')) <= 60)
  }
  t.true([60, 61, 62].includes(statuses.indexOf(429)), statuses.join())
})

test('the owner gets an e-mail about a changed password and every sign-in without it', async t => {
  const user = await withEmail()
  const emails = () => mailbox.emails.filter(({ to }) => to?.[0]?.address === user.email).map(({ subject }) => subject)
  for (const id of questions.slice(0, 2)) {
    const body = { forgotpasswordquestionsid: id, answer: 'azul' }
    await send('saveforgotpasswordquestionsusersanswers', {}, { token: user.token, body })
  }
  // From a known address, because no more than five others are sent in an hour.
  const key = await mailedKey(user, await knownAddress(user))
  await useKey(user.username, key)
  const body = questions.slice(0, 2).map(id => ({ forgotpasswordquestionsid: id, answer: 'AZUL ' }))
  const { status, text: token } = await useAnswers(user.username, body)
  t.is(status, 200)
  t.deepEqual(claimsOf(token).amr, ['kba'])
  await send('passwordupdatebyusername', { newPassword: 'tartaruga de couro 7' }, { token })
  await quiet()
  const count = (subject: string) => emails().filter(each => each === subject).length
  t.is(count('Acesso à sua conta sem a senha'), 2)
  t.is(count('Sua senha foi alterada'), 1)
  t.false(mailbox.emails.some(({ text }) => text?.includes('tartaruga de couro 7')))
})

test('the owner gets an e-mail when an administrator changes the password', async t => {
  const user = await withEmail()
  await send(
    'passwordupdatebyusername',
    { newPassword: 'tartaruga de couro 7', username: user.username },
    { token: await service.adminToken() },
  )
  t.is((await mailbox.nextEmail(user.email)).subject, 'Sua senha foi alterada')
})

test('keys and answers are never stored in the clear', async t => {
  const user = await withEmail()
  const answer = `resposta ${randomUUID()}`
  await send(
    'saveforgotpasswordquestionsusersanswers',
    {},
    { token: user.token, body: { forgotpasswordquestionsid: questions[0], answer } },
  )
  const response = await sendKey(user.username, user.email)
  const key = await nextKey(user.email)
  t.is(response.text, '')
  for (const { name } of await sql(
    `SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'public'`,
  )) {
    const rows = await sql(`SELECT row_to_json(x)::text AS row FROM "${name}" x`)
    const dump = rows.map(({ row }) => row).join('\n')
    for (const secret of [key, Buffer.from(key).toString('hex'), answer, password])
      t.false(dump.includes(secret), String(name))
  }
})
