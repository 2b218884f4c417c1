/** Operations of administrators: migrations, settings without secrets, diagnosis of the service, and its e-mails. */
import { readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { toJsonString } from '@bufbuild/protobuf'
import test, { type ExecutionContext } from 'ava'
import { ListEmailsResponseSchema } from '../../proto/gen/auth/v1/administration_pb.js'
import { type AdministrationClient, openLocal, openSignedIn, reasonOf } from '../_helpers/administration.js'
import { createAuthority, writePems } from '../_helpers/certificates.js'
import { spawnCli } from '../_helpers/cli.js'
import { ask } from '../_helpers/database.js'
import { openMailbox } from '../_helpers/mailbox.js'
import { scrape } from '../_helpers/metrics.js'
import { sendKey } from '../_helpers/recovery.js'
import { startTestService } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { idOf } from '../_helpers/tokens.js'
import { withClocks } from '../_helpers/verifiers.js'
import { waitFor } from '../_helpers/wait.js'

const settings = { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }

/** Checks by their names, each with status and detail. */
async function examine(api: AdministrationClient): Promise<Record<string, string>> {
  const { checks } = await api.diagnose({})
  for (const { status, fix } of checks) if ((status === 'ok') !== (fix === '')) throw new Error(`${status} ${fix}`)
  return Object.fromEntries(checks.map(({ check, status, detail }) => [check, `${status} ${detail}`]))
}

test('migrations are listed with kind and time, and those of a newer version as unknown', async t => {
  const service = await startTestService(t, settings)
  const api = await openSignedIn(t, service)
  const { migrations } = await api.getMigrations({})
  t.like(migrations[0], { name: '0001-baseline.sql', kind: 'expand', known: true })
  t.true(migrations.every(({ runTime, known }) => runTime !== undefined && known))
  await ask(service.env.DATABASE_URL!, `INSERT INTO migrations VALUES ('9999-later.sql', 'expand', '')`)
  const later = (await api.getMigrations({})).migrations
  t.like(later.at(-1), { name: '9999-later.sql', kind: 'expand', known: false })
  t.regex((await examine(api)).migrations!, /^warning .*9999-later\.sql/)
  await ask(service.env.DATABASE_URL!, `UPDATE migrations SET kind = 'contract' WHERE name = '9999-later.sql'`)
  t.regex((await examine(api)).migrations!, /^failed .*9999-later\.sql/)
})

test('settings are listed with value, origin and default, and a secret only as set or not set', async t => {
  const secret = 'a very secret password 7'
  const service = await startTestService(t, { ...settings, AUTH_ADMIN_PASSWORD: secret, AUTH_SOMETHING_ELSE: 'x' })
  const api = await openLocal(t, service)
  const { settings: listed, unknown } = await api.getConfiguration({})
  const named = (name: string) => listed.find(setting => setting.name === name)
  t.like(named('AUTH_BCRYPT_COST'), { value: '4', origin: 'environment', default: '12', secret: false })
  t.like(named('AUTH_TOKEN_TTL'), { value: '1h', origin: 'default', default: '1h' })
  for (const name of ['AUTH_MASTER_KEY', 'AUTH_ADMIN_PASSWORD'])
    t.like(named(name), { value: 'set', origin: 'environment', secret: true, default: undefined })
  t.like(named('SMTP_URL'), { value: undefined, origin: 'default', secret: true })
  t.deepEqual(unknown, ['AUTH_SOMETHING_ELSE'])
  const text = JSON.stringify(listed, (_, value) => (typeof value === 'bigint' ? String(value) : value))
  for (const hidden of [secret, service.env.AUTH_MASTER_KEY!, service.env.DATABASE_URL!]) t.false(text.includes(hidden))
})

test('diagnosis of a working service reports no failure, and warns about possible improvements', async t => {
  const service = await startTestService(t, settings)
  const found = await examine(await openSignedIn(t, service))
  for (const check of [
    ...['database', 'migrations', 'data keys', 'clocks', 'connections', 'signing key', 'audit log', 'e-mails'],
    ...['client addresses', 'initial password', 'recovery e-mails', 'certificate'],
  ])
    t.regex(found[check]!, /^ok /, check)
  t.regex(found.administrators!, /^warning 1 active administrator; without one-time codes: 1\./)
  t.regex(found['password hashes']!, /^warning AUTH_BCRYPT_COST is 4: .* \d+ ms here, about [\d.]+ logins a second/)
  t.regex(found['mail server']!, /^warning SMTP_URL is not set/)
})

test('diagnosis reports each fault', async t => {
  const service = await startTestService(t, {
    ...settings,
    SMTP_URL: 'smtp://ana:secret-of-ana@127.0.0.1:1',
    AUTH_RECOVERY_EMAIL: 'any',
  })
  const api = await openLocal(t, service)
  const url = service.env.DATABASE_URL!
  await writeFile(join(service.settings.dataDir, 'initial-admin-password'), 'x')
  await ask(url, 'UPDATE users SET active = false')
  await ask(url, `UPDATE signing_keys SET signs_at = now() - interval '92 days'`)
  await ask(
    url,
    `INSERT INTO emails (kind, parameters, locale, next_attempt_at) VALUES ('password-changed', '{}', 'en', NULL)`,
  )
  for (let each = 0; each < 10; each++) {
    const { username } = await service.signUp('ROLE_CLIENT')
    await service.login(username)
  }
  while (await service.registry.audit.seal());
  const found = await examine(api)
  for (const [check, says] of Object.entries({
    administrators: /^failed There is no active administrator/,
    'signing key': /^warning The signing key is 92 days old and has no successor/,
    'e-mails': /^warning 1 e-mail failed permanently/,
    'initial password': /^warning /,
    'recovery e-mails': /^warning /,
    'mail server': /^failed .*(ECONNREFUSED|ESOCKET)/,
    'client addresses': /^warning .* sign-ins of \d+ users all came from 127\.0\.0\.1/,
  }))
    t.regex(found[check]!, says)
  t.notRegex(JSON.stringify(found), /secret-of-ana/)

  await ask(url, 'DELETE FROM signing_keys')
  await ask(url, `UPDATE data_keys SET wrapped = '\\x00'::bytea || wrapped`)
  const worse = await examine(api)
  t.regex(worse['data keys']!, /^failed AUTH_MASTER_KEY is not the key/)
  // Checks that depend on them are omitted, others aren't.
  t.is(worse['signing key'], undefined)
  t.regex(worse['recovery e-mails']!, /^warning /)
})

test.serial(
  'a clock of two hours ago is a failure of diagnosis, also while ages are in doubt, and so says a metric',
  async t => {
    const service = await startTestService(t, { ...settings, AUTH_METRICS_ADDRESS: '127.0.0.1:0' })
    const api = await openSignedIn(t, service)
    await ask(service.env.DATABASE_URL!, 'UPDATE clock SET doubted_for = 7200')
    t.regex((await examine(api)).clocks!, /^warning The clock of the database leapt/)
    const difference = async () => (await scrape(service)).value('auth_clock_difference_seconds')!
    t.true((await difference()) < 2)
    await withClocks({ wall: -7_200_000 }, async () => {
      t.regex((await examine(api)).clocks!, /^failed The clocks .* differ by 7200\.\d s/)
      t.true(Math.abs((await difference()) - 7200) < 2)
    })
  },
)

for (const [AUTH_STRICT, says] of [
  ['off', 'neither an e-mail address nor answers to two questions: 2'],
  ['on', 'no e-mail address: 3'],
] as const)
  test(`diagnosis and a metric count active accounts that only the password lets in, with AUTH_STRICT=${AUTH_STRICT}`, async t => {
    const more = { ...settings, AUTH_METRICS_ADDRESS: '127.0.0.1:0', AUTH_STRICT }
    const service = await startTestService(t, more)
    const sql = (text: string) => ask(service.env.DATABASE_URL!, text)
    await sql(`UPDATE users SET email = 'admin@example.org'`)
    const states = {
      ...{ 'no way': '', 'one answer': '1', 'two answers': '1, 2', 'an address': '' },
      ...{ inactive: '', suspended: '' },
    }
    for (const [state, questions] of Object.entries(states)) {
      const id = idOf((await service.signUp('ROLE_CLIENT')).token)
      await sql(`UPDATE users SET active = ${state !== 'inactive'}, suspended = ${state === 'suspended'},
        email = ${state === 'an address' ? `'ana@example.org'` : 'NULL'} WHERE id = ${id}`)
      await sql(`INSERT INTO answers (user_id, question_id, answer_hash)
        SELECT ${id}, unnest(ARRAY[${questions}]::int[]), 'x'`)
    }
    const found = await examine(await openSignedIn(t, service))
    t.is(found['ways back'], `warning Of the newest 5 active accounts, those with ${says}.`)
    const counted = async () => (await scrape(service)).value('auth_accounts_without_way_back')
    t.true(says.endsWith(`: ${await waitFor(counted)}`))
    await sql(`UPDATE users SET email = 'ana@example.org'`)
    t.regex((await examine(await openSignedIn(t, service)))['ways back']!, /^ok /)
  })

test('diagnosis checks when the certificate of the service expires', async t => {
  const authority = createAuthority('Operations')
  const day = 86_400_000
  for (const [days, says] of [
    [100.5, /^ok .* 100 days\.$/],
    [10.5, /^warning .* 10 days\.$/],
    [-1, /^failed .*expired on \d{4}-\d\d-\d\d\.$/],
  ] as const) {
    const until = new Date(Date.now() + days * day)
    const { cert, key } = await writePems(t, authority.issue({ name: 'localhost', until }))
    const service = await startTestService(t, { ...settings, AUTH_TLS_CERT: cert, AUTH_TLS_KEY: key })
    t.regex((await examine(await openLocal(t, service))).certificate!, says)
  }
})

// E-mails of administrators: the queue without the contents of e-mails, and a test e-mail that bypasses it.

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
  const { emails, database, users, audit } = service.registry
  const api = await openSignedIn(t, service)
  const to = 'hidden@example.org'
  await database.transact(t => users.setEmail({ id: 1, email: null }, to, { address: '192.0.2.1', locale: 'en' }, t))
  for (let times = 0; times < 2; times++)
    await emails.add({ kind: 'recovery-key', stage: 'ready', parameters: { userId: 1, to } }, 'en')
  const list = async (filter = {}) => (await api.listEmails(filter)).emails
  const idsOf = async (filter: object) => (await list(filter)).map(({ id }) => id)
  await waitFor(async () => (await list()).every(({ error }) => error !== undefined), list)
  const [first, second] = await list()
  t.like(first, { kind: 'recovery-key', user: 1 })
  t.regex(first!.error!, /ECONNREFUSED|ESOCKET/)
  t.notRegex(toJsonString(ListEmailsResponseSchema, await api.listEmails({})), /hidden/)

  await ask(service.env.DATABASE_URL!, `UPDATE emails SET next_attempt_at = NULL WHERE id = ${first!.id}`)
  t.deepEqual(await idsOf({ failed: true }), [first!.id])
  t.deepEqual(await idsOf({ failed: false }), [second!.id])
  const { nextPageToken: pageToken } = await api.listEmails({ pageSize: 1 })
  t.deepEqual(await idsOf({ pageSize: 1, pageToken }), [second!.id])

  t.truthy((await api.retryEmail({ id: first!.id, validateOnly: true })).email!.dueTime)
  t.is(await reasonOf(api.discardEmail({ id: first!.id, validateOnly: true })), 'none')
  t.is((await api.getEmail({ id: first!.id })).email!.dueTime, undefined)
  t.truthy((await api.retryEmail({ id: first!.id })).email!.dueTime)
  await waitFor(async () => (await api.getEmail({ id: first!.id })).email!.attempts > first!.attempts, list)

  const { id } = second!
  await api.discardEmail({ id })
  for (const call of [
    api.getEmail({ id }),
    api.discardEmail({ id }),
    api.discardEmail({ id, validateOnly: true }),
    api.retryEmail({ id, validateOnly: true }),
  ])
    t.is(await reasonOf(call), 'RECORD_NOT_FOUND')
  t.is(await reasonOf(api.retryEmail({})), 'INVALID_ARGUMENT')
  const events = await audit.list({ action: 'email.*', limit: 9 })
  const recorded = events.map(({ action, object, subject_id }) => `${action} ${object} ${subject_id}`)
  t.deepEqual(recorded, [`email.retry email:${first!.id} 1`, `email.discard email:${id} 1`])
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
  const refusal = '535 no: AHNlY3JldC1vZi1hbmE= secret-of-ana'
  const SMTP_URL = await mailServer(t, '220 hello', '250-hello\r\n250 AUTH PLAIN', refusal)
  const service = await startTestService(t, { ...settings, SMTP_URL })
  const api = await openSignedIn(t, service)
  const { sent, answer } = await api.sendTestEmail({ email: 'ana@example.org' })
  t.false(sent)
  t.regex(answer, /EAUTH 535/)
  t.notRegex(answer, /secret|AHNl/)
})

test('credentials of the mail server are read again from SMTP_URL_FILE when it refuses them, and a command says by exit code 1 that a test sent nothing', async t => {
  let valid = 'former'
  const mailbox = await openMailbox(t, (command, of) => (command === 'AUTH' && of !== valid ? 535 : undefined))
  const file = join(await temporaryFolder(t), 'smtp-url')
  const rotate = (user: string) =>
    writeFile(file, Object.assign(new URL(mailbox.url), { username: user, password: 'x' }).href)
  await rotate(valid)
  const service = await startTestService(t, { ...settings, SMTP_URL_FILE: file })
  const sends = async () =>
    (await spawnCli(service.env, ['api', 'SendTestEmail', '{"email":"ana@a.example"}', '--yes'])).code
  const user = await service.signUp('ROLE_CLIENT', { email: 'bia@a.example' })
  t.is((await sendKey(service, user.username, 'bia@a.example')).status, 200)
  await mailbox.nextEmail('bia@a.example')
  t.is(await sends(), 0)

  // Kept connections were authenticated before.
  await mailbox.shut()
  await mailbox.reopen()
  valid = 'later'
  t.is(await sends(), 1)
  await rm(file)
  const { sent, answer } = await (await openSignedIn(t, service)).sendTestEmail({ email: 'ana@a.example' })
  t.false(sent)
  t.regex(answer, /EAUTH 535/)
  await rotate(valid)
  t.is(await sends(), 0)
  const other = await service.signUp('ROLE_CLIENT', { email: 'caio@a.example' })
  t.is((await sendKey(service, other.username, 'caio@a.example')).status, 200)
  await mailbox.nextEmail('caio@a.example')
})

/** A relay that takes e-mails from clients with this name alone, and what names it heard. */
async function strictRelay(t: ExecutionContext, accepted: string) {
  const names: string[] = []
  const server = createServer(socket => {
    let data = false
    socket.on('error', () => {})
    socket.write('220 relay\r\n')
    createInterface({ input: socket }).on('line', line => {
      const [verb = '', name = ''] = line.split(' ')
      const greets = /^(?:EHLO|HELO)$/i.test(verb)
      if (greets) names.push(name)
      if (data && line !== '.') return
      data = /^DATA$/i.test(verb)
      const answer = data ? '354 go on' : greets && name !== accepted ? '550 5.7.1 Access denied' : '250 ok'
      socket.write(`${answer}\r\n`)
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => void server.close())
  return { url: `smtp://127.0.0.1:${(server.address() as { port: number }).port}`, names }
}

/** The name by which the service greets a mail server, by its settings. */
const greetings: readonly (readonly [name: string, settings: Record<string, string>, query?: string])[] = [
  ['escola.example.org', { AUTH_MAIL_FROM: 'auth@escola.example.org' }],
  ['escola.example.org', { AUTH_MAIL_FROM: 'Cadastro <auth@escola.example.org>', AUTH_ISSUER: 'https://a.example' }],
  ['xn--educao-7ta5a.example.org', { AUTH_MAIL_FROM: 'auth@educação.example.org' }],
  ['login.example.org', { AUTH_ISSUER: 'https://login.example.org:8443/auth' }],
  ['login.example.org', { AUTH_MAIL_FROM: 'auth@intranet', AUTH_ISSUER: 'https://login.example.org' }],
  ['pod-7.example.net', { AUTH_MAIL_FROM: 'auth@escola.example.org' }, '?name=pod-7.example.net'],
]

for (const [name, more, query = ''] of greetings) {
  test(`a mail server is greeted as ${name}, set by ${JSON.stringify(more)}${query}`, async t => {
    const relay = await strictRelay(t, name)
    const service = await startTestService(t, { ...settings, ...more, SMTP_URL: `${relay.url}${query}` })
    const api = await openSignedIn(t, service)
    const { sent, answer } = await api.sendTestEmail({ email: 'ana@example.org' })
    t.true(sent, `${answer} ${relay.names}`)
    t.deepEqual(relay.names, [name])
    t.regex((await examine(api))['mail server']!, /^ok /)
  })
}

test('diagnosis says that a mail server refuses the name, and what to do', async t => {
  const relay = await strictRelay(t, 'another.example.org')
  const service = await startTestService(t, { ...settings, AUTH_MAIL_FROM: 'a@b.example', SMTP_URL: relay.url })
  const found = (await examine(await openSignedIn(t, service)))['mail server']!
  t.regex(found, /^failed .*refuses the name .*EPROTOCOL 550 HELO/)
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
  t.is(events.map(({ object }) => object).join(), 'emails:1000,emails:1000,emails:501')
})
