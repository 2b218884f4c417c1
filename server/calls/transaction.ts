// The transaction of a change: it permits caller and target again, appends the events, and does what `validate_only`
// promises.
import type { Message } from '@bufbuild/protobuf'
import { checkAction } from '../access/permissions.js'
import type { Database, Transaction } from '../database/database.js'
import type { Audit, AuditEvent } from '../models/audit.js'
import type { Policy } from '../policy/row.js'
import { type Call, checkPresence } from '../requests/call.js'
import type { Transact } from './context.js'

/** What transactions are made of. */
export interface TransactionDeps {
  readonly database: Pick<Database, 'transact'>
  readonly audit: Pick<Audit, 'append'>
}

/** How a caller changes something. */
export interface Changes {
  /** What all its audit events have in common. */
  readonly auditContext: Pick<AuditEvent, 'actor' | 'actor_id' | 'address' | 'request_id' | 'reason'>
  /** Locks caller and target until the end of a transaction, permits the caller again, and returns the target as it is. */
  lock(target: unknown, t: Transaction): Promise<unknown>
  /** Sends the notices that an event entails. */
  notify?(event: Pick<AuditEvent, 'action' | 'subject_id'>, before: unknown, t: Transaction): Promise<void>
}

/** A call whose caller and target are known. */
interface KnownCall {
  readonly policy: Policy
  readonly request: Message & { readonly validateOnly?: boolean }
  readonly call: Call
  changes(): Changes
  readonly target: unknown
}

/** Thrown to roll a transaction back and return its result, for `validate_only`. */
class ValidatedOnly extends Error {
  constructor(readonly result: unknown) {
    super('validated only')
  }
}

/** Returns the `transact` of a call. */
export function transactFor(deps: TransactionDeps, known: KnownCall): Transact<unknown> {
  const { policy, request, call, target: found } = known
  return async (work, options) => {
    const changes = known.changes()
    checkPresence(call)
    const run = async (t: Transaction) => {
      const target = await changes.lock(found, t)
      // The client may have disconnected, or the deadline passed, during the wait for the locks.
      checkPresence(call)
      const result = await work({
        t,
        target,
        async record(event) {
          checkAction(policy, event.action)
          await deps.audit.append({ ...changes.auditContext, ...event, outcome: 'ok' }, t)
          await changes.notify?.(event, target, t)
        },
      })
      if (request.validateOnly) throw new ValidatedOnly(result)
      return result
    }
    try {
      return await deps.database.transact(run, options)
    } catch (error) {
      if (error instanceof ValidatedOnly) return error.result as Awaited<ReturnType<typeof work>>
      throw error
    }
  }
}
