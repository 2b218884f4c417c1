// How passwords and answers are kept: as bcrypt hashes of keyed digests (OWASP, Password Storage: peppering). This room
// owns what a password may be (policy.ts, denylist.ts), the form that is stored, and the threads that compute it
// (pool.ts, queue.ts, threads.ts); who may try how often is access/'s. All floors above may use it.
import { createHmac } from 'node:crypto'
import { answerKey } from '../rules/names.js'
import { preparePassword } from './policy.js'
import type { Pool, Waiter } from './pool.js'

/** What a hash is of; the same text in another context has another hash. */
export type HashContext = 'password' | 'answer'

/** A text to hash. */
export interface Secret {
  readonly context: HashContext
  readonly text: string
}

/** A text to compare with a stored hash; none for an unknown user. */
export interface Claim extends Secret {
  readonly stored: string | undefined
}

/** What comparing found. */
export interface Verdict {
  readonly correct: boolean
  /** Whether the hash should be made anew now that the text is known: it has another cost or scheme. */
  readonly renew: boolean
}

/** Hashes and compares passwords and answers. What is given at once waits, and is refused, together. */
export interface Passwords {
  /** Hashes to store. Throws for a text that `preparePassword` refuses; refuses as the pool does. */
  hash(secrets: readonly Secret[], waiter: Waiter): Promise<string[]>
  /**
   * Compares texts with stored hashes. With none (an unknown user), an unreadable one, or a text that can't be right,
   * the answer is no after the time of a comparison. A no takes the same time for hashes up to the configured cost; a
   * stronger one takes longer until it is renewed.
   */
  verify(claims: readonly Claim[], waiter: Waiter): Promise<Verdict[]>
  /** A new hash made once nothing else waits; undefined when too many wait for that already. */
  renew(secret: Secret): Promise<string | undefined>
}

const scheme = 'hmac1:'

/**
 * Hashes are `hmac1:` and the bcrypt hash of the base64 HMAC-SHA-384 of context and text, keyed with the pepper: any
 * length counts, and the database alone gives nothing to guess at. Bare bcrypt hashes (`$2a$`, `$2b$`, `$2y$`) of the
 * text itself, as other systems store them, compare too; bcrypt knows only the first 72 bytes of those.
 */
export function createPasswords(deps: { pepper: () => Buffer; cost: number; pool: Pool }): Passwords {
  const { pepper, cost, pool } = deps

  /** 64 ASCII characters, within bcrypt's 72 bytes and without its NUL. */
  function digest(prepared: string, context: HashContext): string {
    return createHmac('sha384', pepper()).update(`${context}\0${prepared}`).digest('base64')
  }

  function hashJob({ text, context }: Secret) {
    const prepared = prepare(text, context)
    if (prepared === undefined) throw new Error(`The ${context} can't be hashed: check it first.`)
    return { kind: 'hash', text: digest(prepared, context), cost } as const
  }

  function compareJob({ text, context, stored }: Claim) {
    const keyed = isKeyed(stored)
    const hash = readBcrypt(stored)
    const prepared = prepare(text, context)
    // Cut here: older kinds of bcrypt count long texts wrongly.
    const data = keyed ? digest(prepared ?? '', context) : Buffer.from(text).subarray(0, 72)
    return { kind: 'compare', text: data, hash: prepared === undefined ? undefined : hash, cost } as const
  }

  return {
    async hash(secrets, waiter) {
      const hashes = await pool.run(secrets.map(hashJob), waiter)
      return hashes.map(hash => scheme + hash)
    },
    async verify(claims, waiter) {
      const outcomes = await pool.run(claims.map(compareJob), waiter)
      return outcomes.map((correct, index) => {
        const { stored } = claims[index]!
        const outdated = !isKeyed(stored) || Number(readBcrypt(stored)?.slice(4, 6)) !== cost
        return { correct, renew: correct && outdated }
      })
    },
    async renew(secret) {
      const hash = await pool.whenIdle(hashJob(secret))
      return hash && scheme + hash
    },
  }
}

function isKeyed(stored: string | undefined): boolean {
  return stored?.startsWith(scheme) ?? true
}

/** A bcrypt hash in the form our bcrypt reads: `$2a$` and `$2y$` differ from `$2b$` in name only within 72 bytes. */
function readBcrypt(stored: string | undefined): string | undefined {
  const bare = stored?.startsWith(scheme) ? stored.slice(scheme.length) : stored
  // A greater cost would hold a thread for many seconds.
  const match = /^\$2[aby](\$(?:0[4-9]|1[0-6])\$[./A-Za-z\d]{53})$/.exec(bare ?? '')
  return match ? `$2b${match[1]}` : undefined
}

function prepare(text: string, context: HashContext): string | undefined {
  return context === 'password' ? preparePassword(text) : answerKey(text) || undefined
}
