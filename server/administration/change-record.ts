// Changes of a record under its etag: by one transaction, with their events.
//
// This folder owns the RPCs of the service `auth.v1.Administration`: an object of RPCs for each noun. administration.proto
// describes what each RPC does and refuses, policy/administration.ts says who may call it, and calls/ applies its row. The
// folder models/ stores the data. service.ts serves the RPCs on a separate listener. The command line also runs them through
// local-application.ts.
import type { Message } from '@bufbuild/protobuf'
import type { Administrator } from '../access/administrator.js'
import type { AdministrationContext, Change } from '../calls/context.js'
import type { Transaction } from '../database/database.js'
import type { AuditEvent } from '../models/audit.js'
import { checkEtag } from './etag.js'

/** A change that was made, for the audit log. */
export type Done = Pick<AuditEvent, 'action' | 'object' | 'reason'>

/** A kind of record, as changes need it. */
interface Kind<Row, D extends Done, Answer> {
  /** Reads the row, which the transaction has locked. */
  lock(id: number, t: Transaction): Promise<Row>
  /** The record with its etag. */
  show(row: Row): { readonly etag: string }
  /** Records what was done, with everything else that a change of this kind needs. */
  record(made: Change, done: D, before: Row, after: Row, administrator: Administrator): Promise<void>
  /** What a change answers with. */
  answer(row: Row, t: Transaction, administrator: Administrator): Answer | Promise<Answer>
}

/**
 * Returns a function that changes the record that a request refers to: it checks the etag, does `work`, which returns
 * undefined when there is nothing to change, records it, and answers with the record as it is then.
 */
export function changing<Row extends { readonly id: number }, D extends Done, Answer extends object>(
  kind: Kind<Row, D, Answer>,
) {
  return (
    { etag }: Message & { readonly etag?: string },
    { administrator, transact }: AdministrationContext<Row>,
    work: (row: Row, t: Transaction) => Promise<D | undefined>,
  ): Promise<Answer & { changed: boolean }> =>
    transact(async ({ t, record, target: before }) => {
      checkEtag(etag, kind.show(before))
      const done = await work(before, t)
      const after = done ? await kind.lock(before.id, t) : before
      if (done) await kind.record({ t, record }, done, before, after, administrator)
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
