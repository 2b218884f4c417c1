// Passwords that are guessed first.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { nicknameKey } from '../rules/names.js'

const require = createRequire(import.meta.url)

/** Tells whether a password is among the common ones, ignoring case and space around it. */
export interface Denylist {
  has(password: string): boolean
}

/**
 * The passwords of a file, one a line, UTF-8; without a file, the 49 233 common ones of @zxcvbn-ts/language-common. Throws
 * when the file can't be read.
 */
export function createDenylist(file?: string): Denylist {
  let list = file === undefined ? undefined : new Set(readList(file))
  return {
    has(password) {
      // Loaded on first use: it takes 25 ms and 15 MB.
      list ??= new Set(require('@zxcvbn-ts/language-common').dictionary['passwords-common'] as string[])
      return list.has(nicknameKey(password))
    },
  }
}

function readList(file: string): string[] {
  const keys = readFileSync(file, 'utf8').split('\n').map(nicknameKey)
  // Blank lines are no passwords.
  return keys.filter(key => key !== '')
}
