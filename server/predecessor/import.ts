/**
 * Imports the database of the older implementation. This folder owns what is read there (source.ts), what it becomes here
 * (convert.ts, organizations.ts), which users need a decision (decide.ts, names.ts), and the batches (batch.ts). The models own
 * the tables, the rooms `users` and `rules` own what a text may be. The command line, the only caller, asks for confirmation.
 *
 * An import reads one snapshot twice. The first reading analyses all users and writes nothing. The second one writes batches in
 * the order of ids, each in one transaction with the counts of the import: after a kill, the next run goes on behind the last
 * one. By a digest of each row there, a later import finds what has changed.
 */
import type { Registry } from '../models/define-models.js'
import type { ImportRow } from '../models/import.js'
import { importObject } from '../models/predecessor.js'
import type { Passwords } from '../passwords/hash.js'
import { dayIn } from '../rules/dates.js'
import { questionKey } from '../rules/names.js'
import { type Batch, type BatchDeps, judge, writeBatch } from './batch.js'
import { createConversion } from './convert.js'
import { analyze, type Choice, type Listing, type NoteLine } from './decide.js'
import { type Counts, type Prepared, prepare, type RowNote, write } from './organizations.js'
import { type Source, type SourceUser, withSource } from './source.js'

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
  /** Who runs it. */
  readonly actor: string
  /** Why, for the audit log. */
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

/** What an import did, or would do. */
export interface Imported extends Found {
  /** The import; undefined in a dry run, and when it was refused. */
  readonly import?: ImportRow
  /** Number of users by outcome; undefined when it was refused. */
  readonly counts?: Counts & { readonly rejected: number }
  readonly organizationCounts?: Counts
  readonly questionCounts?: Counts
}

/** Dependencies of an import. */
type Deps = { readonly registry: Registry; readonly passwords: Pick<Passwords, 'key'> }

/** Imports a database into a registry that has no users but its default administrator, or those of earlier imports. */
export async function importPredecessor(deps: Deps, options: ImportOptions): Promise<Imported> {
  const administrator = await findAdministrator(deps.registry)
  const now = new Date()
  return withSource(options.url, async source => {
    const organizationIds = new Set(source.organizations.map(({ id }) => id))
    const convert = createConversion({ now, timeZone: options.timeZone, organizationIds })
    const { database } = deps.registry
    const prepared = prepare(source, deps.registry, dayIn(options.timeZone, now))
    for (const note of prepared.notes) options.report(note)
    const { choice, report, withProgress } = options
    const analysis = await withProgress('Analyzing', tell => {
      const progress = (done: number) => tell(`${done} of ${source.userCount}`)
      return analyze({ database, convert, report, progress }, source, { choice, administrator })
    })
    const found: Found = {
      users: source.userCount,
      organizations: source.organizations.length,
      questions: source.questions.length,
      administrator: analysis.administratorThere,
      listed: analysis.listed,
      unsettled: analysis.unsettled,
    }
    if (analysis.unsettled.length > 0) return found
    const { actor, reason } = options
    const event = { outcome: 'ok', actor, ...(reason && { reason }) } as const
    const batches = { ...deps, convert, analysis, event }
    if (options.dryRun) return { ...found, counts: await withProgress('Comparing', () => compare(batches, source)) }
    await options.confirm(found)
    const written = await withProgress('Importing', tell =>
      writeAll(batches, source, prepared, { actor, progress: done => tell(`${done} of ${source.userCount}`) }),
    )
    return { ...found, ...written }
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

/** The state of the registry doesn't permit an import. */
export class ImportRefused extends Error {}

/** What the comparison of a batch takes. */
type Comparing = Omit<BatchDeps, 'questionIds'>

/** Compares everything, and writes nothing. */
async function compare(deps: Comparing, source: Source): Promise<NonNullable<Imported['counts']>> {
  const counts = { created: 0, updated: 0, unchanged: 0, rejected: 0 }
  for await (const users of source.users(0)) {
    const { outcomes } = await judge(deps, users)
    for (const name of ['created', 'updated', 'unchanged', 'rejected'] as const) counts[name] += outcomes[name]
  }
  return counts
}

async function writeAll(
  comparing: Comparing,
  source: Source,
  prepared: Prepared,
  { actor, progress }: { actor: string; progress: (done: number) => void },
): Promise<Pick<Imported, 'import' | 'counts' | 'organizationCounts' | 'questionCounts'>> {
  const { event, registry, analysis } = comparing
  const { database, imports, predecessor, questions } = registry
  const own = await predecessor.ownOrganizations(prepared.organizations.map(({ id }) => id as number))
  if (own.length > 0)
    throw new ImportRefused(
      `The ids of organizations here (${own.slice(0, 10).join(', ')}) are those of others there: delete them first.`,
    )
  const first = !(await predecessor.hasUsers())
  const begun = await database.transact(
    async t => {
      const identity = { dryRun: false, allOrNothing: false, changeAccounts: [], afterDryRun: null, keepIds: false }
      const by = { actor, actorId: null, tokenGeneration: null }
      const row = await imports.start({ kind: 'predecessor', sourceDigest: source.digest, ...identity, ...by }, t)
      const object = `${importObject}:${row.id}`
      const others = await write(registry, prepared, { first, object, event }, t)
      // Before any user: sign-ups must not get ids of users there.
      for (const [table, id] of Object.entries(source.lastIds))
        await predecessor.advanceIds(table as keyof typeof source.lastIds, id, t)
      await predecessor.freeNames(analysis.occupied, t)
      return { row, others }
    },
    { unlimited: true },
  )
  const all = await questions.all()
  const deps: BatchDeps = { ...comparing, questionIds: new Map(all.map(each => [questionKey(each.question), each.id])) }
  let current = begun.row
  const before = current.nextRow
  const lastAnswer = await imports.lastAnswer(current.id)
  const { lastId } = lastAnswer ? (JSON.parse(String(lastAnswer)) as { lastId: number }) : { lastId: 0 }
  let read = 0
  let writing: Promise<void> = Promise.resolve()
  const writeNext = async (batch: Batch) => {
    current = await writeBatch(deps, current, batch)
    progress(current.nextRow)
  }
  for await (const users of source.users(lastId)) {
    read += users.length
    const batch = await judge(deps, users as readonly SourceUser[])
    // One batch is written while the next one is read.
    await writing
    writing = writeNext(batch)
    writing.catch(() => {})
  }
  await writing
  if (current.nextRow - before !== read)
    throw new Error(`The import read ${read} users, but counts ${current.nextRow - before}.`)
  const ended = await database.transact(t => imports.end(current.id, 'finished', t))
  await predecessor.analyze()
  const { created, updated, unchanged, rejected } = ended
  return {
    import: ended,
    counts: { created, updated, unchanged, rejected },
    organizationCounts: begun.others.organizations,
    questionCounts: begun.others.questions,
  }
}
