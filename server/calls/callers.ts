// Who may enter an RPC, by its row: anyone, a service, a user or an administrator.
import type { Message } from '@bufbuild/protobuf'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Administrator, Administrators } from '../access/administrator.js'
import { auditContext, type Caller, type Callers } from '../access/caller.js'
import { isVisible, permit, permitAdministeringService } from '../access/permissions.js'
import type { Claims } from '../access/tokens.js'
import type { Transaction } from '../database/connection.js'
import type { Admission } from '../limits/admission.js'
import type { AdministeredUserRow, AdministeredUsers } from '../models/administered-user.js'
import type { AuditEvent } from '../models/audit.js'
import type { Administered } from '../models/email.js'
import type { Services } from '../models/service.js'
import type { User, Users } from '../models/user.js'
import type { AdministrationPolicy, OpenPolicy, Policy, ServicePolicy, UserPolicy } from '../policy/policy.js'
import { type Call, type CallingService, checkPresence, type IncomingCall } from '../requests/call.js'
import { refuse } from '../requests/refusal.js'
import { isBlank } from '../requests/required-fields.js'
import { usernameKey } from '../rules/names.js'
import type { Records } from './context.js'

/** Finds what requests of Administration refer to, and locks it; both refuse when there is no such record. */
export type References = {
  readonly [K in keyof Records]: {
    /** `field` names the field of the request that refers to the record. */
    find(reference: string | undefined, field?: string): Promise<Records[K]>
    lock(id: number, t: Transaction): Promise<Records[K]>
  }
}

/** What callers are identified and permitted by. */
export interface CallersDeps {
  readonly callers: Callers
  readonly administrators: Administrators
  readonly users: Pick<Users, 'byId' | 'findMany'>
  readonly administeredUsers: Pick<AdministeredUsers, 'lock' | 'lockPair'>
  readonly services: Pick<Services, 'find'>
  readonly references: References
  readonly admission: Pick<Admission, 'takeServiceReads'>
  /**
   * Notifies a user who is, or was `before`, a ROLE_ADMIN of a change by an administrator; `before` is undefined for other
   * users than the target.
   */
  readonly notifyConcerned: (
    administrator: Administrator,
    deed: { readonly action: Administered; readonly subjectId: number },
    user: { readonly before: AdministeredUserRow | undefined; readonly after: AdministeredUserRow | undefined },
    t: Transaction,
  ) => Promise<void>
}

/** A caller that an RPC admits. */
interface Entry {
  /** What the RPC gets of it. */
  readonly context: object
  /** The user that the request names, if it was found together with the caller. */
  readonly named?: User | undefined
  /** Finds the target. Refuses when there is none. */
  find?(): unknown
  /** How it changes something; absent for callers that change nothing in their own name. */
  readonly changes?: Changes
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

/** A call before its caller is known. */
interface Arrival {
  readonly request: Message & TargetFields
  readonly call: IncomingCall
  readonly admit: ((request: Message, caller: { claims: Claims; call: Call }) => Promise<void>) | undefined
}

/** The fields of a request that may name its target. */
interface TargetFields extends Partial<Record<keyof Records, string>> {
  readonly username?: string
  readonly id?: number
  readonly answer?: { readonly usersid?: number }
}

/** Identifies the caller of an RPC. Refuses a caller that its row doesn't permit. */
export function enter(deps: CallersDeps, policy: Policy, arrival: Arrival): Promise<Entry> {
  switch (policy.caller) {
    case 'anyone':
      return enterOpen(deps, policy, arrival)
    case 'service':
      return enterAsService(deps, policy, arrival)
    case 'user':
      return policy.scope && arrival.call.service
        ? enterForUser(deps, policy, arrival)
        : enterAsUser(deps, policy, arrival)
    case 'administrator':
      return enterAsAdministrator(deps, policy, arrival)
  }
}

async function enterOpen({ callers }: CallersDeps, { device }: OpenPolicy, { call }: Arrival): Promise<Entry> {
  return { context: device ? { device: await callers.deviceOf(call) } : {} }
}

async function enterAsService({ callers }: CallersDeps, policy: ServicePolicy, { call }: Arrival): Promise<Entry> {
  if (!call.service) await callers.identify(call, await callers.claimsOf(call))
  return { context: { service: permitService(policy, call.service) } }
}

/** A service that names a user, on an RPC for users. */
async function enterForUser(
  { users, admission }: CallersDeps,
  policy: UserPolicy,
  { request: { id, username }, call }: Arrival,
): Promise<Entry> {
  const { name } = permitService(policy, call.service)
  return {
    context: { caller: undefined },
    async find() {
      admission.takeServiceReads(name, 1)
      const named = await users.findMany(
        id === undefined ? [] : [id],
        username === undefined ? [] : [usernameKey(username)],
      )
      return named[0] ?? refuse(Reason.USER_NOT_FOUND)
    },
  }
}

async function enterAsUser(deps: CallersDeps, policy: UserPolicy, { request, call, admit }: Arrival): Promise<Entry> {
  const { callers, administeredUsers } = deps
  const claims = await callers.claimsOf(call)
  await admit?.(request, { claims, call })
  checkPresence(call)
  const { caller, target } = await findBoth(deps, policy, request, call, claims)
  const missing = () => refuse(policy.missing ? Reason[policy.missing] : Reason.USER_NOT_FOUND)
  // An unknown id has no record to protect.
  permit(policy, caller, target ?? (policy.target === 'usersid' ? caller.user : undefined))
  return {
    context: { caller },
    named: target,
    find: () => (target && isVisible(policy, caller.user, target) ? target : missing()),
    changes: {
      auditContext: auditContext(call, caller.user),
      async lock(_target, t) {
        const now = await administeredUsers.lockPair(caller.user.id, target?.id, t)
        if (!now.caller || now.caller.suspended || now.caller.tokenGeneration !== caller.user.tokenGeneration)
          refuse(Reason.INVALID_TOKEN)
        if (!now.target || now.target.deletedAt) return missing()
        permit(policy, { user: now.caller, session: caller.session, enrolled: now.caller.enrolled }, now.target)
        return isVisible(policy, now.caller, now.target) ? now.target : missing()
      },
    },
  }
}

/** The caller, and the user that the request names; the caller itself if the request names no user. */
async function findBoth(
  { callers, users }: CallersDeps,
  { target }: UserPolicy,
  request: TargetFields,
  call: Call,
  claims: Awaited<ReturnType<Callers['claimsOf']>>,
): Promise<{ caller: Caller; target: User | undefined }> {
  if (target === 'username' && !isBlank(request.username))
    return callers.identifyWith(call, claims, usernameKey(request.username!))
  const caller = await callers.identify(call, claims)
  const id = target === 'usersid' ? request.answer?.usersid : undefined
  return { caller, target: id === undefined || id === caller.user.id ? caller.user : await users.byId(id) }
}

function permitService(
  { scope = [] }: Pick<ServicePolicy, 'scope'> | UserPolicy,
  service?: CallingService,
): CallingService {
  if (!service?.scopes.some(each => scope.includes(each))) refuse(Reason.ACCESS_DENIED)
  return service
}

async function enterAsAdministrator(
  deps: CallersDeps,
  policy: AdministrationPolicy,
  { request, call }: Arrival,
): Promise<Entry> {
  const { administrators, administeredUsers, services, references, admission, notifyConcerned } = deps
  const { target: kind, signIn } = policy
  const administrator = await administrators.identify(policy, call)
  administrator.permitSignIn()

  /** The role of a user who is the target may require a more recent sign-in. */
  function permitOn<Target extends object>(target: Target): Target {
    if (kind === 'user') administrator.permitSignIn([(target as AdministeredUserRow).role])
    return target
  }

  return {
    context: { administrator },
    async find() {
      if (!kind) return undefined
      if (call.service && kind === 'user') admission.takeServiceReads(call.service.name, 1)
      return permitOn(await references[kind].find(request[kind]))
    },
    changes: {
      auditContext: { ...administrator.auditContext, reason: administrator.reason },
      async lock(target, t) {
        const { user, service } = administrator
        const { id } = (target ?? {}) as { readonly id?: number }
        if (service)
          permitAdministeringService(policy, (await services.find(service.name, t)) ?? refuse(Reason.INVALID_TOKEN))
        const now = await administeredUsers.lockPair(user?.id, kind === 'user' ? id : undefined, t)
        if (user) {
          const isAdministrator = now.caller?.role === 'ROLE_ADMIN' && now.caller.active && !now.caller.suspended
          if (!isAdministrator || now.caller!.tokenGeneration !== user.tokenGeneration) refuse(Reason.INVALID_TOKEN)
        }
        return kind && permitOn(now.target ?? (await references[kind].lock(id!, t)))
      },
      async notify({ action, subject_id: subjectId }, before, t) {
        if (subjectId === undefined || signIn === 'session') return
        const after = await administeredUsers.lock(subjectId, t)
        const target = before as AdministeredUserRow | undefined
        const user = { before: subjectId === target?.id && kind === 'user' ? target : undefined, after }
        // RPCs that require more than a session record only these actions on users.
        await notifyConcerned(administrator, { action: action as Administered, subjectId }, user, t)
      },
    },
  }
}
