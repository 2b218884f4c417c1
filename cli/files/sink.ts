// Writes files of lists: CSV (RFC 4180) or JSON lines, in UTF-8 unless they are like a source.
import { once } from 'node:events'
import type { Writable } from 'node:stream'
import { openPrivateFile } from '../../server/process/private-file.js'
import { jsonText } from '../terminal/output.js'
import { escapeCell, guard } from './formula-guard.js'
import type { Format, Source } from './source.js'

/** A file that grows, or standard output. */
export interface Sink {
  /** Writes rows of cells, in the order of the columns, and waits while the file is behind. */
  write(rows: readonly Readonly<Record<string, unknown>>[]): Promise<void>
  /** Completes the file, which only then has its name. */
  close(): Promise<void>
}

/** How a file is written. */
interface Style {
  readonly format: Format
  readonly columns: readonly string[]
  readonly delimiter?: string
  /** The file whose encoding, beginning and line ends it has. */
  readonly like?: Pick<Source, 'encoding' | 'beginning' | 'lineEnd'>
  /**
   * How texts of CSV are written: so that an import reads them back, unless they are `verbatim`, or for spreadsheets too, which
   * then run none of them.
   */
  readonly cells?: 'verbatim' | 'spreadsheet'
}

/** Opens a file to write, which only its owner can read, and which replaces one of that name; `-` is standard output. */
export async function openSink(path: string, style: Style): Promise<Sink> {
  const file = path === '-' ? undefined : await openPrivateFile(path)
  const stream: Writable = file?.stream ?? process.stdout
  const { encoding = 'utf8', beginning = '', lineEnd = '\n' } = style.like ?? {}
  const { default: iconv } = await import('iconv-lite')
  const toText =
    style.format === 'jsonl' ? (rows: Parameters<Sink['write']>[0]) => linesOf(rows, lineEnd) : await csvOf(style)
  const write = async (text: string) => {
    if (stream.errored) throw stream.errored
    if (text !== '' && !stream.write(iconv.encode(text, encoding))) await once(stream, 'drain')
  }
  await write(beginning)
  // Without a byte order mark, Excel takes UTF-8 for Windows-1252.
  if (style.format === 'csv' && style.cells === 'spreadsheet') await write('\ufeff')
  if (style.format === 'csv') await write(toText([Object.fromEntries(style.columns.map(name => [name, name]))]))
  return {
    write: rows => write(toText(rows)),
    async close() {
      await file?.commit()
    },
  }
}

function linesOf(rows: readonly Readonly<Record<string, unknown>>[], lineEnd: string): string {
  return rows.map(row => `${jsonText(row)}${lineEnd}`).join('')
}

async function csvOf({ columns, delimiter = ',', cells, like }: Style) {
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
      {
        delimiter,
        record_delimiter: like?.lineEnd ?? 'windows',
        quoted: cells === 'spreadsheet',
        quoted_match: /^NULL$|[\r\n]/,
      },
    )
}
