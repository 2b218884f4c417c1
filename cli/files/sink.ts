// Writes files of lists: CSV (RFC 4180) or JSON lines, in UTF-8.
import { createWriteStream, type WriteStream } from 'node:fs'
import { finished } from 'node:stream/promises'
import { jsonText } from '../terminal/output.js'
import { escapeCell, guard } from './guard.js'
import type { Format } from './source.js'

/** A file that grows, or standard output. */
export interface Sink {
  /** Writes rows of cells, in the order of the columns, and waits while the file is behind. */
  write(rows: readonly Readonly<Record<string, unknown>>[]): Promise<void>
  close(): Promise<void>
}

/** How a file is written. */
interface Style {
  readonly format: Format
  readonly columns: readonly string[]
  readonly delimiter?: string
  /**
   * How texts of CSV are written: so that an import reads them back, unless they are `verbatim`, or for spreadsheets too, which
   * then run none of them.
   */
  readonly cells?: 'verbatim' | 'spreadsheet'
  /** Only its owner can read the file. */
  readonly secret?: boolean
}

/** Opens a file to write, which is replaced; `-` is standard output. */
export async function openSink(path: string, style: Style): Promise<Sink> {
  const stream: NodeJS.WritableStream =
    path === '-' ? process.stdout : createWriteStream(path, { mode: style.secret ? 0o600 : 0o666 })
  const failed = path === '-' ? undefined : finished(stream as WriteStream)
  failed?.catch(() => {})
  const toText = style.format === 'jsonl' ? linesOf : await csvOf(style)
  const write = async (text: string) => {
    if (text !== '' && !stream.write(text)) {
      const drained = new Promise<void>(resolve => stream.once('drain', () => resolve()))
      await Promise.race(failed ? [drained, failed] : [drained])
    }
  }
  if (style.format === 'csv') await write(toText([Object.fromEntries(style.columns.map(name => [name, name]))]))
  return {
    write: rows => write(toText(rows)),
    async close() {
      if (path === '-') return
      stream.end()
      await failed
    },
  }
}

function linesOf(rows: readonly Readonly<Record<string, unknown>>[]): string {
  return rows.map(row => `${jsonText(row)}\n`).join('')
}

async function csvOf({ columns, delimiter = ',', cells }: Style) {
  const { stringify } = await import('csv-stringify/sync')
  const write = cells === 'verbatim' ? (text: string) => text : cells === 'spreadsheet' ? guard : escapeCell
  const toCell = (value: unknown) => {
    if (value === undefined || value === null) return ''
    if (typeof value === 'boolean') return value ? 'True' : 'False'
    return write(String(value))
  }
  return (rows: readonly Readonly<Record<string, unknown>>[]) =>
    stringify(
      rows.map(row => columns.map(name => toCell(row[name]))),
      // A text NULL is quoted, so that it isn't read as none.
      { delimiter, record_delimiter: 'windows', quoted: cells === 'spreadsheet', quoted_match: /^NULL$|[\r\n]/ },
    )
}
