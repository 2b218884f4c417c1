import type { Transaction } from 'sequelize'
import type { Database, Statement } from '../database/connection.js'

/** Something that happened, for the record. It holds no secret and no text that a stranger typed. */
export interface AuditEvent {
  /** What was done, noun and verb: `session.login`, `user.activate`. */
  readonly action: string
  readonly outcome: 'ok' | 'refused'
  /** Why it was refused, a name of auth.v1.Reason; or what else tells two events of one action apart. */
  readonly reason?: string
  /** Kind of actor: `user`, `anonymous`, `service`, or `cli:<system user>`. */
  readonly actor: string
  readonly actor_id?: number
  /** The user it was done to. */
  readonly subject_id?: number
  /** The other thing it was done to, such as `organization:3`. */
  readonly object?: string
  /** Client address. */
  readonly address?: string
  readonly request_id?: string
}

/** An event as it stands in the record. */
export interface RecordedEvent extends AuditEvent {
  readonly id: string
  readonly at: Date
}

/** Which events to list: all conditions given must hold. */
export interface AuditFilter {
  readonly afterId?: string
  readonly subjectId?: number
  readonly action?: string
  readonly outcome?: string
  readonly since?: Date
  readonly limit: number
}

/** The record of events: each is chained to the one before by a hash, so that a lost or altered row is found. */
export interface Audit {
  /** Records an event. Inside a transaction, call it last. */
  append(event: AuditEvent, transaction?: Transaction): Promise<void>
  /** The newest events that fit, oldest first. */
  list(filter: AuditFilter): Promise<RecordedEvent[]>
  /**
   * Checks every link. Returns how many there are, the newest as `id:hash`, and the id of the first broken or missing
   * one. Whoever can write the database could also forge what follows; so keep the newest link elsewhere, and give it
   * as `known` another time.
   */
  verify(known?: string): Promise<{ events: number; newest: string; broken?: string }>
}

const append: Statement = { name: 'audit-append', text: 'SELECT audit_append($1)' }

const list: Statement = {
  name: 'audit-list',
  text: `SELECT * FROM (
    SELECT id, at, action, outcome, reason, actor, actor_id, subject_id, object, address, request_id
    FROM audit_events
    WHERE id > $1 AND ($2::int IS NULL OR subject_id = $2) AND ($3::text IS NULL OR action LIKE $3)
      AND ($4::text IS NULL OR outcome = $4) AND ($5::timestamptz IS NULL OR at >= $5)
    ORDER BY id DESC LIMIT $6) newest ORDER BY id`,
}

// Ids run without a gap, so a row whose predecessor is missing shows in both number and hash.
const verify: Statement = {
  name: 'audit-verify',
  text: `WITH head AS (SELECT id, hash FROM audit_head), links AS (
    SELECT id, hash, audit_hash(e, coalesce(lag(hash) OVER chain, '')) AS expected, row_number() OVER chain AS place
    FROM audit_events e WINDOW chain AS (ORDER BY id)
  ), broken AS (
    SELECT min(least(id, place)) AS id FROM links WHERE hash <> expected OR id <> place
  ), newest AS (SELECT coalesce(max(id), 0) AS id, count(*) AS events FROM audit_events)
  SELECT newest.events, head.id || ':' || encode(head.hash, 'hex') AS newest, coalesce(broken.id, CASE
      WHEN newest.id < head.id THEN newest.id + 1
      WHEN newest.id > head.id THEN head.id + 1
      WHEN head.id > 0 AND head.hash <> (SELECT hash FROM audit_events WHERE id = head.id) THEN head.id
      WHEN $1::bigint > 0 AND NOT EXISTS (SELECT FROM audit_events WHERE id = $1 AND hash = $2) THEN $1
    END)::text AS broken
  FROM head, newest, broken`,
}

/** The record of events in a database. */
export function createAudit(database: Database): Audit {
  return {
    async append(event, transaction) {
      await database.run(append, [JSON.stringify(event)], transaction)
    },
    list: filter =>
      database.run<RecordedEvent>(list, [
        filter.afterId ?? '0',
        filter.subjectId ?? null,
        filter.action?.replaceAll('*', '%') ?? null,
        filter.outcome ?? null,
        filter.since ?? null,
        filter.limit,
      ]),
    async verify(known = '0:') {
      const [id, hash = ''] = known.split(':')
      type Row = { events: string; newest: string; broken: string | null }
      const [row] = await database.run<Row>(verify, [id, Buffer.from(hash, 'hex')])
      const { events, newest, broken } = row!
      return { events: Number(events), newest, ...(broken !== null && { broken }) }
    },
  }
}
