// Passwords and answers are stored as bcrypt hashes of keyed digests (OWASP Password Storage Cheat Sheet: peppering).
import { createHmac, timingSafeEqual } from 'node:crypto'
import type { DataKeys } from '../models/data-key.js'
import { answerKey } from '../rules/names.js'
import { preparePassword } from './policy.js'
import type { Pool, Waiter } from './pool.js'

/** The use of a hash. The same text has different hashes in different contexts. */
type HashContext = 'password' | 'answer'

/** A text to hash. */
export interface Secret {
  readonly context: HashContext
  readonly text: string
}

/** A text to compare with a stored hash; `stored` is undefined for an unknown user. */
export interface Claim extends Secret {
  readonly stored: string | undefined
}

/** The result of a comparison. */
export interface Verdict {
  readonly correct: boolean
  /** Whether the text is correct and its hash has another cost or scheme than new hashes. */
  readonly renew: boolean
}

/** Hashes and compares passwords and answers. The texts of one call wait, and are refused, together. */
export type Passwords = ReturnType<typeof createPasswords>

const scheme = 'hmac1:'

/** Scheme of a keyed digest that isn't wrapped in bcrypt yet. The indexes of unwrapped answers have it, too. */
const keyedScheme = 'keyed1:'

/** Scheme of a sealed bcrypt hash of another system. */
const sealedScheme = 'sealed1:'

/** The use under which such a hash is sealed. */
const sealedUse = 'moved-in hash'

/**
 * Creates the hashing of passwords. A hash is `hmac1:` and the bcrypt hash of the base64 HMAC-SHA-384 of context and
 * text, keyed with the pepper: so all characters of a text count, and the database alone allows no offline guesses.
 * Bcrypt hashes of other systems (`$2a$`, `$2b$`, `$2y$`), which imports bring, compare by the first 72 bytes of the text. They
 * are stored sealed, because the database alone would allow guesses.
 */
export function createPasswords(deps: {
  dataKeys: Pick<DataKeys, 'pepper' | 'seal' | 'open'>
  cost: number
  pool: Pool
}) {
  const { dataKeys, cost, pool } = deps
  const { pepper } = dataKeys

  /** Returns a stored hash, opened if it is sealed. Throws when a sealed one was altered. */
  function opened(stored: string): string {
    if (!stored.startsWith(sealedScheme)) return stored
    return dataKeys.open(sealedUse, Buffer.from(stored.slice(sealedScheme.length), 'base64'))
  }

  /** Returns 64 ASCII characters: bcrypt reads at most 72 bytes, and stops at NUL. */
  function digest(prepared: string, context: HashContext): string {
    return createHmac('sha384', pepper()).update(`${context}\0${prepared}`).digest('base64')
  }

  function hashJob({ text, context }: Secret) {
    const prepared = prepare(text, context)
    if (prepared === undefined) throw new Error(`The ${context} can't be hashed: check it first.`)
    return { kind: 'hash', text: digest(prepared, context), cost } as const
  }

  function compareJob({ text, context, stored }: Claim) {
    const keyed = hasDigest(stored)
    const hash = stored === undefined ? undefined : readBcrypt(opened(stored))
    const prepared = prepare(text, context)
    // Truncated here: some bcrypt versions compute the length of longer texts modulo 256.
    const data = keyed ? digest(prepared ?? '', context) : Buffer.from(text).subarray(0, 72)
    return { kind: 'compare', text: data, hash: prepared === undefined ? undefined : hash, cost } as const
  }

  /** Whether a keyed digest is that of a text, in constant time. */
  function isDigest(stored: string, text: string, context: HashContext): boolean {
    const prepared = prepare(text, context)
    const [one, other] = [Buffer.from(stored.slice(keyedScheme.length)), Buffer.from(digest(prepared ?? '', context))]
    return prepared !== undefined && one.length === other.length && timingSafeEqual(one, other)
  }

  return {
    /**
     * Returns hashes to store, in the order of `secrets`. Throws for a text that `preparePassword` doesn't accept, or an
     * answer without a letter or digit; refuses as `Pool.run` does.
     */
    async hash(secrets: readonly Secret[], waiter: Waiter): Promise<string[]> {
      const hashes = await pool.run(secrets.map(hashJob), waiter)
      return hashes.map(hash => scheme + hash)
    },
    /**
     * Compares texts with stored hashes; returns the results in the order of `claims`. A claim without a hash, with an
     * unreadable one, or with a text that can't be correct takes the time of a comparison and isn't correct. All failures
     * take the same time; only a hash of a greater cost than configured takes longer, until it is renewed.
     */
    async verify(claims: readonly Claim[], waiter: Waiter): Promise<Verdict[]> {
      const outcomes = await pool.run(claims.map(compareJob), waiter)
      return outcomes.map((correct, index) => {
        const { stored, text, context } = claims[index]!
        // Its job has no hash, and takes the time of a comparison.
        if (stored?.startsWith(keyedScheme)) return { correct: isDigest(stored, text, context), renew: false }
        const outdated = !hasDigest(stored) || Number(readBcrypt(stored)?.slice(4, 6)) !== cost
        return { correct, renew: correct && outdated }
      })
    },
    /**
     * Returns the keyed digest of an imported answer, to store until `wrap` has hashed it: a million hashes take hours. It
     * compares like a hash. Undefined for an answer without a letter or digit.
     */
    key(answer: string): string | undefined {
      const prepared = prepare(answer, 'answer')
      return prepared === undefined ? undefined : keyedScheme + digest(prepared, 'answer')
    },
    /** Seals a bcrypt hash of another system, to store. It compares like the hash itself. */
    seal: (hash: string) => sealedScheme + dataKeys.seal(sealedUse, hash).toString('base64'),
    opened,
    /** Returns the hash of a keyed digest, computed like that of `renew`. */
    async wrap(keyed: string): Promise<string | undefined> {
      const hash = await pool.whenIdle({ kind: 'hash', text: keyed.slice(keyedScheme.length), cost })
      return hash && scheme + hash
    },
    /** Returns a new hash, computed when no other job waits; undefined when too many renewals wait. */
    async renew(secret: Secret): Promise<string | undefined> {
      const hash = await pool.whenIdle(hashJob(secret))
      return hash && scheme + hash
    },
  }
}

/** Whether a hash is that of a keyed digest, not of the text itself. */
function hasDigest(stored: string | undefined): boolean {
  return stored?.startsWith(scheme) ?? true
}

/** Returns a bcrypt hash as `$2b$`: for texts up to 72 bytes, `$2a$` and `$2y$` differ in the prefix only. */
function readBcrypt(stored: string | undefined): string | undefined {
  const bare = stored?.startsWith(scheme) ? stored.slice(scheme.length) : stored
  // A greater cost would occupy a thread for many seconds.
  const match = /^\$2[aby](\$(?:0[4-9]|1[0-6])\$[./A-Za-z\d]{53})$/.exec(bare ?? '')
  return match ? `$2b${match[1]}` : undefined
}

/** Whether a text is a bcrypt hash that passwords compare with, as imports bring. A greater cost would occupy a thread for long. */
export function isImportableHash(text: string): boolean {
  return !text.startsWith(scheme) && readBcrypt(text) !== undefined
}

function prepare(text: string, context: HashContext): string | undefined {
  return context === 'password' ? preparePassword(text) : answerKey(text) || undefined
}
