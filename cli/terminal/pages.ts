import { type Command, InvalidArgumentError, Option } from 'commander'
import { readNumber } from './ask.js'
import { type Cell, jsonOption, printJson, printLine, printTable } from './output.js'
import { withProgress } from './progress.js'

/** Options of a list. */
export interface ListOptions {
  readonly limit?: number
  readonly pageToken?: string
  readonly json?: boolean
  readonly jsonl?: boolean
  /** Names of fields, as `--json` has them; `a.b` is one within another. */
  readonly fields?: readonly string[]
}

/** Rows that a list shows by default. */
const shownAtOnce = 100

/** Most rows of one call. */
const most = 1_000

/** Adds the options of a list to a command. */
export function withPages(command: Command): Command {
  return command
    .addOption(new Option('--limit <number>', 'maximum number of rows').argParser(readNumber(1)))
    .addOption(new Option('--all', `all rows, instead of ${shownAtOnce}`).conflicts('limit'))
    .addOption(new Option('--page-token <token>', 'continue where an earlier list ended'))
    .addOption(jsonOption())
    .addOption(new Option('--jsonl', 'print one JSON document per line, as rows arrive').conflicts('json'))
    .addOption(
      new Option('--fields <names>', 'only these fields, as --json names them, separated by commas').argParser(
        readNames,
      ),
    )
}

/** The part of a list that was asked for. */
export interface Listed<T> {
  readonly rows: readonly T[]
  /** Where it continues; empty at the end. */
  readonly nextPageToken: string
}

/** Whether a list is printed in its fields rather than in the columns that it has for users. */
export function inFields({ json, jsonl, fields }: ListOptions): boolean {
  return Boolean(json || jsonl || fields)
}

/**
 * Reads pages until there are as many rows as were asked for: by default 100, all with `--json`. With
 * `--jsonl` rows are printed as they arrive, as `toOutput` returns them, and none are kept.
 */
export async function readPages<T>(
  options: ListOptions & { readonly all?: boolean },
  read: (page: { pageSize: number; pageToken: string }) => Promise<{ rows: readonly T[]; nextPageToken: string }>,
  toOutput: (row: T) => object = row => row as object,
): Promise<Listed<T>> {
  const { limit, all, pageToken = '', json, jsonl, fields } = options
  const wanted = limit ?? (all || json || jsonl ? Number.POSITIVE_INFINITY : shownAtOnce)
  const rows: T[] = []
  let count = 0
  let next = pageToken
  const readAll = async (report: (done: string) => void) => {
    do {
      const page = await read({ pageSize: Math.min(most, wanted - count), pageToken: next })
      if (jsonl) for (const row of page.rows) printLine(pick(toOutput(row), fields))
      else rows.push(...page.rows)
      count += page.rows.length
      report(`${count} so far`)
      next = page.nextPageToken
    } while (next !== '' && count < wanted)
  }
  await withProgress('Reading', readAll, { prints: jsonl === true })
  return { rows, nextPageToken: next }
}

/**
 * Prints a list in its fields: as one JSON array or, if it continues, as an object that says where; for `--jsonl`, whose rows
 * are printed already, only where it continues; otherwise in columns.
 */
export function printList(
  name: string,
  { rows, nextPageToken }: Listed<object>,
  { json, jsonl, fields }: ListOptions,
): void {
  const picked = rows.map(row => pick(row, fields))
  if (json) printJson(nextPageToken === '' ? picked : { [name]: picked, nextPageToken })
  else if (jsonl && nextPageToken !== '') printLine({ nextPageToken })
  else if (!jsonl) {
    const cells = picked.map(row => Object.values(row).map(toCell))
    printTable(fields ?? [], cells, 'None.', { nextPageToken })
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
  return typeof value === 'object' && value !== null ? JSON.stringify(value) : (value as Cell)
}

function readNames(value: string): string[] {
  const names = value.split(',').map(name => name.trim())
  if (names.some(name => !/^\w+(\.\w+)*$/.test(name))) throw new InvalidArgumentError('Use names such as id,username.')
  return names
}
