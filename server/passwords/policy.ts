// The policy for new passwords. hash.ts stores them.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { type Fault, fault, longerThan } from '../rules/fault.js'
import { nicknameKey, usernameKey } from '../rules/names.js'
import { maxLengths, tooLong } from '../rules/sizes.js'

const require = createRequire(import.meta.url)

/** The requirements on new passwords. */
export type PasswordPolicy = ReturnType<typeof createPasswordPolicy>

/**
 * Creates the policy. `denylistFile` has one common password per line, in UTF-8; throws when it can't be read. Without it,
 * passwords are compared with the 49 233 common ones of `@zxcvbn-ts/language-common`, which load on first use (25 ms and 15 MB).
 */
export function createPasswordPolicy({
  minLength,
  denylistFile,
}: {
  minLength: number
  denylistFile?: string | undefined
}) {
  let common = denylistFile === undefined ? undefined : readList(denylistFile)
  return {
    /** Minimum characters (code points). */
    minLength,
    /** Whether attackers guess a password first, regardless of case and white space around it. */
    isCommon(password: string): boolean {
      common ??= new Set(require('@zxcvbn-ts/language-common').dictionary['passwords-common'] as string[])
      return common.has(nicknameKey(password))
    },
  }
}

function readList(file: string): Set<string> {
  const keys = readFileSync(file, 'utf8').split(/\r?\n/).map(nicknameKey)
  return new Set(keys.filter(key => key !== ''))
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
interface KnownWords {
  readonly username?: string | undefined
  readonly nickname?: string | undefined
  readonly city?: string | undefined
  readonly institution?: string | null | undefined
  readonly email?: string | null | undefined
}

/** Returns what is wrong with a new password; undefined when the policy accepts it. */
export function checkPassword(password: string, user: KnownWords, policy: PasswordPolicy): Fault | undefined {
  if (tooLong(password, 'password')) return longerThan(maxLengths.password)
  if (password.trim() === '') return fault('MISSING', 'Give a password.')
  const prepared = preparePassword(password)
  if (prepared === undefined) return fault('FORBIDDEN_CHARACTERS', 'Leave out control characters.')
  const length = [...prepared].length
  if (length < policy.minLength) return fault('TOO_SHORT', `Use at least ${policy.minLength} characters.`)
  if (policy.isCommon(prepared))
    return fault('TOO_COMMON', 'Choose another password: this one is among the most common.')
  if (isKnownWord(prepared, user))
    return fault('REPEATS_OWN_DATA', 'Choose a password that isn’t part of your own data.')
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
