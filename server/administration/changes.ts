// What every change by an administrator has in common: one transaction, its events in it, checks without keeping anything,
// and creations that are asked for twice.
//
// This room owns the RPCs of the service `auth.v1.Administration`, one file for each noun; administration.proto says what
// each means and refuses. Each reads from top to bottom: who asks, find, check, act, answer. Who administers is access/'s,
// what is stored models/'. service.ts mounts it on a listener of its own, the command line uses it by localadministration.ts.
import {
  create,
  type DescMessage,
  type DescMethodUnary,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from '@bufbuild/protobuf'
import type { Administrator } from '../access/administrator.js'
import type { Database, Transaction } from '../database/connection.js'
import type { MasterKey } from '../masterkey.js'
import type { Audit, AuditEvent } from '../models/audit.js'
import type { CreationRequests } from '../models/creationrequest.js'
import { wrongFields } from './wrongfields.js'

/** A change under way. */
export interface Change {
  readonly t: Transaction
  /** Appends an event, done by this administrator, in the transaction. */
  record(event: Pick<AuditEvent, 'action' | 'subject_id' | 'object' | 'reason'>): Promise<void>
}

/** Makes changes. */
export interface Changes {
  /** Runs a change as one transaction, short unless it is `unlimited`. Only checked, nothing of it is kept. */
  make<T>(
    administrator: Administrator,
    request: { readonly validateOnly: boolean },
    work: (change: Change) => Promise<T>,
    options?: { unlimited?: boolean },
  ): Promise<T>
  /** The same for a creation: whoever repeats it with the same request id within a day gets the first answer. */
  create<I extends DescMessage, O extends DescMessage>(
    rpc: DescMethodUnary<I, O>,
    administrator: Administrator,
    request: MessageShape<I> & { readonly validateOnly: boolean; readonly requestId?: string },
    work: (change: Change) => Promise<MessageInitShape<O>>,
  ): Promise<MessageShape<O>>
}

/** Undoes a transaction whose result is wanted all the same. */
class Checked<T> extends Error {
  constructor(readonly result: T) {
    super('checked only')
  }
}

export function createChanges(deps: {
  database: Database
  audit: Audit
  masterKey: MasterKey
  creationRequests: CreationRequests
}): Changes {
  const { database, audit, masterKey, creationRequests } = deps

  const make: Changes['make'] = async (administrator, { validateOnly }, work, options) => {
    const { traces, reason } = administrator
    try {
      return await database.transact(async t => {
        const result = await work({
          t,
          record: event => audit.append({ ...(reason && { reason }), ...event, ...traces, outcome: 'ok' }, t),
        })
        if (validateOnly) throw new Checked(result)
        return result
      }, options)
    } catch (error) {
      if (error instanceof Checked) return error.result
      throw error
    }
  }

  return {
    make,
    async create(rpc, administrator, request, work) {
      const { requestId } = request
      const answerOf = async (change: Change) => create(rpc.output, await work(change))
      if (!requestId) return make(administrator, request, answerOf)
      if (!/^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/i.test(requestId)) {
        wrongFields([{ field: 'request_id', message: 'Give a UUID (RFC 9562).' }])
      }
      const { actor, actor_id } = administrator.traces
      const form = toBinary(rpc.input, request)
      const digest = masterKey.digest('creation-request', `${rpc.name} ${Buffer.from(form).toString('base64')}`)
      const use = `creation-request ${requestId}`
      return make(administrator, request, async change => {
        const id = { actor: actor_id ? `${actor} #${actor_id}` : actor, requestId }
        const before = await creationRequests.claim(id, change.t)
        if (before && !before.digest.equals(digest)) {
          wrongFields([{ field: 'request_id', message: 'It belongs to another request; make a new one.' }])
        }
        if (before) {
          const answer = Buffer.from(masterKey.open(use, before.answerSealed), 'base64')
          return fromBinary(rpc.output, answer)
        }
        let userId: number | null = null
        const answer = await answerOf({
          ...change,
          record(event) {
            userId = event.subject_id ?? null
            return change.record(event)
          },
        })
        const bytes = toBinary(rpc.output, answer)
        const answerSealed = masterKey.seal(use, Buffer.from(bytes).toString('base64'))
        await creationRequests.add({ ...id, digest, answerSealed, userId }, change.t)
        return answer
      })
    },
  }
}
