/** Keys that are mailed, from the request to the e-mail to the sign-in; and who gets none. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { openMailbox } from '../_helpers/mailbox.js'
import { refused } from '../_helpers/problem.js'
import { serviceForFile, startTestService } from '../_helpers/service.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'

const mailbox = await openMailbox()
test.after.always(() => mailbox.shut())
const service = serviceForFile({ SMTP_URL: mailbox.url })

let last = 0
/** A client address that nobody else has. */
const newAddress = () => `203.0.113.${++last}`
const newEmail = () => `ana.${randomUUID()}@example.org`

const ask = (query: Record<string, string>, headers: Record<string, string> = {}) =>
  service.request('POST', '/forgotpasswords/sendkeybyemail', {
    query,
    headers: { 'x-forwarded-for': newAddress(), ...headers },
  })
const enter = (username: string, key: string) =>
  service.request('POST', '/forgotpasswords/loginbyusernameandkey', {
    query: { username, key },
    headers: { 'x-forwarded-for': newAddress() },
  })

/** Somebody, and the key mailed to them. */
async function mailed(headers: Record<string, string> = {}) {
  const email = newEmail()
  const user = await service.signUp('ROLE_CLIENT', { email })
  const { status, text } = await ask({ username: user.username, email }, headers)
  if (`${status}${text}` !== '200') throw new Error(text)
  const entry = await mailbox.nextLetter(email)
  const key = /: ([2-9A-HJ-NP-Z]{8})$/m.exec(entry.text ?? '')?.[1] ?? ''
  return { ...user, email, entry, key }
}

test('the mailed key gives a token that tells so, once', async t => {
  const { username, token, key } = await mailed()
  t.is(key.length, 8)
  const { status, text } = await enter(username, key)
  t.is(status, 200, text)
  const { amr, sub, exp, iat } = claimsOf(text)
  t.deepEqual({ amr, sub, seconds: exp - iat }, { amr: ['otp'], sub: String(idOf(token)), seconds: 3600 })
  refused(t, await enter(username, key), 422, 'INVALID_KEY')
  const query = { newPassword: 'tatu-canastra 12' }
  const update = await service.request('POST', '/forgotpasswords/passwordupdatebyusername', { token: text, query })
  t.is(update.status, 200)
  t.truthy(await service.login(username, query.newPassword))
})

test('case and space around the key do not matter', async t => {
  const { username, key } = await mailed()
  t.is((await enter(username.replace(/\D/g, ''), ` ${key.toLowerCase()} `)).status, 200)
})

test('a wrong key, no key, and an unknown user are all answered alike', async t => {
  const { username } = await mailed()
  const { username: keyless } = await service.signUp('ROLE_CLIENT')
  const details = new Set<string>()
  for (const [name, key] of [
    [username, 'ABCD2345'],
    [username, ''],
    [username, 'A'.repeat(300)],
    [keyless, 'ABCD2345'],
    [randomUUID(), 'ABCD2345'],
    ['', 'ABCD2345'],
  ] as const) {
    const answer = await enter(name, key)
    refused(t, answer, 422, 'INVALID_KEY')
    details.add(answer.json.detail)
  }
  t.is(details.size, 1)
})

test('after 5 wrong tries the right key opens no more', async t => {
  const { username, key } = await mailed()
  for (let i = 0; i < 5; i++) refused(t, await enter(username, 'ABCD2345'), 422, 'INVALID_KEY')
  refused(t, await enter(username, key), 422, 'INVALID_KEY')
})

test('the right key opens at the 5th try', async t => {
  const { username, key } = await mailed()
  for (let i = 0; i < 4; i++) refused(t, await enter(username, 'ABCD2345'), 422, 'INVALID_KEY')
  t.is((await enter(username, key)).status, 200)
})

test('a key is good for 15 minutes', async t => {
  const { username, token, key } = await mailed()
  const { sequelize } = service.registry.database
  const [[row]] = (await sequelize.query('SELECT expires_at FROM mailed_keys WHERE user_id = $1', {
    bind: [idOf(token)],
  })) as unknown as [[{ expires_at: Date }]]
  const minutes = (row.expires_at.getTime() - Date.now()) / 60_000
  t.true(minutes > 14 && minutes <= 15)
  const past = 'UPDATE mailed_keys SET expires_at = now() WHERE user_id = $1'
  await sequelize.query(past, { bind: [idOf(token)] })
  refused(t, await enter(username, key), 422, 'INVALID_KEY')
})

test('only the newest key opens', async t => {
  const { username, token, key } = await mailed()
  await service.registry.mailedKeys.replace(idOf(token), 'recovery', 'WXYZ6789')
  refused(t, await enter(username, key), 422, 'INVALID_KEY')
  t.is((await enter(username, 'WXYZ6789')).status, 200)
})

test('a password update voids a mailed key', async t => {
  const { username, token, key } = await mailed()
  const query = { newPassword: 'tatu-canastra 12' }
  await service.request('POST', '/forgotpasswords/passwordupdatebyusername', { token, query })
  refused(t, await enter(username, key), 422, 'INVALID_KEY')
})

test('a suspended user does not get in by key', async t => {
  const { username, token, key } = await mailed()
  const { database, users } = service.registry
  await database.transact(transaction => users.suspend(idOf(token), transaction))
  refused(t, await enter(username, key), 422, 'INVALID_KEY')
})

test('the key is nowhere in the database', async t => {
  const { key } = await mailed()
  const { sequelize } = service.registry.database
  for (const table of ['mailed_keys', 'emails', 'audit_events', 'attempts', 'users']) {
    const [rows] = await sequelize.query(`SELECT count(*)::int AS n FROM ${table} x WHERE x::text ILIKE $1`, {
      bind: [`%${key}%`],
    })
    t.deepEqual(rows, [{ n: 0 }], table)
  }
})

for (const email of [
  '',
  ' ',
  'ana',
  'ana@',
  '@example.org',
  'ana@exa mple.org',
  'ana@example..org',
  'a@b@c',
  `${'a'.repeat(65)}@b.org`,
]) {
  test(`the address "${email.slice(0, 30)}" is answered with 422`, async t => {
    refused(t, await ask({ username: 'ana', email }), 422, 'INVALID_EMAIL')
  })
}

test('a missing address is answered with 422', async t => {
  refused(t, await ask({ username: 'ana' }), 422, 'INVALID_EMAIL')
  refused(t, await ask({}), 422, 'INVALID_EMAIL')
})

test('whom the address is not registered for gets no e-mail, and the answers are all alike', async t => {
  const own = newEmail()
  const foreign = newEmail()
  const user = await service.signUp('ROLE_CLIENT', { email: own })
  const without = await service.signUp('ROLE_CLIENT')
  const answers = [
    await ask({ username: user.username, email: foreign }),
    await ask({ username: without.username, email: foreign }),
    await ask({ username: randomUUID(), email: foreign }),
    await ask({ email: foreign }),
    await ask({ username: user.username, email: ` ${own.toUpperCase()} ` }),
  ]
  for (const { status, text } of answers) t.is(`${status}${text}`, '200')
  await mailbox.nextLetter(own)
  // Emails leave in the order of the requests.
  const to = mailbox.emails.flatMap(entry => entry.to ?? [])
  t.false(to.some(({ address }) => address === foreign))
})

test('of two requests within a minute one e-mail goes out, and requests in vain use up nothing', async t => {
  const email = newEmail()
  const { username } = await service.signUp('ROLE_CLIENT', { email })
  for (let i = 0; i < 6; i++) await ask({ username, email: newEmail() })
  t.is((await ask({ username, email })).status, 200)
  await mailbox.nextLetter(email)
  t.is((await ask({ username, email })).status, 200)
  await mailed()
  t.is(mailbox.emails.filter(({ to }) => to?.[0]?.address === email).length, 1)
})

test('within an hour 5 e-mails go out to a user, then silently none', async t => {
  const email = newEmail()
  const { username, token } = await service.signUp('ROLE_CLIENT', { email })
  const { attempts, subjects } = service.registry
  const askAgain = async () => {
    // As if a minute had passed.
    await attempts.clear([subjects.mails('minute', 'recovery', idOf(token))])
    t.is((await ask({ username, email })).status, 200)
  }
  for (let i = 0; i < 5; i++) {
    await askAgain()
    await mailbox.nextLetter(email)
  }
  await askAgain()
  await mailed()
  t.is(mailbox.emails.filter(({ to }) => to?.[0]?.address === email).length, 5)
})

test('AUTH_RECOVERY_EMAIL=any sends the key to whatever address is given, to users who exist', async t => {
  const other = await startTestService(t, { SMTP_URL: mailbox.url, AUTH_RECOVERY_EMAIL: 'any' })
  const { username } = await other.signUp('ROLE_CLIENT', { email: newEmail() })
  const [any, nobodys] = [newEmail(), newEmail()]
  const send = (query: Record<string, string>) => other.request('POST', '/forgotpasswords/sendkeybyemail', { query })
  t.is((await send({ username: randomUUID(), email: nobodys })).status, 200)
  t.is((await send({ username, email: any })).status, 200)
  const key = /: ([2-9A-HJ-NP-Z]{8})$/m.exec((await mailbox.nextLetter(any)).text ?? '')?.[1] ?? ''
  const login = await other.request('POST', '/forgotpasswords/loginbyusernameandkey', { query: { username, key } })
  t.deepEqual(claimsOf(login.text).amr, ['otp'])
  t.false(mailbox.emails.some(({ to }) => to?.[0]?.address === nobodys))
})

test('e-mails are in Portuguese unless English is asked for', async t => {
  t.regex((await mailed()).entry.text ?? '', /Sua chave: /)
  t.regex((await mailed({ 'accept-language': 'en-GB, pt;q=0.5' })).entry.text ?? '', /Your key: /)
  t.regex((await mailed({ 'accept-language': 'fr' })).entry.text ?? '', /Sua chave: /)
})

test('who has an address is told of a new password and of a sign-in by key', async t => {
  const { username, email, key } = await mailed()
  const { text: token } = await enter(username, key)
  t.regex((await mailbox.nextLetter(email)).text ?? '', /chave enviada|recuperação|sem a senha/)
  const query = { newPassword: 'tatu-canastra 12' }
  await service.request('POST', '/forgotpasswords/passwordupdatebyusername', { token, query })
  const { text } = await mailbox.nextLetter(email)
  t.regex(text ?? '', /senha .* foi alterada/)
  t.false((text ?? '').includes(query.newPassword))
})

test('a mail server that is down delays an e-mail, never loses it', async t => {
  mailbox.refuse(1)
  const email = newEmail()
  const { username } = await service.signUp('ROLE_CLIENT', { email })
  t.is((await ask({ username, email })).status, 200)
  t.truthy(await mailbox.nextLetter(email, 20_000))
})

test('the key for a ROLE_INSTITUTION goes to the organization, and activates that user once', async t => {
  const organization = await service.organization({ email: newEmail() })
  const { username, token } = await service.signUp('ROLE_INSTITUTION')
  const query = { username, emailpartner: organization.email }
  const { status, text } = await service.request('POST', '/1.0.0/users/sendadminkeybyemailpartner', { token, query })
  t.is(`${status}${text}`, '200')
  const entry = await mailbox.nextLetter(organization.email)
  const activationkey = /: ([\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12})$/m.exec(entry.text ?? '')?.[1] ?? ''
  t.true(entry.text?.includes(username))
  const other = await service.signUp('ROLE_INSTITUTION')
  const activate = (who: { token: string; username: string }) =>
    service.request('POST', '/users/activate', { token: who.token, query: { username: who.username, activationkey } })
  refused(t, await activate(other), 422, 'ACTIVATION_REFUSED')
  t.is((await activate({ token, username })).text, username)
  const { json } = await service.request('GET', '/users/me', { token })
  t.is(`${json.active} ${json.partnerOrganization.id}`, `1 ${organization.id}`)
})

test('an unknown organization address is answered with 404, and so is one of an inactive organization', async t => {
  const { id, email: emailpartner } = await service.organization()
  const { username, token } = await service.signUp('ROLE_INSTITUTION')
  const send = (query: Record<string, string>) =>
    service.request('POST', '/1.0.0/users/sendadminkeybyemailpartner', { token, query })
  refused(t, await send({ username, emailpartner: newEmail() }), 404, 'ORGANIZATION_EMAIL_NOT_FOUND')
  refused(t, await send({ username, emailpartner: 'no address' }), 404, 'ORGANIZATION_EMAIL_NOT_FOUND')
  refused(t, await send({ username }), 400, 'MISSING_PARAMETER')
  await service.registry.organizations.table.update({ active: false }, { where: { id } })
  refused(t, await send({ username, emailpartner }), 404, 'ORGANIZATION_EMAIL_NOT_FOUND')
})
