/** A mail server for tests: real SMTP, and e-mails read with an independent parser. */
import type { AddressInfo } from 'node:net'
import test from 'ava'
import PostalMime, { type Email } from 'postal-mime'
import { SMTPServer } from 'smtp-server'
import type { Teardown } from './database.js'
import { plantSecret } from './logged.js'
import { waitFor } from './wait.js'

/** Recovery keys and activation keys, at the end of their line. */
const keys = /: ([2-9A-HJ-NP-Z]{8}|[\da-f]{8}-[\da-f-]{27})$/gm

/** A mail server and what it received. */
export interface Mailbox {
  /** For SMTP_URL. */
  readonly url: string
  /** Every e-mail accepted so far. */
  readonly emails: readonly Email[]
  /** The oldest e-mail to an address that wasn't returned yet; waits for it while other e-mails arrive. */
  nextEmail(to: string): Promise<Email>
  /** Answers the next `times` e-mails with 451. */
  refuse(times: number): void
  /** Shuts the server; connections are refused. */
  shut(): Promise<void>
  /** Opens it again on the same port. */
  reopen(): Promise<void>
}

/** One mail server for all tests of the calling file. It is available once the tests run. */
export function mailboxForFile(): Mailbox {
  const mailbox = {} as Mailbox
  let shut: (() => Promise<void>) | undefined
  // Serial, so that it is open before the hooks of the file run.
  test.serial.before(async () => {
    const teardown = (work: typeof shut) => {
      shut = work
    }
    Object.assign(mailbox, await openMailbox({ teardown }))
  })
  test.after.always(() => shut?.())
  return mailbox
}

/**
 * The reply code with which a mail server refuses a command, if it does. The argument is the user of AUTH, the sender of
 * MAIL FROM, or the recipient of RCPT TO and DATA.
 */
export type RefusalOf = (
  command: 'AUTH' | 'MAIL FROM' | 'RCPT TO' | 'DATA',
  of: string,
) => number | undefined | Promise<number | undefined>

/** Opens a mail server that shuts when the test ends. */
export async function openMailbox(t: Teardown, refusalOf: RefusalOf = () => undefined): Promise<Mailbox> {
  const emails: Email[] = []
  const handedOut = new Set<Email>()
  let refusals = 0
  let port = 0
  let server: SMTPServer

  const check = async (command: Parameters<RefusalOf>[0], of: string) => {
    const responseCode = await refusalOf(command, of)
    return responseCode === undefined ? null : Object.assign(new Error('refused'), { responseCode })
  }

  const reopen = async () => {
    server = new SMTPServer({
      authOptional: true,
      allowInsecureAuth: true,
      disabledCommands: ['STARTTLS'],
      closeTimeout: 100,
      async onAuth({ username = '' }, _session, answer) {
        answer(await check('AUTH', username), { user: username })
      },
      async onMailFrom({ address }, _session, answer) {
        answer(await check('MAIL FROM', address))
      },
      async onRcptTo({ address }, _session, answer) {
        answer(await check('RCPT TO', address))
      },
      async onData(stream, { envelope }, answer) {
        const chunks: Buffer[] = []
        for await (const chunk of stream) chunks.push(chunk)
        if (refusals > 0) {
          refusals--
          return answer(Object.assign(new Error('try again later'), { responseCode: 451 }))
        }
        const refusal = await check('DATA', envelope.rcptTo[0]!.address)
        if (refusal) return answer(refusal)
        const email = await PostalMime.parse(Buffer.concat(chunks))
        for (const [, key] of email.text?.matchAll(keys) ?? []) plantSecret(key!)
        emails.push(email)
        answer()
      },
    })
    server.on('error', () => {})
    await new Promise<void>(done => server.listen(port, '127.0.0.1', done))
    port = (server.server.address() as AddressInfo).port
  }
  await reopen()
  const shut = () => new Promise<void>(done => server.close(() => done()))
  t.teardown(shut)

  return {
    url: `smtp://127.0.0.1:${port}`,
    emails,
    nextEmail: to =>
      waitFor(
        () => {
          const fresh = emails.find(one => !handedOut.has(one) && one.to?.some(({ address }) => address === to))
          if (fresh) handedOut.add(fresh)
          return fresh
        },
        () => emails.length,
      ),
    refuse(times) {
      refusals = times
    },
    shut,
    reopen,
  }
}
