// `organizations import` and `users import`: send the rows of a file in batches. Each batch is applied once, and answers a
// repetition as it answered first: so a command that is run again sends all rows, and continues where it was stopped.
import { stat } from 'node:fs/promises'
import { setFlagsFromString } from 'node:v8'
import { InvalidArgumentError, Option } from 'commander'
import { type Import, ImportState } from '../../../proto/gen/auth/v1/administration_pb.js'
import { changeableAccounts } from '../../../server/rules/import-changes.js'
import type { Api } from '../../administration.js'
import type { Command } from '../../command.js'
import { end, fail, misuse } from '../../exit-codes.js'
import { describe, type Format, openSource } from '../../files/source.js'
import { readId } from '../../terminal/ask.js'
import { inTerminalLanguage } from '../../terminal/language.js'
import { note, printJson, say } from '../../terminal/output.js'
import { withProgress } from '../../terminal/progress.js'
import { importOutput } from '../nouns.js'
import { readBatches, toRequest } from './import/batches.js'
import { helpOf } from './import/help.js'
import { type Noun, nouns } from './import/nouns.js'
import { openReport, reportLines } from './import/report.js'
import { look, startKeepingIds } from './import/survey.js'
import { untilAnswered } from './import/until-answered.js'

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
    .remarks(helpOf(noun))
    .administers((api, file: string, options: Options) => importFile(api, noun, file, options))
}

/** Reads names of columns, separated by commas. */
function readColumns(text: string, columns: readonly string[]): string[] {
  const given = text.split(',').map(name => name.trim())
  if (given.every(name => columns.includes(name))) return given
  throw new InvalidArgumentError(`Use columns among ${columns.join(', ')}, separated by commas.`)
}

async function importFile(api: Api, noun: Noun, file: string, options: Options): Promise<void> {
  // The heap of a process that has much memory grows by what batches leave for some 100 MB before it is collected.
  setFlagsFromString('--optimize-for-size')
  if (options.report !== undefined && (await isSameFile(options.report, file)))
    misuse('--report names the file to import, and would overwrite it: choose another file.')
  const source = await openSource(file, options.format)
  const { dryRun = false, allOrNothing = false, changeAccounts = [], keepIds = false, afterDryRun } = options
  const survey = await withProgress('Reading', () => look(source, noun, { keepIds }))
  const readAs = describe(source, survey.dateForms)
  if (!options.json) note(`${source.path} is read as ${inTerminalLanguage(readAs)}.`)
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
  const { import: started, hashMilliseconds } = await (keepIds ? startKeepingIds(source, start) : start())
  const { id } = started!
  if (started!.nextRow > 0) note(`Import ${id} is resumed: ${started!.nextRow} of ${survey.rows} rows are done.`)
  if (survey.passwords > 0 && !dryRun)
    note(`Passwords to hash: ${survey.passwords}, at most ${duration((survey.passwords * hashMilliseconds) / 1000)}.`)

  const shown: string[] = []
  const report = options.report === undefined ? reportLines(source, shown) : await openReport(options.report, source)
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

/** Whether both paths lead to the same file. */
async function isSameFile(...paths: [string, string]): Promise<boolean> {
  const [one, other] = await Promise.all(paths.map(path => stat(path, { bigint: true }).catch(() => undefined)))
  return one !== undefined && one.dev === other?.dev && one.ino === other.ino
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
