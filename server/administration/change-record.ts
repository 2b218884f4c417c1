import type { Administrator } from '../access/administrator.js'
import type { Change } from '../access/context.js'
import type { Transaction } from '../database/connection.js'
import type { AuditEvent } from '../models/audit.js'
import type { AdministrationContext } from './context.js'
import { checkEtag } from './etag.js'

/** A change that was made, for the audit log. */
export type Done = Pick<AuditEvent, 'action' | 'object' | 'reason'>

/** A kind of record, as changes need it. */
interface Kind<Row, D extends Done, Answer> {
  /** Reads the row, which no other transaction changes before this one ends. Refuses when it is gone. */
  lock(id: number, t: Transaction): Promise<Row>
  /** The record with its etag. */
  show(row: Row): { readonly etag: string }
  /** Records what was done, with everything else that a change of this kind needs. */
  record(made: Change, done: D, before: Row, after: Row, administrator: Administrator): Promise<void>
  /** What a change answers with. */
  answer(row: Row, t: Transaction, administrator: Administrator): Answer | Promise<Answer>
}

/**
 * Returns a function that changes the record that a request refers to, as one transaction: it locks the record, checks the
 * etag, does `work`, which returns undefined when there is nothing to change, records it, and answers with the record as it
 * is then.
 */
export function changing<Row extends { readonly id: number }, D extends Done, Answer extends object>(
  kind: Kind<Row, D, Answer>,
) {
  return (
    request: { readonly etag?: string; readonly validateOnly: boolean },
    { administrator, change, target: { id } }: AdministrationContext<Row>,
    work: (row: Row, t: Transaction) => Promise<D | undefined>,
  ): Promise<Answer & { changed: boolean }> =>
    change(request, async made => {
      const { t } = made
      const before = await kind.lock(id, t)
      checkEtag(request.etag, kind.show(before))
      const done = await work(before, t)
      const after = await kind.lock(id, t)
      if (done) await kind.record(made, done, before, after, administrator)
      return { ...(await kind.answer(after, t, administrator)), changed: done !== undefined }
    })
}

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
