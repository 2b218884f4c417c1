/** A mail server for tests: real SMTP on a port of its own, e-mails read with a parser that isn't ours. */
import type { AddressInfo } from 'node:net'
import PostalMime, { type Email } from 'postal-mime'
import { SMTPServer } from 'smtp-server'

/** A mail server and what it received. */
export interface Mailbox {
  /** For SMTP_URL. */
  readonly url: string
  /** Every e-mail accepted so far. */
  readonly emails: readonly Email[]
  /** The oldest e-mail to an address that wasn't handed out yet; waits for it, and rejects after `timeout` ms. */
  nextLetter(to: string, timeout?: number): Promise<Email>
  /** Answers the next `times` e-mails with 451. */
  refuse(times: number): void
  /** Shuts the server; connections are refused. */
  shut(): Promise<void>
  /** Opens it again on the same port. */
  reopen(): Promise<void>
}

/** Opens a mail server. Shut it when the test ends. */
export async function openMailbox(): Promise<Mailbox> {
  const emails: Email[] = []
  const handedOut = new Set<Email>()
  const waiting = new Set<() => void>()
  let refusals = 0
  let port = 0
  let server: SMTPServer

  const reopen = async () => {
    server = new SMTPServer({
      authOptional: true,
      disabledCommands: ['STARTTLS', 'AUTH'],
      closeTimeout: 100,
      async onData(stream, _session, answer) {
        const chunks: Buffer[] = []
        for await (const chunk of stream) chunks.push(chunk)
        if (refusals > 0) {
          refusals--
          return answer(Object.assign(new Error('try again later'), { responseCode: 451 }))
        }
        emails.push(await PostalMime.parse(Buffer.concat(chunks)))
        answer()
        for (const look of waiting) look()
      },
    })
    server.on('error', () => {})
    await new Promise<void>(done => server.listen(port, '127.0.0.1', done))
    port = (server.server.address() as AddressInfo).port
  }
  await reopen()

  return {
    url: `smtp://127.0.0.1:${port}`,
    emails,
    nextLetter(to, timeout = 10_000) {
      return new Promise((resolve, reject) => {
        const look = () => {
          const fresh = emails.find(one => !handedOut.has(one) && one.to?.some(({ address }) => address === to))
          if (!fresh) return
          handedOut.add(fresh)
          waiting.delete(look)
          clearTimeout(timer)
          resolve(fresh)
        }
        const timer = setTimeout(() => {
          waiting.delete(look)
          reject(new Error(`no e-mail to ${to} within ${timeout} ms`))
        }, timeout)
        waiting.add(look)
        look()
      })
    },
    refuse(times) {
      refusals = times
    },
    shut: () => new Promise<void>(done => server.close(() => done())),
    reopen,
  }
}
