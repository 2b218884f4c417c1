// Analyses all users before any is written: what collides here, what our rules refuse, what needs a decision, and the decisions.
import type { Database, Transaction } from '../database/connection.js'
import { usernameKey, visible } from '../rules/names.js'
import { type Role, roles } from '../rules/roles.js'
import { type Convert, type Decision, isRefused, type Note, oneLine, type Problem } from './convert.js'
import { type Collision, createNameTable, type Named, type NameTable } from './names.js'
import type { Source, SourceUser } from './source.js'

/** How collisions are settled: all others but one are left out, or get other names; or as a file decides. */
export type Choice = 'skip' | 'suffix' | ReadonlyMap<number, Decision>

/** A user that needs a decision, with the one that was made. */
export interface Listing {
  readonly id: number
  readonly username: string
  readonly nickname: string
  readonly problems: readonly Problem[]
  readonly decision?: Decision
}

/** A user that is imported otherwise than it was, or needs attention. */
export interface NoteLine extends Note {
  readonly id: number
  readonly username: string
}

/** The administrator here. */
interface Administrator {
  readonly id: number
  readonly username: string
  readonly usernameKey: string
}

/** What the analysis found. */
export type Analysis = Awaited<ReturnType<typeof analyze>>

/** A name that stands in for one of which nothing is left. */
const standIn = 'usuario'

/** Analyses a snapshot. Writes nothing but a temporary table. `report` receives everything that is listed. */
export function analyze(
  source: Source,
  {
    database,
    ...how
  }: {
    readonly database: Database
    readonly convert: Convert
    readonly choice: Choice | undefined
    readonly administrator: Administrator | undefined
    readonly report: (line: Listing | NoteLine) => void
    readonly tell: (done: string) => void
  },
) {
  const work = async (t: Transaction) =>
    analyzeBy(await createNameTable(database, t, how.administrator?.id), source, how)
  return database.transact(work, { unlimited: true })
}

async function analyzeBy(
  names: NameTable,
  source: Source,
  { convert, choice, administrator, report, tell }: Omit<Parameters<typeof analyze>[1], 'database'>,
) {
  const given = choice instanceof Map ? (choice as ReadonlyMap<number, Decision>) : new Map<number, Decision>()
  const listed: Record<string, number> = {}
  const count = (what: string) => {
    listed[what] = (listed[what] ?? 0) + 1
  }
  const namesakes: SourceUser[] = []
  const troubles = new Map<number, { problems: Problem[]; suggested: Decision }>()
  let done = 0
  const read = async (users: readonly SourceUser[], isOurs: (user: SourceUser, key: string) => boolean) => {
    const named: Named[] = []
    for (const there of users) {
      const decision = given.get(there.id)
      if (decision?.skip) continue
      const { user, organization, notes, problems: found } = convert(there, decision)
      const { id, username, nickname, role, active = false } = user
      if (isOurs(there, user.usernameKey)) continue
      const problems = [...found]
      if (id === administrator?.id) problems.push({ field: 'id', problem: 'administrator’s', by: [id] })
      if (problems.length > 0) troubles.set(id, { problems, suggested: { role, organization } })
      for (const note of notes) {
        count(note.note)
        report({ id, username, ...note })
      }
      named.push({ id, username, nickname, active, troubled: problems.length > 0 })
    }
    await names.add(named)
  }
  for await (const batch of source.users(0)) {
    await read(batch, (user, key) => key === administrator?.usernameKey && namesakes.push(user) > 0)
    done += batch.length
    tell(`${done} of ${source.userCount}`)
  }
  // Of several, the one with the same spelling.
  const ours = namesakes.find(({ username }) => username === administrator?.username) ?? namesakes[0]
  await read(namesakes, user => user === ours)
  for (const { id, ...problem } of await names.collisions()) {
    const trouble = troubles.get(id) ?? { problems: [], suggested: {} }
    trouble.problems.push(problem)
    troubles.set(id, trouble)
  }

  const listings: Listing[] = []
  for (const { id, username, nickname } of await source.names([...troubles.keys()]))
    listings.push({ id, username: username ?? '', nickname: nickname ?? '', problems: troubles.get(id)!.problems })
  const decisions = new Map(given)
  if (choice === 'skip') for (const { id } of listings) decisions.set(id, { skip: true })
  if (choice === 'suffix') {
    const usernames = await rename('username', listings, names)
    const nicknames = await rename('nickname', listings, names)
    for (const { id, problems } of listings) {
      const has = (field: Problem['field']) => problems.some(problem => problem.field === field)
      const { role, organization } = troubles.get(id)!.suggested
      const settled = {
        username: usernames.get(id),
        nickname: nicknames.get(id),
        role: has('role') ? role : undefined,
        organization: has('organization') ? organization : undefined,
      }
      decisions.set(id, has('id') ? { skip: true } : settled)
    }
  }
  const settled = choice === 'skip' || choice === 'suffix'
  const occupied = await names.occupied()
  // A user that is left out keeps its former name here, which another one has got there.
  const stuck = settled ? occupied.filter(id => decisions.get(id)?.skip) : []
  for (const listing of listings) {
    for (const what of new Set(listing.problems.map(({ field, problem }) => `${field} ${problem}`))) count(what)
    const decision = decisions.get(listing.id)
    report({ ...listing, decision })
  }
  return {
    /** Id there of the user that is the administrator here, of whom nothing is imported. */
    administratorThere: ours?.id,
    /** Decisions about users, by id. */
    decisions: decisions as ReadonlyMap<number, Decision>,
    /** Users that need a decision and have none. */
    unsettled: settled ? listings.filter(({ id }) => stuck.includes(id)) : listings,
    /** Number of users by what was listed of them. */
    listed,
    /** Users here whose name another user takes, because it has changed there. */
    occupied,
  }
}

/** Returns a free name for each user whose name is a problem: with its id, or cleaned of what our rules refuse. */
async function rename(
  field: Collision['field'],
  listings: readonly Listing[],
  names: NameTable,
): Promise<Map<number, string>> {
  const renamed = new Map<number, string>()
  const used = new Set<string>()
  let open = listings.filter(({ problems }) => problems.some(problem => problem.field === field))
  for (let round = 0; open.length > 0; round++) {
    const candidates = open.map(listing => ({ id: listing.id, listing, name: candidate(listing, field, round) }))
    const taken = await names.taken(field, candidates)
    open = candidates.flatMap(({ id, listing, name }) => {
      const free = !taken.has(id) && !used.has(usernameKey(name))
      if (free) {
        used.add(usernameKey(name))
        renamed.set(id, name)
      }
      return free ? [] : [listing]
    })
  }
  return renamed
}

function candidate({ id, ...given }: Listing, field: Collision['field'], round: number): string {
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
    const wrong = (what: string) => new Error(`The file of --on-collision: line ${index + 1} ${what}.`)
    let read: Record<string, unknown>
    try {
      read = JSON.parse(line)
    } catch {
      throw wrong('is no JSON document')
    }
    const { id, skip, username, nickname, role, organization } = read ?? {}
    const isText = (value: unknown) => value === undefined || typeof value === 'string'
    const isOrganization = organization == null || Number.isInteger(organization)
    if (!Number.isInteger(id)) throw wrong('has no "id"')
    if (!isText(username) || !isText(nickname)) throw wrong('has a name that is no text')
    if (role !== undefined && !roles.includes(role as Role)) throw wrong('has an unknown "role"')
    if (!isOrganization) throw wrong('has an "organization" that is no id')
    if (skip !== undefined && typeof skip !== 'boolean') throw wrong('has a "skip" that is neither true nor false')
    const named = JSON.parse(JSON.stringify({ username, nickname, role, organization }))
    decisions.set(id as number, skip ? { skip: true } : named)
  }
  return decisions
}
