import { readFile } from 'node:fs/promises'
import { text as readAll } from 'node:stream/consumers'
import { InvalidArgumentError } from 'commander'
import { isOneLine } from '../../server/rules/names.js'
import { limits, tooLong } from '../../server/rules/sizes.js'
import type { Api } from '../administration.js'
import { fail, misuse } from '../exit-codes.js'
import { say } from './output.js'
import type { Check } from './prompt.js'

/** Whether a user is there to ask: input and output are a terminal, and the answer needn't be JSON. */
export function canAsk({ json }: { json?: boolean }): boolean {
  return process.stdin.isTTY === true && process.stdout.isTTY === true && !json
}

/** What is wrong with a text, as a sentence; undefined when nothing is. */
export function textProblem(text: string): string | undefined {
  if (!isOneLine(text)) return 'Leave out line breaks and other control characters.'
  if (tooLong(text, 'text')) return `Use at most ${limits.text} characters.`
  return undefined
}

/** What is wrong with a text as a one-time code, as a sentence; undefined when it looks like one. */
export function codeProblem(text: string): string | undefined {
  return /^\d{6}$/.test(text.replace(/\s/g, '')) ? undefined : 'A code has 6 digits.'
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
  check?: Check,
): Promise<string> {
  if (value !== undefined && value.trim() !== '') return value
  if (value !== undefined || !canAsk(options)) return misuse(missing)
  return askText(question, { required: true, ...(check && { check }) })
}

/**
 * Asks for a line of text, again until `check` finds no problem; while it is typed the user sees what `hint` finds, or
 * `check`. `fallback` is taken on Enter, put into the line by Tab, dropped by Backspace.
 */
export async function askText(
  message: string,
  options: { required?: boolean; fallback?: string; check?: Check; hint?: Check } = {},
): Promise<string> {
  const { required = false, check = textProblem, hint, ...offered } = options
  const { askLine } = await import('./prompt.js')
  const line = await askLine({
    message,
    check: text => (required && text.trim() === '' ? 'This is needed.' : check(text.trim())),
    ...(hint && { hint: (text: string) => hint(text.trim()) }),
    ...offered,
  })
  return line.trim()
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

/** Asks to choose an active organization, found by the beginnings of its words; `#id` of the chosen one. */
export async function askOrganization(api: Pick<Api, 'listOrganizations'>, message: string): Promise<string> {
  const search = async (text: string | undefined) => {
    const { organizations } = await api.listOrganizations({ active: true, pageSize: 20, ...(text?.trim() && { text }) })
    return organizations.map(({ record }) => ({ name: `${record!.name} (#${record!.id})`, value: `#${record!.id}` }))
  }
  if ((await search(undefined)).length === 0) {
    fail('There is no active organization: run `auth-admin organizations add` first.')
  }
  const { default: inquirer } = await import('inquirer')
  const question = { type: 'search', name: 'choice', message, source: search } as const
  return ((await inquirer.prompt([question])) as { choice: string }).choice
}

/** The secret in a file, `-` for standard input, without a line break at its end. `option` is what named the file. */
export async function readSecret(file: string, option: string): Promise<string> {
  const content = file === '-' ? await readAll(process.stdin) : await readFile(file, 'utf8').catch(unreadable)
  return content.replace(/\r?\n$/, '')

  function unreadable({ code }: NodeJS.ErrnoException): never {
    fail(`The file of ${option} can’t be read (${code}).`)
  }
}

/** Asks for a secret that is there already, showing nothing of it. */
export async function askKnownSecret(message: string): Promise<string> {
  const { askLine } = await import('./prompt.js')
  return askLine({ message: `${message} (not shown):`, check: () => undefined, secret: true })
}

/** Asks for a new secret twice, showing nothing of it, until both are the same and `check` finds no problem. */
export async function askSecret(name: string, check: Check): Promise<string> {
  const { askLine } = await import('./prompt.js')
  for (;;) {
    const first = await askLine({ message: `New ${name} (not shown):`, check, secret: true })
    const second = await askLine({
      message: 'The same again:',
      hint: text => (text === first ? undefined : 'Not the same yet.'),
      // Enter leads back to the first: it may be the one that is mistyped.
      check: () => undefined,
      secret: true,
    })
    if (first === second) return first
    process.stdout.write('The two differ. Type both again.\n')
  }
}

/** Asks at a terminal whether to do something, having said what will happen; declining ends the command with 1. */
export async function confirm(sentence: string, options: { yes?: boolean; json?: boolean }): Promise<void> {
  if (options.yes || !canAsk(options)) return
  const { default: inquirer } = await import('inquirer')
  const question = { type: 'confirm', name: 'sure', message: sentence, default: false } as const
  const { sure } = (await inquirer.prompt([question])) as { sure: boolean }
  if (!sure) fail('Nothing was done.')
}

/** The name that confirms what can't be undone: as given with --confirm, or as typed at a terminal. */
export async function confirmName(
  sentence: string,
  name: string,
  options: { confirm?: string; json?: boolean },
): Promise<string> {
  if (options.confirm !== undefined) return options.confirm
  if (!canAsk(options)) misuse(`${sentence} To do it, repeat the name: --confirm '${name.replaceAll("'", `'\\''`)}'`)
  say(sentence)
  const typed = await askText('To do it, type the name again:', {
    hint: text => (text === name.trim() ? undefined : 'Not that name yet.'),
  })
  return typed === name.trim() ? typed : fail('That was another name. Nothing was done.')
}

/** Reads a time: in ISO 8601, or so long ago. */
export function readTime(value: string): Date {
  const { digits, unit } = /^(?<digits>\d{1,6})(?<unit>[smhd])$/.exec(value.trim())?.groups ?? {}
  const time = digits
    ? new Date(Date.now() - Number(digits) * { s: 1, m: 60, h: 3600, d: 86400 }[unit!]! * 1000)
    : new Date(/^\d{4}-\d\d-\d\d/.test(value.trim()) ? value.trim() : Number.NaN)
  if (Number.isNaN(time.getTime()))
    throw new InvalidArgumentError('Give 90s, 15m, 2h, 7d, or a time as 2026-01-31T12:00:00Z.')
  return time
}

/**
 * The name that confirms what can't be undone, for commands that scripts on the database itself have always run: there
 * the command line is enough, at a server the name is given or asked for.
 */
export async function confirmAtServer(
  sentence: string,
  name: string,
  options: { confirm?: string; json?: boolean; local?: boolean; context?: string },
): Promise<string> {
  const { contextOf } = await import('../contexts.js')
  const scripted = options.confirm === undefined && !canAsk(options) && !(await contextOf(options))
  return scripted ? name : confirmName(sentence, name, options)
}
