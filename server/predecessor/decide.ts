// Analyses all users before any is written: what collides here, what our rules refuse, what needs a decision, and the decisions.
import type { Database } from '../database/database.js'
import { usernameKey, visible } from '../rules/names.js'
import { type Role, roles } from '../rules/roles.js'
import { type Convert, type Decision, isRefused, type Note, oneLine, type Problem, type RowNote } from './convert.js'
import { createNameTable, type NameField, type NameTable, ranks } from './names.js'
import type { Source } from './source.js'

/** How collisions are settled: all others but one are left out, or get other names; or as a file decides. */
export type Choice = 'skip' | 'suffix' | ReadonlyMap<number, Decision>

/** A user that needs a decision, with the one that was made. */
interface Listing {
  readonly id: number
  readonly username: string
  readonly nickname: string
  readonly problems: readonly Problem[]
  readonly decision?: Decision | undefined
}

/** A line of a report. */
export type ReportLine = Listing | RowNote | (Note & Pick<Listing, 'id' | 'username'>)

/** How users are analyzed. */
export interface How {
  readonly database: Database
  readonly convert: Convert
  readonly choice: Choice | undefined
  /** The administrator here. */
  readonly administrator: { readonly id: number; readonly username: string; readonly usernameKey: string } | undefined
  /** Receives everything that is listed. */
  readonly report: (line: ReportLine) => void
  readonly tell: (done: string) => void
}

/** What the analysis found. */
export type Analysis = Awaited<ReturnType<typeof analyze>>

/** A name that stands in for one of which nothing is left. */
const standIn = 'usuario'

/** Analyses a snapshot. Writes nothing but a temporary table. */
export function analyze(source: Source, { database, convert, choice, administrator, report, tell }: How) {
  return database.transact(
    async t => {
      const names = await createNameTable(database, t, administrator?.id)
      const decisions = new Map(choice instanceof Map ? (choice as ReadonlyMap<number, Decision>) : [])
      const listed: Record<string, number> = {}
      const count = (what: string) => {
        listed[what] = (listed[what] ?? 0) + 1
      }
      const troubles = new Map<number, { problems: Problem[]; role?: Role; organization?: number | null }>()
      // Of several users with the name of the administrator here, the one with the same spelling is it, else the first one.
      const [same] = administrator ? await source.names([], administrator.username) : []
      let administratorThere = same && !decisions.has(same.id) ? same.id : undefined
      let done = 0
      for await (const batch of source.users(0)) {
        const named: Parameters<NameTable['add']>[0][number][] = []
        for (const there of batch) {
          const decision = decisions.get(there.id)
          if (decision?.skip) continue
          const { user, notes, problems } = convert(there, decision)
          const { id, username, nickname, role, active, organizationId: organization } = user
          if (user.usernameKey === administrator?.usernameKey) administratorThere ??= id
          if (id === administratorThere) continue
          if (id === administrator?.id) problems.push({ field: 'id', problem: 'administrator’s', by: [id] })
          if (problems.length > 0) troubles.set(id, { problems, role, organization })
          for (const note of notes) {
            count(note.note)
            report({ id, username, ...note })
          }
          const rank = ranks[problems.length > 0 ? 'troubled' : active ? 'active' : 'inactive']
          named.push({ id, rank, names: { username, nickname } })
        }
        await names.add(named)
        done += batch.length
        tell(`${done} of ${source.userCount}`)
      }
      for (const { id, ...problem } of await names.collisions()) {
        const trouble = troubles.get(id) ?? { problems: [] }
        trouble.problems.push(problem)
        troubles.set(id, trouble)
      }

      const listings = (await source.names([...troubles.keys()])).map(({ id, username, nickname }): Listing => {
        return { id, username: username ?? '', nickname: nickname ?? '', problems: troubles.get(id)!.problems }
      })
      if (choice === 'suffix') {
        const usernames = await rename('username', listings, names)
        const nicknames = await rename('nickname', listings, names)
        for (const { id, problems } of listings) {
          const { role, organization } = troubles.get(id)!
          const settle = <T>(of: Problem['field'], value: T) =>
            problems.some(({ field }) => field === of) ? value : undefined
          const settled = {
            username: usernames.get(id),
            nickname: nicknames.get(id),
            role: settle('role', role),
            organization: settle('organization', organization),
          }
          decisions.set(id, settle('id', { skip: true } as const) ?? settled)
        }
      } else if (choice === 'skip') for (const { id } of listings) decisions.set(id, { skip: true })
      for (const listing of listings) {
        for (const what of new Set(listing.problems.map(({ field, problem }) => `${field} ${problem}`))) count(what)
        report({ ...listing, decision: decisions.get(listing.id) })
      }
      return {
        /** Id there of the user that is the administrator here, of whom nothing is imported. */
        administratorThere,
        /** Decisions about users, by id. */
        decisions: decisions as ReadonlyMap<number, Decision>,
        /** Users that need a decision and have none. */
        unsettled: typeof choice === 'string' ? [] : listings,
        /** Number of users by what was listed of them. */
        listed,
      }
    },
    { unlimited: true },
  )
}

/** Returns a free name for each user whose name is a problem: with its id, or cleaned of what our rules refuse. */
async function rename(field: NameField, listings: readonly Listing[], names: NameTable): Promise<Map<number, string>> {
  const renamed = new Map<number, string>()
  const used = new Set<string>()
  let open = listings.filter(({ problems }) => problems.some(problem => problem.field === field))
  for (let round = 0; open.length > 0; round++) {
    const candidates = open.map(listing => ({ id: listing.id, name: candidate(listing, field, round) }))
    const taken = await names.taken(field, candidates)
    for (const { id, name } of candidates) {
      if (taken.has(id) || used.has(usernameKey(name))) continue
      used.add(usernameKey(name))
      renamed.set(id, name)
    }
    open = open.filter(({ id }) => !renamed.has(id))
  }
  return renamed
}

function candidate({ id, ...given }: Listing, field: NameField, round: number): string {
  const plain = [...visible(oneLine(given[field])).trim()].slice(0, 200).join('')
  // Cleaned, a name may be free: its owner goes on writing it as before.
  if (round === 0 && plain !== given[field].trim() && !isRefused(field, plain)) return plain
  const suffixed = `${plain}-${id}`
  const base = plain === '' || isRefused(field, suffixed) ? `${standIn}-${id}` : suffixed
  return round < 2 ? base : `${base}-${round}`
}

/** Reads decisions: one JSON document on a line, such as a report has. Throws an Error that names the first invalid line. */
export function readDecisions(text: string): Map<number, Decision> {
  const decisions = new Map<number, Decision>()
  for (const [index, line] of text.split('\n').entries()) {
    if (line.trim() === '') continue
    const wrong = (what: string): never => {
      throw new Error(`The file of --on-collision: line ${index + 1} ${what}.`)
    }
    const { id, skip, username, nickname, role, organization } = parse(line) ?? wrong('is no JSON document')
    if (!Number.isInteger(id)) wrong('has no "id"')
    if (![username, nickname].every(name => ['undefined', 'string'].includes(typeof name)))
      wrong('has a name that is no text')
    if (role !== undefined && !roles.includes(role as Role)) wrong('has an unknown "role"')
    if (organization != null && !Number.isInteger(organization)) wrong('has an "organization" that is no id')
    if (!['undefined', 'boolean'].includes(typeof skip)) wrong('has a "skip" that is neither true nor false')
    const named = JSON.parse(JSON.stringify({ username, nickname, role, organization }))
    decisions.set(id as number, skip ? { skip: true } : named)
  }
  return decisions
}

function parse(line: string): Record<string, unknown> | undefined {
  try {
    return JSON.parse(line)
  } catch {
    return undefined
  }
}
