// `organizations import` and `users import`: send the rows of a file in batches. Each batch is applied once, and answers a
// repetition as it answered first: so a command that is run again sends all rows, and continues where it was stopped.
import { stat } from 'node:fs/promises'
import { setFlagsFromString } from 'node:v8'
import { create, type DescMessage, toBinary } from '@bufbuild/protobuf'
import { timestampDate } from '@bufbuild/protobuf/wkt'
import { InvalidArgumentError, Option } from 'commander'
import {
  type Import,
  ImportedOrganizationSchema,
  ImportedUserSchema,
  ImportKind,
  ImportProblemSchema,
  ImportState,
  type RejectedRow,
  type StartImportResponse,
  type UserForm,
} from '../../../proto/gen/auth/v1/administration_pb.js'
import { changeableAccounts } from '../../../server/rules/changeable-accounts.js'
import type { Api } from '../../administration.js'
import type { Command } from '../../command.js'
import { end, fail, misuse } from '../../exit-codes.js'
import {
  columnsToRead,
  idOf,
  organizationColumns,
  type Reading,
  toOrganizationRow,
  toUserRow,
  userColumns,
} from '../../files/columns.js'
import { openSink, type Sink } from '../../files/sink.js'
import {
  type CellValue,
  describe,
  errorColumns,
  type Format,
  openSource,
  readRows,
  type Source,
  type SourceRow,
  unknownColumns,
} from '../../files/source.js'
import { readId } from '../../terminal/ask.js'
import { inTerminalLanguage } from '../../terminal/language.js'
import { printable, printJson, say } from '../../terminal/output.js'
import { withProgress } from '../../terminal/progress.js'
import { untilAnswered } from './until-answered.js'

interface Options {
  readonly report?: string
  readonly dryRun?: boolean
  readonly afterDryRun?: number
  readonly allOrNothing?: boolean
  readonly changeAccounts?: string[]
  readonly keepIds?: boolean
  readonly format?: Format
  readonly json?: boolean
}

type Noun = 'organizations' | 'users'

/** What identifies a record, which fields an empty cell leaves unchanged (`kept`), and remarks for the help. */
const nouns = {
  organizations: {
    kind: ImportKind.ORGANIZATIONS,
    schema: ImportedOrganizationSchema,
    columns: organizationColumns,
    toRow: toOrganizationRow,
    identifying: ['id', 'inep_code', 'name'],
    kept: 'active and creation_date',
    moved: 'Only then, activation_key is read: the key of a new organization.',
    remarks: `
A row identifies an organization by id or, without an id, by INEP code. If it
has neither, or no organization has the INEP code, the row creates one. E-mail
address and INEP code of an existing organization change only with
--change-accounts, and the former address is notified.

Columns: ${fold(Object.keys(organizationColumns))}.`,
  },
  users: {
    kind: ImportKind.USERS,
    schema: ImportedUserSchema,
    columns: userColumns,
    toRow: toUserRow,
    identifying: ['id', 'username'],
    kept: 'Booleans, nicknames and passwords',
    moved: `Only then, provider_key and security_answers are read. The latter is JSON:
[{"question":"…","answer":"…"}].`,
    remarks: `
A row identifies a user by id or, without an id, by username. If no user has the
username, the row creates one. An import never changes an administrator or the
role of an existing user. Username, e-mail address, activity, organization and
password of an existing user change only with --change-accounts, and the user is
notified by e-mail. password_hash takes bcrypt hashes. The service hashes the
values of password.

Columns: ${fold(Object.keys(userColumns))}.`,
  },
} as const satisfies Record<Noun, object>

/** Names behind `Columns: `, in lines of at most 80 characters. */
function fold(names: readonly string[]): string {
  let [text, length] = ['', 'Columns:'.length]
  for (const [index, name] of names.entries()) {
    const word = index < names.length - 1 ? `${name},` : name
    const breaks = length + word.length + 2 > 80
    text += `${breaks ? '\n' : text === '' ? '' : ' '}${word}`
    length = breaks ? word.length : length + word.length + 1
  }
  return text
}

/** Adds `import` to a noun. */
export function addImport(parent: Command, noun: Noun): void {
  parent
    .command('import')
    .signIn('startImport')
    .argument('<file>', 'CSV with a header row, or JSON lines (.jsonl)')
    .description(`Create and change ${noun} from a file. Nothing is deleted. Run it again to resume it.`)
    .addOption(
      new Option('--dry-run', 'validate every row, and change nothing').conflicts(['allOrNothing', 'afterDryRun']),
    )
    .option('--after-dry-run <id>', 'reject rows whose record has changed since this dry run', readId)
    .option('--all-or-nothing', 'apply all rows in one transaction, or none; at most 10,000 rows')
    .option('--report <file>', 'write rejected rows with their reasons to this file; correct them, and import it')
    .addOption(
      new Option('--format <format>', 'format of the file; by default, according to its extension').choices([
        'csv',
        'jsonl',
      ]),
    )
    .option('--keep-ids', 'create each record with the id of its row, and change none')
    .option(
      '--change-accounts <columns>',
      `permit changes of existing ${noun} that open access to them: ${changeableAccounts[noun].join(', ')}`,
      text => readColumns(text, changeableAccounts[noun]),
    )
    .json()
    .addHelpText(
      'after',
      `${nouns[noun].remarks}

With --keep-ids, for lists of other systems, a row creates a record with its id.
If the id exists, the row is unchanged or, with other content, rejected.
${nouns[noun].moved}

A missing column leaves the field unchanged. An empty cell or NULL clears an
optional field, and rejects the row if the field is required. It leaves
${nouns[noun].kept} unchanged.

Cells are separated by commas, semicolons, tabs or bars. Booleans are True and
False, t and f, 1 and 0, yes and no, or the same in Portuguese. Dates are
dd/MM/yyyy or yyyy-MM-dd, with or without a time. The file is UTF-8, UTF-16 or
Windows-1252. The command says how it reads the file. Other columns are ignored,
with a warning.

If rows are rejected, the exit code is 6; with --all-or-nothing, nothing is
applied and the exit code is 1.

Examples:
  $ auth-admin ${noun} import ${noun}.csv --dry-run
  $ auth-admin ${noun} import ${noun}.csv --report rejected.csv
  $ auth-admin ${noun} import ${noun}.csv --keep-ids`,
    )
    .administers((api, file: string, options: Options) => importFile(api, noun, file, options))
}

/** Reads names of columns, separated by commas. */
function readColumns(text: string, columns: readonly string[]): string[] {
  const given = text.split(',').map(name => name.trim())
  if (given.every(name => columns.includes(name))) return given
  throw new InvalidArgumentError(`Use columns among ${columns.join(', ')}, separated by commas.`)
}

/** Maximum encoded bytes and rows of a batch, and passwords to hash in it: its transaction must be short on a busy machine, too. */
const most = { bytes: 60_000, rows: 100, passwords: 16 }

/** A batch of rows. */
interface Batch {
  readonly firstRow: number
  readonly rows: readonly {
    readonly source: SourceRow
    readonly message: ReturnType<typeof toUserRow | typeof toOrganizationRow>
  }[]
}

/** The rows of a file, as reported before the import. */
interface Survey {
  readonly rows: number
  readonly passwords: number
  readonly unknown: readonly string[]
  /** How its dates are written. */
  readonly dateForms: readonly string[]
  /** Whether no new user of the file has accepted the terms. */
  readonly withoutTerms: boolean
}

async function importFile(api: Api, noun: Noun, file: string, options: Options): Promise<void> {
  // The heap of a process that has much memory grows by what batches leave for some 100 MB before it is collected.
  setFlagsFromString('--optimize-for-size')
  if (options.report !== undefined && (await isSameFile(options.report, file)))
    misuse('--report names the file to import, and would overwrite it: choose another file.')
  const source = await openSource(file, options.format)
  const { dryRun = false, allOrNothing = false, changeAccounts = [], keepIds = false, afterDryRun } = options
  const survey = await withProgress('Reading', () => look(source, noun, { keepIds }))
  const note = (text: string) => process.stderr.write(`${printable(text)}\n`)
  const readAs = describe(source, survey.dateForms)
  if (!options.json) note(`${source.path} is read as ${readAs}.`)
  if (survey.unknown.length > 0) note(`Ignored columns: ${survey.unknown.join(', ')}.`)
  if (survey.withoutTerms) note('No column termsofusage: new users are registered as not having accepted the terms.')
  if (options.json && source.encoding === 'win1252') note('The file is not UTF-8: it is read as Windows-1252.')

  const start = (highestId = 0) =>
    api.startImport({
      kind: nouns[noun].kind,
      sourceDigest: source.digest,
      ...{ dryRun, allOrNothing, changeAccounts, keepIds, highestId },
      afterDryRun,
    })
  const { import: started, hashMilliseconds } = await (keepIds ? reserving(source, start) : start())
  const { id } = started!
  if (started!.nextRow > 0) note(`Import ${id} is resumed: ${started!.nextRow} of ${survey.rows} rows are done.`)
  if (survey.passwords > 0 && !dryRun)
    note(`Passwords to hash: ${survey.passwords}, at most ${duration((survey.passwords * hashMilliseconds) / 1000)}.`)

  const shown: string[] = []
  const report =
    options.report === undefined ? reportOf(source, toLines(shown)) : await openReport(options.report, source)
  const changes: Record<string, number> = {}
  let [rows, notes] = [0, 0]
  const send = async (tell: (done: string) => void) => {
    const startedAt = Date.now()
    for await (const batch of readBatches(source, noun, keepIds)) {
      const answer = await untilAnswered(() => api.importBatch(toRequest(id, noun, batch)))
      rows += batch.rows.length
      notes += answer.notes.length
      for (const [field, count] of Object.entries(answer.changes)) changes[field] = (changes[field] ?? 0) + count
      await report.write(
        batch.rows.map(row => row.source),
        batch.firstRow,
        [...answer.rejected, ...answer.notes].sort((a, b) => a.row - b.row),
      )
      tell(progressOf(rows, survey.rows, Date.now() - startedAt))
    }
    return untilAnswered(() => api.finishImport({ id, rows }))
  }
  const finished = await withProgress(dryRun ? 'Judging' : 'Importing', send).catch(error => {
    note(`Import ${id} is not finished. After you resolve the error, run the same command to resume it.`)
    throw error
  })
  const made = finished.import!
  if (finished.rejected.length > 0) await report.writeAll(finished.rejected)
  await report.close()
  if (!options.json) for (const line of shown) note(line)
  const { created, updated, unchanged, rejected } = made
  if (made.nextRow !== rows || rows !== created + updated + unchanged + rejected)
    fail(`Import ${id} counts ${made.nextRow} rows, but the file has ${rows}.`)
  print(made, { changes, notes }, readAs, options)
  if (made.state === ImportState.ABORTED) end(1)
  if (rejected > 0) end(6)
}

/** Looks through all rows: the file is valid, and has a column that identifies records. */
async function look(source: Source, noun: Noun, how: { readonly keepIds: boolean }): Promise<Survey> {
  const { identifying } = nouns[noun]
  const columns = columnsToRead(nouns[noun].columns, how)
  const names = new Set<string>(source.head.map(name => name.toLowerCase()))
  const days = Object.entries(columns).flatMap(([name, { kind }]) => (kind === 'day' ? [name] : []))
  const dateForms = new Set<string>()
  let [rows, passwords] = [0, 0]
  for await (const { cells } of readRows(source)) {
    rows++
    if (source.format === 'jsonl') for (const name of Object.keys(cells)) names.add(name)
    for (const day of days) {
      const form = dateFormOf(cells[day])
      if (form) dateForms.add(form)
    }
    const { password } = cells
    if (noun === 'users' && typeof password === 'string' && password !== '') passwords++
  }
  if (!identifying.some(name => names.has(name)))
    misuse(
      `${source.path}, line ${source.firstLine}: There is no column ${identifying.join(' or ')}. The first line must name columns among ${Object.keys(columns).join(', ')}.`,
    )
  // A row without a role changes users only.
  const withoutTerms = noun === 'users' && names.has('role') && !names.has('termsofusage')
  return {
    rows,
    passwords,
    unknown: unknownColumns(names, columns),
    dateForms: [...dateForms].sort(),
    withoutTerms,
  }
}

/** Starts an import with the highest id of a file or, if that is too high, with the highest one that isn't. */
async function reserving(source: Source, start: (highestId: number) => Promise<StartImportResponse>) {
  const highest = await findHighestId(source)
  const answer = await start(highest)
  return answer.highestId >= highest ? answer : start(await findHighestId(source, answer.highestId))
}

/** The highest id of the rows of a file that isn't above `most`; without one, 0. */
async function findHighestId(source: Source, most = Number.POSITIVE_INFINITY): Promise<number> {
  let highest = 0
  for await (const { cells } of readRows(source)) {
    const id = idOf(cells, { isCsv: source.format === 'csv' }) ?? 0
    if (id <= most && id > highest) highest = id
  }
  return highest
}

/** How the date of a cell is written. */
function dateFormOf(cell: CellValue): string | undefined {
  const match = /^\W*(?:\d{4}-\d\d-\d\d|(\d\d\/\d\d\/\d{4}))/.exec(String(cell ?? ''))
  return match ? (match[1] ? 'dd/MM/yyyy' : 'yyyy-MM-dd') : undefined
}

/** Whether both paths lead to the same file. */
async function isSameFile(...paths: [string, string]): Promise<boolean> {
  const [one, other] = await Promise.all(paths.map(path => stat(path, { bigint: true }).catch(() => undefined)))
  return one !== undefined && one.dev === other?.dev && one.ino === other.ino
}

/** Cuts the rows of a file into batches, always in the same way. */
async function* readBatches(source: Source, noun: Noun, keepIds: boolean): AsyncGenerator<Batch> {
  const how: Reading = { isCsv: source.format === 'csv', keepIds }
  let [firstRow, bytes, passwords] = [0, 0, 0]
  let rows: Batch['rows'][number][] = []
  const { toRow, schema } = nouns[noun]
  // A row that can't be read has nothing but the reason.
  const withProblem = (text: string): Message =>
    create(schema, { problems: [create(ImportProblemSchema, { field: '', message: text })] })
  const sizeOf = (message: Message) => toBinary(schema as DescMessage, message).length + tagAndLength
  for await (const row of readRows(source)) {
    const read = row.problem ? withProblem(row.problem) : toRow(row.cells, how)
    read.line = row.line
    const message = sizeOf(read) > most.bytes ? withProblem('The row is too long.') : read
    const size = sizeOf(message)
    const hasPassword = Boolean((message.form as Partial<UserForm> | undefined)?.password)
    if (rows.length > 0 && (bytes + size > most.bytes || rows.length === most.rows || passwords === most.passwords)) {
      yield { firstRow, rows }
      firstRow += rows.length
      ;[rows, bytes, passwords] = [[], 0, 0]
    }
    rows.push({ source: row, message })
    bytes += size
    passwords += Number(hasPassword)
  }
  if (rows.length > 0) yield { firstRow, rows }
}

type Message = Batch['rows'][number]['message']

/** Bytes by which a row is longer in a request, at most. */
const tagAndLength = 6

function toRequest(id: number, noun: Noun, { firstRow, rows }: Batch) {
  return { id, firstRow, [noun]: rows.map(({ message }) => message) }
}

/** The report of rejected rows, in the format, encoding and line ends of the source. */
async function openReport(path: string, source: Source) {
  const { format, delimiter, head } = source
  const columns = [
    ...head.filter(name => !(errorColumns as readonly string[]).includes(name.toLowerCase())),
    ...errorColumns,
  ]
  return reportOf(source, await openSink(path, { format, columns, delimiter, like: source, cells: 'verbatim' }))
}

/** Rejected rows that are shown without a report. */
const mostShown = 10

/** Keeps the lines, fields and reasons of the first rejected rows. */
function toLines(shown: string[]): Sink {
  return {
    async write(rows) {
      for (const { error_line: line, error_field: field, error_reason: why } of rows.slice(0, mostShown - shown.length))
        shown.push(`Line ${line}${field ? `, ${field}` : ''}: ${why}`)
    },
    async close() {},
  }
}

/** Puts the rejected rows of a source into a sink, with where and why they are wrong. */
function reportOf(source: Source, sink: Sink) {
  const { head } = source
  const toReport = (row: SourceRow, { problems }: RejectedRow) => {
    const { original } = row
    const cells = Array.isArray(original)
      ? Object.fromEntries(original.map((cell, index) => [head[index], cell]))
      : (original as Readonly<Record<string, unknown>>)
    return {
      ...cells,
      error_line: row.line,
      error_field: problems
        .map(({ field }) => field)
        .filter(Boolean)
        .join(', '),
      error_reason: problems.map(({ message }) => inTerminalLanguage(message)).join(' '),
    }
  }
  return {
    /** Writes those of consecutive rows that are rejected. */
    async write(rows: readonly SourceRow[], firstRow: number, rejected: readonly RejectedRow[]) {
      await sink.write(rejected.map(each => toReport(rows[each.row - firstRow]!, each)))
    },
    /** Writes rows that are known by their numbers alone. */
    async writeAll(rejected: readonly RejectedRow[]) {
      const byRow = new Map(rejected.map(each => [each.row, each]))
      let number = 0
      for await (const row of readRows(source)) {
        const found = byRow.get(number++)
        if (found) await sink.write([toReport(row, found)])
      }
    },
    close: () => sink.close(),
  }
}

/** Rows so far, their rate, and the time that is left. */
function progressOf(rows: number, total: number, ms: number): string {
  const rate = rows / Math.max(0.001, ms / 1000)
  return `${rows} of ${total} rows, ${Math.round(rate)} a second, ${duration((total - rows) / rate)} left`
}

function duration(seconds: number): string {
  if (seconds < 90) return `${Math.ceil(seconds)} s`
  return seconds < 5400 ? `${Math.ceil(seconds / 60)} min` : `${Math.ceil(seconds / 3600)} h`
}

function print(
  made: Import,
  { changes, notes }: { readonly changes: Readonly<Record<string, number>>; readonly notes: number },
  readAs: string,
  { json, report, dryRun }: Options,
): void {
  if (json) {
    printJson({ ...importOutput(made), readAs, changes })
    return
  }
  const { id, created, updated, unchanged, rejected, state } = made
  const counts = `${created} created, ${updated} updated, ${unchanged} unchanged, ${rejected} rejected`
  if (state === ImportState.ABORTED) say(`Import ${id} is aborted, and nothing is changed: ${counts}.`)
  else say(`${dryRun ? `Dry run ${id}, nothing is changed` : `Import ${id} is finished`}: ${counts}.`)
  const fields = Object.entries(changes).map(([field, count]) => `${field} ${count}`)
  if (fields.length > 0) say(`Changes by field: ${fields.join(', ')}.`)
  if (rejected > 0)
    say(
      report === undefined
        ? 'To write the rejected rows to a file, run the command again with --report FILE.'
        : `${report} has the rejected rows.`,
    )
  if (notes > 0) {
    const where = report === undefined ? '' : ` ${report} says which.`
    say(`New users with another nickname than their username, which isn’t free as one: ${notes}.${where}`)
  }
  if (dryRun) say(`To import only what is as it was judged, pass --after-dry-run ${id}.`)
}

/** An import in plain words. */
function importOutput({ $typeName: _, $unknown: __, kind, state, createTime, updateTime, ...rest }: Import) {
  const times = { createTime: timestampDate(createTime!), updateTime: timestampDate(updateTime!) }
  return { kind: ImportKind[kind].toLowerCase(), state: ImportState[state].toLowerCase(), ...rest, ...times }
}
