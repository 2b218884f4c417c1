/**
 * Imports the database of the older implementation. This folder owns what is read there (source.ts), what it becomes here
 * (convert.ts), and which users need a decision (decide.ts, names.ts). It writes no table: the registrar and the models do, as
 * for a list. The command line, the only caller, asks for confirmation.
 *
 * An import reads one snapshot twice. The first reading analyses all users and writes nothing. The second one writes batches in
 * the order of ids, each in one transaction with the counts of the import: after a kill, the next run goes on behind the last
 * one. By a digest of each row there, a later import finds what has changed.
 */
import type { Transaction } from '../database/connection.js'
import type { Registry } from '../models/define-models.js'
import type { ImportRow, Outcomes } from '../models/import.js'
import { importObject } from '../models/predecessor.js'
import type { Registration } from '../models/user-batch.js'
import type { Passwords } from '../passwords/hash.js'
import { openPlaces } from '../registration/membership.js'
import { createRegistrar } from '../registration/registrar.js'
import { Refusal } from '../requests/refusal.js'
import { dayIn } from '../rules/dates.js'
import { nameImported } from '../rules/id-ranges.js'
import { questionKey } from '../rules/names.js'
import {
  type Convert,
  type Converted,
  createConversion,
  type Decision,
  type MovedQuestion,
  type RowNote,
  toOrganization,
  toQuestions,
} from './convert.js'
import { type Analysis, analyze, type Choice, type Listing, type NoteLine } from './decide.js'
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

/** Number of rows by outcome. */
type Counts = Omit<Outcomes, 'rejected'>

/** What an import did, or would do. */
export interface Imported extends Found {
  /** The import; undefined in a dry run, and when it was refused. */
  readonly import?: ImportRow
  /** Number of users by outcome; undefined when it was refused. */
  readonly counts?: Outcomes
  readonly organizationCounts?: Counts
  readonly questionCounts?: Counts
}

/** Dependencies of an import. */
type Deps = { readonly registry: Registry; readonly passwords: Pick<Passwords, 'key'> }

/** The state of the registry doesn't permit an import. */
export class ImportRefused extends Error {}

/** Imports a database into a registry that has no users but its default administrator, or those of earlier imports. */
export async function importPredecessor(deps: Deps, options: ImportOptions): Promise<Imported> {
  const { database } = deps.registry
  const { choice, report, withProgress, timeZone } = options
  const administrator = await findAdministrator(deps.registry)
  return withSource(options.url, async source => {
    const organizationIds = new Set(source.organizations.map(({ id }) => id))
    const convert = createConversion({ now: Date.now, timeZone, organizationIds })
    const notes: RowNote[] = []
    const today = dayIn(timeZone, new Date())
    const organizations = source.organizations.map(row => toOrganization(row, today, notes))
    const questions = toQuestions(source.questions, notes)
    for (const note of notes) report(note)
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
    const run = createRun(deps, options, { source, convert, organizations, questions, ...analysis })
    if (options.dryRun) return { ...found, counts: await withProgress('Comparing', run.compare) }
    await options.confirm(found)
    return { ...found, ...(await withProgress('Importing', run.write)) }
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

/** A user to write. */
interface Judged {
  readonly id: number
  readonly converted: Converted
  readonly digest: Buffer
}

/** What a batch does, before it is written. */
interface Batch {
  readonly lastId: number
  readonly outcomes: Outcomes
  readonly created: readonly Judged[]
  readonly updated: readonly Judged[]
}

/** What an import writes. */
interface Prepared extends Pick<Analysis, 'decisions' | 'occupied' | 'administratorThere'> {
  readonly source: Source
  readonly convert: Convert
  readonly organizations: readonly ReturnType<typeof toOrganization>[]
  readonly questions: readonly MovedQuestion[]
}

/** The part of an import behind the analysis. */
function createRun({ registry, passwords }: Deps, { actor, reason }: ImportOptions, prepared: Prepared) {
  const { source, convert, decisions, occupied, administratorThere } = prepared
  const { database, imports, predecessor, organizations, users, audit, masterKey } = registry
  const registrar = createRegistrar(registry)
  const event = { outcome: 'ok', actor, reason } as const
  const digestOf = (row: unknown) => masterKey.digest('predecessor', JSON.stringify(row))

  /** Compares a batch with what was imported before. */
  async function judge(batch: readonly SourceUser[]): Promise<Batch> {
    const lastId = batch.at(-1)!.id
    const before = await predecessor.digests('users', batch[0]!.id, lastId)
    const created: Judged[] = []
    const updated: Judged[] = []
    let [unchanged, rejected] = [0, 0]
    for (const user of batch) {
      const decision: Decision | undefined = decisions.get(user.id)
      const digest = digestOf([user, decision])
      const known = before.get(user.id)
      if (user.id === administratorThere || known?.equals(digest)) unchanged++
      else if (decision?.skip) rejected++
      else (known ? updated : created).push({ id: user.id, converted: convert(user, decision), digest })
    }
    const outcomes = { created: created.length, updated: updated.length, unchanged, rejected }
    return { lastId, outcomes, created, updated }
  }

  /** Compares everything, and writes nothing. */
  async function compare(): Promise<Outcomes> {
    const counts = { created: 0, updated: 0, unchanged: 0, rejected: 0 }
    for await (const batch of source.users(0)) {
      const { outcomes } = await judge(batch)
      for (const name of ['created', 'updated', 'unchanged', 'rejected'] as const) counts[name] += outcomes[name]
    }
    return counts
  }

  async function writeUsers(
    { created, updated }: Batch,
    ids: ReadonlyMap<string, number>,
    object: string,
    t: Transaction,
  ) {
    const all = [...created, ...updated]
    const members = all.flatMap(({ converted: { organization } }) => organization ?? [])
    const places = await openPlaces(organizations, members, t, { continued: true })
    const toUser = ({ converted: { user, organization, answers, own } }: Judged): Registration & { id: number } => {
      const organizationId = organization === null ? null : places.take(organization)
      if (organizationId instanceof Refusal) throw organizationId
      const ownKey = questionKey(own?.question ?? '')
      const ownId = ids.get(ownKey)
      // An answer to an offered question is older than those that were saved later.
      const given = new Map(own && ownId !== undefined ? [[ownId, own.answer], ...answers] : answers)
      return {
        ...user,
        organizationId,
        answers: [...given].map(([questionId, answer]) => ({ questionId, answerHash: passwords.key(answer)! })),
        unmatched:
          own && ownId === undefined
            ? { question: own.question, questionKey: ownKey, answerHash: passwords.key(own.answer)! }
            : undefined,
      }
    }
    for (const { id } of updated) {
      // Tokens from before end, as they do where a password or a role changes here.
      await users.revokeTokens(id, t)
      await audit.append({ ...event, action: 'user.revoke-tokens', subject_id: id, object }, t)
    }
    await registrar.adopt({ added: created.map(toUser), replaced: updated.map(toUser) }, t)
    await predecessor.note('users', all, t)
  }

  /** Writes a batch, and returns the import after it. Throws an Error if another process has written since `before`. */
  const writeBatch = (before: ImportRow, batch: Batch, ids: ReadonlyMap<string, number>): Promise<ImportRow> =>
    database.transact(
      async t => {
        const locked = await imports.lock(before.id, t)
        if (locked?.state !== 'running' || locked.nextRow !== before.nextRow)
          throw new Error('Another process goes on with this import: end it, and run the command again.')
        const object = `${importObject}:${before.id}`
        await writeUsers(batch, ids, object, t)
        const after = await imports.advance(before.id, batch.outcomes, t)
        const rows = { importId: before.id, firstRow: before.nextRow, rowCount: after.nextRow - before.nextRow }
        const answer = Buffer.from(JSON.stringify({ lastId: batch.lastId }))
        await imports.addBatch({ ...rows, answer, seen: null, stagedSealed: null }, t)
        const named = nameImported(object, { created: idsOf(batch.created), updated: idsOf(batch.updated) })
        if (named !== undefined) await audit.append({ ...event, action: 'user.import', object: named }, t)
        return after
      },
      { unlimited: true },
    )

  async function writeOrganizations(object: string, t: Transaction): Promise<Counts> {
    const before = await predecessor.digests('organizations', -(2 ** 31), 2 ** 31 - 1, t)
    const rows = prepared.organizations.map((row, index) => ({
      id: row.id,
      row,
      digest: digestOf(source.organizations[index]),
    }))
    const created = rows.filter(({ id }) => !before.has(id))
    const updated = rows.filter(({ id, digest }) => before.get(id)?.equals(digest) === false)
    for (const { row } of created) await organizations.add(row, t)
    for (const { row } of updated) {
      const { id, activationKey, ...details } = row
      await organizations.edit(id, details, t)
      await organizations.rotateKey(id, t, activationKey)
    }
    await predecessor.note('organizations', [...created, ...updated], t)
    const named = nameImported(object, { created: idsOf(created), updated: idsOf(updated) })
    if (named !== undefined) await audit.append({ ...event, action: 'organization.import', object: named }, t)
    return countsOf(rows.length, created.length, updated.length)
  }

  /** The first import replaces the questions of the installation. */
  async function writeQuestions(t: Transaction): Promise<Counts> {
    const rows = prepared.questions
    const isFirst = !(await predecessor.hasUsers())
    const there = new Map((await registry.questions.all(t)).map(row => [row.id, row]))
    const changed = rows.filter(({ id, question, active }) => {
      const row = there.get(id)
      return row?.question !== question || row.active !== active
    })
    const created = isFirst ? rows : changed.filter(({ id }) => !there.has(id))
    if (changed.length > 0) {
      if (!(await predecessor.putQuestions(isFirst ? rows : changed, { replaces: isFirst }, t)))
        throw new Error('Answers refer to security questions of this registry: import into a newly installed one.')
      await audit.append({ ...event, action: 'question.add', object: `questions:${created.length}` }, t)
    }
    const updated = changed.filter(row => !created.includes(row)).length
    return countsOf(rows.length, changed.length > 0 ? created.length : 0, updated)
  }

  async function write(tell: (done: string) => void): Promise<Omit<Imported, keyof Found>> {
    const own = await predecessor.ownOrganizations(source.organizations.map(({ id }) => id))
    if (own.length > 0)
      throw new ImportRefused(
        `The ids of organizations here (${own.slice(0, 10).join(', ')}) are those of others there: delete them first.`,
      )
    const begun = await database.transact(
      async t => {
        const how = { dryRun: false, allOrNothing: false, changeAccounts: [], afterDryRun: null, keepIds: false }
        const by = { actor, actorId: null, tokenGeneration: null }
        const row = await imports.start({ kind: 'predecessor', sourceDigest: source.digest, ...how, ...by }, t)
        const organizationCounts = await writeOrganizations(`${importObject}:${row.id}`, t)
        const questionCounts = await writeQuestions(t)
        // Before any user: sign-ups must not get ids of users there.
        await predecessor.advanceIds(source.lastIds, t)
        await predecessor.freeNames(occupied, t)
        return { row, organizationCounts, questionCounts }
      },
      { unlimited: true },
    )
    const { row, ...counts } = begun
    const ids = new Map((await registry.questions.all()).map(({ id, question }) => [questionKey(question), id]))
    const lastAnswer = await imports.lastAnswer(row.id)
    const { lastId } = lastAnswer ? (JSON.parse(String(lastAnswer)) as { lastId: number }) : { lastId: 0 }
    let read = 0
    // One batch is written while the next one is read.
    let writing = Promise.resolve(row)
    for await (const users of source.users(lastId)) {
      read += users.length
      const batch = await judge(users)
      const before = await writing
      tell(`${before.nextRow} of ${source.userCount}`)
      writing = writeBatch(before, batch, ids)
      writing.catch(() => {})
    }
    const { nextRow } = await writing
    if (nextRow - row.nextRow !== read)
      throw new Error(`The import read ${read} users, but counts ${nextRow - row.nextRow}.`)
    const ended = await database.transact(t => imports.end(row.id, 'finished', t))
    await predecessor.analyze()
    const { created, updated, unchanged, rejected } = ended
    return { import: ended, counts: { created, updated, unchanged, rejected }, ...counts }
  }

  return { compare, write }
}

function idsOf(rows: readonly { readonly id: number }[]): number[] {
  return rows.map(({ id }) => id)
}

function countsOf(all: number, created: number, updated: number): Counts {
  return { created, updated, unchanged: all - created - updated }
}
