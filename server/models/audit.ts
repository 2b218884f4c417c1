import type { Transaction } from 'sequelize'
import type { Database } from '../database/database.js'
import { first, sql } from '../database/sql.js'
import type { AuditAction } from '../policy/audit-actions.js'
import { createAuditChain, stampEvent } from './audit-chain.js'
import { createAuditList } from './audit-list.js'
import type { DataKeys } from './data-key.js'

/** An event of the audit log. It contains no secret, and no text from an unauthenticated caller. */
export interface AuditEvent {
  readonly action: AuditAction
  readonly outcome: 'ok' | 'refused'
  /** The reason of a refusal (a name of auth.v1.Reason), or a detail that distinguishes events of one action. */
  readonly reason?: string
  /**
   * Kind of actor: `user`, `anonymous`, `service:<name>` for a service that calls with its key, `service` for the registry
   * itself, or `cli:<system user>@<host>`.
   */
  readonly actor: string
  readonly actor_id?: number
  /** The user that the event concerns. */
  readonly subject_id?: number
  /**
   * Another resource that the event concerns, such as `organization:3`, or what a change replaced and by what, `of:before->after`;
   * or the count that reached a limit, `failures:10`.
   */
  readonly object?: string
  /** Client address. */
  readonly address?: string
  readonly request_id?: string
}

/**
 * The audit log. An event is staged, with its MAC, in the transaction of the action that it records. Soon after, the event is
 * sealed: it is linked to the previous event, which makes a missing or altered event detectable.
 */
export type Audit = ReturnType<typeof createAudit>

/** Creates the audit log in a database. */
export function createAudit(database: Database, dataKeys: Pick<DataKeys, 'mac'>) {
  const stamp = (event: AuditEvent) => stampEvent(event, dataKeys)
  return {
    ...createAuditChain(database, dataKeys),
    ...createAuditList(database),
    /** Returns an event as the argument of the SQL function `audit_append`, for statements that also append an event. */
    stamp,
    /** Appends an event. Other transactions don't wait for the end of its transaction. */
    async append(event: AuditEvent, transaction?: Transaction): Promise<void> {
      await database.run(sql('audit-append')`SELECT audit_append(${stamp(event)})`, transaction)
    },
    /** Returns the number of staged events, up to 10,000, and the age of the oldest one in seconds. */
    async backlog() {
      const count = sql('audit-backlog')`
        SELECT count(*)::int AS staged, greatest(0, extract(epoch FROM clock_timestamp() - min(at)))::float8 AS "oldestSeconds"
        FROM (SELECT at FROM audit_staged ORDER BY seq LIMIT 10000) s`
      return (await first(database.read<{ staged: number; oldestSeconds: number }>(count)))!
    },
  }
}
