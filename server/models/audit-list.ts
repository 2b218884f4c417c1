// How the audit log is read: the newest events that fit, and those that follow.
import { attribute, integer, nullable, type Row, selectList, text, time } from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'

/** What is shown of an event. */
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
  /** Its place in the chain; null while it isn't sealed yet. */
  readonly id: string | null
  /** Its number among those that aren't sealed yet; null once it is. */
  readonly seq: string | null
}

/** Which events to list: all conditions given must hold. */
export interface AuditFilter {
  /** Done to this user. */
  readonly subjectId?: number
  /** Done by this user. */
  readonly actorId?: number
  /** `*` stands for any text. */
  readonly action?: string
  readonly outcome?: string
  /** At this time or later, and before that one. */
  readonly since?: Date
  readonly until?: Date
  readonly limit: number
}

/** A stretch of the log. */
interface AuditStretch {
  /** Sealed events from this one on, and before that one. Without an end, those not sealed yet belong to it, too. */
  readonly fromId?: number
  readonly beforeId?: number
  /** Of those not sealed yet, the ones before this number. */
  readonly beforeSeq?: string
}

/** How the audit log is read. */
export interface AuditList {
  /** The newest events that fit, oldest first, those not sealed yet behind the others. */
  list(filter: AuditFilter, stretch?: AuditStretch): Promise<RecordedEvent[]>
  /** The sealed events behind one and up to another that fit, oldest first. */
  follow(filter: AuditFilter, afterId: number, upToId: number): Promise<RecordedEvent[]>
  /** The newest sealed event, the oldest one that is kept, and the time of the first from an id on. */
  ends(fromId: number): Promise<{ newest: number; oldest: number; from: Date | null }>
  /** How many of the newest sign-ins were of how many users, and from how many addresses; one of these. */
  signInAddresses(): Promise<{ signIns: number; users: number; addresses: number; address: string | null }>
}

/** The conditions of a filter, with their values behind those given; `e` is the event. */
function conditionsOf(filter: AuditFilter, values: unknown[]) {
  const names: string[] = []
  const conditions: string[] = []
  const place = (value: unknown) => `$${values.push(value)}`
  const add = (name: string, value: unknown, condition: (placeholder: string) => string) => {
    if (value === undefined) return
    names.push(name)
    conditions.push(condition(place(value)))
  }
  // What stands for any text is `*` alone.
  const pattern = filter.action?.replace(/[\\%_]/g, '\\$&').replaceAll('*', '%')
  add('subject', filter.subjectId, n => `e.subject_id = ${n}`)
  add('action', pattern, n => `e.action LIKE ${n}`)
  add('outcome', filter.outcome, n => `e.outcome = ${n}`)
  add('since', filter.since, n => `e.at >= ${n}`)
  add('until', filter.until, n => `e.at < ${n}`)
  return { names, conditions, place }
}

const columns = selectList(shownOfEvent, 'e')

/** A statement for these conditions alone, so that it is planned for what it filters by. */
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
  // The index by actor leaves out events whose actor is also the subject: the index by subject finds them.
  const actor = filter.actorId === undefined ? undefined : place(filter.actorId)
  if (actor) {
    names.push('actor')
    stagedOnly.push(`e.actor_id = ${actor}`)
  }
  const ways = actor
    ? [
        [...sealedOnly, `e.actor_id = ${actor}`, 'e.actor_id IS DISTINCT FROM e.subject_id'],
        [...sealedOnly, `e.actor_id = ${actor}`, `e.subject_id = ${actor}`],
      ]
    : [sealedOnly]
  const where = (list: string[]) => (list.length > 0 ? `WHERE ${list.join(' AND ')}` : '')
  const parts = ways.map(
    list =>
      `(SELECT e.id, NULL::bigint AS seq, ${columns} FROM audit_events e ${where(list)} ORDER BY e.id DESC LIMIT $1)`,
  )
  if (beforeId === undefined)
    parts.push(
      `(SELECT NULL::bigint, e.seq, ${columns} FROM audit_staged e ${where(stagedOnly)} ORDER BY e.seq DESC LIMIT $1)`,
    )
  const all = `SELECT * FROM (${parts.join(' UNION ALL ')}) every ORDER BY seq DESC NULLS LAST, id DESC LIMIT $1`
  const text = `SELECT * FROM (${all}) newest ORDER BY id, seq`
  return { statement: { name: ['audit-list', ...names].join('-'), text }, values }
}

/** The same for what follows. */
function followOf(filter: AuditFilter, afterId: number, upToId: number): { statement: Statement; values: unknown[] } {
  const values: unknown[] = [filter.limit, afterId, upToId]
  const { names, conditions, place } = conditionsOf(filter, values)
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

/** How the audit log in a database is read. */
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
  }
}
