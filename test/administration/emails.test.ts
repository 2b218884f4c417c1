/** E-mails of administrators: the queue without the contents of e-mails, and a test e-mail that bypasses it. */
import { readdir, readFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import { openSignedIn, reasonOf } from '../_helpers/administration.js'
import { ask } from '../_helpers/database.js'
import { startTestService } from '../_helpers/service.js'
import { waitForValue } from '../_helpers/wait.js'

const settings = { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }

/** A mail server with the same reply to every command except the first. */
async function mailServer(t: ExecutionContext, ...says: string[]): Promise<string> {
  const server = createServer(socket => {
    socket.on('error', () => {})
    const lines = [...says]
    socket.write(`${lines.shift()}\r\n`)
    socket.on('data', () => socket.write(`${lines.shift() ?? '500 No'}\r\n`))
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => void server.close())
  return `smtp://ana:secret-of-ana@127.0.0.1:${(server.address() as { port: number }).port}`
}

test('the queue shows kind, user, attempts and codes, and no content of an e-mail', async t => {
  const service = await startTestService(t, { ...settings, SMTP_URL: 'smtp://127.0.0.1:1' })
  const { emails, database, users } = service.registry
  const api = await openSignedIn(t, service)
  const to = 'hidden@example.org'
  await database.transact(t => users.setEmail({ id: 1, email: null }, to, { address: '192.0.2.1', locale: 'en' }, t))
  await emails.add({ kind: 'recovery-key', stage: 'ready', parameters: { userId: 1, to } }, 'en')
  await emails.add({ kind: 'recovery-key', stage: 'ready', parameters: { userId: 1, to } }, 'en')
  const list = async (filter = {}) => (await api.listEmails(filter)).emails
  await waitForValue(
    () => list(),
    value => value.every(({ error }) => error !== undefined),
  )
  const [first, second] = await list()
  t.like(first, { kind: 'recovery-key', user: 1 })
  t.regex(first!.error!, /ECONNREFUSED|ESOCKET/)
  t.notRegex(
    JSON.stringify(await list(), (_, value) => (typeof value === 'bigint' ? String(value) : value)),
    /hidden/,
  )

  await database.sequelize.query(`UPDATE emails SET next_attempt_at = NULL WHERE id = ${first!.id}`)
  t.deepEqual(
    (await list({ failed: true })).map(({ id }) => id),
    [first!.id],
  )
  t.deepEqual(
    (await list({ failed: false })).map(({ id }) => id),
    [second!.id],
  )
  const page = await api.listEmails({ pageSize: 1 })
  t.deepEqual(
    (await list({ pageSize: 1, pageToken: page.nextPageToken })).map(({ id }) => id),
    [second!.id],
  )
  t.is((await api.getEmail({ id: first!.id })).email!.dueTime, undefined)

  await api.retryEmail({ id: first!.id, validateOnly: true })
  t.is((await api.getEmail({ id: first!.id })).email!.dueTime, undefined)
  const { attempts } = first!
  t.truthy((await api.retryEmail({ id: first!.id })).email!.dueTime)
  await waitForValue(
    async () => (await api.getEmail({ id: first!.id })).email,
    value => value!.attempts > attempts,
  )

  await api.discardEmail({ id: second!.id })
  t.is(await reasonOf(api.getEmail({ id: second!.id })), 'RECORD_NOT_FOUND')
  t.is(await reasonOf(api.discardEmail({ id: second!.id })), 'RECORD_NOT_FOUND')
  t.is(await reasonOf(api.retryEmail({})), 'INVALID_ARGUMENT')
  const events = await service.registry.audit.list({ action: 'email.*', limit: 9 })
  t.deepEqual(
    events.map(({ action, object, subject_id }) => [action, object, subject_id]),
    [
      ['email.retry', `email:${first!.id}`, 1],
      ['email.discard', `email:${second!.id}`, 1],
    ],
  )
})

test('with validate_only, retrying or discarding an e-mail changes nothing and leaves no event', async t => {
  const service = await startTestService(t, { ...settings, SMTP_URL: 'smtp://127.0.0.1:1' })
  const api = await openSignedIn(t, service)
  const stored = async () => ({
    rows: await ask(service.env.DATABASE_URL!, 'SELECT e::text FROM emails e'),
    events: await service.registry.audit.list({ action: 'email.*', limit: 9 }),
  })
  await ask(
    service.env.DATABASE_URL!,
    `INSERT INTO emails (kind, parameters, locale, next_attempt_at) VALUES ('password-changed', '{}', 'en', NULL)`,
  )
  const { id } = (await api.listEmails({})).emails[0]!
  const before = await stored()
  const { email } = await api.retryEmail({ id, validateOnly: true })
  t.truthy(email!.dueTime)
  t.is(await reasonOf(api.discardEmail({ id, validateOnly: true })), 'none')
  t.is(await reasonOf(api.retryEmail({ id: id + 1n, validateOnly: true })), 'RECORD_NOT_FOUND')
  t.is(await reasonOf(api.discardEmail({ id: id + 1n, validateOnly: true })), 'RECORD_NOT_FOUND')
  t.deepEqual(await stored(), before)
})

test('without a mail server, a test e-mail is written to the folder at once', async t => {
  const service = await startTestService(t, settings)
  const api = await openSignedIn(t, service)
  const { sent, answer } = await api.sendTestEmail({ email: 'ana@example.org' })
  t.true(sent, answer)
  const folder = join(service.settings.dataDir, 'mail')
  const [file, ...others] = await readdir(folder)
  t.deepEqual(others, [])
  t.regex(await readFile(join(folder, file!), 'utf8'), /^To: ana@example\.org$/m)
  t.is(await reasonOf(api.sendTestEmail({ email: 'invalid' })), 'INVALID_ARGUMENT')
  t.is((await service.registry.audit.list({ action: 'email.test', limit: 9 })).length, 1)
})

test('if the mail server refuses a test e-mail, the error contains its codes, but no secret and no text of the server', async t => {
  const SMTP_URL = await mailServer(
    t,
    '220 hello',
    '250-hello\r\n250 AUTH PLAIN',
    '535 no: AHNlY3JldC1vZi1hbmE= secret-of-ana',
  )
  const service = await startTestService(t, { ...settings, SMTP_URL })
  const api = await openSignedIn(t, service)
  const { sent, answer } = await api.sendTestEmail({ email: 'ana@example.org' })
  t.false(sent)
  t.regex(answer, /EAUTH 535/)
  t.notRegex(answer, /secret|AHNl/)
})

test('a retry of all makes every permanently failed e-mail due at once, and changes no other', async t => {
  const service = await startTestService(t, settings)
  const api = await openSignedIn(t, service)
  const url = service.env.DATABASE_URL!
  // The sender takes due e-mails: it finds none that it could send.
  await ask(
    url,
    `INSERT INTO emails (kind, stage, parameters, locale, priority, next_attempt_at)
      SELECT 'password-changed', 'held', jsonb_build_object('userId', n), 'en', 3, CASE WHEN n > 1 THEN NULL ELSE 'infinity'::timestamptz END
      FROM generate_series(1, 2502) n`,
  )
  const due = async () =>
    Number((await ask(url, 'SELECT count(*) FROM emails WHERE next_attempt_at <= now()'))[0]!.count)
  t.is((await api.retryFailedEmails({ validateOnly: true })).emails, 2501)
  t.is(await due(), 0)
  t.is((await api.retryFailedEmails({})).emails, 2501)
  t.is(await due(), 2501)
  t.is((await api.retryFailedEmails({})).emails, 0)
  const events = await service.registry.audit.list({ action: 'email.retry', limit: 9 })
  t.deepEqual(
    events.map(({ object }) => object),
    ['emails:1000', 'emails:1000', 'emails:501'],
  )
})
