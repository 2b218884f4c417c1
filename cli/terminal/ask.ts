import { readFile } from 'node:fs/promises'
import { buffer as readAll } from 'node:stream/consumers'
import type { Client } from '@connectrpc/connect'
import { InvalidArgumentError } from 'commander'
import type { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { decodePlainText } from '../../server/process/plain-text.js'
import { isEmailAddress, isOneLine, typedKey } from '../../server/rules/names.js'
import { quote } from '../../server/rules/shell.js'
import { maxLengths, tooLong } from '../../server/rules/sizes.js'
import type { ServerOptions } from '../contexts.js'
import { fail, misuse } from '../exit-codes.js'
import { inTerminalLanguage } from './language.js'
import { say } from './output.js'
import type { Check } from './prompt.js'

/** Whether the command may prompt: input and output are a terminal, and the output needn't be JSON. */
export function canAsk({ json }: { json?: boolean }): boolean {
  return process.stdin.isTTY === true && process.stdout.isTTY === true && !json
}

/** What is wrong with a text, as a sentence; undefined when nothing is. */
export function textProblem(text: string): string | undefined {
  if (!isOneLine(text)) return 'Remove line breaks and other control characters.'
  if (tooLong(text, 'text')) return `Use at most ${maxLengths.text} characters.`
  return undefined
}

/** What is wrong with a text as an e-mail address, as a sentence; undefined when nothing is. */
export function emailProblem(text: string): string | undefined {
  return isEmailAddress(text) ? undefined : 'Not a valid e-mail address.'
}

/** What is wrong with a text as a one-time code, as a sentence; undefined when it looks like one. */
export function codeProblem(text: string): string | undefined {
  return /^\d{6}$/.test(typedKey(text)) ? undefined : 'A code has 6 digits.'
}

/** Reads the value of an option that is a text; empty means none. */
export function readText(value: string): string {
  const problem = textProblem(value)
  if (problem) throw new InvalidArgumentError(problem)
  return value.trim()
}

/** Reads the value of an option that is a whole number of at least `least`, in at most `digits` digits. */
export function readNumber(least: number, digits = 9): (value: string) => number {
  return value => {
    const number = /^\d+$/.test(value) && value.length <= digits ? Number(value) : -1
    if (number < least) throw new InvalidArgumentError(`Use a whole number, ${least} or more.`)
    return number
  }
}

/** Reads an id, `12` or `#12`. */
export function readId(value: string): number {
  return readNumber(1)(value.replace(/^#/, ''))
}

/** The value given, or the answer to a prompt; without a terminal, a failure with the sentence `missing`. */
export async function given(
  value: string | undefined,
  question: string,
  missing: string,
  options: { json?: boolean },
  check?: Check,
): Promise<string> {
  if (value !== undefined && value.trim() !== '') return value
  if (value !== undefined || !canAsk(options)) return misuse(missing)
  return askText(question, { required: true, check })
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
    check: text => (required && text.trim() === '' ? 'Required.' : check(text.trim())),
    hint: hint && (text => hint(text.trim())),
    ...offered,
  })
  return line.trim()
}

/** A question of inquirer in the language of the terminal, with the help on its keys. */
function shown(message: string) {
  const keysHelpTip = (keys: readonly [key: string, action: string][]) =>
    keys.map(all => all.map(inTerminalLanguage).join(' ')).join(' • ')
  return { message: inTerminalLanguage(message), theme: { style: { keysHelpTip } } }
}

/** Asks to choose one of several. */
export async function askChoice<T extends string | number>(
  message: string,
  choices: readonly { name: string; value: T }[],
): Promise<T> {
  const { default: inquirer } = await import('inquirer')
  const question = { type: 'select', name: 'choice', ...shown(message), choices: [...choices] } as const
  return ((await inquirer.prompt([question])) as { choice: T }).choice
}

/** Asks to choose one or more of several. */
export async function askChoices<T extends string>(message: string, choices: readonly T[]): Promise<T[]> {
  const { default: inquirer } = await import('inquirer')
  const validate = (chosen: readonly unknown[]) => chosen.length > 0 || inTerminalLanguage('Choose at least one.')
  const question = { type: 'checkbox', name: 'chosen', ...shown(message), choices: [...choices], validate } as const
  return ((await inquirer.prompt([question])) as unknown as { chosen: T[] }).chosen
}

/** Asks to choose an active organization, found by the beginnings of its words; `#id` of the chosen one. */
export async function askOrganization(
  api: Pick<Client<typeof Administration>, 'listOrganizations'>,
  message: string,
): Promise<string> {
  const { default: inquirer } = await import('inquirer')
  const search = async (text: string | undefined) => {
    const { organizations } = await api.listOrganizations({ active: true, pageSize: 20, text: text?.trim() })
    if (organizations.length === 0 && text)
      return [new inquirer.Separator(inTerminalLanguage('No organizations match.'))]
    return organizations.map(({ record }) => ({ name: `${record!.name} (#${record!.id})`, value: `#${record!.id}` }))
  }
  if ((await search(undefined)).length === 0) {
    fail('There is no active organization: run `auth-admin organizations create` first.')
  }
  const question = { type: 'search', name: 'choice', ...shown(message), source: search } as const
  return ((await inquirer.prompt([question])) as { choice: string }).choice
}

/** The secret in a file, `-` for standard input, as plain text. `option` is what named the file. */
export async function readSecret(file: string, option: string): Promise<string> {
  const content = file === '-' ? await readAll(process.stdin) : await readFile(file).catch(unreadable)
  try {
    return decodePlainText(content)
  } catch (error) {
    return fail(`The file of ${option} ${(error as Error).message}.`)
  }

  function unreadable({ code }: NodeJS.ErrnoException): never {
    fail(`The file of ${option} can’t be read (${code}).`)
  }
}

/** Prompts for an existing secret, without showing it. */
export async function askKnownSecret(message: string): Promise<string> {
  const { askLine } = await import('./prompt.js')
  return askLine({ message: `${message} (not shown):`, check: () => undefined, secret: true })
}

/** Prompts for a new secret twice, without showing it, until both match and `check` finds no problem. */
export async function askSecret(name: string, check: Check): Promise<string> {
  const { askLine } = await import('./prompt.js')
  for (;;) {
    const first = await askLine({ message: `New ${name} (not shown):`, check, secret: true })
    const second = await askLine({
      message: `Repeat the ${name}:`,
      hint: text => (text === first ? undefined : 'Doesn’t match yet.'),
      // Enter leads back to the first: it may be the one that is mistyped.
      check: () => undefined,
      secret: true,
    })
    if (first === second) return first
    say('They don’t match. Try again.')
  }
}

/** A sentence in the language of the terminal, which names the server on which a command does what it says, if it works on one. */
async function placed(sentence: string, place: ServerOptions): Promise<string> {
  const { nameServer } = await import('../contexts.js')
  const server = await nameServer(place)
  const said = inTerminalLanguage(sentence)
  return server === undefined ? said : `${inTerminalLanguage(`On ${server}:`)} ${said}`
}

/** What is missing where `confirm` can't ask. */
export const missingYes = 'This needs a confirmation: pass --yes.'

/**
 * Asks for confirmation at a terminal, with a sentence that says what happens, after `validate` has found no other
 * obstacle; declining ends the command with 1. Without a terminal, --yes is required.
 */
export async function confirm(
  sentence: string,
  options: ServerOptions & { yes?: boolean; json?: boolean },
  validate?: () => Promise<unknown>,
): Promise<void> {
  if (options.yes) return
  if (!canAsk(options)) misuse(missingYes)
  await validate?.()
  const answer = await askText(`${await placed(sentence, options)} ${inTerminalLanguage('(y/N)')}`)
  // In English or Portuguese.
  if (!/^(y|yes|s|sim)$/i.test(answer)) fail('Nothing was done.')
}

/**
 * The name that confirms an irreversible change: from --confirm, or as typed at a terminal, after `validate` has found no
 * other obstacle.
 */
export async function confirmName(
  sentence: string,
  name: string,
  options: ServerOptions & { confirm?: string; json?: boolean },
  validate?: (confirm: string) => Promise<unknown>,
): Promise<string> {
  if (options.confirm !== undefined) return options.confirm
  if (!canAsk(options))
    misuse([sentence, `To confirm, pass --confirm ${quote(name)}.`].map(inTerminalLanguage).join(' '))
  await validate?.(name)
  say(await placed(sentence, options))
  const typed = await askText(`Type ${name.trim()} to confirm:`, {
    hint: text => (text === name.trim() ? undefined : 'Doesn’t match yet.'),
  })
  return typed === name.trim() ? typed : fail('The name doesn’t match. Nothing was done.')
}

/** Reads a time: in ISO 8601, or how long ago. */
export function readTime(value: string): Date {
  const { digits, unit } = /^(?<digits>\d{1,6})(?<unit>[smhd])$/.exec(value.trim())?.groups ?? {}
  const time = digits
    ? new Date(Date.now() - Number(digits) * { s: 1, m: 60, h: 3600, d: 86400 }[unit!]! * 1000)
    : new Date(/^\d{4}-\d\d-\d\d/.test(value.trim()) ? value.trim() : Number.NaN)
  if (Number.isNaN(time.getTime()))
    throw new InvalidArgumentError('Use 90s, 15m, 2h, 7d, or a time such as 2026-01-31T12:00:00Z.')
  return time
}
