// Which passwords are acceptable, and how passwords and answers are kept: as bcrypt hashes of keyed digests.
import { createHmac } from 'node:crypto'
import { answerKey, nicknameKey, usernameKey } from '../names.js'
import { createDenylist, type Denylist } from './denylist.js'
import type { Hashing, Place, Turn } from './pool.js'

/** Longest password, in characters (code points). */
const maxLength = 256

/** What a new password must be. */
export interface PasswordPolicy {
  /** Fewest characters (code points). */
  readonly minLength: number
  /** Passwords that are too common. */
  readonly denylist: Denylist
}

/** The policy for new passwords. Throws when the file of common passwords, one a line, can't be read. */
export function createPasswordPolicy(options: {
  minLength: number
  denylistFile?: string | undefined
}): PasswordPolicy {
  return { minLength: options.minLength, denylist: createDenylist(options.denylistFile) }
}

/**
 * The form in which passwords compare: the OpaqueString profile of RFC 8265, so that all keyboards write the same
 * password. Undefined for what can't be a password: nothing, control characters, unpaired surrogates. Characters that
 * Unicode doesn't know yet are let through, so that no version of it locks anybody out.
 */
export function preparePassword(text: string): string | undefined {
  const prepared = text.replace(/\p{Zs}/gu, ' ').normalize('NFC')
  return prepared === '' || /[\p{Cc}\p{Cs}]/u.test(prepared) ? undefined : prepared
}

/** What others know of a user, and so try as the password first. */
export interface KnownWords {
  readonly username?: string | undefined
  readonly nickname?: string | undefined
  readonly city?: string | undefined
  readonly institution?: string | undefined
  readonly email?: string | undefined
}

/** What is wrong with a new password, as a sentence that says what to do; undefined when it is acceptable. */
export function checkPassword(password: string, user: KnownWords, policy: PasswordPolicy): string | undefined {
  const prepared = preparePassword(password)
  if (password.trim() === '') return 'Give a password.'
  if (prepared === undefined) return 'Leave out control characters.'
  const length = [...prepared].length
  if (length < policy.minLength) return `Use at least ${policy.minLength} characters.`
  if (length > maxLength) return `Use at most ${maxLength} characters.`
  if (policy.denylist.has(prepared)) return 'Choose another password: this one is among the most common.'
  if (isKnownWord(prepared, user)) return 'Choose a password that isn’t part of your own data.'
  return undefined
}

function isKnownWord(password: string, user: KnownWords): boolean {
  const { username, nickname, city, institution, email } = user
  const words = [username, nickname, city, institution, email, email?.slice(0, email.lastIndexOf('@'))]
  const key = spaceless(password)
  if (words.some(word => word !== undefined && spaceless(word) !== '' && spaceless(word) === key)) return true
  return [username, nickname].some(name => name !== undefined && isPhoneOf(password, name))
}

/** Whether a password is the telephone number that is somebody's name, with or without area or other prefixes. */
function isPhoneOf(password: string, name: string): boolean {
  const number = /^tel:\+55(\d+)$/.exec(usernameKey(name))?.[1]
  if (number === undefined || !/^[\d\s+().\p{Pd}]+$/u.test(nicknameKey(password))) return false
  const digits = nicknameKey(password).replace(/\D/g, '')
  return digits.endsWith(number) || (digits.length >= 8 && number.endsWith(digits))
}

function spaceless(text: string): string {
  return nicknameKey(text).replaceAll(' ', '')
}

/** What a hash is of; the same text in another context has another hash. */
export type HashContext = 'password' | 'answer'

/** What comparing found. */
export interface Verdict {
  readonly correct: boolean
  /** Whether the hash should be made anew now that the text is known: it has another cost or scheme. */
  readonly renew: boolean
}

/** Hashes and compares passwords and answers. Each call takes its turn in the pool, or uses a place already taken. */
export interface Passwords {
  /** Hash to store. Throws for a text that `preparePassword` refuses; refuses as the pool does. */
  hash(text: string, context: HashContext, turn: Turn | Place): Promise<string>
  /**
   * Compares a text with a stored hash. With none (an unknown user), an unreadable one, or a text that can't be
   * right, the answer is no after the time of a comparison. A no takes the same time for hashes up to the configured
   * cost; a stronger one takes longer until it is renewed.
   */
  verify(text: string, stored: string | undefined, context: HashContext, turn: Turn | Place): Promise<Verdict>
}

const scheme = 'hmac1:'

/**
 * Hashes are `hmac1:` and the bcrypt hash of the base64 HMAC-SHA-384 of context and text, keyed with the pepper: any
 * length counts, and the database alone gives nothing to guess at. Bare bcrypt hashes (`$2a$`, `$2b$`, `$2y$`) of the
 * text itself, as other systems store them, compare too; bcrypt knows only the first 72 bytes of those.
 */
export function createPasswords(deps: { pepper: Buffer; cost: number; hashing: Hashing }): Passwords {
  const { pepper, cost, hashing } = deps

  /** 64 ASCII characters, within bcrypt's 72 bytes and without its NUL. */
  function digest(prepared: string, context: HashContext): string {
    return createHmac('sha384', pepper).update(`${context}\0${prepared}`).digest('base64')
  }

  return {
    async hash(text, context, turn) {
      const prepared = prepare(text, context)
      if (prepared === undefined) throw new Error(`The ${context} can't be hashed: check it first.`)
      return scheme + (await runner(hashing, turn).run({ kind: 'hash', text: digest(prepared, context), cost }))
    },

    async verify(text, stored, context, turn) {
      const keyed = stored?.startsWith(scheme) ?? true
      const hash = readBcrypt(keyed ? stored?.slice(scheme.length) : stored)
      const prepared = prepare(text, context)
      // Cut here: older kinds of bcrypt count long texts wrongly.
      const data = keyed ? digest(prepared ?? '', context) : Buffer.from(text).subarray(0, 72)
      const job = { kind: 'compare', text: data, hash: prepared === undefined ? undefined : hash, cost } as const
      const correct = await runner(hashing, turn).run(job)
      return { correct, renew: correct && (!keyed || Number(hash?.slice(4, 6)) !== cost) }
    },
  }
}

/** Whether a text is a hash that `verify` can compare: ours, or a bare bcrypt hash of cost 4 to 16. */
export function isHash(text: string): boolean {
  return readBcrypt(text.startsWith(scheme) ? text.slice(scheme.length) : text) !== undefined
}

/** A bcrypt hash in the form our bcrypt reads: `$2a$` and `$2y$` differ from `$2b$` in name only within 72 bytes. */
function readBcrypt(text: string | undefined): string | undefined {
  // A greater cost would hold a thread for many seconds.
  const match = /^\$2[aby](\$(?:0[4-9]|1[0-6])\$[./A-Za-z\d]{53})$/.exec(text ?? '')
  return match ? `$2b${match[1]}` : undefined
}

function prepare(text: string, context: HashContext): string | undefined {
  return context === 'password' ? preparePassword(text) : answerKey(text) || undefined
}

function runner(hashing: Hashing, turn: Turn | Place): Pick<Place, 'run'> {
  return 'run' in turn ? turn : { run: job => hashing.run(job, turn) }
}
