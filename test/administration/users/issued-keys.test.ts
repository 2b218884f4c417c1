/** Keys that administrators issue: what they open and end, for whom there is one, and keys for a class. */
import test from 'ava'
import {
  anotherAdministrator,
  openLocal,
  openSignedIn,
  reasonOf,
  signedInForFile,
  wrongFieldsOf,
} from '../../_helpers/administration.js'
import { ask } from '../../_helpers/database.js'
import { mailboxForFile } from '../../_helpers/mailbox.js'
import { refused } from '../../_helpers/problem.js'
import { enterByKey, saveAnswer, sendKey, updatePassword } from '../../_helpers/recovery.js'
import { openSchool } from '../../_helpers/school.js'
import { password, serviceForFile, serviceWithClock } from '../../_helpers/service.js'
import { claimsOf, idOf } from '../../_helpers/tokens.js'

const mailbox = mailboxForFile()
const settings = () => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url, AUTH_LIMIT_FACTOR: '1000' })
const service = serviceForFile(settings)
const admin = signedInForFile(service)

const sql = (text: string) => ask(service.env.DATABASE_URL!, text)
const statusOf = async (answer: Promise<{ status: number }>) => (await answer).status
const logsIn = (username: string, secret = password) =>
  statusOf(service.request('POST', '/users/login', { query: { username, password: secret } }))

test('an issued key signs in once, to a session that sets a password; until then it ends nothing, and proves no address', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT', { email: `k${Date.now()}@example.org` })
  const id = idOf(token)
  for (const question of [1, 2]) await saveAnswer(service, token, question, 'azul')
  const { key, user } = await admin.issueKey({ user: username })
  t.is(user!.record!.username, username)
  t.is(await logsIn(username), 200)
  t.is(await statusOf(service.request('GET', '/users/me', { token })), 200)

  // As it is read out: small letters, and a separator.
  const typed = `${key.slice(0, 4)}-${key.slice(4)}`.toLowerCase()
  const { status, text } = await enterByKey(service, username, typed)
  t.is(status, 200)
  t.deepEqual(claimsOf(text).amr, ['otp'])
  t.is(await statusOf(enterByKey(service, username, key)), 422)
  t.is(await logsIn(username), 200)
  t.is(await statusOf(service.request('GET', '/users/me', { token })), 200)
  const [row] = await sql(`SELECT email_proved, (SELECT count(*) FROM answers WHERE user_id = ${id}) AS answers
    FROM users WHERE id = ${id}`)
  t.like(row, { email_proved: false, answers: '2' })

  t.is(await statusOf(updatePassword(service, text, 'cavalo novo do brejo')), 200)
  t.is(await logsIn(username, 'cavalo novo do brejo'), 200)
  t.is(await logsIn(username), 404)
  // Who issued the key could have used it: no other address for a day.
  const body = { email: `other${Date.now()}@example.org`, password: 'cavalo novo do brejo' }
  const again = await service.login(username, body.password)
  refused(t, await service.request('POST', '/users/setemail', { token: again, body }), 409, 'WRONG_STATE')
})

test('an issued key and a mailed key of a user replace each other never, an issued key an earlier one', async t => {
  const email = `both${Date.now()}@example.org`
  const { username, token } = await service.signUp('ROLE_CLIENT', { email })
  await sql(`UPDATE users SET email_proved = true WHERE id = ${idOf(token)}`)
  const { key: replaced } = await admin.issueKey({ user: username })
  await mailbox.nextEmail(email)
  await sendKey(service, username, email)
  const mailed = /: ([2-9A-HJ-NP-Z]{8})$/m.exec((await mailbox.nextEmail(email)).text ?? '')![1]!
  const { key } = await admin.issueKey({ user: username })
  t.is(await statusOf(enterByKey(service, username, replaced)), 422)
  t.is(await statusOf(enterByKey(service, username, mailed)), 200)
  t.is(await statusOf(enterByKey(service, username, key)), 200)
})

test('the owner of a proved address is notified of an issued key, without the key; an address that isn’t proved gets no notice', async t => {
  const [proved, other] = [`proved${Date.now()}@example.org`, `other${Date.now()}@example.org`]
  const owner = await service.signUp('ROLE_CLIENT', { email: proved })
  const stranger = await service.signUp('ROLE_CLIENT', { email: other })
  await sql(`UPDATE users SET email_proved = true WHERE id = ${idOf(owner.token)}`)
  await admin.issueKey({ user: stranger.username })
  const { key } = await admin.issueKey({ user: owner.username })
  const { subject, text = '' } = await mailbox.nextEmail(proved)
  t.is(subject, 'Uma chave para entrar na sua conta foi emitida')
  t.false(text.includes(key))
  const queued = await sql(`SELECT FROM emails WHERE parameters ->> 'userId' = '${idOf(stranger.token)}'`)
  t.is(queued.length + mailbox.emails.filter(({ to }) => to?.[0]?.address === other).length, 0)
})

test('an issued key is valid for the hours that are asked for, a day by default, and at most a week', async t => {
  const own = await serviceWithClock(t, settings())
  // A session lasts 12 hours.
  const issue = async (hours: number) => (await openSignedIn(t, own)).issueKey({ user: username, hours })
  const { username } = await own.signUp('ROLE_CLIENT')
  for (const [hours, valid] of [
    [0, 24],
    [1, 1],
    [168, 168],
  ] as const) {
    const { key: early, expireTime } = await issue(hours)
    t.true(Math.abs(Number(expireTime!.seconds) - (own.clock.now() / 1000 + valid * 3600)) < 5)
    await own.clock.pass(valid * 3600 - 60)
    t.is(await statusOf(enterByKey(own, username, early)), 200, `${hours}`)
    const { key: late } = await issue(hours)
    await own.clock.pass(valid * 3600 + 60)
    t.is(await statusOf(enterByKey(own, username, late)), 422, `${hours}`)
  }
  for (const hours of [-1, 169]) t.deepEqual(await wrongFieldsOf(issue(hours)), ['hours'])
})

test('administrators, holders of desk, and suspended and deleted users get no issued key', async t => {
  const [holder, suspended, deleted] = [
    await service.signUp('ROLE_CLIENT'),
    await service.signUp('ROLE_CLIENT'),
    await service.signUp('ROLE_CLIENT'),
  ]
  await admin.activateUser({ user: holder.username })
  await admin.grantDesk({ user: holder.username })
  await admin.suspendUser({ user: suspended.username })
  const deletedId = `#${idOf(deleted.token)}`
  await admin.deleteUser({ user: deleted.username })
  const chief = await anotherAdministrator(t, service, admin)
  const users = [chief.username, holder.username, suspended.username, deletedId]
  for (const user of users) t.is(await reasonOf(admin.issueKey({ user })), 'WRONG_STATE', user)
  const { keys, skipped } = await admin.issueKeys({ users })
  t.deepEqual(keys, [])
  t.deepEqual(skipped.map(({ user }) => user).sort(), [...users].sort())
})

test('on the database itself an issued key needs a reason, and administrators are notified', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const silent = await openLocal(t, service)
  t.is(await reasonOf(silent.issueKey({ user: username })), 'JUSTIFICATION_NEEDED')
  t.is(await reasonOf(silent.issueKeys({ users: [username] })), 'JUSTIFICATION_NEEDED')
  await sql(`UPDATE users SET email = 'chefe@example.org' WHERE id = 1`)
  await (await openLocal(t, service, { reason: 'esqueceu a senha' })).issueKey({ user: username })
  t.true((await mailbox.nextEmail('chefe@example.org')).text?.includes('esqueceu a senha'))
})

test('a class gets keys: each active client of an organization, in pages, or a list, whose others are named with the reason', async t => {
  const school = await openSchool(service)
  const members = [await school.member(), await school.member(), await school.member()]
  const waiting = await service.signUp('ROLE_CLIENT')
  await admin.setOrganization({ user: waiting.username, organization: `#${school.id}` })
  await admin.suspendUser({ user: members[2]!.username })

  const tried = await admin.issueKeys({ organization: `#${school.id}`, validateOnly: true })
  t.deepEqual(
    tried.keys.map(({ username, key }) => [username, key]),
    members.slice(0, 2).map(({ username }) => [username, '']),
  )
  const { keys, skipped, nextPageToken } = await admin.issueKeys({ organization: `#${school.id}`, hours: 2 })
  t.deepEqual([skipped.length, nextPageToken], [0, ''])
  t.is(keys.length, 2)
  for (const { user, username, nickname, key } of keys) {
    const member = members.find(each => each.username === username)!
    t.deepEqual([user, nickname], [idOf(member.token), member.nickname])
    t.is(await statusOf(enterByKey(service, username, key)), 200)
  }
  const [first, second] = members
  const list = await admin.issueKeys({
    users: [second!.username, 'ninguém', first!.username, `#${idOf(first!.token)}`],
  })
  t.deepEqual(list.keys.map(({ username }) => username).sort(), [first!.username, second!.username].sort())
  t.deepEqual(
    list.skipped.map(({ user }) => user),
    ['ninguém', `#${idOf(first!.token)}`],
  )
  t.true(list.skipped.every(({ reason }) => /\.$|`\.?$/.test(reason)))

  for (const users of [[], Array.from({ length: 26 }, () => 'x')])
    t.deepEqual(await wrongFieldsOf(admin.issueKeys({ users })), ['users'])
  t.deepEqual(await wrongFieldsOf(admin.issueKeys({ users: ['x'], organization: `#${school.id}` })), ['users'])
})

test('an organization with more clients than a call reads gets its keys in pages', async t => {
  const { id } = await service.organization()
  await sql(`INSERT INTO users (username, username_key, nickname, nickname_key, username_skeleton, nickname_skeleton,
      password_hash, state, city, terms_of_usage, role, active, organization_id)
    SELECT n, n, n, n, n, n, '', 'SP', 'Assis', false, 'ROLE_CLIENT', true, ${id}
    FROM (SELECT 'aluno-${id}-' || i AS n FROM generate_series(1, 26) AS i) names`)
  const first = await admin.issueKeys({ organization: `#${id}` })
  const rest = await admin.issueKeys({ organization: `#${id}`, pageToken: first.nextPageToken })
  t.deepEqual([first.keys.length, rest.keys.length, rest.nextPageToken], [25, 1, ''])
  t.is(new Set([...first.keys, ...rest.keys].map(({ user }) => user)).size, 26)
})
