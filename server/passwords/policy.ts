// Which passwords are acceptable. How they are kept is hash.ts's.
import { nicknameKey, usernameKey } from '../rules/names.js'
import { limits, tooLong } from '../rules/sizes.js'
import { createDenylist, type Denylist } from './denylist.js'

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
 * password. Undefined for what can't be a password: nothing, too long a text, control characters, unpaired surrogates.
 * Characters that Unicode doesn't know yet are let through, so that no version of it locks anybody out.
 */
export function preparePassword(text: string): string | undefined {
  if (tooLong(text, 'password')) return undefined
  const prepared = text.replace(/\p{Zs}/gu, ' ').normalize('NFC')
  return prepared === '' || /[\p{Cc}\p{Cs}]/u.test(prepared) ? undefined : prepared
}

/** What others know of a user, and so try as the password first. */
export interface KnownWords {
  readonly username?: string | undefined
  readonly nickname?: string | undefined
  readonly city?: string | undefined
  readonly institution?: string | null | undefined
  readonly email?: string | null | undefined
}

/** What is wrong with a new password, as a sentence that says what to do; undefined when it is acceptable. */
export function checkPassword(password: string, user: KnownWords, policy: PasswordPolicy): string | undefined {
  if (tooLong(password, 'password')) return `Use at most ${limits.password} characters.`
  if (password.trim() === '') return 'Give a password.'
  const prepared = preparePassword(password)
  if (prepared === undefined) return 'Leave out control characters.'
  const length = [...prepared].length
  if (length < policy.minLength) return `Use at least ${policy.minLength} characters.`
  if (policy.denylist.has(prepared)) return 'Choose another password: this one is among the most common.'
  if (isKnownWord(prepared, user)) return 'Choose a password that isn’t part of your own data.'
  return undefined
}

function isKnownWord(password: string, user: KnownWords): boolean {
  const { username, nickname, city, institution, email } = user
  const words = [username, nickname, city, institution, email, email?.slice(0, email.lastIndexOf('@'))]
  const key = spaceless(password)
  if (words.some(word => word && spaceless(word) !== '' && spaceless(word) === key)) return true
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
