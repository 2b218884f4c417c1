// The terminal owns how commands prompt and print: forms, secrets, confirmations, tables, JSON, pages and progress.
// It knows no command. Without a terminal, or with --json, nothing prompts: then a missing argument is an error. What
// a terminal obeys never reaches it from the registry.
import Table from 'cli-table3'
import { Option } from 'commander'

/** The option of every command that answers. */
export function jsonOption(): Option {
  return new Option('--json', 'print one JSON document and nothing else; never prompt')
}

/** Prints a value as one JSON document. */
export function printJson(value: unknown): void {
  process.stdout.write(`${JSON.stringify(value, null, 2)}\n`)
}

/** Prints a value as a JSON document on one line. */
export function printLine(value: unknown): void {
  process.stdout.write(`${JSON.stringify(value)}\n`)
}

/** Prints a line. */
export function say(text: string): void {
  process.stdout.write(`${printable(text)}\n`)
}

/** Prints a warning on standard error. */
export function warn(text: string): void {
  process.stderr.write(`warning: ${printable(text)}\n`)
}

/**
 * A text without anything that a terminal obeys: users choose their names, and names must not move the cursor or turn
 * the direction of writing.
 */
export function printable(text: string): string {
  return text.replace(/[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}\p{Cs}]/gu, '')
}

/** What a cell can hold; absent is empty. */
export type Cell = string | number | boolean | Date | null | undefined

/** A cell as text: yes or no for a boolean, UTC to the second for a time. */
function write(cell: Cell): string {
  if (cell === null || cell === undefined) return ''
  if (cell === true) return 'yes'
  if (cell === false) return 'no'
  return cell instanceof Date ? cell.toISOString().slice(0, 19).replace('T', ' ') : printable(String(cell))
}

/**
 * Prints rows under a head, or `empty` when there are none, and says when there are more. Long cells are folded to fit the
 * terminal.
 */
export function printTable(
  head: readonly string[],
  rows: readonly (readonly Cell[])[],
  empty: string,
  { nextPageToken = '' }: { readonly nextPageToken?: string } = {},
): void {
  const cells = rows.map(row => row.map(write))
  const times = head.map((_, column) => rows.some(row => row[column] instanceof Date))
  if (rows.length === 0) say(empty)
  else printColumns([head.map(title => title.toUpperCase()), ...cells], times)
  if (nextPageToken !== '') process.stderr.write(`There are more: pass --all, or --page-token ${nextPageToken}\n`)
}

/** Prints fields, one a line; absent ones are left out. */
export function printFields(fields: Readonly<Record<string, Cell>>): void {
  const present = Object.entries(fields).filter(([, value]) => value !== null && value !== undefined)
  if (present.length > 0)
    printColumns(
      present.map(([name, value]) => [name, write(value)]),
      [true, false],
    )
}

/** Columns side by side, without rules between them, so that a key can be copied whole. `whole` ones are never folded. */
function printColumns(rows: readonly (readonly string[])[], whole: readonly boolean[]): void {
  const columns = process.stdout.columns
  const natural = rows[0]!.map((_, column) => Math.max(...rows.map(row => width(row[column] ?? ''))))
  const table = new Table({
    chars: Object.fromEntries(rules.map(rule => [rule, ''])),
    // In a pipe, cells aren't folded.
    ...(columns !== undefined && {
      colWidths: narrow(natural, whole, Math.max(40, columns) - gap * natural.length).map(width => width + gap),
      wordWrap: true,
      wrapOnWordBoundary: false,
    }),
    style: { head: [], border: [], 'padding-left': 0, 'padding-right': gap },
  })
  for (const row of rows) table.push([...row])
  const lines = table.toString().split('\n')
  process.stdout.write(`${lines.map(line => line.trimEnd()).join('\n')}\n`)
}

/** Spaces between columns. */
const gap = 2

const rules = [
  ...['top', 'top-mid', 'top-left', 'top-right', 'bottom', 'bottom-mid', 'bottom-left', 'bottom-right'],
  ...['left', 'left-mid', 'mid', 'mid-mid', 'right', 'right-mid', 'middle'],
]

/** Columns that a text takes, wide characters counted as two. */
function width(text: string): number {
  return [...text].reduce(
    (sum, sign) =>
      sum +
      (/\p{Emoji_Presentation}|[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]/u.test(
        sign,
      )
        ? 2
        : 1),
    0,
  )
}

/** Narrows the widest columns until all fit together. */
function narrow(natural: readonly number[], whole: readonly boolean[], available: number): number[] {
  const widths = [...natural]
  while (widths.reduce((a, b) => a + b, 0) > available) {
    const widest = Math.max(...widths.filter((_, column) => !whole[column]))
    if (widest <= 4) break
    widths[widths.findIndex((columns, column) => columns === widest && !whole[column])] = widest - 1
  }
  return widths
}
