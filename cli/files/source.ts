// Reads files of lists: CSV or JSON lines, in UTF-8 or Windows-1252, as a stream.
import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { open, stat } from 'node:fs/promises'
import { createInterface } from 'node:readline'
import { type Duplex, pipeline, type Readable } from 'node:stream'
import { fail, misuse } from '../exit-codes.js'

/** Columns of a report of rejected rows: ignored when it is imported. */
export const errorColumns = ['error_line', 'error_field', 'error_reason'] as const

/** A cell: a text, or what JSON has; null is `NULL`. */
export type CellValue = string | number | boolean | null | undefined

/** A row of a file. */
export interface SourceRow {
  /** Line of the file where it begins, from 1. */
  readonly line: number
  readonly cells: Readonly<Record<string, CellValue>>
  /** As it is in the file: its texts in the order of the columns, or its JSON object. */
  readonly original: readonly string[] | Readonly<Record<string, unknown>>
  /** Why it can't be read. */
  readonly problem?: string
}

/** The format of a file. */
export type Format = 'csv' | 'jsonl'

/** A file that was looked through. */
export interface Source {
  readonly path: string
  readonly format: Format
  /** SHA-256 of its bytes, in hexadecimal. */
  readonly digest: string
  readonly encoding: 'utf8' | 'win1252'
  /** The separator of its cells. */
  readonly delimiter: string
  /** The head of a CSV file, as it is. */
  readonly head: readonly string[]
}

/** Maximum characters of a row: an unclosed quote must not read the rest of the file. */
const maxRow = 256 * 1024

/** The format that an option or the name of a file says. */
export function formatOf(path: string, format: Format | undefined): Format {
  return format ?? (/\.(jsonl|ndjson)$/i.test(path) ? 'jsonl' : 'csv')
}

/** Looks through a file: digest, encoding and, of CSV, separator and head. */
export async function openSource(path: string, wanted: Format | undefined): Promise<Source> {
  if (!(await stat(path)).isFile()) misuse(`${path} is not a file.`)
  const format = formatOf(path, wanted)
  const { digest, encoding } = await survey(path)
  const source = { path, format, digest, encoding, delimiter: ',', head: [] }
  if (format === 'jsonl') return source
  const delimiter = await findDelimiter(path, encoding)
  const head: string[] = []
  for await (const { record } of parseCsv({ ...source, delimiter })) {
    head.push(...record.map(cell => (cell ?? 'NULL').trim()))
    break
  }
  const names = head.map(name => name.toLowerCase())
  const twice = names.find((name, index) => name !== '' && names.indexOf(name) !== index)
  if (twice !== undefined) misuse(`${path} has two columns ${twice}: remove one.`)
  return { ...source, delimiter, head }
}

/** Strict UTF-8, else Windows-1252. */
async function survey(path: string): Promise<Pick<Source, 'digest' | 'encoding'>> {
  const hash = createHash('sha256')
  const decoder = new TextDecoder('utf-8', { fatal: true })
  let encoding: Source['encoding'] = 'utf8'
  const decode = (chunk?: Buffer) => {
    try {
      if (encoding === 'utf8') decoder.decode(chunk, { stream: chunk !== undefined })
    } catch {
      encoding = 'win1252'
    }
  }
  for await (const chunk of createReadStream(path) as AsyncIterable<Buffer>) {
    hash.update(chunk)
    decode(chunk)
  }
  decode()
  return { digest: hash.digest('hex'), encoding }
}

/** The separator that the first line has most often outside of quotes. */
async function findDelimiter(path: string, encoding: Source['encoding']): Promise<string> {
  const file = await open(path)
  const { buffer, bytesRead } = await file.read(Buffer.alloc(65_536), 0, 65_536, 0).finally(() => file.close())
  const text = buffer.toString(encoding === 'utf8' ? 'utf8' : 'latin1', 0, bytesRead)
  const [first = ''] = text.replace(/"(?:[^"]|"")*"/g, '').split(/\r?\n|\r/, 1)
  const count = (delimiter: string) => first.split(delimiter).length
  return [',', ';', '\t'].reduce((best, each) => (count(each) > count(best) ? each : best))
}

/** The text of a file, without a byte order mark. */
async function textOf({ path, encoding }: Pick<Source, 'path' | 'encoding'>): Promise<Readable> {
  const { default: iconv } = await import('iconv-lite')
  const decoded = iconv.decodeStream(encoding) as Duplex
  // A failure of one ends both.
  pipeline(createReadStream(path), decoded, () => {})
  return decoded
}

/** The records of a CSV file: an unquoted `NULL` is null. */
async function* parseCsv(source: Omit<Source, 'head'>): AsyncGenerator<{ record: (string | null)[]; line: number }> {
  const { parse } = await import('csv-parse')
  const { path, delimiter } = source
  // `raw` instead of `info` and `cast`, which take twice the memory and eight times as long.
  const parser = parse({
    delimiter,
    relax_column_count: true,
    skip_empty_lines: true,
    max_record_size: maxRow,
    raw: true,
  })
  let line = 1
  try {
    const text = pipeline(await textOf(source), parser, () => {})
    for await (const { record, raw } of text as unknown as AsyncIterable<{ record: string[]; raw: string }>) {
      // It begins with the empty lines that were skipped.
      const first = line + breaksIn(/^[\r\n]*/.exec(raw)![0])
      line += breaksIn(raw)
      yield { record: record.includes('NULL') ? withNulls(record, raw, delimiter) : record, line: first }
    }
  } catch (error) {
    const { code, message } = error as { code?: string; message: string }
    if (code?.startsWith('CSV_')) fail(`${path}, line ${line}: ${message}.`)
    throw error
  }
}

/** Line breaks; `raw` has one character of each. */
function breaksIn(raw: string): number {
  return raw.match(/\r\n|\r|\n/g)?.length ?? 0
}

/** The cells of a record, null where `NULL` is unquoted. */
function withNulls(record: readonly string[], raw: string, delimiter: string): (string | null)[] {
  const bare = raw.replace(/"(?:[^"]|"")*"/g, '""').split(delimiter)
  return record.map((cell, index) => (cell === 'NULL' && !bare[index]?.includes('"') ? null : cell))
}

/** Reads the rows of a file. */
export async function* readRows(source: Source): AsyncGenerator<SourceRow> {
  if (source.format === 'jsonl') return yield* readLines(source)
  const names = source.head.map(name => name.toLowerCase())
  let isHead = true
  for await (const { record, line } of parseCsv(source)) {
    if (isHead) {
      isHead = false
      continue
    }
    const cells = Object.fromEntries(record.map((cell, index) => [names[index] ?? '', cell]))
    const row = { line, cells, original: record.map(cell => cell ?? '') }
    const isWhole = record.length === names.length
    yield isWhole ? row : { ...row, problem: `The row has ${record.length} cells, the head ${names.length}.` }
  }
}

async function* readLines(source: Source): AsyncGenerator<SourceRow> {
  const lines = createInterface({ input: await textOf(source), crlfDelay: Number.POSITIVE_INFINITY })
  let line = 0
  for await (const text of lines) {
    line++
    if (text.trim() === '') continue
    const object = readObject(text)
    if (!object) yield { line, cells: {}, original: { text }, problem: 'The line is not a JSON object.' }
    else {
      const cells = Object.entries(object).map(([name, value]) => [name.toLowerCase(), value])
      const nested = cells.find(([, value]) => typeof value === 'object' && value !== null)
      const row = { line, cells: Object.fromEntries(cells), original: object }
      yield nested ? { ...row, problem: `${nested[0]} must not be an object or an array.` } : row
    }
  }
}

function readObject(text: string): Record<string, unknown> | undefined {
  try {
    const value = JSON.parse(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : undefined
  } catch {
    return undefined
  }
}

/** The columns of a file that an import doesn't know, without those of a report. */
export function unknownColumns(names: Iterable<string>, known: Readonly<Record<string, unknown>>): string[] {
  const ignored: readonly string[] = ['', ...errorColumns]
  return [...new Set([...names].map(name => name.toLowerCase()))].filter(
    name => !Object.hasOwn(known, name) && !ignored.includes(name),
  )
}
