import { DataTypes, type Transaction } from 'sequelize'
import {
  attribute,
  bigint,
  bytes,
  defineTable,
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
import type { MasterKey } from '../masterkey.js'
import { type AuditChain, createAuditChain, stampEvent } from './auditchain.js'

/** Everything that leaves an event, noun and verb. */
export const auditActions = [
  'data-keys.add',
  'master-key.rotate',
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
  'registry.set-issuer',
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

const stamps = { salt: nullable(bytes), addressDigest: nullable(bytes) }

/** An event as it stands in the audit log. */
export interface RecordedEvent extends Row<typeof shown> {
  /** Its place in the chain; null while it isn't sealed yet. */
  readonly id: string | null
}

/** Which events to list: all conditions given must hold. */
export interface AuditFilter {
  /** Only sealed ones, behind this one. */
  readonly afterId?: string
  /** Only sealed ones. */
  readonly sealed?: boolean
  readonly subjectId?: number
  readonly action?: string
  readonly outcome?: string
  readonly since?: Date
  readonly limit: number
}

/**
 * The audit log. An event is staged, with its MAC, in the transaction of what it tells; soon after it is sealed: chained
 * to the one before, so that a lost or altered one is found.
 */
export interface Audit extends AuditChain {
  /** Appends an event. Nobody waits for its transaction to end. */
  append(event: AuditEvent, transaction?: Transaction): Promise<void>
  /** The event as the function `audit_append` takes it, for statements that append one among other things. */
  stamp(event: AuditEvent): string
  /** The newest events that fit, oldest first, those not sealed yet behind the others. */
  list(filter: AuditFilter): Promise<RecordedEvent[]>
}

const append: Statement = { name: 'audit-append', text: 'SELECT audit_append($1)' }

const fits = `($2::int IS NULL OR subject_id = $2) AND ($3::text IS NULL OR action LIKE $3)
      AND ($4::text IS NULL OR outcome = $4) AND ($5::timestamptz IS NULL OR at >= $5)`

const list: Statement = {
  name: 'audit-list',
  text: `SELECT id, ${Object.keys(shown).join(', ')} FROM (
    (SELECT id, NULL::bigint AS seq, ${selectList(shown, 'e')} FROM audit_events e
      WHERE id > $1 AND ${fits} ORDER BY id DESC LIMIT $6)
    UNION ALL
    (SELECT NULL, seq, ${selectList(shown, 's')} FROM audit_staged s
      WHERE NOT $7 AND ${fits} ORDER BY seq DESC LIMIT $6)
    ORDER BY seq DESC NULLS LAST, id DESC LIMIT $6) newest ORDER BY id, seq`,
}

/** The audit log in a database. */
export function createAudit(database: Database, masterKey: Pick<MasterKey, 'mac'>): Audit {
  defineTable(database, 'audit_events', {
    id: key(bigint),
    ...shown,
    ...stamps,
    mac: nullable(bytes),
    hash: bytes,
  })
  defineTable(database, 'audit_staged', {
    seq: preset(key(bigint)),
    ...shown,
    ...stamps,
    mac: bytes,
    tx: preset(bigint),
  })
  const stamp = (event: AuditEvent) => stampEvent(event, masterKey)
  return {
    ...createAuditChain(database, masterKey),
    stamp,
    async append(event, transaction) {
      await database.run(append, [stamp(event)], transaction)
    },
    list: filter =>
      database.run<RecordedEvent>(list, [
        filter.afterId ?? '0',
        filter.subjectId ?? null,
        filter.action?.replaceAll('*', '%') ?? null,
        filter.outcome ?? null,
        filter.since ?? null,
        filter.limit,
        filter.sealed === true || filter.afterId !== undefined,
      ]),
  }
}
