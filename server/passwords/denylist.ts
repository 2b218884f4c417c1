// Common passwords, which attackers guess first.
import { readFileSync } from 'node:fs'
import { madeOnce, onFirstUse } from '../process/lazy.js'
import { nicknameKey } from '../rules/names.js'

/** A list of common passwords. */
export interface Denylist {
  /** Whether the list has a password, regardless of case and white space around it. */
  has(password: string): boolean
}

/**
 * Reads the passwords of a file, one per line in UTF-8. Without a file, uses the 49 233 common ones of
 * `@zxcvbn-ts/language-common`, which load on first use (about 25 ms). Throws when the file can't be read.
 */
export function createDenylist(file?: string): Denylist {
  const list = file === undefined ? undefined : readList(file)
  return { has: password => (list ?? commonPasswords()).has(nicknameKey(password)) }
}

function readList(file: string): Set<string> {
  const keys = readFileSync(file, 'utf8').split('\n').map(nicknameKey)
  return new Set(keys.filter(key => key !== ''))
}

const load = onFirstUse<{ dictionary: { 'passwords-common': string[] } }>('@zxcvbn-ts/language-common')

const commonPasswords = madeOnce((): ReadonlySet<string> => new Set(load().dictionary['passwords-common']))
