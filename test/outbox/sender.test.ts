import { readdir, readFile, stat } from 'node:fs/promises'
import type { AddressInfo } from 'node:net'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import test, { type ExecutionContext } from 'ava'
import fc from 'fast-check'
import PostalMime from 'postal-mime'
import { SMTPServer } from 'smtp-server'
import { type Composed, startSender } from '../../server/outbox/sender.js'
import { createMailTransport, type Mail, type MailTransport } from '../../server/outbox/transport.js'
import { emailKey, isEmailAddress } from '../../server/rules/names.js'
import { openMailbox } from '../_helpers/mailbox.js'
import { createRequest, signUpForm } from '../_helpers/service.js'
import { serviceEnv, spawnService } from '../_helpers/spawned.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

interface Row {
  readonly id: string
  readonly kind: string
  attempts: number
  priority: number
  readonly age: number
  due: number
  error?: string
}

const log = { info() {}, warn() {}, error() {} }

/** A queue in memory with these e-mails. Delays pass a thousand times faster. */
function createQueue(...ids: readonly unknown[]) {
  const rows = new Map<string, Row>()
  const history: string[] = []
  const answers: string[] = []
  const queue = {
    rows,
    history,
    answers,
    add(id: string, { minutes = 0, attempts = 0 } = {}) {
      rows.set(id, { id, kind: 'test', attempts, priority: Math.min(attempts, 1), age: minutes * 60, due: 0 })
    },
    async claim(lease: number, retries: boolean) {
      const due = [...rows.values()].filter(row => row.due <= Date.now() && (retries || row.priority === 0))
      const row = due.sort((a, b) => a.priority - b.priority)[0]
      if (!row) return undefined
      row.attempts++
      row.due = Date.now() + lease * 1000
      return { ...row }
    },
    async done(id: string) {
      history.push(`done ${id}`)
      rows.delete(id)
    },
    async sent(id: string, answer: string) {
      answers.push(answer)
      return queue.done(id)
    },
    async failed(id: string, error: string, delay: number | undefined) {
      history.push(`failed ${id} ${delay}`)
      const due = delay === undefined ? Number.POSITIVE_INFINITY : Date.now() + delay
      Object.assign(rows.get(id)!, { error, priority: 1, due })
    },
  }
  for (const id of ids) queue.add(String(id))
  return queue
}

type Parts = Parameters<typeof startSender<Row>>[0]

const to = 'maria@example.org'
const entry: Mail = { to, subject: 'Açaí', text: 'Olá, Maria.\n', name: 'auth.7.1', users: [] }

/** Starts a sender that closes when the test ends. */
function start(t: ExecutionContext, parts: Pick<Parts, 'queue' | 'transport'> & Partial<Parts>) {
  const sender = startSender({ log, compose: async () => entry, ...parts })
  t.teardown(sender.close)
  return sender
}

/** Sends by a mail server, or into a folder. */
const mailer = (
  to: { smtpUrl?: string; currentSmtpUrl?: () => string; dataDir?: string },
  mailFrom = 'auth@localhost',
) => createMailTransport({ mailFrom, dataDir: '', ...to }, log)

test('an e-mail that is first refused and then undeliverable arrives once the server is available again', async t => {
  const mailbox = await openMailbox(t)
  const queue = createQueue(7)
  mailbox.refuse(Number.POSITIVE_INFINITY)
  start(t, { queue, transport: mailer({ smtpUrl: mailbox.url }, 'Cadastro <auth@example.org>') })
  const failed = (times: number) =>
    waitFor(
      () => queue.history.length >= times,
      () => queue.history,
    )
  await failed(2)
  await mailbox.shut()
  // An attempt that had begun may be refused yet.
  await failed(queue.history.length + 2)
  mailbox.refuse(0)
  await mailbox.reopen()

  const received = await mailbox.nextEmail(to)
  t.is(received.subject, 'Açaí')
  t.is(received.text?.trim(), 'Olá, Maria.')
  t.is(received.from?.address, 'auth@example.org')
  t.is(received.messageId, '<auth.7.1@example.org>')
  await waitForValue(() => queue.history.at(-1), 'done 7')
  t.deepEqual(queue.history.slice(0, 3), ['failed 7 5', 'failed 7 10', 'failed 7 20'])
  t.is(mailbox.emails.length, 1)
  t.regex(queue.answers.join('|'), /^250 [^|\n]+$/)
})

test('e-mails whose credentials are refused at once are all sent with others, if there are any, and otherwise refused once', async t => {
  const refused: (() => void)[] = []
  const mailbox = await openMailbox(t, async (command, of) => {
    if (command !== 'AUTH' || of === 'later') return undefined
    await new Promise<void>(resolve => {
      refused.push(resolve)
      if (refused.length % 2 === 0) for (const answer of refused) answer()
    })
    return 535
  })
  const as = (username: string) => Object.assign(new URL(mailbox.url), { username, password: 'x' }).href
  for (const [current, outcome] of [
    ['former', 'rejected'],
    ['later', 'fulfilled'],
  ] as const) {
    const transport = mailer({ smtpUrl: as('former'), currentSmtpUrl: () => as(current) })
    const sent = await Promise.allSettled([transport.send(entry), transport.send(entry)])
    transport.close()
    t.deepEqual(
      sent.map(({ status }) => status),
      [outcome, outcome],
    )
  }
  t.is(refused.length, 4)
})

test('several e-mails are sent in parallel, and close waits for them', async t => {
  const queue = createQueue(1, 2, 3, 4, 5, 6)
  let [now, most] = [0, 0]
  let release = () => {}
  const held = new Promise<void>(resolve => {
    release = resolve
  })
  const transport = {
    async send() {
      most = Math.max(most, ++now)
      await held
      now--
      return ''
    },
    close() {},
  }
  const sender = start(t, { queue, transport })
  await waitForValue(() => most, 4)
  const closed = sender.close()
  release()
  await closed
  t.deepEqual([now, most, queue.history.length, queue.rows.size], [0, 4, 4, 2])
})

test('of a thousand e-mails 50 are sent at once, then a number per second that scales with the factor; unwanted entries don’t count', async t => {
  const thousand = () => createQueue(...Array.from({ length: 1000 }, (_, index) => index))
  const [queue, paced, slower, unwanted] = [thousand(), thousand(), thousand(), thousand()]
  const transport = { send: async () => '', close() {} }
  const startedAt = performance.now()
  start(t, { queue, transport, factor: 50 })
  // 2 a second. Four are in progress at a time, as when keys are created in the database.
  start(t, { queue: paced, compose: () => sleep(20, entry), transport, factor: 1 / availableParallelism() })
  start(t, { queue: slower, transport, factor: 0.001 })
  start(t, { queue: unwanted, compose: async () => 'unwanted', transport, factor: 0.001 })
  await waitForValue(() => queue.history.length, 1000)
  const seconds = (performance.now() - startedAt) / 1000
  t.true(seconds > 0.9 * (950 / (50 * 2 * availableParallelism())), `${seconds}`)
  const sent = paced.history.length
  t.true(sent > 50 && sent <= 50 + 2 * seconds + 4, `${sent} in ${seconds} s`)
  await waitForValue(() => unwanted.history.length, 1000)
  // Four are in progress when the last of them is counted.
  t.true(slower.history.length >= 50 && slower.history.length < 54, `${slower.history.length}`)
})

/** What mail servers refuse, after so many attempts and minutes, and the seconds until the next attempt. */
const refusals = [
  // A refused recipient gets 3 attempts, half an hour apart.
  ...['RCPT TO 550, 0 0: 1800', 'RCPT TO 550, 1 61: 1800', 'RCPT TO 550, 2 61: undefined'],
  'RCPT TO 554, 7 59: 1800',
  // All others are attempted for 72 hours.
  ...['AUTH 535, 2 61: 20', 'AUTH 535, 20 4260: 3600', 'AUTH 535, 20 4380: undefined'],
  ...['MAIL FROM 550, 2 61: 20', 'MAIL FROM 550, 20 4260: 3600', 'MAIL FROM 550, 20 4380: undefined'],
  ...['DATA 550, 2 61: 20', 'DATA 550, 20 4260: 3600', 'DATA 550, 20 4380: undefined'],
  ...['RCPT TO 450, 2 61: 20', 'RCPT TO 450, 20 4260: 3600', 'RCPT TO 450, 20 4380: undefined'],
]

for (const refusal of refusals) {
  const [, command = '', code, attempts, minutes, delay] = /(\D+) (\d+), (\d+) (\d+): (.*)/.exec(refusal)!
  test(`${code} to ${command} after ${attempts} attempts and ${minutes} minutes: the next one in ${delay} s`, async t => {
    const mailbox = await openMailbox(t, given => (given === command ? Number(code) : undefined))
    const queue = createQueue()
    queue.add('1', { attempts: Number(attempts), minutes: Number(minutes) })
    const smtpUrl = command === 'AUTH' ? mailbox.url.replace('//', '//user:password@') : mailbox.url
    start(t, { queue, transport: mailer({ smtpUrl }) })
    t.is(await waitFor(() => queue.history[0]), `failed 1 ${delay}`)
    // The codes of a mail server are kept, its texts are not.
    t.true(queue.rows.get('1')!.error!.includes(code!))
    t.notRegex(queue.rows.get('1')!.error!, /refused/)
  })
}

test('retries never take more than 2 of the 4 places, first attempts may take all', async t => {
  const queue = createQueue()
  const started: string[] = []
  const releases: (() => void)[] = []
  let holding = true
  const transport = {
    send: ({ name }: Mail) => {
      started.push(name)
      return new Promise<string>(done => (holding ? releases.push(() => done('')) : done('')))
    },
    close() {},
  }
  for (const id of ['r1', 'r2', 'r3', 'r4', 'r5']) queue.add(id, { attempts: 1 })
  const sender = start(t, { queue, compose: async ({ id }) => ({ ...entry, name: id }), transport })
  // Before the sender closes, which waits for attempts in progress.
  t.teardown(() => {
    holding = false
    for (const release of releases) release()
  })
  await waitForValue(() => started, ['r1', 'r2'])
  for (const id of ['f1', 'f2', 'f3']) queue.add(id)
  sender.wake()
  await waitForValue(() => started, ['r1', 'r2', 'f1', 'f2'])
  // A free place is used for a first attempt while one waits.
  releases[0]!()
  await waitForValue(() => started.slice(4), ['f3'])
  releases[1]!()
  await waitForValue(() => started.slice(5), ['r3'])
  queue.add('f4')
  queue.rows.delete('r5')
  for (const release of releases.splice(0)) release()
  await waitForValue(() => started.length, 8)
  t.deepEqual(started.slice(6).sort(), ['f4', 'r4'])
})

test('an unwanted or expired entry is deleted, one that is held back stays', async t => {
  const queue = createQueue('unwanted', 'expired', 'held')
  const logged: string[] = []
  const transport = { send: async () => String(t.fail()), close() {} }
  const own = { ...log, warn: (fields: object, text: string) => void logged.push(`${JSON.stringify(fields)} ${text}`) }
  const sender = start(t, { queue, compose: async ({ id }) => id as Composed, transport, log: own })
  await waitForValue(() => queue.history.length, 2)
  await sender.close()
  t.deepEqual(queue.history.sort(), ['done expired', 'done unwanted'])
  t.deepEqual(logged, ['{"entry":"expired","kind":"test","attempts":1} e-mail dropped: too old to be of use'])
})

test('without a mail server e-mails become files that only their owner can read', async t => {
  const dataDir = await temporaryFolder(t)
  const transport = mailer({ dataDir })
  await transport.send(entry)
  await sleep(2)
  await transport.send({ ...entry, subject: 'Second', name: 'auth.2.1' })
  const names = (await readdir(join(dataDir, 'mail'))).sort()
  t.is(names.length, 2)
  const [first, second] = await Promise.all(
    names.map(async name => PostalMime.parse(await readFile(join(dataDir, 'mail', name)))),
  )
  t.is(first!.subject, 'Açaí')
  t.is(second!.subject, 'Second')
  t.is((await stat(join(dataDir, 'mail'))).mode & 0o777, 0o700)
  t.is((await stat(join(dataDir, 'mail', names[0]!))).mode & 0o777, 0o600)
})

test('an address can’t inject another recipient or header', async t => {
  const mailbox = await openMailbox(t)
  const transport = mailer({ smtpUrl: mailbox.url })
  t.teardown(() => transport.close())
  const mail = { subject: 'x', text: 'x', name: '1', users: [] }
  for (const bad of ['a@b.example\r\nBcc: c@d.example', 'a@b.example>,<c@d.example'])
    await t.throwsAsync(transport.send({ ...mail, to: bad }))
  await transport.send({ ...mail, to, subject: 'x\r\nBcc: c@d.example' })
  const received = await mailbox.nextEmail(to)
  t.is(received.bcc, undefined)
  t.is(mailbox.emails.length, 1)
})

// The folder of e-mails if there is no mail server.

test('when the folder is full, e-mails wait, no partial file remains, and the log gives the cause once', async t => {
  const env = await serviceEnv(t)
  // A file can be created, but not written to.
  const service = await spawnService(t, env, { before: 'ulimit -f 0' })
  const request = createRequest(service.http)
  for (const number of [1, 2, 3]) {
    const form = signUpForm({ email: `ana${number}@example.org` })
    const signedUp = await request('POST', '/users/signup', { body: form })
    t.is(signedUp.status, 200, signedUp.text)
    const body = { username: form.username, email: `ana${number}@example.org` }
    t.is((await request('POST', '/forgotpasswords/sendkeybyemail', { body })).status, 200)
  }
  const lines = (text: string) =>
    service
      .output()
      .split('\n')
      .filter(line => line.includes(text))
  // All three, and the first one again.
  await waitFor(() => lines('e-mail delayed').length > 3, service.output)
  const written = lines('the mail folder isn’t writable')
  t.is(written.length, 1)
  t.like(JSON.parse(written[0]!), { level: 'error', folder: join(env.AUTH_DATA_DIR!, 'mail'), code: 'EFBIG' })
  // The next attempt may be in progress.
  await waitForValue(async () => (await readdir(join(env.AUTH_DATA_DIR!, 'mail'))).length, 0)
})

// An accepted e-mail address reaches the mail server unchanged, character for character.

/** The commands and e-mails that the server received since the last call. */
const heard = { recipients: [] as string[], messages: [] as Buffer[] }
let transport: MailTransport
let server: SMTPServer

test.before(async () => {
  server = new SMTPServer({
    authOptional: true,
    // A server that supports only ASCII.
    hideSMTPUTF8: true,
    hide8BITMIME: true,
    disabledCommands: ['STARTTLS', 'AUTH'],
    closeTimeout: 100,
    logger: {
      ...Object.fromEntries(['level', 'trace', 'info', 'warn', 'error', 'fatal'].map(name => [name, () => {}])),
      // The raw SMTP lines, because the server itself normalizes addresses.
      debug: (_: object, format: string, ...values: unknown[]) => {
        const line = [format, ...values].join(' ')
        const recipient = /RCPT TO:(.*)$/.exec(line)?.[1]
        if (recipient !== undefined) heard.recipients.push(recipient)
      },
    } as never,
    async onData(stream, _session, answer) {
      const chunks: Buffer[] = []
      for await (const chunk of stream) chunks.push(chunk)
      heard.messages.push(Buffer.concat(chunks))
      answer()
    },
  })
  server.on('error', () => {})
  await new Promise<void>(done => server.listen(0, '127.0.0.1', done))
  const { port } = server.server.address() as AddressInfo
  transport = mailer({ smtpUrl: `smtp://127.0.0.1:${port}` }, 'auth@example.org')
})

test.after.always(async () => {
  transport?.close()
  await new Promise<void>(done => server.close(() => done()))
})

/** Sends to an accepted address; returns the fault, if there is one. */
async function send(to: string): Promise<string | undefined> {
  Object.assign(heard, { recipients: [], messages: [] })
  try {
    await transport.send({ to, subject: 'Olá', text: 'Olá', name: 'test', users: [] })
  } catch (error) {
    return (error as Error).message
  }
  const at = to.lastIndexOf('@')
  // The local part unchanged, the domain in ASCII.
  const mailbox = to.slice(0, at) + emailKey(to).slice(emailKey(to).lastIndexOf('@'))
  const said = heard.recipients.join()
  if (/[^ -~]/.test(said)) return `RCPT TO:${said} to a server that knows ASCII only`
  if (said !== `<${mailbox}>`) return `RCPT TO:${said} instead of ${mailbox}`
  const [message] = heard.messages
  if (!message || heard.messages.length !== 1) return `${heard.messages.length} messages`
  const header = (await PostalMime.parse(message)).to?.map(({ address }) => address).join()
  return header === mailbox ? undefined : `To: ${header} instead of ${mailbox}`
}

const atom = fc.string({ unit: fc.constantFrom(..."abcXYZ019!#$%&'*+-/=?^_`{|}~"), minLength: 1, maxLength: 12 })
const label = fc.oneof(
  fc.string({ unit: fc.constantFrom(...'abcXYZ0189-'), minLength: 1, maxLength: 12 }),
  fc.string({ unit: fc.constantFrom(...'abüÜßẞçñïİıöжЖΩσς日本אبー१١·\u0301\u0308ﬁⅷ²'), minLength: 1, maxLength: 8 }),
  fc.string({ unit: 'grapheme', minLength: 1, maxLength: 6 }),
  fc.constantFrom('xn--bcher-kva', 'XN--BCHER-KVA', 'xn--aa-ea', 'xn--', 'xn--a', '0x7f', '127', '0', '1e3'),
)
const local = fc.oneof(
  fc.array(atom, { minLength: 1, maxLength: 4 }).map(atoms => atoms.join('.')),
  fc.string({ maxLength: 10 }).map(text => `"${text}"`),
  fc.string({ unit: 'grapheme', maxLength: 10 }),
  fc.constant('a'.repeat(64)),
)
const domain = fc.oneof(
  { weight: 6, arbitrary: fc.array(label, { minLength: 1, maxLength: 4 }).map(labels => labels.join('.')) },
  { weight: 1, arbitrary: fc.ipV4().map(ip => `[${ip}]`) },
  { weight: 1, arbitrary: fc.ipV6().map(ip => `[IPv6:${ip}]`) },
  { weight: 1, arbitrary: fc.ipV4Extended() },
  { weight: 1, arbitrary: fc.constant(Array(26).fill('b'.repeat(6)).join('.')) },
)
const address = fc.oneof(
  fc.emailAddress(),
  fc.tuple(local, domain).map(([name, host]) => `${name}@${host}`),
  fc
    .tuple(
      fc.emailAddress(),
      fc.constantFrom('>', '<', ',b@x.org', ' ', '\n', '\0', '"', '.', '(c)', '@x.org', ';', '\ud83d'),
    )
    .map(([good, more]) => good + more),
)

test.serial('every accepted address gets its e-mail at exactly that address', async t => {
  let sent = 0
  await fc.assert(
    fc.asyncProperty(address, async to => {
      if (!isEmailAddress(to)) return
      sent++
      const fault = await send(to)
      if (fault !== undefined) throw new Error(fault)
    }),
    { numRuns: 600 },
  )
  t.true(sent > 150, `${sent}`)
})

test.serial('every unusual accepted address gets its e-mail at exactly that address', async t => {
  for (const to of [
    ...["!#$%&'*+-/=?^_`{|}~@example.org", 'Maria.Silva@EXAMPLE.org', 'a@localhost', 'a@[192.0.2.1]'],
    ...['a@[IPv6:2001:db8::1]', 'a@BÜCHER.example', 'a@xn--aa-ea.com', 'a@straße.de', 'a@日本語.jp'],
    `${'a'.repeat(64)}@${'b'.repeat(61)}.${'c'.repeat(61)}.${'d'.repeat(61)}.br`,
  ]) {
    t.true(isEmailAddress(to), to)
    t.is(await send(to), undefined, to)
  }
})

test.serial('mail to a refused address would not reach exactly that address', async t => {
  // If the mailer supports these some day, they needn't be refused.
  for (const to of ['joão@example.org', '"a b"@example.org', 'a@1', 'a@0x7f.1']) {
    t.false(isEmailAddress(to), to)
    t.not(await send(to), undefined, to)
  }
})
