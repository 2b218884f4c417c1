/**
 * Backups: a backup is a registry in one encrypted file. This folder owns the format (format.ts), the encryption (envelope.ts),
 * the creation (dump.ts), the folder (folder.ts) and the restore (restore.ts) of backups. The folders `models` and `database`
 * own the tables and the erasure of users. The command line, the only caller, prompts for keys and authorizes the user.
 *
 * The encrypted content is text, so that `age --decrypt` and a pager suffice to read it:
 *
 *     auth-registry backup 1
 *     {"madeAt":…,"migrations":[…],"masterKey":…}
 *     {"table":"users","columns":["id",…],"sequences":{"id":"7"}}
 *     1	Ana	…                 rows in the text format of COPY; referenced tables come first
 *     \.                        the end of a table
 *     {"end":true,"rows":{"users":1}}
 *
 * A backup without the last line is incomplete. The encryption detects alterations.
 */
import type { Migration } from '../database/migrate.js'

/** The header of a backup. */
export interface Header {
  /** Time of the snapshot, by the clock of the database (ISO 8601). */
  readonly madeAt: string
  /** The ledger of migrations, which determines the tables. */
  readonly migrations: readonly Migration[]
  /** Migrations of them that the version which made the backup didn't have: it lacks the tables that these create. */
  readonly partly?: readonly string[]
  /** AUTH_MASTER_KEY in base64. */
  readonly masterKey: string
}

/** The header of a table, which precedes its rows. */
export interface TableHeader {
  readonly table: string
  readonly columns: readonly string[]
  /** The last value of each column's sequence; null if the sequence was never used. */
  readonly sequences: Readonly<Record<string, string | null>>
}

/** A table during reading. The caller must read its rows before the next table. */
export interface TableRead extends TableHeader {
  readonly rows: AsyncIterable<Buffer>
}

/** A backup during reading. */
export interface BackupRead {
  readonly header: Header
  /** The tables, in order. Throws when the backup is incomplete. */
  readonly tables: AsyncIterable<TableRead>
}

const version = 1
const title = 'auth-registry backup '
const endOfTable = '\\.\n'

/** Maximum bytes of a line, many times larger than a row. */
const maxLine = 64 * 1024 * 1024

/** Writes a backup. `tables` yields each table with its rows in the format of COPY. Adds the number of rows to `rows`. */
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

/** Reads a backup. Throws an Error with the cause when the backup is invalid. */
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

/** Reads text line by line, and tables by chunks of whole lines. */
function readLines(source: AsyncIterable<Uint8Array>) {
  const chunks = source[Symbol.asyncIterator]()
  let rest: Buffer = Buffer.alloc(0)

  /** Reads the next chunk. Returns false at the end. */
  async function readChunk(): Promise<boolean> {
    const { done, value } = await chunks.next()
    if (done) return false
    rest = Buffer.concat([rest, value])
    if (rest.length > maxLine) throw damaged()
    return true
  }

  return {
    /** Returns the next line; undefined at the end. */
    async line(): Promise<string | undefined> {
      let end = rest.indexOf('\n')
      while (end < 0) {
        if (!(await readChunk())) {
          if (rest.length > 0) throw damaged()
          return undefined
        }
        end = rest.indexOf('\n')
      }
      const line = rest.toString('utf8', 0, end)
      rest = rest.subarray(end + 1)
      return line
    },
    /** Yields the rows up to the end of a table. Unread rows are lost. */
    async *table(): AsyncGenerator<Buffer> {
      for (;;) {
        const lines = rest.subarray(0, rest.lastIndexOf('\n') + 1)
        const mark = findEnd(lines)
        const rows = lines.subarray(0, mark)
        rest = rest.subarray(mark === undefined ? lines.length : mark + endOfTable.length)
        if (rows.length > 0) yield rows
        if (mark !== undefined) return
        if (!(await readChunk())) throw damaged()
      }
    },
  }
}

/** Returns the position of the end of a table, at the beginning of a line: a row may end with the same characters. */
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

/** Creates the error for an incomplete or altered backup. */
export function damaged(cause?: unknown): Error {
  return new Error('The backup is damaged: it is cut off, or something in it was altered.', { cause })
}
