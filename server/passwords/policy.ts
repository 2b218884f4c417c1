// The policy for new passwords. hash.ts stores them.
import { nicknameKey, usernameKey } from '../rules/names.js'
import { limits, tooLong } from '../rules/sizes.js'
import { createDenylist, type Denylist } from './denylist.js'

/** The requirements on new passwords. */
export interface PasswordPolicy {
  /** Minimum characters (code points). */
  readonly minLength: number
  /** Common passwords, which are refused. */
  readonly denylist: Denylist
}

/** Creates the policy. `denylistFile` is a file for `createDenylist`; throws when it can't be read. */
export function createPasswordPolicy(options: {
  minLength: number
  denylistFile?: string | undefined
}): PasswordPolicy {
  return { minLength: options.minLength, denylist: createDenylist(options.denylistFile) }
}

/**
 * Returns the form in which passwords compare: the OpaqueString profile of RFC 8265, so that the same password from
 * different keyboards matches. Undefined for a text that can't be a password: empty, too long, with control characters
 * or unpaired surrogates. Unlike the profile it accepts unassigned code points, so that an upgrade of Unicode changes
 * no result.
 */
export function preparePassword(text: string): string | undefined {
  if (tooLong(text, 'password')) return undefined
  const prepared = text.replace(/\p{Zs}/gu, ' ').normalize('NFC')
  return prepared === '' || /[\p{Cc}\p{Cs}]/u.test(prepared) ? undefined : prepared
}

/** Data that others know of a user, and that attackers therefore guess as the password. */
export interface KnownWords {
  readonly username?: string | undefined
  readonly nickname?: string | undefined
  readonly city?: string | undefined
  readonly institution?: string | null | undefined
  readonly email?: string | null | undefined
}

/** Returns a sentence that says how to correct a new password; undefined when the policy accepts it. */
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

/** Whether a password is the telephone number that is the user's name, with or without area code or prefixes. */
function isPhoneOf(password: string, name: string): boolean {
  const number = /^tel:\+55(\d+)$/.exec(usernameKey(name))?.[1]
  if (number === undefined || !/^[\d\s+().\p{Pd}]+$/u.test(nicknameKey(password))) return false
  const digits = nicknameKey(password).replace(/\D/g, '')
  return digits.endsWith(number) || (digits.length >= 8 && number.endsWith(digits))
}

function spaceless(text: string): string {
  return nicknameKey(text).replaceAll(' ', '')
}
