/** An accepted e-mail address reaches the mail server unchanged, character for character. */
import { mkdtemp } from 'node:fs/promises'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test from 'ava'
import fc from 'fast-check'
import PostalMime from 'postal-mime'
import { SMTPServer } from 'smtp-server'
import { createMailTransport, type MailTransport } from '../../server/outbox/transport.js'
import { emailKey, isEmailAddress } from '../../server/rules/names.js'

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
  transport = createMailTransport(
    {
      smtpUrl: `smtp://127.0.0.1:${port}`,
      mailFrom: 'auth@example.org',
      dataDir: await mkdtemp(join(tmpdir(), 'auth-test-')),
    },
    { error() {} },
  )
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
  t.true(sent > 200, `${sent}`)
})

test.serial('every unusual accepted address gets its e-mail at exactly that address', async t => {
  for (const to of [
    "!#$%&'*+-/=?^_`{|}~@example.org",
    'Maria.Silva@EXAMPLE.org',
    'a@localhost',
    'a@[192.0.2.1]',
    'a@[IPv6:2001:db8::1]',
    'a@BÜCHER.example',
    'a@xn--aa-ea.com',
    'a@straße.de',
    'a@日本語.jp',
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
