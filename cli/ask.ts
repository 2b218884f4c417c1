import { readFile } from 'node:fs/promises'
import { text as readAll } from 'node:stream/consumers'
import { InvalidArgumentError } from 'commander'
import { fail, misuse } from './failure.js'

/** Longest text, in characters, as at sign-up. */
const maxLength = 255

/** Whether a user is there to ask: input and output are a terminal, and the answer needn't be JSON. */
export function canAsk({ json }: { json?: boolean }): boolean {
  return process.stdin.isTTY === true && process.stdout.isTTY === true && !json
}

/** What is wrong with a text, as a sentence; undefined when nothing is. */
export function textProblem(text: string): string | undefined {
  if (/[\p{Cc}\p{Cs}\p{Zl}\p{Zp}]/u.test(text)) return 'Leave out line breaks and other control characters.'
  if ([...text].length > maxLength) return `Use at most ${maxLength} characters.`
  return undefined
}

/** Reads the value of an option that is a text; empty means none. */
export function readText(value: string): string {
  const problem = textProblem(value)
  if (problem) throw new InvalidArgumentError(problem)
  return value.trim()
}

/** Reads the value of an option that is a whole number from `least` up. */
export function readNumber(least: number): (value: string) => number {
  return value => {
    const number = /^\d{1,9}$/.test(value) ? Number(value) : -1
    if (number < least) throw new InvalidArgumentError(`Give a whole number from ${least}.`)
    return number
  }
}

/** Reads an id, `12` or `#12`. */
export function readId(value: string): number {
  return readNumber(1)(value.replace(/^#/, ''))
}

/** The value given, or what the user at the terminal answers; otherwise a failure with the sentence `missing`. */
export async function given(
  value: string | undefined,
  question: string,
  missing: string,
  options: { json?: boolean },
): Promise<string> {
  if (value !== undefined && value.trim() !== '') return value
  if (value !== undefined || !canAsk(options)) return misuse(missing)
  return askText(question, { required: true })
}

/** Asks for a line of text. `fallback` is taken on Enter, put into the line by Tab, dropped by Backspace. */
export async function askText(
  message: string,
  options: { required?: boolean; fallback?: string; check?: (text: string) => string | undefined } = {},
): Promise<string> {
  const { required = false, fallback, check = textProblem } = options
  const validate = (text: string) => (required && text.trim() === '' ? 'This is needed.' : (check(text.trim()) ?? true))
  const { default: inquirer } = await import('inquirer')
  const question = { type: 'input', name: 'text', message, validate, default: fallback ?? '' } as const
  return ((await inquirer.prompt([question])) as { text: string }).text.trim()
}

/** Asks to choose one of several. */
export async function askChoice<T extends string | number>(
  message: string,
  choices: readonly { name: string; value: T }[],
): Promise<T> {
  const { default: inquirer } = await import('inquirer')
  const question = { type: 'select', name: 'choice', message, choices: [...choices] } as const
  return ((await inquirer.prompt([question])) as { choice: T }).choice
}

/** The secret in a file, `-` for standard input, without a line break at its end. `option` is what named the file. */
export async function readSecret(file: string, option: string): Promise<string> {
  const content = file === '-' ? await readAll(process.stdin) : await readFile(file, 'utf8').catch(unreadable)
  return content.replace(/\r?\n$/, '')

  function unreadable({ code }: NodeJS.ErrnoException): never {
    fail(`The file of ${option} can’t be read (${code}).`)
  }
}

/** Asks for a new secret twice, showing nothing of it, until both are the same and `check` finds no problem. */
export async function askSecret(name: string, check: (text: string) => string | undefined): Promise<string> {
  const { default: inquirer } = await import('inquirer')
  for (;;) {
    const { first, second } = (await inquirer.prompt([
      { type: 'password', name: 'first', message: `New ${name} (not shown):`, validate: text => check(text) ?? true },
      { type: 'password', name: 'second', message: 'The same again:' },
    ])) as { first: string; second: string }
    if (first === second) return first
    process.stdout.write('The two differ. Type both again.\n')
  }
}
