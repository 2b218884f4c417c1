// Common passwords, which attackers guess first.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { nicknameKey } from '../rules/names.js'

const require = createRequire(import.meta.url)

/** A list of common passwords. */
export interface Denylist {
  /** Whether the list has a password, regardless of case and white space around it. */
  has(password: string): boolean
}

/**
 * Reads the passwords of a file, one per line in UTF-8. Without a file, uses the 49 233 common ones of
 * `@zxcvbn-ts/language-common`, which load on first use (25 ms and 15 MB). Throws when the file can't be read.
 */
export function createDenylist(file?: string): Denylist {
  let list = file === undefined ? undefined : new Set(readList(file))
  return {
    has(password) {
      list ??= new Set(require('@zxcvbn-ts/language-common').dictionary['passwords-common'] as string[])
      return list.has(nicknameKey(password))
    },
  }
}

function readList(file: string): string[] {
  const keys = readFileSync(file, 'utf8').split(/\r?\n/).map(nicknameKey)
  return keys.filter(key => key !== '')
}
