import type { Client } from '@connectrpc/connect'
import type { Users } from '../gen/auth/v1/users_pb.js'
import { createCache } from './cache.js'
import { elapsedSince, type Moment, present } from './clock.js'

/** Maximum calls at a time. */
const maxCalls = 32

/** ms after which a question has failed, the wait for a place included. */
const timeout = 5_000

/** ms that an answer is believed. */
const believedFor = 10_000

/** Maximum answers that are kept. */
const maxAnswers = 10_000

/** What the registry said of a token. */
export interface Answer {
  /** Whether the token is genuine, not expired and not revoked, and of the issuer and the audience. */
  readonly active: Promise<boolean>
  /** When it was asked. */
  readonly at: Moment
}

/**
 * Asks the registry about tokens by VerifyToken: at most 32 calls at a time, each question for at most 5 s, one for each token
 * in 10 s. `active` rejects if the registry doesn’t answer.
 */
export function createIntrospection(
  users: Client<typeof Users>,
  { issuer, audience, signal }: { issuer: string; audience: string; signal: AbortSignal },
): (token: string) => Answer {
  const answers = createCache<Answer>(maxAnswers)
  const waiting: (() => void)[] = []
  let calls = 0

  async function ask(token: string): Promise<boolean> {
    const deadline = performance.now() + timeout
    // Those before have earlier deadlines, so that a place is free at this one’s at the latest.
    if (calls === maxCalls) await new Promise<void>(resolve => waiting.push(resolve))
    else calls++
    try {
      // Connect sends whole numbers only.
      const timeoutMs = Math.floor(deadline - performance.now())
      if (timeoutMs <= 0) throw new Error('The registry was busy with other questions.')
      const { active, iss, aud } = await users.verifyToken({ token }, { timeoutMs, signal })
      return active && iss === issuer && aud === audience
    } finally {
      const next = waiting.shift()
      if (next) next()
      else calls--
    }
  }

  return token => {
    const known = answers.get(token)
    if (known && elapsedSince(known.at) < believedFor) return known
    const answer = { active: ask(token), at: present() }
    answers.set(token, answer)
    answer.active.catch(() => {
      if (answers.get(token) === answer) answers.delete(token)
    })
    return answer
  }
}
