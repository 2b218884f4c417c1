/**
 * Imports the database of the older implementation. This folder owns what is read there (source.ts), what it becomes here
 * (convert.ts), which users need a decision (decide.ts, names.ts), and the batches (write.ts). The command line, the only
 * caller, asks for confirmation.
 *
 * An import reads one snapshot twice. The first reading analyses all users and writes nothing. The second one writes batches in
 * the order of ids, each in one transaction with the counts of the import: after a kill, the next run goes on behind the last
 * one. By a digest of each row there, a later import finds what has changed.
 */
import type { Registry } from '../models/define-models.js'
import type { Passwords } from '../passwords/hash.js'
import { dayIn } from '../rules/dates.js'
import { questionKey } from '../rules/names.js'
import { createConversion, type RowNote, toOrganization, toQuestions } from './convert.js'
import { analyze, type Choice, type Listing, type NoteLine } from './decide.js'
import { type Source, withSource } from './source.js'
import { createWriter } from './write.js'

/** A line of a report. */
export type ReportLine = Listing | NoteLine | RowNote

/** How an import runs. */
export interface ImportOptions {
  /** URL of the database of the older implementation. */
  readonly url: string
  /** How collisions are settled; undefined refuses to import if there are any. */
  readonly choice: Choice | undefined
  /** Analyses and compares, and writes nothing. */
  readonly dryRun: boolean
  /** IANA time zone of dates of birth that must not be in the future. */
  readonly timeZone: string
  /** Who runs it, and why, for the audit log. */
  readonly actor: string
  readonly reason: string | undefined
  readonly report: (line: ReportLine) => void
  /** Runs a part of the work, which reports its progress. It prompts for nothing meanwhile. */
  readonly withProgress: <T>(doing: string, work: (report: (done: string) => void) => Promise<T>) => Promise<T>
  /** Asks whether to write; throws to end the import. */
  readonly confirm: (found: Found) => Promise<void>
}

/** What the analysis of a database found. */
export interface Found {
  /** Number of users there. */
  readonly users: number
  readonly organizations: number
  readonly questions: number
  /** Id of the user there that is the administrator here, of whom nothing is imported. */
  readonly administrator: number | undefined
  /** Number of users by what was listed of them. */
  readonly listed: Readonly<Record<string, number>>
  /** Users that need a decision and have none: nothing is written while there are any. */
  readonly unsettled: readonly Listing[]
}

/** What an import did, or would do: `counts` of users are missing when it was refused, and the rest in a dry run. */
export type Imported = Found & Partial<Awaited<ReturnType<typeof moveUsers>>>

/** The state of the registry doesn't permit an import. */
export class ImportRefused extends Error {}

/** Imports a database into a registry that has no users but its default administrator, or those of earlier imports. */
export async function importPredecessor(
  deps: { readonly registry: Registry; readonly passwords: Pick<Passwords, 'key'> },
  options: ImportOptions,
): Promise<Imported> {
  const { registry } = deps
  const { choice, report, withProgress, timeZone, dryRun } = options
  const administrator = await findAdministrator(registry)
  return withSource(options.url, async source => {
    const notes: RowNote[] = []
    const today = dayIn(timeZone, new Date())
    const organizations = source.organizations.map(row => toOrganization(row, today, notes))
    const questions = toQuestions(source.questions, notes)
    for (const note of notes) report(note)
    const organizationIds = new Set(organizations.map(({ id }) => id))
    const convert = createConversion({ now: Date.now, timeZone, organizationIds })
    const how = { database: registry.database, convert, choice, administrator, report }
    const analysis = await withProgress('Analyzing', tell => analyze(source, { ...how, tell }))
    const found: Found = {
      users: source.userCount,
      organizations: organizations.length,
      questions: questions.length,
      administrator: analysis.administratorThere,
      listed: analysis.listed,
      unsettled: analysis.unsettled,
    }
    if (found.unsettled.length > 0) return found
    const writer = createWriter({ ...deps, ...options, ...analysis, source, convert, organizations, questions })
    if (!dryRun) await options.confirm(found)
    if (!dryRun) await checkOrganizations(registry, [...organizationIds])
    const work = (tell: (done: string) => void) => moveUsers(registry, source, writer, { dryRun, tell })
    return { ...found, ...(await withProgress(dryRun ? 'Comparing' : 'Importing', work)) }
  })
}

/** The one user that no import made. Throws an Error if there are others, or users have changed since the first import. */
async function findAdministrator({ predecessor }: Registry) {
  const [administrator, another] = await predecessor.others()
  if (another || (administrator && administrator.role !== 'ROLE_ADMIN'))
    throw new ImportRefused(
      'This registry has users that were not imported: import into a newly installed one, which has only its default administrator.',
    )
  if (await predecessor.changed(administrator?.id ?? 0))
    throw new ImportRefused(
      'Users were changed here since the import, and another import would undo that: go on with this registry, or install it anew.',
    )
  return administrator
}

async function checkOrganizations({ predecessor }: Registry, ids: readonly number[]): Promise<void> {
  const own = await predecessor.ownOrganizations(ids)
  if (own.length === 0) return
  throw new ImportRefused(
    `The ids of organizations here (${own.slice(0, 10).join(', ')}) are those of others there: delete them first.`,
  )
}

/** Moves the users behind those of the last run; or compares all of them, and writes nothing. */
async function moveUsers(
  { database, imports, predecessor, questions }: Registry,
  source: Source,
  writer: ReturnType<typeof createWriter>,
  { dryRun, tell }: { readonly dryRun: boolean; readonly tell: (done: string) => void },
) {
  const counts = { created: 0, updated: 0, unchanged: 0, rejected: 0 }
  const begun = dryRun ? undefined : await writer.begin()
  const answer = begun && (await imports.lastAnswer(begun.row.id))
  const { lastId } = answer ? (JSON.parse(String(answer)) as { lastId: number }) : { lastId: 0 }
  const ids = new Map((await questions.all()).map(({ id, question }) => [questionKey(question), id]))
  let [row, read] = [begun?.row, 0]
  for await (const users of source.users(lastId)) {
    const batch = await writer.judge(users)
    for (const name of ['created', 'updated', 'unchanged', 'rejected'] as const) counts[name] += batch.outcomes[name]
    row &&= await writer.write(row, batch, ids)
    read += users.length
    tell(`${row?.nextRow ?? read} of ${source.userCount}`)
  }
  if (!begun || !row) return { counts, import: undefined }
  if (row.nextRow - begun.row.nextRow !== read)
    throw new Error(`The import read ${read} users, but counts ${row.nextRow - begun.row.nextRow}.`)
  const { organizationCounts, questionCounts } = begun
  const ended = await database.transact(t => imports.end(row.id, 'finished', t))
  await predecessor.analyze()
  const { created, updated, unchanged, rejected } = ended
  return { import: ended, counts: { created, updated, unchanged, rejected }, organizationCounts, questionCounts }
}
