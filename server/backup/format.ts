/**
 * Backups: a registry as one encrypted file, and back. This room owns the format (format.ts), its encryption (envelope.ts),
 * reading a database (dump.ts) and restoring to one (restore.ts). The rooms below own the tables and the erasure of users. The
 * command line, its only user, asks for keys and decides who may do it.
 *
 * Inside the encryption a backup is text, so that `age --decrypt` and a pager are enough to read it:
 *
 *     auth-registry backup 1
 *     {"madeAt":…,"migrations":[…],"masterKey":…}
 *     {"table":"users","columns":["id",…],"sequences":{"id":"7"}}
 *     1	Ana	…                 rows as COPY writes them; tables come after those that they refer to
 *     \.                        the end of a table
 *     {"end":true,"rows":{"users":1}}
 *
 * Without the last line it is incomplete. The encryption detects alterations.
 */
import type { Migration } from '../database/migrate.js'

/** What a backup says of itself. */
export interface Header {
  /** Time of the snapshot, by the database's clock (ISO 8601). */
  readonly madeAt: string
  /** The ledger, which determines the tables. */
  readonly migrations: readonly Migration[]
  /** AUTH_MASTER_KEY in base64. */
  readonly masterKey: string
}

/** A table of a backup, before its rows. */
export interface TableHeader {
  readonly table: string
  readonly columns: readonly string[]
  /** The last value of each column's sequence; null if it was never used. */
  readonly sequences: Readonly<Record<string, string | null>>
}

/** A table of a backup while it is read. Its rows must be read before the next table. */
export interface TableRead extends TableHeader {
  readonly rows: AsyncIterable<Buffer>
}

/** A backup while it is read. */
export interface BackupRead {
  readonly header: Header
  /** The tables, in order. Throws when the backup is incomplete. */
  readonly tables: AsyncIterable<TableRead>
}

const version = 1
const title = 'auth-registry backup '
const endOfTable = '\\.\n'

/** Limit of a line in bytes, many times larger than a row. */
const longest = 64 * 1024 * 1024

/** Writes a backup. `tables` gives each table with its rows, as COPY writes them. At the end `rows` has the count of each. */
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

/** Reads a backup. Throws an Error that says what is wrong. */
export async function readBackup(source: AsyncIterable<Uint8Array>): Promise<BackupRead> {
  const lines = readLines(source)
  const first = (await lines.line()) ?? ''
  if (!first.startsWith(title)) throw new Error('The file is not a backup of a registry.')
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

/** Reads a whole backup, and returns its header and the number of rows of each table. */
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

/** Reads text by lines, and tables by pieces of whole lines. */
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
    /** The rows up to the end of a table. Rows that aren't read are lost. */
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

/** Position of the end of a table in whole lines: the beginning of a line, since a row may end with the same characters. */
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

/** The error for a backup that is incomplete or was altered. */
export function damaged(cause?: unknown): Error {
  return new Error('The backup is damaged: it is cut off, or something in it was altered.', { cause })
}
