import { DataTypes, type Transaction } from 'sequelize'
import {
  attribute,
  bigint,
  bytes,
  defineTable,
  flag,
  integer,
  key,
  nullable,
  preset,
  type Row,
  selectList,
  text,
  time,
} from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'

/** Everything that leaves an event, noun and verb. */
export const auditActions = [
  'organization.activate',
  'organization.add',
  'organization.deactivate',
  'organization.edit',
  'organization.rotate-key',
  'question.add',
  'question.edit',
  'question.restore',
  'question.retire',
  'recovery.send-key',
  'session.login',
  'session.login-by-answers',
  'session.login-by-key',
  'signing-key.add',
  'signing-key.retire',
  'signing-key.rotate',
  'user.activate',
  'user.add',
  'user.change-password',
  'user.resume',
  'user.revoke-tokens',
  'user.save-answer',
  'user.send-activation-key',
  'user.set-email',
  'user.set-password',
  'user.sign-up',
  'user.suspend',
  'user.unlock',
] as const

/** What was done. */
export type AuditAction = (typeof auditActions)[number]

/** Something that happened, for the audit log. It holds no secret and no text that somebody unknown typed. */
export interface AuditEvent {
  readonly action: AuditAction
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

const shown = {
  id: key(bigint),
  at: time,
  action: attribute<AuditAction>(DataTypes.TEXT),
  outcome: attribute<AuditEvent['outcome']>(DataTypes.TEXT),
  reason: nullable(text),
  actor: text,
  actor_id: nullable(integer),
  subject_id: nullable(integer),
  object: nullable(text),
  address: nullable(text),
  request_id: nullable(text),
}

/** An event as it stands in the audit log. */
export interface RecordedEvent extends Row<typeof shown> {}

/** Which events to list: all conditions given must hold. */
export interface AuditFilter {
  readonly afterId?: string
  readonly subjectId?: number
  readonly action?: string
  readonly outcome?: string
  readonly since?: Date
  readonly limit: number
}

/** The audit log: each event is chained to the one before by a hash, so that a lost or altered row is found. */
export interface Audit {
  /** Appends an event. Inside a transaction, call it last. */
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
    SELECT ${selectList(shown, 'e')} FROM audit_events e
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

/** The audit log in a database. */
export function createAudit(database: Database): Audit {
  defineTable(database, 'audit_events', { ...shown, hash: bytes })
  // The newest link of the chain.
  defineTable(database, 'audit_head', { single: preset(key(flag)), id: bigint, hash: bytes })
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
