// Reads files of lists: CSV or JSON lines, in UTF-8, UTF-16 or Windows-1252, as a stream.
import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { open, stat } from 'node:fs/promises'
import { type Duplex, pipeline, type Readable, Transform } from 'node:stream'
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
  readonly encoding: Encoding
  /** What the file begins with: a byte order mark, and a line `sep=;`. */
  readonly beginning: string
  /** How its first line ends. */
  readonly lineEnd: string
  /** The separator of its cells. */
  readonly delimiter: string
  /** Whether its first line is `sep=;`, by which a spreadsheet knows the separator. */
  readonly namesDelimiter: boolean
  /** The head of a CSV file, as it is. */
  readonly head: readonly string[]
  /** The line where the head is, or the first object. */
  readonly firstLine: number
}

/** An encoding, by its name in iconv-lite. */
export type Encoding = 'utf8' | 'win1252' | 'utf-16le' | 'utf-16be'

/** Maximum characters of a row or line: an unclosed quote must not read the rest of the file, nor a line fill the memory. */
const maxRow = 256 * 1024

const tooLong = `longer than ${maxRow.toLocaleString('en')} characters`

/** The format that an option or the name of a file says. */
export function formatOf(path: string, format: Format | undefined): Format {
  return format ?? (/\.(jsonl|ndjson)$/i.test(path) ? 'jsonl' : 'csv')
}

/** Looks through a file: format, encoding, digest and, of CSV, separator and head. Refuses what is no table. */
export async function openSource(path: string, wanted: Format | undefined): Promise<Source> {
  if (!(await stat(path)).isFile())
    misuse(`${path} is not a regular file, which an import reads more than once. Save it as one, and import that file.`)
  const start = await readStart(path)
  const { digest, encoding } = await survey(path, encodingOf(start))
  const { default: iconv } = await import('iconv-lite')
  const text = iconv.decode(start, encoding).replace(/^\ufeff+/, '')
  refuseOther(path, text)
  if (encoding === 'win1252') await refuseMixed(path)
  const format = wanted === undefined && /^\s*\{/.test(text) ? 'jsonl' : formatOf(path, wanted)
  const { delimiter, namesDelimiter } = findDelimiter(text)
  const lineEnd = /\r\n|\n|\r/.exec(text)?.[0] ?? '\r\n'
  const mark = /^(?:efbbbf|fffe|feff)/.test(start.toString('hex', 0, 3)) ? '\ufeff' : ''
  const beginning = mark + (namesDelimiter ? `sep=${delimiter}${lineEnd}` : '')
  const source = { path, format, digest, encoding, beginning, lineEnd, delimiter, namesDelimiter, head: [] }
  for await (const first of format === 'jsonl' ? linesOf(source) : parseCsv(source)) {
    const texts = 'texts' in first ? first.texts : []
    const head = texts.map(cell => (cell ?? 'NULL').replace(/\p{Default_Ignorable_Code_Point}/gu, '').trim())
    const names = head.map(name => name.toLowerCase())
    const twice = names.find((name, index) => name !== '' && names.indexOf(name) !== index)
    if (twice !== undefined) misuse(`${path} has two columns ${twice}: remove one.`)
    return { ...source, head, firstLine: first.line }
  }
  misuse(
    format === 'csv'
      ? `${path} is empty: its first line must name its columns.`
      : `${path} is empty: write one JSON object on each line.`,
  )
}

/** The beginning of a file, enough to recognize it by. */
async function readStart(path: string): Promise<Buffer> {
  const file = await open(path)
  const { buffer, bytesRead } = await file.read(Buffer.alloc(65_536), 0, 65_536, 0).finally(() => file.close())
  return buffer.subarray(0, bytesRead)
}

/** Refuses workbooks, PDF, HTML, and other JSON. */
function refuseOther(path: string, text: string): void {
  const [first = ''] = text.trimStart().split(/[\r\n]/, 1)
  if (/^(<|%PDF)|[\0-\x08\x0e-\x1f]/.test(first))
    misuse(`${path} is not a table as text. Save it as CSV in the program that made it, and import that file.`)
  if (/^\s*(\[\s*[[{\]]|\{\s*[\r\n])/.test(text))
    misuse(`${path} is one JSON document: write one object on each line, as \`jq -c '.[]'\` does.`)
}

/** UTF-16 by its byte order mark, or by the zeros of the letters that names of columns begin with. */
function encodingOf(start: Buffer): Encoding | undefined {
  const isZero = [...start.subarray(0, 4)].map(byte => byte === 0).join()
  if (start[0] === 0xff && start[1] === 0xfe) return 'utf-16le'
  if (start[0] === 0xfe && start[1] === 0xff) return 'utf-16be'
  if (isZero === 'false,true,false,true') return 'utf-16le'
  return isZero === 'true,false,true,false' ? 'utf-16be' : undefined
}

/** The encoding is the one that is known, or strict UTF-8, else Windows-1252. */
async function survey(path: string, known: Encoding | undefined): Promise<Pick<Source, 'digest' | 'encoding'>> {
  const hash = createHash('sha256')
  const decoder = new TextDecoder('utf-8', { fatal: true })
  let encoding: Encoding = known ?? 'utf8'
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

/**
 * UTF-8, and bytes that have no meaning, when read as Windows-1252. Not what can end a word in capitals there: an ellipsis, a
 * quotation mark, a dash.
 */
const garbled = /[ÂÃ][€‚ƒ„†‡ˆ‰Š‹ŒŽ‘“•˜™š›œžŸ\u00a0-\u00bf]|â€|\ufffd/

/** Refuses a file with several encodings or an unknown one: reading it as Windows-1252 would change texts. */
async function refuseMixed(path: string): Promise<void> {
  for await (const { text, line } of linesOf({ path, encoding: 'win1252' }))
    if (garbled.test(text))
      misuse(
        `${path}, line ${line}: The file is neither UTF-8 nor Windows-1252 throughout. Save the file as UTF-8, and import that file.`,
      )
}

/** The separator that the first line names, or has most often outside of quotes. */
function findDelimiter(text: string): Pick<Source, 'delimiter' | 'namesDelimiter'> {
  const named = /^\s*"?sep=([^\w\s"]|\t)"?\s*?(?:[\r\n]|$)/i.exec(text)?.[1]
  if (named !== undefined) return { delimiter: named, namesDelimiter: true }
  const lines = text.replace(/"(?:[^"]|"")*"/g, '').split(/[\r\n]/)
  const first = lines.find(line => line.trim() !== '') ?? ''
  const count = (delimiter: string) => first.split(delimiter).length
  const delimiter = [',', ';', '\t', '|'].reduce((best, each) => (count(each) > count(best) ? each : best))
  return { delimiter, namesDelimiter: false }
}

/**
 * The text of a file, without a byte order mark, in parts that don't end within a line break. Fails if a line is too long:
 * the parsers keep a line in memory.
 */
async function textOf({ path, encoding }: Pick<Source, 'path' | 'encoding'>): Promise<Readable> {
  const { default: iconv } = await import('iconv-lite')
  let [held, line, length] = ['', 1, 0]
  const check = (text: string) => {
    for (let index = 0; index < text.length; index++) {
      const code = text.charCodeAt(index)
      if (code === 10 || (code === 13 && text.charCodeAt(index + 1) !== 10)) {
        line++
        length = 0
      } else if (++length > maxRow)
        fail(`${path}, line ${line}: The line is ${tooLong}. Shorten it, or divide it into lines.`)
    }
  }
  const checked = new Transform({
    decodeStrings: false,
    readableObjectMode: true,
    readableHighWaterMark: 1,
    transform(part: string, _, done) {
      const all = held + part
      held = all.endsWith('\r') ? '\r' : ''
      const text = all.slice(0, all.length - held.length)
      try {
        check(text)
        done(null, text)
      } catch (error) {
        done(error as Error)
      }
    },
    flush: done => done(null, held),
  })
  // A failure of one ends all.
  pipeline(createReadStream(path), iconv.decodeStream(encoding) as Duplex, checked, () => {})
  return checked
}

/** A record of a CSV file. */
interface Parsed {
  /** Its cells; an unquoted `NULL` is null. */
  readonly texts: readonly (string | null)[]
  /** The line where it begins. */
  readonly line: number
  readonly problem?: string
}

/** The records of a CSV file, without empty ones. Quotes within an unquoted cell belong to it, as in spreadsheets. */
async function* parseCsv(source: Omit<Source, 'head' | 'firstLine'>): AsyncGenerator<Parsed> {
  const { CsvError, parse } = await import('csv-parse')
  const { path, delimiter, namesDelimiter } = source
  let line = 1
  const parser = parse({
    delimiter,
    record_delimiter: ['\r\n', '\n', '\r'],
    relax_column_count: true,
    relax_quotes: true,
    skip_empty_lines: true,
    max_record_size: maxRow,
    bom: true,
    // `raw` instead of `info` and `cast`, which take twice the memory and eight times as long.
    raw: true,
  })
  // Counts the lines of all records before an error, which discards those that haven't been read yet. `on_record` would make
  // an `info` of each.
  const push = parser.push.bind(parser)
  parser.push = (parsed: { record: string[]; raw: string } | null) => {
    if (!parsed) return push(null)
    const first = line + emptyLines(parsed.raw)
    line += breaksIn(parsed.raw)
    return push(readRecord(parsed.record, parsed.raw, delimiter, first))
  }
  let isFirst = true
  try {
    for await (const parsed of pipeline(await textOf(source), parser, () => {}) as AsyncIterable<Parsed>) {
      const isData = !(isFirst && namesDelimiter) && parsed.texts.some(cell => cell === null || cell.trim() !== '')
      isFirst = false
      if (isData) yield parsed
    }
  } catch (error) {
    if (!(error instanceof CsvError)) throw error
    const { code, raw } = error as { code: string; raw?: string }
    const where = `${path}, line ${line + emptyLines(raw ?? '')}`
    const what = code === 'CSV_MAX_RECORD_SIZE' ? `The row is ${tooLong}. A` : 'A'
    fail(`${where}: ${what} quote that opens a cell is not closed: close it, or double the quotes within the cell.`)
  }
}

function readRecord(record: readonly string[], raw: string, delimiter: string, line: number): Parsed {
  if (!record.some(cell => cell === 'NULL' || cell.startsWith('"'))) return { texts: record, line }
  const bare = findBare(raw, delimiter)
  if (!bare)
    return { texts: record, line, problem: 'A cell has text after its closing quote: double the quotes within it.' }
  return { texts: record.map((cell, index) => (cell === 'NULL' && bare[index] ? null : cell)), line }
}

/** Which cells of a record have no quotes around them; undefined if text follows a closing quote. */
function findBare(raw: string, delimiter: string): boolean[] | undefined {
  const text = raw.replace(/^[\r\n]+|(?:\r\n|\r|\n)$/g, '')
  const cell = new RegExp(`(?:"[^"]*(?:""[^"]*)*"|(?!")[^\\${delimiter}]*)(\\${delimiter}|$)`, 'y')
  const bare: boolean[] = []
  for (let match = cell.exec(text); match; match = cell.exec(text)) {
    bare.push(!match[0].startsWith('"'))
    if (match[1] === '') return bare
  }
  return undefined
}

/** Lines that were skipped before a record. */
function emptyLines(raw: string): number {
  return breaksIn(/^[\r\n]*/.exec(raw)![0])
}

/** Line breaks; `raw` has one character of each that isn't quoted. */
function breaksIn(raw: string): number {
  return raw.match(/\r\n|\r|\n/g)?.length ?? 0
}

/** Reads the rows of a file. */
export async function* readRows(source: Source): AsyncGenerator<SourceRow> {
  if (source.format === 'jsonl') return yield* readLines(source)
  const names = source.head.map(name => name.toLowerCase())
  const named = names.findLastIndex(name => name !== '') + 1
  for await (const { texts, line, problem } of parseCsv(source)) {
    if (line === source.firstLine) continue
    const cells = Object.fromEntries(texts.map((cell, index) => [names[index] ?? '', cell]))
    const row = { line, cells, original: texts.map(cell => cell ?? '') }
    // Some spreadsheets end rows with empty cells.
    const isWhole = texts.length >= named && texts.slice(names.length).every(cell => cell?.trim() === '')
    const size = isWhole ? undefined : `The row has ${texts.length} cells, the head ${names.length}.`
    yield problem || size ? { ...row, problem: problem ?? size! } : row
  }
}

/** The lines of a file that aren't empty. */
async function* linesOf(source: Pick<Source, 'path' | 'encoding'>): AsyncGenerator<{ text: string; line: number }> {
  let [line, rest] = [0, '']
  for await (const part of (await textOf(source)) as AsyncIterable<string>) {
    const lines = (rest + part).split(/\r\n|\r|\n/)
    rest = lines.pop()!
    for (const text of lines) {
      line++
      if (text.trim() !== '') yield { text, line }
    }
  }
  if (rest.trim() !== '') yield { text: rest, line: line + 1 }
}

async function* readLines(source: Source): AsyncGenerator<SourceRow> {
  for await (const { text, line } of linesOf(source)) {
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
    const value = JSON.parse(text.trim())
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

const encodings: Readonly<Record<Encoding, string>> = {
  ...{ utf8: 'UTF-8', win1252: 'Windows-1252', 'utf-16le': 'UTF-16', 'utf-16be': 'UTF-16' },
}

const separators: Readonly<Record<string, string>> = { ',': 'commas', ';': 'semicolons', '\t': 'tabs' }

/** How a file is read, in words. */
export function describe({ format, encoding, delimiter }: Source, dateForms: readonly string[]): string {
  return [
    `${format === 'csv' ? 'CSV' : 'JSON lines'} in ${encodings[encoding]}`,
    ...(format === 'csv' ? [`separated by ${separators[delimiter] ?? delimiter}`] : []),
    ...(dateForms.length > 0 ? [`dates ${dateForms.join(' and ')}`] : []),
  ].join(', ')
}
