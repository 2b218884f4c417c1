import Table from 'cli-table3'
import { Option } from 'commander'

/** The option of every command that answers. */
export function jsonOption(): Option {
  return new Option('--json', 'print one JSON document and nothing else; never ask')
}

/** Prints a value as one JSON document. */
export function printJson(value: unknown): void {
  process.stdout.write(`${JSON.stringify(value, null, 2)}\n`)
}

/** Prints a line for people. */
export function say(text: string): void {
  process.stdout.write(`${printable(text)}\n`)
}

/** Prints a line for people beside the output: a warning. */
export function warn(text: string): void {
  process.stderr.write(`warning: ${printable(text)}\n`)
}

/**
 * A text without anything that a terminal obeys: people choose their names, and names must not move the cursor or turn
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
  return printable(cell instanceof Date ? `${cell.toISOString().slice(0, 19).replace('T', ' ')}Z` : String(cell))
}

/** Prints rows under a head, or `empty` when there are none. Long cells are folded to fit the terminal. */
export function printTable(head: readonly string[], rows: readonly (readonly Cell[])[], empty: string): void {
  if (rows.length === 0) return say(empty)
  const cells = rows.map(row => row.map(write))
  const natural = head.map((title, column) => Math.max(...[title, ...cells.map(row => row[column] ?? '')].map(width)))
  const table = new Table({
    head: [...head],
    colWidths: fit(natural, lineWidth() - head.length - 1 - 2 * head.length).map(columns => columns + 2),
    wordWrap: true,
    wrapOnWordBoundary: false,
    style: { head: [], border: [], compact: true },
  })
  for (const row of cells) table.push(row)
  process.stdout.write(`${table.toString()}\n`)
}

/** Prints a record, a line for each field that is there. */
export function printRecord(fields: Readonly<Record<string, Cell>>): void {
  const present = Object.entries(fields).filter(([, value]) => value !== null && value !== undefined)
  const label = Math.max(...present.map(([name]) => name.length))
  const table = new Table({
    chars: Object.fromEntries(borders.map(border => [border, ''])),
    colWidths: [label + 2, Math.max(20, lineWidth() - label - 2)],
    wordWrap: true,
    wrapOnWordBoundary: false,
    style: { head: [], border: [], 'padding-left': 0, 'padding-right': 0 },
  })
  for (const [name, value] of present) table.push([name, write(value)])
  const lines = table.toString().split('\n')
  process.stdout.write(`${lines.map(line => line.trimEnd()).join('\n')}\n`)
}

const borders = [
  ...['top', 'top-mid', 'top-left', 'top-right', 'bottom', 'bottom-mid', 'bottom-left', 'bottom-right'],
  ...['left', 'left-mid', 'mid', 'mid-mid', 'right', 'right-mid', 'middle'],
]

/** Columns of a line: those of the terminal, or 80. */
function lineWidth(): number {
  return Math.max(40, process.stdout.columns ?? 80)
}

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

/** Narrows the widest columns until they fit together. */
function fit(natural: readonly number[], available: number): number[] {
  const widths = [...natural]
  while (widths.reduce((a, b) => a + b, 0) > available) {
    const widest = widths.indexOf(Math.max(...widths))
    if (widths[widest]! <= 4) break
    widths[widest]!--
  }
  return widths
}
