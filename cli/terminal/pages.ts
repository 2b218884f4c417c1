// Lists, all in one shape: the same flags, documents, defaults and hints. A list is printed page by page as it arrives, so
// that none is too long for the memory.
import { type Cell, type Head, jsonText, note, say, startTable, write } from './output.js'
import { withProgress } from './progress.js'

/** A list of records. */
export interface List<Row, Name extends string> {
  /** The plural of its noun: the name of its records in the document. */
  readonly name: Name
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
    if (next && !options.json) note(`There are more: pass --all, or --page-token ${next}`)
  }
}

/** How a list is printed: more rows, and its end. */
interface Printer<Row> {
  rows(rows: readonly Row[]): string
  end?(nextPageToken: string): string
}

function printerOf<Row>(
  { name, head, toOutput, toCells }: List<Row, string>,
  { json, jsonl }: ListOptions,
): Printer<Row> {
  if (json) return documentOf(name, toOutput)
  if (jsonl) return { rows: rows => rows.map(row => `${jsonText(toOutput(row))}\n`).join('') }
  const table = startTable(head)
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
