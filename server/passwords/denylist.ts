// Passwords that are guessed first.
import { readFileSync } from 'node:fs'
import { madeOnce, onFirstUse } from '../process/lazy.js'
import { nicknameKey } from '../rules/names.js'

/** Tells whether a password is among the common ones, ignoring case and space around it. */
export interface Denylist {
  has(password: string): boolean
}

/**
 * The passwords of a file, one a line, UTF-8; without a file, the 49 233 common ones of @zxcvbn-ts/language-common,
 * unpacked when first asked (about 25 ms), once in a process. Throws when the file can't be read.
 */
export function createDenylist(file?: string): Denylist {
  const list = file === undefined ? undefined : readList(file)
  return { has: password => (list ?? commonPasswords()).has(nicknameKey(password)) }
}

function readList(file: string): Set<string> {
  const keys = readFileSync(file, 'utf8').split('\n').map(nicknameKey)
  // Blank lines are no passwords.
  return new Set(keys.filter(key => key !== ''))
}

/** Loaded when somebody chooses a password. */
const load = onFirstUse<{ dictionary: { 'passwords-common': string[] } }>('@zxcvbn-ts/language-common')

const commonPasswords = madeOnce((): ReadonlySet<string> => new Set(load().dictionary['passwords-common']))
