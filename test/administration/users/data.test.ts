import test from 'ava'
import { allPages, openSignedIn, reasonOf, signedInForFile } from '../../_helpers/administration.js'
import { runCli } from '../../_helpers/cli.js'
import { mailboxForFile } from '../../_helpers/mailbox.js'
import { password, serviceForFile, startTestService } from '../../_helpers/service.js'
import { idOf } from '../../_helpers/tokens.js'
import { waitForValue } from '../../_helpers/wait.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url }))
const admin = signedInForFile(service)
const run = async (text: string) =>
  (await service.registry.database.sequelize.query(text))[0] as Record<string, string>[]

/** A user with a row in every table. */
async function fillEveryTable(address: string) {
  const organization = await service.organization()
  const email = `vida${organization.id}@example.org`
  const fields = { email, institution: 'Instituto Pleno', securityquestion: '1', securityanswer: 'Rexresposta' }
  const user = await service.signUp('ROLE_INSTITUTION', fields)
  const { username, token } = user
  const id = idOf(token)
  const activation = { query: { username, activationkey: organization.activationkey }, token }
  await service.request('POST', '/users/activate', activation)
  await admin.suspendUser({ user: username })
  await admin.resumeUser({ user: username })
  const headers = { 'x-forwarded-for': address }
  await service.request('POST', '/users/login', { query: { username, password }, headers })
  await service.request('POST', '/forgotpasswords/sendkeybyemail', { query: { username, email } })
  await mailbox.nextEmail(email)
  await waitForValue(
    async () =>
      (await run(`SELECT FROM emails WHERE kind = 'recovery-key' AND parameters ->> 'userId' = '${id}'`)).length,
    0,
  )
  await run(`INSERT INTO totp_secrets (user_id, secret_sealed) VALUES (${id}, 'segredo-totp');
    INSERT INTO emails (kind, parameters, locale, next_attempt_at)
      VALUES ('activation-key', '{"userId": ${id}, "organizationId": ${organization.id}}', 'en', NULL)`)
  return { ...user, id, email, organization }
}

test('an export holds every table and column with data about the user, and no secret', async t => {
  const { username, id, email, organization } = await fillEveryTable('198.51.100.8')
  const { json } = await admin.exportUser({ user: username, pageSize: 1000 })
  const data = JSON.parse(json)
  t.like(data.users, { id, username, email, institution: 'Instituto Pleno', has_password: true, active: true })
  t.like(data.organizations[0], { id: organization.id })
  t.is(data.provider_keys.length, 1)
  t.like(data.answers[0], { question_id: 1, answered: true })
  t.true(data.known_addresses.length >= 1 && data.known_addresses.every((row: object) => 'seen_at' in row))
  t.like(data.mailed_keys[0], { purpose: 'recovery' })
  t.deepEqual(data.totp_secrets, [{ enrolled: true, locked_at: null }])
  t.like(data.emails[0], { kind: 'activation-key', parameters: { userId: id } })
  const events = [...data.audit_events, ...data.audit_staged] as Record<string, unknown>[]
  const own = events.find(({ action, address }) => action === 'session.login' && address === '198.51.100.8')
  t.is(own?.actor_id, id)
  // The addresses of administrators are omitted.
  const suspended = events.filter(({ action }) => action === 'user.suspend')
  t.is(suspended.length, 1)
  t.is(suspended[0]!.address, null)

  const [secrets] = await run(`SELECT password_hash, encode(key_digest, 'hex') AS key, organization.sealed
    FROM users JOIN provider_keys ON user_id = users.id,
    LATERAL (SELECT encode(activation_key_sealed, 'hex') AS sealed FROM organizations o WHERE o.id = organization_id) organization
    WHERE users.id = ${id}`)
  for (const secret of Object.values(secrets!)) t.false(json.includes(secret))
  t.notRegex(json, /hmac1|\$2b\$|segredo-totp|Rexresposta|_hash"|_sealed"|_digest"/i)
  t.false(json.includes(organization.activationkey))

  // A new table or column must be exported, or excluded on purpose.
  const names = ['username_key', 'nickname_key', 'username_skeleton', 'nickname_skeleton']
  const kept = [...names, 'password_hash', 'recovery_from', 'recovery_kept']
  const columns = await run(`SELECT column_name AS name FROM information_schema.columns WHERE table_name = 'users'`)
  const exported = columns.map(({ name }) => name!).filter(name => !kept.includes(name))
  t.deepEqual(Object.keys(data.users).sort(), [...exported, 'has_password'].sort())
  const tables = await run(`SELECT DISTINCT table_name AS name FROM information_schema.columns
    WHERE column_name IN ('user_id', 'subject_id') AND table_schema = 'public'`)
  for (const { name } of tables) t.true(name! in data, name)
  const asked = await service.registry.audit.list({ subjectId: id, action: 'user.export', limit: 1 })
  t.is(asked.length, 1)
})

test('an export of an account with 20,000 events has each once, in pages of at most 1 MB, also on the command line', async t => {
  const own = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const chief = await openSignedIn(t, own)
  const { username: user, token } = await own.signUp('ROLE_CLIENT')
  const id = idOf(token)
  while ((await own.registry.audit.backlog()).staged > 0) await own.registry.audit.seal()
  // Before all others, so that sealing continues. The user is the actor of every tenth, on another user.
  await own.registry.database.sequelize.query(`INSERT INTO audit_events
      (id, at, action, outcome, reason, actor, actor_id, subject_id, object, address, request_id, mac, hash)
    SELECT -n, now(), 'session.login', 'refused', repeat('r', 100), 'user', CASE WHEN n % 10 = 0 THEN ${id} END,
      CASE WHEN n % 10 = 0 THEN 1 ELSE ${id} END, repeat('o', 100), '2001:db8:ffff:ffff:ffff:ffff:ffff:ffff',
      repeat('i', 128), '', '' FROM generate_series(1, 20000) n`)
  const pages = await allPages(
    pageToken => chief.exportUser({ user, pageSize: 1000, pageToken }),
    page => [page.json],
  )
  t.true(pages.every(json => Buffer.byteLength(json) <= 1_000_000))
  const [first, ...rest] = pages.map(json => JSON.parse(json))
  t.like(first.users, { id, username: user })
  for (const page of rest) t.deepEqual(Object.keys(page).sort(), ['audit_events', 'audit_staged'])
  const ids: number[] = [first, ...rest].flatMap(page => page.audit_events.map((each: { id: number }) => each.id))
  const given = Array.from({ length: 20_000 }, (_, index) => -1 - index)
  const old = ids.filter(id => id < 0)
  t.deepEqual(old, given)
  t.is(new Set(ids).size, ids.length)
  t.is((await own.registry.audit.list({ subjectId: id, action: 'user.export', limit: 9 })).length, 1)
  const { json, nextPageToken: pageToken } = await chief.exportUser({ user })
  t.is(JSON.parse(json).audit_events.length + JSON.parse(json).audit_staged.length, 50)
  t.is(await reasonOf(chief.exportUser({ user: 'admin', pageToken })), 'INVALID_ARGUMENT')

  const { code, stdout, stderr } = await runCli(own.env, ['users', 'export', user])
  t.is(code, 0, stderr)
  const document = JSON.parse(stdout)
  t.like(document.users, { id, username: user })
  const written = document.auditEvents.map((each: { id: number }) => each.id).filter((id: number) => id < 0)
  t.deepEqual(written, given.toReversed())
})

test('erasure removes a user from every table and returns a receipt with the number of rows, and the audit log verifies', async t => {
  const { username, nickname, id, email, token } = await fillEveryTable('198.51.100.9')
  t.is(await reasonOf(admin.eraseUser({ user: username })), 'CONFIRMATION_NEEDED')
  const checked = await admin.eraseUser({ user: username, confirm: username, validateOnly: true })
  t.is(checked.rows.users, 1)
  t.is((await admin.getUser({ user: username })).user!.record!.id, id)
  const { user, rows, eraseTime } = await admin.eraseUser({ user: `#${id}`, confirm: username })
  t.is(user, id)
  t.true(Math.abs(Number(eraseTime!.seconds) - Date.now() / 1000) < 600)
  t.like(rows, { users: 1, answers: 1, provider_keys: 1, mailed_keys: 1, emails: 1 })
  t.is(await reasonOf(admin.getUser({ user: `#${id}` })), 'USER_NOT_FOUND')
  t.is((await service.request('GET', '/users/me', { token })).status, 500)
  const names = await run(`SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'public'`)
  for (const { name } of names) {
    const [found] = await run(`SELECT count(*)::int AS count FROM "${name}" t WHERE t::text ILIKE '%${email}%'
      OR t::text ILIKE '%${nickname}%' OR t::text LIKE '%198.51.100.9%'`)
    t.is(Number(found!.count), 0, name)
  }
  t.is((await service.registry.audit.verify()).broken, undefined)
  const events = await service.registry.audit.list({ subjectId: id, action: 'user.erase', limit: 5 })
  t.like(events[0], { actor: 'user', subject_id: id })
  // The names are available again.
  await service.signUp('ROLE_CLIENT', { username, nickname })
})
