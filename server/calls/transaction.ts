// The transaction of a change: it permits caller and target again, appends the events, and does what `validate_only` and
// `request_id` promise.
import {
  create,
  type DescMethodUnary,
  fromBinary,
  type Message,
  type MessageInitShape,
  toBinary,
} from '@bufbuild/protobuf'
import { checkAction } from '../access/permissions.js'
import type { Database, Transaction } from '../database/connection.js'
import type { Audit, AuditEvent } from '../models/audit.js'
import type { CreationRequests } from '../models/creation-request.js'
import type { MasterKey } from '../models/master-key.js'
import type { Policy } from '../policy/policy.js'
import { type Call, checkPresence } from '../requests/call.js'
import { wrongFields } from '../requests/wrong-fields.js'
import { isUuid } from '../rules/names.js'
import type { Transact } from './context.js'

/** What transactions are made of. */
export interface TransactionDeps {
  readonly database: Pick<Database, 'transact'>
  readonly audit: Pick<Audit, 'append'>
  readonly masterKey: Pick<MasterKey, 'digest' | 'seal' | 'open'>
  readonly creationRequests: CreationRequests
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
  readonly method: DescMethodUnary
  readonly policy: Policy
  readonly request: Message & { readonly validateOnly?: boolean; readonly requestId?: string }
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
    const { requestId, validateOnly } = request
    const changes = known.changes()
    if (requestId && !isUuid(requestId)) wrongFields([{ field: 'request_id', message: 'Use a UUID (RFC 9562).' }])
    checkPresence(call)
    const run = async (t: Transaction) => {
      const target = await changes.lock(found, t)
      // The client may have disconnected, or the deadline passed, during the wait for the locks.
      checkPresence(call)
      const events: Pick<AuditEvent, 'subject_id'>[] = []
      const doIt = () =>
        work({
          t,
          target,
          async record(event) {
            checkAction(policy, event.action)
            events.push(event)
            await deps.audit.append({ ...changes.auditContext, ...event, outcome: 'ok' }, t)
            await changes.notify?.(event, target, t)
          },
        })
      const result = requestId
        ? await once(deps, known, { requestId, ...changes.auditContext }, { t, events }, doIt)
        : await doIt()
      if (validateOnly) throw new ValidatedOnly(result)
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

/**
 * Does what a request with a `request_id` asks for, and keeps the answer; or returns the answer to the same request of the
 * same caller.
 */
async function once<T>(
  { masterKey, creationRequests }: TransactionDeps,
  { method, request }: KnownCall,
  { requestId, actor, actor_id }: { readonly requestId: string } & Changes['auditContext'],
  { t, events }: { readonly t: Transaction; readonly events: readonly Pick<AuditEvent, 'subject_id'>[] },
  work: () => Promise<T>,
): Promise<T> {
  const id = { actor: actor_id ? `${actor} #${actor_id}` : actor, requestId }
  const form = Buffer.from(toBinary(method.input, request)).toString('base64')
  const digest = masterKey.digest('creation-request', `${method.name} ${form}`)
  const use = `creation-request ${requestId}`
  const before = await creationRequests.claim(id, t)
  if (before && !before.digest.equals(digest))
    wrongFields([{ field: 'request_id', message: 'Already used by another request: use a new one.' }])
  if (before) return fromBinary(method.output, Buffer.from(masterKey.open(use, before.answerSealed), 'base64')) as T
  const answer = create(method.output, (await work()) as MessageInitShape<DescMethodUnary['output']>)
  // A key that is shown once is never stored, even sealed.
  const bytes = toBinary(method.output, 'key' in answer ? Object.assign({}, answer, { key: '' }) : answer)
  const answerSealed = masterKey.seal(use, Buffer.from(bytes).toString('base64'))
  await creationRequests.add({ ...id, digest, answerSealed, userId: events.at(-1)?.subject_id ?? null }, t)
  return answer as T
}
