/**
 * Clients that sign up, log in and change their password, and a ledger of the answers: what was acknowledged must be in the
 * database exactly once; of a call without an acknowledgment, the effect may be there once. A token that an acknowledged change
 * revoked is accepted by no server.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { ask, type Teardown } from './database.js'
import type { Mailbox } from './mailbox.js'
import { type Answer, createRequest, password, type RequestOptions, signUpForm } from './service.js'

/** What clients write, by the name of its event. */
type Write = 'user.sign-up' | 'session.login' | 'user.change-password'

/** The calls of one user. */
interface Life {
  readonly username: string
  readonly acknowledged: Write[]
  /** The write without an acknowledgment, after which its client gives up. */
  doubtful?: Write
}

/** Milliseconds between an answer and the next call. */
const pause = 50

const changed = 'tatu-canastra 12'

export type Ledger = ReturnType<typeof startLedger>

/** Starts so many clients that write, and one that reads, of each gateway; they end with `end`, at the latest with the test. */
export function startLedger(t: Teardown, gateways: readonly string[], clients = 6) {
  const lives: Life[] = []
  /** When writes were acknowledged. */
  const times: number[] = []
  /** Statuses and reasons of all answers, also of reads. */
  const answers: Record<string, number> = {}
  /** When an answer was neither right nor a request to retry. */
  const wrong: number[] = []
  /** Users since then who finished. */
  let streak = 0
  let slowest = 0
  let ended = false
  const requests = gateways.map(http => createRequest(http))

  async function send(request: (typeof requests)[number], path: string, options: RequestOptions): Promise<Answer> {
    await sleep(pause)
    const from = performance.now()
    const answer = await request(path === '/users/me' ? 'GET' : 'POST', path, { ...options, once: true })
    slowest = Math.max(slowest, performance.now() - from)
    return answer
  }
  const count = ({ status, json }: Answer, expected: 200 | 'INVALID_TOKEN' = 200) => {
    if (json?.reason === expected) return
    const key = [status, json?.reason].filter(Boolean).join(' ')
    answers[key] = (answers[key] ?? 0) + 1
    if (status === 503 || status === expected) return
    wrong.push(performance.now())
    streak = 0
  }

  /** A user signs up, logs in, changes the password, and logs in again. */
  async function live(request: (typeof requests)[number]): Promise<void> {
    const form = signUpForm()
    const { username } = form
    const life: Life = { username, acknowledged: [] }
    lives.push(life)
    const write = async (kind: Write, path: string, options: RequestOptions) => {
      if (ended) return
      life.doubtful = kind
      const answer = await send(request, path, options)
      count(answer)
      if (answer.status !== 200) return
      delete life.doubtful
      life.acknowledged.push(kind)
      times.push(performance.now())
      return answer
    }
    const login = (secret: string) => write('session.login', '/users/login', { body: { username, password: secret } })

    if (!(await write('user.sign-up', '/users/signup', { body: { ...form, email: `${username}@example.org` } }))) return
    const token = (await login(password))?.text
    const change = { token, body: { newPassword: changed } }
    if (!token || !(await write('user.change-password', '/forgotpasswords/passwordupdatebyusername', change))) return
    count(await send(request, '/users/me', { token }), 'INVALID_TOKEN')
    if (await login(changed)) streak++
  }

  /** A user reads all the time, so that the connections for reads are never idle. */
  async function read(request: (typeof requests)[number]): Promise<void> {
    let token = ''
    while (!ended && !token) {
      const answer = await send(request, '/users/signup', { body: signUpForm() })
      if (answer.status === 200) token = answer.text
    }
    while (!ended) count(await send(request, '/users/me', { token }))
  }

  const all = Promise.all(
    requests.flatMap(request => [
      read(request),
      ...Array.from({ length: clients }, async () => {
        while (!ended) await live(request)
      }),
    ]),
  )
  const end = async () => {
    ended = true
    await all
  }
  t.teardown(end)

  return {
    answers,
    times,
    wrong,
    streak: () => streak,
    /** The longest time without an acknowledged write since a time of `performance.now()`: its begin and end. */
    gapSince(from: number): { begin: number; end: number } {
      const last = times.findLast(time => time <= from) ?? from
      const all = [last, ...times.filter(time => time > from)]
      return all
        .slice(1)
        .map((time, index) => ({ begin: all[index]!, end: time }))
        .reduce((longest, gap) => (gap.end - gap.begin > longest.end - longest.begin ? gap : longest), {
          begin: from,
          end: from,
        })
    },
    end,
    /**
     * Compares the ledger with a database, after the end: events of the audit log, passwords, and, with a mailbox, e-mails about
     * changed passwords, each once but for repeated deliveries with one Message-ID. Returns what was lost or doubled.
     */
    async compare(databaseUrl: string, mailbox?: Mailbox): Promise<string[]> {
      const rows = await ask(
        databaseUrl,
        `SELECT u.username, e.action, count(*)::int AS count
         FROM users u LEFT JOIN (SELECT action, outcome, subject_id FROM audit_events
           UNION ALL SELECT action, outcome, subject_id FROM audit_staged) e ON e.subject_id = u.id AND e.outcome = 'ok'
         GROUP BY 1, 2`,
      )
      const found = new Map(rows.map(({ username, action, count }) => [`${username} ${action}`, Number(count)]))
      const mails = new Map<string, Set<string>>()
      for (const { to, messageId } of mailbox?.emails ?? []) {
        const address = to?.[0]?.address ?? ''
        mails.set(address, (mails.get(address) ?? new Set()).add(messageId ?? ''))
      }
      const wrong: string[] = []
      const check = (what: string, sure: number, perhaps: number, count: number) => {
        if (count < sure || count > sure + perhaps) wrong.push(`${what}: ${sure} acknowledged, ${count} found`)
      }
      for (const { username, acknowledged, doubtful } of lives) {
        const sure = (write: Write) => acknowledged.filter(each => each === write).length
        const perhaps = (write: Write) => (doubtful === write ? 1 : 0)
        for (const write of ['user.sign-up', 'session.login', 'user.change-password'] as const)
          check(`${username} ${write}`, sure(write), perhaps(write), found.get(`${username} ${write}`) ?? 0)
        if (!mailbox) continue
        const change = 'user.change-password'
        check(`${username} e-mail`, sure(change), perhaps(change), mails.get(`${username}@example.org`)?.size ?? 0)
      }
      return wrong
    },
    /** Logs in, as each user who acknowledgedly changed the password, with it. Returns the users who can't. */
    async passwordsLost(): Promise<string[]> {
      const users = lives.filter(({ acknowledged }) => acknowledged.includes('user.change-password'))
      const lost: string[] = []
      const next = async () => {
        for (let life = users.pop(); life; life = users.pop()) {
          const { username } = life
          const { status } = await requests[0]!('POST', '/users/login', { body: { username, password: changed } })
          if (status !== 200) lost.push(`${username} can’t log in: ${status}`)
        }
      }
      await Promise.all(Array.from({ length: 8 }, next))
      return lost
    },
    summary: () =>
      `${times.length} writes of ${lives.length} users, the slowest answer after ${(slowest / 1000).toFixed(1)} s`,
  }
}
