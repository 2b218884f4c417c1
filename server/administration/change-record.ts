// Changes of a record under its etag, with their events.
import type { Transaction } from '../database/database.js'
import type { AuditEvent } from '../models/audit.js'

/** A change that was made, for the audit log. */
export type Done = Pick<AuditEvent, 'action' | 'object' | 'reason'>

/** The change that makes a record active, or not. */
export function setActive<Row extends { readonly id: number; readonly active: boolean }>(
  records: { setActive(id: number, active: boolean, t: Transaction): Promise<void> },
  active: boolean,
  action: Done['action'],
) {
  return async (row: Row, t: Transaction): Promise<Done | undefined> => {
    if (row.active === active) return undefined
    await records.setActive(row.id, active, t)
    return { action }
  }
}
