// Lists, all in one shape: the same flags, documents, defaults and hints. A list is printed page by page as it arrives, so
// that none is too long for the memory.
import { InvalidArgumentError } from 'commander'
import { misuse } from '../exit-codes.js'
import { type Cell, type Head, jsonText, say, startTable, write } from './output.js'
import { withProgress } from './progress.js'

/** A list of records. */
export interface List<Row, Name extends string> {
  /** The plural of its noun: the name of its records in the document. */
  readonly name: Name
  /** All fields that a record can have in the document; `a.b` is one within another. */
  readonly fields: readonly string[]
  toOutput(row: Row): object
  /** Columns that it has for users. */
  readonly head: Head
  toCells(row: Row): readonly Cell[]
  /** What users see instead of no rows. */
  readonly empty: string
}

/** Options of a list. */
export interface ListOptions {
  readonly limit?: number
  readonly all?: boolean
  readonly pageToken?: string
  readonly json?: boolean
  readonly jsonl?: boolean
  readonly fields?: readonly string[]
}

/** The part of a list that a call returns: its rows by the name of the list, and where it continues; empty at the end. */
type Page<Row, Name extends string> = { readonly [N in Name]: readonly Row[] } & { readonly nextPageToken: string }

/** Reads a page of at most so many rows; the first one if the token is empty. */
type Read<Row, Name extends string> = (page: { pageSize: number; pageToken: string }) => Promise<Page<Row, Name>>

/** Rows that a list shows by default. */
export const shownAtOnce = 100

/** Most rows of one call. */
const most = 1_000

/** Reads the pages of a list until there are as many rows as were asked for. */
export async function* readPages<Row, Name extends string>(
  { name }: List<Row, Name>,
  { limit, all, pageToken = '' }: ListOptions,
  read: Read<NoInfer<Row>, Name>,
) {
  const wanted = limit ?? (all ? Number.POSITIVE_INFINITY : shownAtOnce)
  let count = 0
  let next = pageToken
  do {
    const { [name]: rows, nextPageToken }: Page<Row, Name> = await read({
      pageSize: Math.min(most, wanted - count),
      pageToken: next,
    })
    yield { rows, nextPageToken }
    count += rows.length
    next = nextPageToken
  } while (next !== '' && count < wanted)
}

/** Reads pages of a list that is there as a whole. */
export function pagesOf<Row, Name extends string>({ name }: List<Row, Name>, all: readonly Row[]): Read<Row, Name> {
  return async ({ pageSize, pageToken }) => {
    const start = pageToken === '' ? 0 : Number(pageToken)
    const isPlace = /^[1-9]\d{0,8}$/.test(pageToken) && start < all.length
    if (pageToken !== '' && !isPlace) misuse('Not a page token of this list: start without one.')
    const end = start + pageSize
    const nextPageToken = end < all.length ? String(end) : ''
    return { [name]: all.slice(start, end), nextPageToken } as Page<Row, Name>
  }
}

/**
 * Prints a list as its pages arrive: with `--json` as one document, with `--jsonl` each row on a line, otherwise in
 * columns. A list that fails on the way ends with where it continues.
 */
export async function printPages<Row, Name extends string>(
  list: List<Row, Name>,
  options: ListOptions,
  read: Read<NoInfer<Row>, Name>,
): Promise<void> {
  const printer = printerOf(list, options)
  let next: string | undefined
  const printAll = async (report: (done: string) => void) => {
    let count = 0
    for await (const { rows, nextPageToken } of readPages(list, options, read)) {
      await write(printer.rows(rows))
      count += rows.length
      next = nextPageToken
      report(`${count} so far`)
    }
    if (count === 0 && !options.json && !options.jsonl) say(list.empty)
  }
  try {
    await withProgress('Reading', printAll, { prints: true })
  } finally {
    if (next !== undefined) await write(printer.end?.(next) ?? '')
    if (next && !options.json) process.stderr.write(`There are more: pass --all, or --page-token ${next}\n`)
  }
}

/** How a list is printed: more rows, and its end. */
interface Printer<Row> {
  rows(rows: readonly Row[]): string
  end?(nextPageToken: string): string
}

function printerOf<Row>(list: List<Row, string>, { json, jsonl, fields }: ListOptions): Printer<Row> {
  const output = (row: Row) => pick(list.toOutput(row), fields)
  if (json) return documentOf(list.name, output)
  if (jsonl) return { rows: rows => rows.map(row => `${jsonText(output(row))}\n`).join('') }
  const toCells = fields ? (row: Row) => Object.values(output(row)).map(toCell) : list.toCells
  const table = startTable(fields ? { titles: fields } : list.head)
  return { rows: rows => (rows.length > 0 ? table(rows.map(toCells)) : '') }
}

/** One document, `{"users": […], "nextPageToken": ""}`. */
function documentOf<Row>(name: string, output: (row: Row) => object): Printer<Row> {
  let before = `{\n  ${JSON.stringify(name)}: [`
  return {
    rows: rows =>
      rows
        .map(row => {
          const text = `${before}\n${jsonText(output(row), 2).replace(/^/gm, '    ')}`
          before = ','
          return text
        })
        .join(''),
    end: nextPageToken =>
      `${before === ',' ? '\n  ' : before}],\n  "nextPageToken": ${JSON.stringify(nextPageToken)}\n}\n`,
  }
}

/** The fields of a row that are named, in that order; all of them when none are. An absent one is null. */
function pick(row: object, fields: readonly string[] | undefined): Record<string, unknown> {
  if (!fields) return row as Record<string, unknown>
  const at = (path: string) =>
    path.split('.').reduce<unknown>((value, name) => (value as Record<string, unknown> | undefined)?.[name], row)
  return Object.fromEntries(fields.map(field => [field, at(field) ?? null]))
}

function toCell(value: unknown): Cell {
  const isPlain = typeof value !== 'object' || value === null || value instanceof Date
  return isPlain ? (value as Cell) : JSON.stringify(value)
}

/** Reads the names of fields, of which `valid` are the known ones. */
export function readNames(valid: readonly string[]) {
  return (value: string): string[] => {
    const names = value.split(',').map(name => name.trim())
    if (names.every(name => valid.includes(name))) return names
    throw new InvalidArgumentError(`Use one or more of ${valid.join(', ')}, separated by commas.`)
  }
}
