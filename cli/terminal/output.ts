// The terminal owns how commands prompt and print: forms, secrets, confirmations, tables, JSON, pages and progress.
// It knows no command. Without a terminal, or with --json, nothing prompts: then a missing argument is an error. What
// a terminal obeys never reaches it from the registry.
import width from 'fast-string-width'
import { inTerminalLanguage } from './language.js'

/** Prints a value as one JSON document. */
export function printJson(value: unknown): void {
  process.stdout.write(`${jsonText(value, 2)}\n`)
}

/** A value as JSON in which everything that a terminal obeys is escaped. */
export function jsonText(value: unknown, indent?: number): string {
  return escaped(JSON.stringify(value, null, indent), /[\x7f-\x9f\p{Zl}\p{Zp}\p{Bidi_Control}]/gu)
}

/** A value with its names in lowerCamelCase, as documents have them: where the service names tables and columns. */
export function camelCased<T>(value: T): T {
  if (Array.isArray(value)) return value.map(camelCased) as T
  if (typeof value !== 'object' || value === null) return value
  const named = Object.entries(value).map(([name, each]) => [
    name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase()),
    camelCased(each),
  ])
  return Object.fromEntries(named)
}

/** Prints a line, in the language of the terminal. */
export function say(text: string): void {
  process.stdout.write(`${printable(inTerminalLanguage(text))}\n`)
}

/** Prints a line on standard error, in the language of the terminal. */
export function note(text: string): void {
  process.stderr.write(`${printable(inTerminalLanguage(text))}\n`)
}

/** Prints a warning on standard error. */
export function warn(text: string): void {
  note(`warning: ${text}`)
}

/**
 * A text in which everything that a terminal obeys is escaped as in JSON: users choose their names, and names must not
 * move the cursor or turn the direction of writing.
 */
export function printable(text: string): string {
  return escaped(text, /[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}\p{Cs}]/gu)
}

function escaped(text: string, signs: RegExp): string {
  return text.replace(signs, sign => {
    const json = JSON.stringify(sign).slice(1, -1)
    return json === sign ? `\\u${sign.charCodeAt(0).toString(16).padStart(4, '0')}` : json
  })
}

/** What a cell can hold; absent is empty. */
export type Cell = string | number | boolean | Date | null | undefined

/** A time as text: RFC 3339 in UTC, to the second, in JSON as in columns. It has no space, so it is never folded. */
export function timeText(time: Date): string {
  return time.toISOString().replace(/\.\d+Z$/, 'Z')
}

/** A cell as text: yes or no for a boolean. */
function cellText(cell: Cell): string {
  if (cell === null || cell === undefined) return ''
  if (typeof cell === 'boolean') return inTerminalLanguage(cell ? 'yes' : 'no')
  return cell instanceof Date ? timeText(cell) : printable(String(cell))
}

/** Writes to standard output, and waits while its reader is behind. */
export async function write(text: string): Promise<void> {
  if (!process.stdout.write(text)) await new Promise(resolve => process.stdout.once('drain', resolve))
}

/** Columns of a table: their titles, and those that are never folded because users copy them. */
export interface Head {
  readonly titles: readonly string[]
  readonly whole?: readonly string[]
}

/**
 * A table that grows: returns a function that lays out more rows. The first rows decide how wide the columns are, and come
 * with the head.
 */
export function startTable({ titles, whole = [] }: Head): (rows: readonly (readonly Cell[])[]) => string {
  let layOut: Layout | undefined
  return rows => {
    const cells = rows.map(row => row.map(cellText))
    const head = titles.map(title => inTerminalLanguage(title).toUpperCase())
    const all = layOut ? cells : [head, ...cells]
    layOut ??= columnsOf(
      all,
      titles.map(title => whole.includes(title)),
    )
    return all.map(layOut).join('')
  }
}

/** Prints rows under a head, or `empty` when there are none. */
export function printTable(head: Head, rows: readonly (readonly Cell[])[], empty: string): void {
  if (rows.length === 0) say(empty)
  else process.stdout.write(startTable(head)(rows))
}

/** Prints fields, one a line; absent ones are left out. */
export function printFields(fields: Readonly<Record<string, Cell>>): void {
  const present = Object.entries(fields).filter(([, value]) => value !== null && value !== undefined)
  const rows = present.map(([name, value]) => [inTerminalLanguage(name), cellText(value)])
  if (rows.length > 0) process.stdout.write(rows.map(columnsOf(rows, [true, false])).join(''))
}

/** A row as lines, each with its line break. */
type Layout = (row: readonly string[]) => string

/**
 * Columns side by side, without rules between them, as wide as a sample of rows needs. At a terminal, columns are narrowed
 * to fit it: a cell is folded at spaces, and not in a word, so that ids, keys and addresses can be copied. A cell that is
 * too wide moves the rest of its line, except that very long words are cut, unless they end their line.
 */
function columnsOf(sample: readonly (readonly string[])[], whole: readonly boolean[]): Layout {
  const widest = (widthOf: (cell: string, column: number) => number) =>
    sample[0]!.map((_, column) => Math.max(...sample.map(row => widthOf(row[column]!, column))))
  const widths = widest(cell => width(cell))
  const least = widest((cell, column) => {
    const word = whole[column] ? width(cell) : Math.max(...cell.split(' ').map(each => width(each)))
    return word > longest ? shortest : word
  })
  // In a pipe, cells aren't folded.
  const { columns } = process.stdout
  if (columns !== undefined) narrow(widths, least, columns - gap * (widths.length - 1))
  const toLines = (cell: string, column: number) => {
    if (columns === undefined) return [cell]
    const parts = whole[column] ? [cell] : fold(cell, widths[column]!)
    return column === widths.length - 1 ? parts : parts.map(part => cut(part, widths[column]!))
  }
  return row => {
    const cells = row.map(toLines)
    const height = Math.max(...cells.map(({ length }) => length))
    const lines = Array.from({ length: height }, (_, line) =>
      cells.map((parts, column) => pad(parts[line] ?? '', widths[column]! + gap)).join(''),
    )
    return lines.map(line => `${line.trimEnd()}\n`).join('')
  }
}

/** Spaces between columns. */
const gap = 2

/** Columns of the longest word that isn't cut: an identifier, a key, most addresses. */
const longest = 64

/** Columns that remain of a longer one, if there is no space for more. */
const shortest = 16

/** Narrows the widest columns until all fit together, none below what its longest word takes. */
function narrow(widths: number[], least: readonly number[], available: number): void {
  for (let excess = widths.reduce((a, b) => a + b, 0) - available; excess > 0; excess--) {
    const narrowable = widths.filter((width, column) => width > least[column]!)
    if (narrowable.length === 0) return
    const widest = Math.max(...narrowable)
    widths[widths.findIndex((width, column) => width === widest && width > least[column]!)]! -= 1
  }
}

/** A text in lines of at most so many columns, unless a word takes more. */
function fold(text: string, columns: number): string[] {
  if (width(text) <= columns) return [text]
  const lines: string[] = []
  for (const word of text.split(' ')) {
    const last = lines.at(-1)
    if (last !== undefined && width(last) + 1 + width(word) <= columns) lines[lines.length - 1] = `${last} ${word}`
    else lines.push(word)
  }
  return lines
}

/** A text of at most so many columns, if it is one of the very long ones. */
function cut(text: string, columns: number): string {
  if (width(text) <= Math.max(columns, longest)) return text
  let [kept, taken] = ['', 1]
  for (const { segment } of new Intl.Segmenter().segment(text)) {
    taken += width(segment)
    if (taken > columns) break
    kept += segment
  }
  return `${kept}…`
}

function pad(text: string, columns: number): string {
  return text + ' '.repeat(Math.max(gap, columns - width(text)))
}
