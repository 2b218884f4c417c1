/** Mailed keys: request, e-mail, sign-in, and refusals. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { refused } from '../_helpers/problem.js'
import { serviceForFile, startTestService } from '../_helpers/service.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ SMTP_URL: mailbox.url }))

let last = 0
/** A unique client address. */
const newAddress = () => `203.0.113.${++last}`
const newEmail = () => `ana.${randomUUID()}@example.org`

const ask = (query: Record<string, string>, headers: Record<string, string> = {}) =>
  service.request('POST', '/forgotpasswords/sendkeybyemail', {
    query,
    headers: { 'x-forwarded-for': newAddress(), ...headers },
  })
const enter = (username: string, key: string, address = newAddress()) =>
  service.request('POST', '/forgotpasswords/loginbyusernameandkey', {
    query: { username, key },
    headers: { 'x-forwarded-for': address },
  })

/** A user and the key mailed to it. */
async function mailed(headers: Record<string, string> = {}) {
  const email = newEmail()
  const user = await service.signUp('ROLE_CLIENT', { email })
  const { status, text } = await ask({ username: user.username, email }, headers)
  if (`${status}${text}` !== '200') throw new Error(text)
  const entry = await mailbox.nextEmail(email)
  const key = /: ([2-9A-HJ-NP-Z]{8})$/m.exec(entry.text ?? '')?.[1] ?? ''
  return { ...user, email, entry, key }
}

test('the mailed key signs in once, and the token names the method', async t => {
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

test('a wrong key, no key and an unknown user get the same answer', async t => {
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

test('after 5 wrong attempts from an address the correct key fails from there, but works from elsewhere', async t => {
  const { username, key } = await mailed()
  const address = newAddress()
  for (let i = 0; i < 5; i++) refused(t, await enter(username, 'ABCD2345', address), 422, 'INVALID_KEY')
  refused(t, await enter(username, key, address), 422, 'INVALID_KEY')
  t.is((await enter(username, key)).status, 200)
  const lucky = await mailed()
  for (let i = 0; i < 4; i++) refused(t, await enter(lucky.username, 'ABCD2345', address), 422, 'INVALID_KEY')
  t.is((await enter(lucky.username, lucky.key, address)).status, 200)
})

test('all addresses of an IPv6 /64 share the 5 attempts', async t => {
  const { username, key } = await mailed()
  for (let i = 0; i < 5; i++) refused(t, await enter(username, 'ABCD2345', `2001:db8::${i}`), 422, 'INVALID_KEY')
  refused(t, await enter(username, key, '2001:db8::abcd'), 422, 'INVALID_KEY')
  t.is((await enter(username, key, '2001:db8:0:1::1')).status, 200)
})

test('a new key has 5 new attempts', async t => {
  const { username, token } = await mailed()
  const address = newAddress()
  for (let i = 0; i < 5; i++) refused(t, await enter(username, 'ABCD2345', address), 422, 'INVALID_KEY')
  await service.registry.mailedKeys.replace(idOf(token), 'recovery', 'WXYZ6789')
  t.is((await enter(username, 'WXYZ6789', address)).status, 200)
})

test('an address that is missing, or that mail can’t be sent to, is answered with 422', async t => {
  for (const email of [
    '',
    ' ',
    'ana',
    'ana@',
    '@example.org',
    'ana@exa mple.org',
    'ana@example..org',
    'a@b@c',
    '"mallory@example.org, x"@example.org',
    `${'a'.repeat(65)}@b.org`,
  ])
    refused(t, await ask({ username: 'ana', email }), 422, 'INVALID_EMAIL')
  refused(t, await ask({ username: 'ana' }), 422, 'INVALID_EMAIL')
  refused(t, await ask({}), 422, 'INVALID_EMAIL')
})

test('AUTH_RECOVERY_EMAIL=any sends an existing user’s key to any given address', async t => {
  const other = await startTestService(t, { SMTP_URL: mailbox.url, AUTH_RECOVERY_EMAIL: 'any' })
  const { username } = await other.signUp('ROLE_CLIENT', { email: newEmail() })
  const [any, dummyHash] = [newEmail(), newEmail()]
  const send = (query: Record<string, string>) => other.request('POST', '/forgotpasswords/sendkeybyemail', { query })
  t.is((await send({ username: randomUUID(), email: dummyHash })).status, 200)
  t.is((await send({ username, email: any })).status, 200)
  const key = /: ([2-9A-HJ-NP-Z]{8})$/m.exec((await mailbox.nextEmail(any)).text ?? '')?.[1] ?? ''
  const login = await other.request('POST', '/forgotpasswords/loginbyusernameandkey', { query: { username, key } })
  t.deepEqual(claimsOf(login.text).amr, ['otp'])
  t.false(mailbox.emails.some(({ to }) => to?.[0]?.address === dummyHash))
})

test('e-mails are in Portuguese unless the request asks for English', async t => {
  t.regex((await mailed()).entry.text ?? '', /Sua chave: /)
  t.regex((await mailed({ 'accept-language': 'en-GB, pt;q=0.5' })).entry.text ?? '', /Your key: /)
  t.regex((await mailed({ 'accept-language': 'fr' })).entry.text ?? '', /Sua chave: /)
})

test('the key for a ROLE_INSTITUTION is mailed to the organization, and activates that user once', async t => {
  const organization = await service.organization({ email: newEmail() })
  const { username, token } = await service.signUp('ROLE_INSTITUTION')
  const query = { username, emailpartner: organization.email }
  const { status, text } = await service.request('POST', '/1.0.0/users/sendadminkeybyemailpartner', { token, query })
  t.is(`${status}${text}`, '200')
  const entry = await mailbox.nextEmail(organization.email)
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

test('the address of an unknown or inactive organization is answered with 404', async t => {
  const { id, email: emailpartner } = await service.organization()
  const { username, token } = await service.signUp('ROLE_INSTITUTION')
  const send = (query: Record<string, string>) =>
    service.request('POST', '/1.0.0/users/sendadminkeybyemailpartner', { token, query })
  refused(t, await send({ username, emailpartner: newEmail() }), 404, 'ORGANIZATION_EMAIL_NOT_FOUND')
  refused(t, await send({ username, emailpartner: 'no address' }), 404, 'ORGANIZATION_EMAIL_NOT_FOUND')
  refused(t, await send({ username }), 400, 'MISSING_PARAMETER')
  await service.registry.organizations.setActive(id, false)
  refused(t, await send({ username, emailpartner }), 404, 'ORGANIZATION_EMAIL_NOT_FOUND')
})

test('an account gives at most 10 wrong addresses of organizations an hour, all replicas together, also at once', async t => {
  const [one, two] = [
    service,
    await startTestService(t, { DATABASE_URL: service.env.DATABASE_URL!, SMTP_URL: mailbox.url }),
  ]
  const { email: emailpartner } = await service.organization({ email: newEmail() })
  const owner = await service.signUp('ROLE_INSTITUTION')
  const send = ({ username, token }: typeof owner, address: string, { request } = one) =>
    request('POST', '/1.0.0/users/sendadminkeybyemailpartner', { token, query: { username, emailpartner: address } })
  // Right ones don't count.
  for (let index = 0; index < 2; index++) t.is((await send(owner, emailpartner)).status, 200)
  const answers = await Promise.all(
    Array.from({ length: 30 }, (_, index) => send(owner, newEmail(), [one, two][index % 2])),
  )
  const statuses = answers.map(({ status }) => status).sort()
  t.deepEqual(statuses, [...Array(10).fill(404), ...Array(20).fill(429)])
  for (const by of [one, two]) {
    const beyond = await send(owner, emailpartner, by)
    refused(t, beyond, 429, 'TOO_MANY_ATTEMPTS')
    const seconds = Number(beyond.headers.get('retry-after'))
    t.true(seconds > 0 && seconds <= 3600, `${seconds}`)
  }
  const other = await service.signUp('ROLE_INSTITUTION')
  t.is((await send(other, emailpartner)).status, 200)
})
