// The language of the terminal.
import { toPortuguese } from '../../server/requests/portuguese.js'

/** What the server says, in the language of the terminal (POSIX, 8.2). Commands themselves speak English. */
export function inTerminalLanguage(english: string): string {
  const { LC_ALL, LC_MESSAGES, LANG } = process.env
  return /^pt/i.test(LC_ALL || LC_MESSAGES || LANG || '') ? toPortuguese(english) : english
}
