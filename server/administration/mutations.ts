// What all changes by administrators have in common: one transaction with its events, `validate_only`, and repeated
// creations (`request_id`).
//
// This room owns the RPCs of the service `auth.v1.Administration`, one file for each noun; administration.proto says what
// each means and refuses, policy/administration.ts who may use it. What is stored is models/'. service.ts mounts it on a
// separate listener; the command line uses it through local-administration.ts.
import { create as createMessage, fromBinary, toBinary } from '@bufbuild/protobuf'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Administrator } from '../access/administrator.js'
import type { Change } from '../access/context.js'
import { checkAction } from '../access/permissions.js'
import type { Database, Transaction } from '../database/connection.js'
import type { AdministeredUsers } from '../models/administered-user.js'
import type { Audit } from '../models/audit.js'
import type { CreationRequests } from '../models/creation-request.js'
import type { Administered } from '../models/email.js'
import type { MasterKey } from '../models/master-key.js'
import type { Users } from '../models/user.js'
import type { AdministrationPolicy } from '../policy/policy.js'
import { type Call, checkPresence } from '../requests/call.js'
import { refuse } from '../requests/refusal.js'
import { isUuid } from '../rules/names.js'
import type { AdministrationContext } from './context.js'
import type { NotifyConcerned } from './security-notices.js'
import { wrongFields } from './wrong-fields.js'

/** Makes changes, for one call. */
export type Changes = (made: {
  readonly administrator: Administrator
  readonly policy: AdministrationPolicy
  readonly call: Call
  /** Id of the user that it concerns, if it is one. */
  readonly targetId: number | undefined
}) => Pick<AdministrationContext, 'change' | 'create'>

/** Rolls a transaction back and carries its result. */
class Checked<T> extends Error {
  constructor(readonly result: T) {
    super('checked only')
  }
}

export function createChanges(deps: {
  database: Database
  users: Pick<Users, 'lockPair' | 'includeAdministrator'>
  administeredUsers: Pick<AdministeredUsers, 'lock'>
  audit: Audit
  masterKey: MasterKey
  creationRequests: CreationRequests
  notifyConcerned: NotifyConcerned
}): Changes {
  const { database, users, administeredUsers, audit, masterKey, creationRequests, notifyConcerned } = deps

  /**
   * Locks the caller and the user that is to be changed, which it returns. Refuses with INVALID_TOKEN when the session is
   * over.
   */
  async function hold(administrator: Administrator, targetId: number | undefined, t: Transaction) {
    const { user } = administrator
    if (!user) return targetId === undefined ? undefined : administeredUsers.lock(targetId, t)
    const { caller, target } = await users.lockPair(user.id, targetId, t)
    const administers = caller?.role === 'ROLE_ADMIN' && caller.active && !caller.suspended
    if (!administers || caller.tokenGeneration !== user.tokenGeneration) refuse(Reason.INVALID_TOKEN)
    if (target) administrator.permitSignIn([target.role])
    return target
  }

  return ({ administrator, policy, call, targetId }) => {
    const { auditContext, reason } = administrator

    const change: AdministrationContext['change'] = async ({ validateOnly }, work, options) => {
      checkPresence(call)
      const run = async (t: Transaction) => {
        const before = await hold(administrator, targetId, t)
        // The caller may have left during the wait for the locks.
        checkPresence(call)
        const concerned: number[] = []
        const result = await work({
          t,
          async record(event) {
            checkAction(policy, event.action)
            const { action, subject_id: subjectId } = event
            if (subjectId !== undefined) concerned.push(subjectId)
            await audit.append({ ...(reason && { reason }), ...event, ...auditContext, outcome: 'ok' }, t)
            if (subjectId === undefined || policy.signIn === 'session') return
            // Rows that require more than a session record only these actions of users.
            const deed = { action: action as Administered, subjectId }
            await notifyConcerned(administrator, deed, subjectId === before?.id ? before : undefined, t)
          },
        })
        if (await users.includeAdministrator(concerned, t)) administrator.permitSignIn(['ROLE_ADMIN'])
        if (validateOnly) throw new Checked(result)
        return result
      }
      try {
        return await database.transact(run, options)
      } catch (error) {
        if (error instanceof Checked) return error.result
        throw error
      }
    }

    const create: AdministrationContext['create'] = async (rpc, request, work) => {
      const { requestId } = request
      const answerOf = async (made: Change) => createMessage(rpc.output, await work(made))
      if (!requestId) return change(request, answerOf)
      if (!isUuid(requestId)) wrongFields([{ field: 'request_id', message: 'Use a UUID (RFC 9562).' }])
      const { actor, actor_id } = auditContext
      const form = toBinary(rpc.input, request)
      const digest = masterKey.digest('creation-request', `${rpc.name} ${Buffer.from(form).toString('base64')}`)
      const use = `creation-request ${requestId}`
      return change(request, async made => {
        const id = { actor: actor_id ? `${actor} #${actor_id}` : actor, requestId }
        const before = await creationRequests.claim(id, made.t)
        if (before && !before.digest.equals(digest)) {
          wrongFields([{ field: 'request_id', message: 'Already used by another request: use a new one.' }])
        }
        if (before) {
          const answer = Buffer.from(masterKey.open(use, before.answerSealed), 'base64')
          return fromBinary(rpc.output, answer)
        }
        let userId: number | null = null
        const answer = await answerOf({
          ...made,
          record(event) {
            userId = event.subject_id ?? null
            return made.record(event)
          },
        })
        // A key that is shown once is never stored, not even sealed.
        const bytes = toBinary(rpc.output, 'key' in answer ? { ...answer, key: '' } : answer)
        const answerSealed = masterKey.seal(use, Buffer.from(bytes).toString('base64'))
        await creationRequests.add({ ...id, digest, answerSealed, userId }, made.t)
        return answer
      })
    }
    return { change, create }
  }
}
