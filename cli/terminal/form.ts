// Forms: fields that flags set or, at a terminal, prompts.
import { dayIn, noDay, readDay } from '../../server/rules/dates.js'
import type { Fault } from '../../server/rules/fault.js'
import { flagOf } from '../arguments.js'
import { misuse } from '../exit-codes.js'
import { askText, canAsk, readText, textProblem } from './ask.js'
import { inTerminalLanguage } from './language.js'
import { say } from './output.js'
import type { Check } from './prompt.js'

type Rule = (text: string, today: string) => Fault | undefined

/** A field of a form. */
export interface Field<K extends string> {
  /** Its name in the API, which its flag has, too. */
  readonly field: string
  /** Its name as an attribute. */
  readonly key: K
  readonly about: string
  /** Set where a prompt takes no empty answer: always, or for a record that exists. */
  readonly needed?: 'always' | 'when edited'
  /** What is wrong with a text that isn't empty. */
  readonly check?: Check
  /** Reads the flag and the answer to the prompt; absent, as they are. */
  readonly read?: (text: string) => string
}

/** What is wrong with the text of a field of this kind, at most. */
export function checkOf({
  kind,
  check,
}: {
  readonly kind?: string | undefined
  readonly check?: Rule | undefined
}): Check {
  const { timeZone } = Intl.DateTimeFormat().resolvedOptions()
  return text => {
    const read = kind === 'day' ? readDay(text, timeZone) : text
    return (read === undefined ? noDay : check?.(read, dayIn(timeZone, new Date())))?.message
  }
}

/** Texts by attribute; an empty one clears the field. */
export type Values<K extends string> = { [P in K]?: string }

/** Prompts for each field without a flag; `now` has the present values. */
export async function askFields<K extends string>(
  fields: readonly Field<K>[],
  given: Values<K>,
  now?: Values<K>,
): Promise<Values<K>> {
  const values: Values<K> = { ...given }
  const open = fields.filter(({ key }) => given[key] === undefined)
  if (now) say('Enter keeps a value, Tab edits it, Backspace clears it.')
  else if (open.some(({ needed }) => needed !== 'always')) say('Leave optional fields empty.')
  for (const { key, about, needed, check, read = readText } of open) {
    const text = inTerminalLanguage(about)
    const answer = await askText(`${text[0]!.toUpperCase()}${text.slice(1)}:`, {
      required: needed === 'always' || (needed === 'when edited' && now !== undefined),
      check: text => (text === '' ? undefined : (textProblem(text) ?? check?.(text))),
      fallback: now?.[key] ?? '',
    })
    values[key] = read(answer)
  }
  return values
}

/**
 * The fields to change in a record: those with flags, or, at a terminal and without flags, all of them. Then `read` has
 * read the record for the prompts, and the change is for that etag.
 */
export async function askEdits<K extends string>(
  fields: readonly Field<K>[],
  options: Values<K> & { readonly json?: boolean },
  read: () => Promise<{ readonly etag: string; readonly now: Values<K> }>,
) {
  const given = fields.some(({ key }) => options[key] !== undefined)
  if (!given && !canAsk(options)) misuse(`Nothing to change: pass one or more of ${fields.map(flagOf).join(', ')}.`)
  const { etag, now } = given ? { etag: '', now: undefined } : await read()
  const values = now ? await askFields(fields, options, now) : options
  const paths = fields.flatMap(({ field, key }) => (values[key] === undefined ? [] : [field]))
  return { values: filled(fields, values), updateMask: { paths }, etag }
}

/** The values of the form that aren't empty. */
export function filled<K extends string>(fields: readonly Field<K>[], values: Values<K>): Values<K> {
  return Object.fromEntries(fields.flatMap(({ key }) => (values[key] ? [[key, values[key]]] : []))) as Values<K>
}
