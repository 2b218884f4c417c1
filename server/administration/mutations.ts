// Runs every change by an administrator: one transaction with its events, `validate_only`, and repeated creations
// (`request_id`).
//
// This folder owns the RPCs of the service `auth.v1.Administration`, one file for each noun. administration.proto describes
// what each RPC does and refuses, and policy/administration.ts who may call it. The folder models/ stores the data.
// service.ts serves the RPCs on a separate listener. The command line also runs them through local-application.ts.
import { create as createMessage, fromBinary, toBinary } from '@bufbuild/protobuf'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Administrator } from '../access/administrator.js'
import type { Change } from '../access/context.js'
import { checkAction, permitAdministeringService } from '../access/permissions.js'
import type { Database, Transaction } from '../database/connection.js'
import type { AdministeredUsers } from '../models/administered-user.js'
import type { Audit } from '../models/audit.js'
import type { CreationRequests } from '../models/creation-request.js'
import type { Administered } from '../models/email.js'
import type { MasterKey } from '../models/master-key.js'
import type { Services } from '../models/service.js'
import type { Users } from '../models/user.js'
import type { AdministrationPolicy } from '../policy/policy.js'
import { type Call, checkPresence } from '../requests/call.js'
import { refuse } from '../requests/refusal.js'
import { wrongFields } from '../requests/wrong-fields.js'
import { isUuid } from '../rules/names.js'
import type { AdministrationContext } from './context.js'
import type { NotifyConcerned } from './security-notices.js'

/** Creates `change` and `create` for one call. */
export type Changes = (made: {
  readonly administrator: Administrator
  readonly policy: AdministrationPolicy
  readonly call: Call
  /** Id of the user that the call changes, if any. */
  readonly targetId: number | undefined
}) => Pick<AdministrationContext, 'change' | 'create'>

/** Thrown to roll a transaction back and return its result, for `validate_only`. */
class Checked<T> extends Error {
  constructor(readonly result: T) {
    super('checked only')
  }
}

/** Creates `Changes`. */
export function createChanges(deps: {
  database: Database
  users: Pick<Users, 'lockPair' | 'includeAdministrator'>
  administeredUsers: Pick<AdministeredUsers, 'lock'>
  audit: Audit
  masterKey: MasterKey
  creationRequests: CreationRequests
  services: Pick<Services, 'find'>
  notifyConcerned: NotifyConcerned
}): Changes {
  const { database, users, administeredUsers, audit, masterKey, creationRequests, services, notifyConcerned } = deps

  /**
   * Locks the caller and the user to change, and returns the latter. Refuses with INVALID_TOKEN when the session has been
   * revoked or the service deleted, and with ACCESS_DENIED when the service has lost its scope.
   */
  async function lockUsers(
    { administrator, policy, targetId }: Pick<Parameters<Changes>[0], 'administrator' | 'policy' | 'targetId'>,
    t: Transaction,
  ) {
    const { user, service } = administrator
    if (service)
      permitAdministeringService(policy, (await services.find(service.name, t)) ?? refuse(Reason.INVALID_TOKEN))
    if (!user) return targetId === undefined ? undefined : administeredUsers.lock(targetId, t)
    const { caller, target } = await users.lockPair(user.id, targetId, t)
    const isAdministrator = caller?.role === 'ROLE_ADMIN' && caller.active && !caller.suspended
    if (!isAdministrator || caller.tokenGeneration !== user.tokenGeneration) refuse(Reason.INVALID_TOKEN)
    if (target) administrator.permitSignIn([target.role])
    return target
  }

  return ({ administrator, policy, call, targetId }) => {
    const { auditContext, reason } = administrator

    const change: AdministrationContext['change'] = async ({ validateOnly }, work, options) => {
      checkPresence(call)
      const run = async (t: Transaction) => {
        const before = await lockUsers({ administrator, policy, targetId }, t)
        // The client may have disconnected, or the deadline passed, during the wait for the locks.
        checkPresence(call)
        const subjectIds: number[] = []
        const result = await work({
          t,
          async record(event) {
            checkAction(policy, event.action)
            const { action, subject_id: subjectId } = event
            if (subjectId !== undefined) subjectIds.push(subjectId)
            await audit.append({ ...(reason && { reason }), ...event, ...auditContext, outcome: 'ok' }, t)
            if (subjectId === undefined || policy.signIn === 'session') return
            // RPCs that require more than a session record only these actions on users.
            const done = { action: action as Administered, subjectId }
            await notifyConcerned(administrator, done, subjectId === before?.id ? before : undefined, t)
          },
        })
        if (await users.includeAdministrator(subjectIds, t)) administrator.permitSignIn(['ROLE_ADMIN'])
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
        // A key that is shown once is never stored, even sealed.
        const bytes = toBinary(rpc.output, 'key' in answer ? { ...answer, key: '' } : answer)
        const answerSealed = masterKey.seal(use, Buffer.from(bytes).toString('base64'))
        await creationRequests.add({ ...id, digest, answerSealed, userId }, made.t)
        return answer
      })
    }
    return { change, create }
  }
}
