// The transaction of a change: it permits caller and target again, appends the events, and does what `validate_only`
// promises.
import type { Message } from '@bufbuild/protobuf'
import { checkAction } from '../access/permissions.js'
import type { Database, Transaction } from '../database/database.js'
import type { AdministeredUserRow } from '../models/administered-user.js'
import type { Audit, AuditEvent } from '../models/audit.js'
import type { Policy } from '../policy/policy.js'
import type { Call } from '../requests/call.js'
import { checkPresence } from '../requests/deadline.js'
import type { Transact } from './context.js'

/** What transactions are made of. */
interface TransactionDeps {
  readonly database: Pick<Database, 'transact'>
  readonly audit: Pick<Audit, 'append'>
}

/** How a caller changes something. */
export interface Changes<Target> {
  /** What all its audit events have in common. */
  readonly auditContext: Pick<AuditEvent, 'actor' | 'actor_id' | 'address' | 'request_id' | 'reason'>
  /** Locks caller and target until the end of a transaction, permits the caller again, and returns the target as it is. */
  lock(t: Transaction): Promise<Target>
  /** Sends the notices that an event entails. `after` is its subject as the change leaves it, if it was read. */
  notify?(
    event: Pick<AuditEvent, 'action' | 'subject_id'>,
    before: Target,
    after: AdministeredUserRow | undefined,
    t: Transaction,
  ): Promise<void>
}

/** A call that is permitted. */
interface Permitted {
  readonly request: Message & { readonly validateOnly?: boolean }
  readonly call: Call
}

/** Thrown to roll a transaction back and return its result, for `validate_only`. */
class ValidatedOnly extends Error {
  constructor(readonly result: unknown) {
    super('validated only')
  }
}

/** Returns the `transact` of a call. Few calls change anything, so `changesOf` makes what a change needs. */
export function transactFor<Target>(
  deps: TransactionDeps,
  policy: Policy,
  { request, call }: Permitted,
  changesOf: () => Changes<Target>,
): Transact<Target> {
  return async (work, options) => {
    const changes = changesOf()
    checkPresence(call)
    const run = async (t: Transaction) => {
      const target = await changes.lock(t)
      // The client may have disconnected, or the deadline passed, during the wait for the locks.
      checkPresence(call)
      const result = await work({
        t,
        target,
        async record(event, after) {
          checkAction(policy, event.action)
          await deps.audit.append({ ...changes.auditContext, ...event, outcome: 'ok' }, t)
          await changes.notify?.(event, target, after, t)
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
