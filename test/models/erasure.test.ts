/** Erasing a user: no table names it any more, and the audit log still verifies. */
import test from 'ava'
import { usernameKey } from '../../server/rules/names.js'
import { contents } from '../_helpers/backups.js'
import { runCli } from '../_helpers/cli.js'
import { ask } from '../_helpers/database.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { refused } from '../_helpers/problem.js'
import { startTestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

const mailbox = mailboxForFile()

/** Waits for the next recovery key; notices come to the same address. */
async function nextKey(email: string): Promise<void> {
  for (let text = ''; !/: [2-9A-HJ-NP-Z]{8}$/m.test(text); ) text = (await mailbox.nextEmail(email)).text ?? ''
}

test('an erased user is in no table, its address in no event, and the audit log verifies', async t => {
  const service = await startTestService(t, { SMTP_URL: mailbox.url })
  const { registry, request } = service
  const { audit, database, emails, erasure } = registry
  const url = service.env.DATABASE_URL!
  const [address, others] = ['198.51.100.77', '203.0.113.8']
  const headers = { 'x-forwarded-for': address }
  const email = 'plantada@example.org'
  const planted = { nickname: 'plantada-no-apelido', email, city: 'Plantada da Serra', institution: 'Plantada S.A.' }
  const other = await service.signUp('ROLE_CLIENT')
  const untouched = await contents(url)

  // Every table gets a row of the user.
  const organization = await service.organization()
  const user = await service.signUp('ROLE_INSTITUTION', planted)
  const { username, token } = user
  const id = idOf(token)
  const post = (path: string, query: Record<string, string>, body?: object) =>
    request('POST', path, { query, token, headers, ...(body && { body }) })
  await post('/users/activate', { username, activationkey: '8a4b1d8c-0000-4000-8000-000000000000' })
  const partner = { username, emailpartner: organization.email }
  const sent = await post('/1.0.0/users/sendadminkeybyemailpartner', partner)
  t.is(sent.status, 200, sent.text)
  await mailbox.nextEmail(organization.email)
  const elsewhere = { 'x-forwarded-for': '198.51.100.78' }
  await request('POST', '/forgotpasswords/sendkeybyemail', { query: { username, email }, headers: elsewhere })
  await nextKey(email)
  t.is((await post('/users/activate', { username, activationkey: organization.activationkey })).status, 200)
  t.is((await post('/users/login', { username, password: service.env.AUTH_ADMIN_PASSWORD! })).status, 200)
  await post('/users/login', { username, password: 'wrong' })
  // The account knows the network and the device.
  for (const [near, bearer] of [
    ['198.51.100.79', undefined],
    ['192.0.2.9', token],
  ]) {
    const from = { 'x-forwarded-for': near!, ...(bearer && { authorization: `Bearer ${bearer}` }) }
    await request('POST', '/users/login', { query: { username, password: 'wrong' }, headers: from })
  }
  const answer = { forgotpasswordquestionsid: 1, answer: 'plantada' }
  t.is((await post('/forgotpasswords/saveforgotpasswordquestionsusersanswers', {}, answer)).status, 200)
  t.is((await post('/forgotpasswords/sendkeybyemail', { username, email })).status, 200)
  await nextKey(email)
  await post('/forgotpasswords/loginbyusernameandkey', { username, key: 'ABCDEFGH' })
  t.is((await request('GET', '/users/me/export', { token, headers })).status, 200)
  await waitForValue(async () => (await audit.verify()).staged, 0)
  const lived = await contents(url)
  const tables = ['users', 'provider_keys', 'answers', 'known_addresses', 'mailed_keys', 'attempts', 'email_quotas']
  for (const table of tables) t.true(lived[table]!.length > untouched[table]!.length, table)

  const receipt = (await database.transact(async transaction => {
    // They wait to be sent or sealed.
    const waiting = { usernameKey: usernameKey(username), email, address, requestId: 'r' }
    await emails.add({ kind: 'recovery-key', stage: 'requested', parameters: waiting }, 'en', transaction)
    await emails.add(
      { kind: 'password-changed', stage: 'requested', parameters: { userId: id, at: 'x', address } },
      'en',
      transaction,
    )
    const event = { action: 'user.set-email', outcome: 'ok', actor: 'user', subject_id: id } as const
    await audit.append({ ...event, actor_id: id, address }, transaction)
    await audit.append({ ...event, actor_id: idOf(other.token), address: others }, transaction)
    return erasure.erase(id, transaction)
  }))!

  t.is(receipt.user, id)
  t.true(Math.abs(Date.now() - Date.parse(receipt.eraseTime)) < 600_000)
  const { audit_events, audit_staged, ...rows } = receipt.rows
  t.is(audit_staged, 1)
  t.true(audit_events! >= 4)
  // Tables are read one after another: no event may move between them meanwhile.
  await waitForValue(async () => (await audit.verify()).staged, 0)
  const left = await contents(url)
  for (const [table, count] of Object.entries(rows)) {
    const before = lived[table]!.length + (table === 'emails' ? 2 : 0)
    t.is(count, before - left[table]!.length, table)
    // The e-mail to the organization counts for the organization.
    t.is(left[table]!.length, untouched[table]!.length + (table === 'email_quotas' ? 1 : 0), table)
  }
  const text = JSON.stringify(left)
  for (const secret of [username, user.nickname, email, usernameKey(username), address, ...Object.values(planted)])
    t.false(text.includes(secret), secret)
  // The address of another user who acted on this user isn't this user's.
  t.true(text.includes(others))
  const referring = await ask(
    url,
    `SELECT conrelid::regclass::text AS name FROM pg_constraint WHERE contype = 'f' AND confrelid = 'users'::regclass`,
  )
  for (const { name } of referring) t.true(String(name) in receipt.rows, `the receipt has ${name}`)

  await waitForValue(async () => (await audit.verify()).staged, 0)
  const verified = await runCli(service.env, ['audit', 'verify'])
  t.is(verified.code, 0, verified.stderr)
  // Its own actions stay, under its id.
  t.true((await audit.list({ limit: 1000, subjectId: id })).length >= 6)
  refused(t, await request('GET', '/users/me', { token }), 500, 'INVALID_TOKEN')
  refused(
    t,
    await post('/users/login', { username, password: service.env.AUTH_ADMIN_PASSWORD! }),
    404,
    'INVALID_CREDENTIALS',
  )
  const again = await service.signUp('ROLE_CLIENT', { username, nickname: user.nickname })
  t.not(idOf(again.token), id)
  t.is((await request('GET', '/users/me', { token: other.token })).status, 200)
})

test('a user is erased once, and an incomplete erasure is rolled back', async t => {
  const service = await startTestService(t)
  const { database, erasure, users } = service.registry
  const { token } = await service.signUp('ROLE_CLIENT')
  const erase = () => database.transact(transaction => erasure.erase(idOf(token), transaction))
  const url = service.env.DATABASE_URL!
  await ask(url, 'ALTER TABLE audit_events ADD CONSTRAINT closed CHECK (address IS NOT NULL) NOT VALID')
  await waitForValue(async () => (await service.registry.audit.verify()).staged, 0)
  await t.throwsAsync(erase())
  t.truthy(await users.byId(idOf(token)))
  await ask(url, 'ALTER TABLE audit_events DROP CONSTRAINT closed')
  t.is((await erase())!.rows.users, 1)
  t.is(await erase(), undefined)
  t.is(await users.byId(idOf(token)), undefined)
})
