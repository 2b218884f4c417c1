/**
 * Backups: a registry as one encrypted file, and back. This room owns the format (format.ts), its encryption (envelope.ts),
 * what is read from a database (dump.ts) and what becomes of it in another (restore.ts). What tables are made of, and how a
 * user is erased, is for the rooms below; who may do it, and asking for keys, is for the command line, which alone uses it.
 *
 * Within the encryption a backup is text, so that `age --decrypt` and a pager are enough to look into it:
 *
 *     auth-registry backup 1
 *     {"madeAt":…,"migrations":[…],"masterKey":…}
 *     {"table":"users","columns":["id",…],"sequences":{"id":"7"}}
 *     1	Ana	…                 rows as COPY writes them, in the order in which they refer to each other
 *     \.                        the end of a table
 *     {"end":true,"rows":{"users":1}}
 *
 * Without the last line it isn't whole; that nobody altered it is the encryption's matter.
 */
import type { Migration } from '../database/migrate.js'

/** What a backup says of itself. */
export interface Header {
  /** When, by the database's clock (ISO 8601): everything in it is as it was then. */
  readonly madeAt: string
  /** The ledger: what the tables look like. */
  readonly migrations: readonly Migration[]
  /** AUTH_MASTER_KEY in base64. */
  readonly masterKey: string
}

/** A table of a backup, before its rows. */
export interface TableHeader {
  readonly table: string
  readonly columns: readonly string[]
  /** The last value given by each column's sequence; null when it gave none. */
  readonly sequences: Readonly<Record<string, string | null>>
}

/** A table of a backup that is read. Its rows are there until the next table is asked for. */
export interface TableRead extends TableHeader {
  readonly rows: AsyncIterable<Buffer>
}

/** A backup that is read from its beginning. */
export interface BackupRead {
  readonly header: Header
  /** The tables in their order, each to be read before the next. Throws when the backup isn't whole. */
  readonly tables: AsyncIterable<TableRead>
}

const version = 1
const title = 'auth-registry backup '
const endOfTable = '\\.\n'

/** Longest line: a row has many times less. */
const longest = 64 * 1024 * 1024

/** Writes a backup. `tables` gives each table with its rows, as COPY writes them; `rows` counts them when all is written. */
export async function* writeBackup(
  header: Header,
  tables: AsyncIterable<TableRead>,
  rows: Record<string, number>,
): AsyncGenerator<Buffer> {
  yield Buffer.from(`${title}${version}\n${JSON.stringify(header)}\n`)
  for await (const { rows: copied, ...table } of tables) {
    yield Buffer.from(`${JSON.stringify(table)}\n`)
    let count = 0
    for await (const chunk of copied) {
      count += countLines(chunk)
      yield chunk
    }
    rows[table.table] = count
    yield Buffer.from(endOfTable)
  }
  yield Buffer.from(`${JSON.stringify({ end: true, rows })}\n`)
}

/** Reads a backup. Throws an Error that says what is wrong with it. */
export async function readBackup(source: AsyncIterable<Uint8Array>): Promise<BackupRead> {
  const lines = readLines(source)
  const first = (await lines.line()) ?? ''
  if (!first.startsWith(title)) throw new Error('The file is no backup of a registry.')
  if (first !== `${title}${version}`)
    throw new Error('The backup is in a format that this version doesn’t know: use the version that made it.')
  const header = parse<Header>(await lines.line())
  if (!(header.madeAt && Array.isArray(header.migrations) && header.masterKey)) throw damaged()

  async function* tables(): AsyncGenerator<TableRead> {
    const counts: Record<string, number> = {}
    for (;;) {
      const next = parse<Partial<TableHeader> & { end?: true; rows?: object }>(await lines.line())
      if (next.end) {
        if (JSON.stringify(next.rows) !== JSON.stringify(counts) || (await lines.line()) !== undefined) throw damaged()
        return
      }
      const { table, columns, sequences } = next
      if (!(table && Array.isArray(columns) && sequences)) throw damaged()
      counts[table] = 0
      const rows = async function* () {
        for await (const chunk of lines.table()) {
          counts[table]! += countLines(chunk)
          yield chunk
        }
      }
      yield { table, columns, sequences, rows: rows() }
    }
  }
  return { header, tables: tables() }
}

/** Reads a whole backup and keeps nothing but what it says of itself and how many rows each table has. */
export async function checkBackup(
  source: AsyncIterable<Uint8Array>,
): Promise<{ header: Header; rows: Record<string, number> }> {
  const { header, tables } = await readBackup(source)
  const rows: Record<string, number> = {}
  for await (const { table, rows: copied } of tables) {
    rows[table] = 0
    for await (const chunk of copied) rows[table] += countLines(chunk)
  }
  return { header, rows }
}

/** Text by lines, and tables by pieces of whole lines. */
function readLines(source: AsyncIterable<Uint8Array>) {
  const chunks = source[Symbol.asyncIterator]()
  let rest: Buffer = Buffer.alloc(0)

  /** Reads on; false at the end. */
  async function more(): Promise<boolean> {
    const { done, value } = await chunks.next()
    if (done) return false
    rest = Buffer.concat([rest, value])
    if (rest.length > longest) throw damaged()
    return true
  }

  return {
    /** The next line; undefined at the end. */
    async line(): Promise<string | undefined> {
      let end = rest.indexOf('\n')
      while (end < 0) {
        if (!(await more())) {
          if (rest.length > 0) throw damaged()
          return undefined
        }
        end = rest.indexOf('\n')
      }
      const line = rest.toString('utf8', 0, end)
      rest = rest.subarray(end + 1)
      return line
    },
    /** The rows up to the end of a table. What is left unread of them is lost. */
    async *table(): AsyncGenerator<Buffer> {
      for (;;) {
        const lines = rest.subarray(0, rest.lastIndexOf('\n') + 1)
        const mark = findEnd(lines)
        const rows = lines.subarray(0, mark)
        rest = rest.subarray(mark === undefined ? lines.length : mark + endOfTable.length)
        if (rows.length > 0) yield rows
        if (mark !== undefined) return
        if (!(await more())) throw damaged()
      }
    },
  }
}

/** Where the end of a table stands in whole lines: at the beginning of one, since a row may end with the same signs. */
function findEnd(lines: Buffer): number | undefined {
  if (lines.subarray(0, endOfTable.length).equals(Buffer.from(endOfTable))) return 0
  const before = lines.indexOf(`\n${endOfTable}`)
  return before < 0 ? undefined : before + 1
}

function countLines(chunk: Buffer): number {
  let count = 0
  for (let at = chunk.indexOf(10); at >= 0; at = chunk.indexOf(10, at + 1)) count++
  return count
}

function parse<T>(line: string | undefined): T {
  try {
    return JSON.parse(line ?? '') as T
  } catch {
    throw damaged()
  }
}

/** The error of a backup that isn't whole, or was altered. */
export function damaged(cause?: unknown): Error {
  return new Error('The backup is damaged: it is cut off, or something in it was altered.', { cause })
}
