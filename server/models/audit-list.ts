// Reads the audit log: the newest events that match a filter, and the events after them.
import { attribute, integer, nullable, type Row, selectList, text, time } from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { first, type Query, sql } from '../database/sql.js'

/** Attributes of an event that queries read. */
const shownOfEvent = {
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

const columns = sql.text(selectList(shownOfEvent, 'e'))

/** Returns the conditions of a filter without its users. `e` is the alias of the event. */
function matching({ action, outcome, since, until }: AuditFilter): Query {
  // Escapes the wildcards of LIKE: only `*` is a wildcard.
  const pattern = action?.replace(/[\\%_]/g, '\\$&').replaceAll('*', '%')
  return sql.all(
    pattern !== undefined && sql`e.action LIKE ${pattern}`,
    outcome !== undefined && sql`e.outcome = ${outcome}`,
    since && sql`e.at >= ${since}`,
    until && sql`e.at < ${until}`,
  )
}

/** What selects the events that concern a user, each part by its index: its own, and those of imports, which name ranges of ids. */
const concerning = (id: number) =>
  [sql`e.subject_id = ${id}`, sql`e.action = 'user.import' AND imported_ids(e.object) @> ${id}::bigint`] as const

/** The same as one condition. */
function ofUsers({ subjectId, actorId }: AuditFilter): Query {
  const [own, imports] = concerning(subjectId ?? 0)
  return sql.all(
    subjectId !== undefined && sql`(${own} OR ${imports})`,
    actorId !== undefined && sql`e.actor_id = ${actorId}`,
  )
}

/** Returns a statement with only the conditions of the filter, so that the planner can use their indexes. */
function listOf(filter: AuditFilter, { fromId, beforeId, beforeSeq }: AuditStretch): Query {
  const { subjectId, actorId, limit } = filter
  const sealed = sql.all(
    matching(filter),
    fromId !== undefined && sql`e.id >= ${fromId}`,
    beforeId !== undefined && sql`e.id < ${beforeId}`,
  )
  const select = (where: Query, order = sql`e.id`) =>
    sql`(SELECT e.id, NULL::bigint AS seq, ${columns} FROM audit_events e WHERE ${where} ORDER BY ${order} DESC LIMIT ${limit})`
  // The index by actor excludes events whose actor is also the subject; the index by subject finds them.
  const byActor =
    actorId === undefined
      ? [sealed]
      : [
          sql`${sealed} AND e.actor_id = ${actorId} AND e.actor_id IS DISTINCT FROM e.subject_id`,
          sql`${sealed} AND e.actor_id = ${actorId} AND e.subject_id = ${actorId}`,
        ]
  const ways = byActor.flatMap(where => {
    if (subjectId === undefined) return [select(where)]
    const [own, imports] = concerning(subjectId)
    // `id + 0` prevents a scan of the whole log by id: few imports concern a user.
    return [select(sql`${where} AND ${own}`), select(sql`${where} AND ${imports}`, sql`e.id + 0`)]
  })
  const before = beforeSeq !== undefined && sql`e.seq < ${beforeSeq}`
  const staged = sql`(SELECT NULL::bigint, e.seq, ${columns} FROM audit_staged e
    WHERE ${sql.all(matching(filter), ofUsers(filter), before)} ORDER BY e.seq DESC LIMIT ${limit})`
  if (beforeId === undefined) ways.push(staged)
  const every = ways.reduce((all, each) => sql`${all} UNION ALL ${each}`)
  return sql`SELECT * FROM (
      SELECT * FROM (${every}) every ORDER BY seq DESC NULLS LAST, id DESC LIMIT ${limit}
    ) newest ORDER BY id, seq`
}

/** Creates the methods that read the audit log in a database. */
export function createAuditList(database: Database) {
  const one = async <Row>(query: Query) => (await first(database.run<Row>(query)))!
  return {
    /** Returns the newest events that match, oldest first. Staged events follow sealed events. */
    list: (filter: AuditFilter, stretch: AuditStretch = {}) => database.run<RecordedEvent>(listOf(filter, stretch)),
    /** Returns the sealed events that match, oldest first: `afterId` is exclusive, `upToId` inclusive. */
    follow: (filter: AuditFilter, afterId: number, upToId: number) =>
      database.run<RecordedEvent>(sql`
        SELECT e.id, NULL::bigint AS seq, ${columns} FROM audit_events e
        WHERE e.id > ${afterId} AND e.id <= ${upToId} AND ${matching(filter)} AND ${ofUsers(filter)}
        ORDER BY e.id LIMIT ${filter.limit}`),
    /** Returns the ids of the newest and the oldest sealed event, and the time of the first event from `fromId` on. */
    ends: (fromId: number) =>
      one<{ newest: number; oldest: number; from: Date | null }>(sql('audit-list-ends')`
        SELECT (SELECT id FROM audit_head)::float8 AS newest,
          coalesce((SELECT min(id) FROM audit_events), 1)::float8 AS oldest,
          (SELECT at FROM audit_events WHERE id >= ${fromId} ORDER BY id LIMIT 1) AS "from"`),
    /** Counts sign-ins, their users and their addresses among the newest 1,000 events, and returns one of the addresses. */
    signInAddresses: () =>
      one<{ signIns: number; users: number; addresses: number; address: string | null }>(sql`
        SELECT count(*)::int AS "signIns", count(DISTINCT subject_id)::int AS users,
          count(DISTINCT address)::int AS addresses, min(address) AS address
        FROM (SELECT * FROM audit_events ORDER BY id DESC LIMIT 1000) newest
        WHERE action = 'session.login' AND outcome = 'ok' AND address IS NOT NULL`),
    /** Returns the time of the last backup, in seconds since 1970; 0 if the log has none. */
    async lastBackup() {
      const [last] = await database.read<{ at: number }>(sql('audit-last-backup')`
        SELECT coalesce(extract(epoch FROM max(at)), 0)::float8 AS at FROM audit_events WHERE action = 'registry.backup'`)
      return last!.at
    },
  }
}
