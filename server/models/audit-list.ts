// Reads the audit log: the newest events that match a filter, and the events after them.
import { attribute, integer, nullable, type Row, selectList, text, time } from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'

/** Attributes of an event that queries read. */
export const shownOfEvent = {
  at: time,
  action: text,
  outcome: attribute<'ok' | 'refused'>('TEXT'),
  reason: nullable(text),
  actor: text,
  actor_id: nullable(integer),
  subject_id: nullable(integer),
  object: nullable(text),
  address: nullable(text),
  request_id: nullable(text),
}

/** An event as it was recorded. */
export interface RecordedEvent extends Row<typeof shownOfEvent> {
  /** Position in the chain; null until the event is sealed. */
  readonly id: string | null
  /** Sequence number of a staged event; null after the event is sealed. */
  readonly seq: string | null
}

/** A filter of events. All given conditions must hold. */
export interface AuditFilter {
  /** The user that the event concerns. That of an import concerns all users that it created or changed. */
  readonly subjectId?: number
  /** The user that caused the event. */
  readonly actorId?: number
  /** A pattern, in which `*` matches any text. */
  readonly action?: string
  readonly outcome?: string
  /** Time of the event, from `since` (inclusive) to `until` (exclusive). */
  readonly since?: Date
  readonly until?: Date
  readonly limit: number
}

/** A range of the log. */
interface AuditStretch {
  /** Range of sealed events: `fromId` is inclusive, `beforeId` exclusive. Without `beforeId` it includes staged events. */
  readonly fromId?: number
  readonly beforeId?: number
  /** Limits staged events to those before this sequence number. */
  readonly beforeSeq?: string
}

/** Reads the audit log. */
export interface AuditList {
  /** Returns the newest events that match, oldest first. Staged events follow sealed events. */
  list(filter: AuditFilter, stretch?: AuditStretch): Promise<RecordedEvent[]>
  /** Returns the sealed events that match, oldest first: `afterId` is exclusive, `upToId` inclusive. */
  follow(filter: AuditFilter, afterId: number, upToId: number): Promise<RecordedEvent[]>
  /** Returns the ids of the newest and the oldest sealed event, and the time of the first event from `fromId` on. */
  ends(fromId: number): Promise<{ newest: number; oldest: number; from: Date | null }>
  /** Counts sign-ins, their users and their addresses among the newest 1,000 events, and returns one of the addresses. */
  signInAddresses(): Promise<{ signIns: number; users: number; addresses: number; address: string | null }>
  /** Returns the time of the last backup, in seconds since 1970; 0 if the log has none. */
  lastBackup(): Promise<number>
}

/** Returns the SQL conditions of a filter, and appends their parameters to `values`. `e` is the alias of the event. */
function conditionsOf(filter: AuditFilter, values: unknown[]) {
  const names: string[] = []
  const conditions: string[] = []
  const place = (value: unknown) => `$${values.push(value)}`
  const add = (name: string, value: unknown, condition: (placeholder: string) => string) => {
    if (value === undefined) return
    names.push(name)
    conditions.push(condition(place(value)))
  }
  // Escapes the wildcards of LIKE: only `*` is a wildcard.
  const pattern = filter.action?.replace(/[\\%_]/g, '\\$&').replaceAll('*', '%')
  add('action', pattern, n => `e.action LIKE ${n}`)
  add('outcome', filter.outcome, n => `e.outcome = ${n}`)
  add('since', filter.since, n => `e.at >= ${n}`)
  add('until', filter.until, n => `e.at < ${n}`)
  return { names, conditions, place }
}

const columns = selectList(shownOfEvent, 'e')

/** What selects the events that concern a user, each part by its index: its own, and those of imports, which name ranges of ids. */
const concerning = (place: string) =>
  [`e.subject_id = ${place}`, `e.action = 'user.import' AND imported_ids(e.object) @> ${place}::bigint`] as const

/** Returns a statement with only the conditions of the filter, so that the planner can use their indexes. */
function listOf(filter: AuditFilter, stretch: AuditStretch): { statement: Statement; values: unknown[] } {
  const { fromId, beforeId, beforeSeq } = stretch
  const values: unknown[] = [filter.limit]
  const { names, conditions, place } = conditionsOf(filter, values)
  const sealedOnly = [...conditions]
  const stagedOnly = [...conditions]
  const add = (name: string, value: unknown, list: string[], condition: string) => {
    if (value === undefined) return
    names.push(name)
    list.push(`${condition} ${place(value)}`)
  }
  add('from', fromId, sealedOnly, 'e.id >=')
  add('before', beforeId, sealedOnly, 'e.id <')
  add('seq', beforeSeq, stagedOnly, 'e.seq <')
  const subject = filter.subjectId === undefined ? undefined : place(filter.subjectId)
  if (subject) {
    names.push('subject')
    stagedOnly.push(`(${concerning(subject).join(' OR ')})`)
  }
  // The index by actor excludes events whose actor is also the subject; the index by subject finds them.
  const actor = filter.actorId === undefined ? undefined : place(filter.actorId)
  if (actor) {
    names.push('actor')
    stagedOnly.push(`e.actor_id = ${actor}`)
  }
  const byActor = actor
    ? [
        [...sealedOnly, `e.actor_id = ${actor}`, 'e.actor_id IS DISTINCT FROM e.subject_id'],
        [...sealedOnly, `e.actor_id = ${actor}`, `e.subject_id = ${actor}`],
      ]
    : [sealedOnly]
  const [own, imports] = subject ? concerning(subject) : []
  const ways = byActor.map(list => ({ list: own ? [...list, own] : list, order: 'e.id' }))
  // `id + 0` prevents a scan of the whole log by id: few imports concern a user.
  if (imports) ways.push(...byActor.map(list => ({ list: [...list, imports], order: 'e.id + 0' })))
  const where = (list: string[]) => (list.length > 0 ? `WHERE ${list.join(' AND ')}` : '')
  const parts = ways.map(
    ({ list, order }) =>
      `(SELECT e.id, NULL::bigint AS seq, ${columns} FROM audit_events e ${where(list)} ORDER BY ${order} DESC LIMIT $1)`,
  )
  if (beforeId === undefined)
    parts.push(
      `(SELECT NULL::bigint, e.seq, ${columns} FROM audit_staged e ${where(stagedOnly)} ORDER BY e.seq DESC LIMIT $1)`,
    )
  const all = `SELECT * FROM (${parts.join(' UNION ALL ')}) every ORDER BY seq DESC NULLS LAST, id DESC LIMIT $1`
  const text = `SELECT * FROM (${all}) newest ORDER BY id, seq`
  return { statement: { name: ['audit-list', ...names].join('-'), text }, values }
}

/** Returns the statement of `follow`, also with only the conditions of the filter. */
function followOf(filter: AuditFilter, afterId: number, upToId: number): { statement: Statement; values: unknown[] } {
  const values: unknown[] = [filter.limit, afterId, upToId]
  const { names, conditions, place } = conditionsOf(filter, values)
  if (filter.subjectId !== undefined) {
    names.push('subject')
    conditions.push(`(${concerning(place(filter.subjectId)).join(' OR ')})`)
  }
  if (filter.actorId !== undefined) {
    names.push('actor')
    conditions.push(`e.actor_id = ${place(filter.actorId)}`)
  }
  const where = ['e.id > $2', 'e.id <= $3', ...conditions].join(' AND ')
  const text = `SELECT e.id, NULL::bigint AS seq, ${columns} FROM audit_events e WHERE ${where} ORDER BY e.id LIMIT $1`
  return { statement: { name: ['audit-follow', ...names].join('-'), text }, values }
}

const ends: Statement = {
  name: 'audit-list-ends',
  text: `SELECT (SELECT id FROM audit_head)::float8 AS newest, coalesce((SELECT min(id) FROM audit_events), 1)::float8 AS oldest,
    (SELECT at FROM audit_events WHERE id >= $1 ORDER BY id LIMIT 1) AS "from"`,
}

const signInAddresses: Statement = {
  name: 'audit-sign-in-addresses',
  text: `SELECT count(*)::int AS "signIns", count(DISTINCT subject_id)::int AS users,
      count(DISTINCT address)::int AS addresses, min(address) AS address
    FROM (SELECT * FROM audit_events ORDER BY id DESC LIMIT 1000) newest
    WHERE action = 'session.login' AND outcome = 'ok' AND address IS NOT NULL`,
}

const lastBackup: Statement = {
  name: 'audit-last-backup',
  text: `SELECT coalesce(extract(epoch FROM max(at)), 0)::float8 AS at FROM audit_events WHERE action = 'registry.backup'`,
}

/** Creates the methods that read the audit log in a database. */
export function createAuditList(database: Database): AuditList {
  return {
    list(filter, stretch = {}) {
      const { statement, values } = listOf(filter, stretch)
      return database.run<RecordedEvent>(statement, values)
    },
    follow(filter, afterId, upToId) {
      const { statement, values } = followOf(filter, afterId, upToId)
      return database.run<RecordedEvent>(statement, values)
    },
    ends: async fromId =>
      (await database.run<{ newest: number; oldest: number; from: Date | null }>(ends, [fromId]))[0]!,
    signInAddresses: async () =>
      (
        await database.run<{ signIns: number; users: number; addresses: number; address: string | null }>(
          signInAddresses,
          [],
        )
      )[0]!,
    lastBackup: async () => (await database.read<{ at: number }>(lastBackup, []))[0]!.at,
  }
}
