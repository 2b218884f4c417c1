// The steps of a call to any RPC, in the order in which they refuse: limits kept in memory, identity and permission of the
// caller, by the row of the RPC (anyone, a service, a user or an administrator), shape of the request, the check of the RPC,
// existence of the target, the RPC itself and, in its transaction, permission again (transaction.ts). A caller without
// permission learns nothing else about its request.
import type { DescMethodUnary, DescService, Message } from '@bufbuild/protobuf'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Administrator, Administrators } from '../access/administrator.js'
import { auditContext, type Callers } from '../access/caller.js'
import { isVisible, permit, permitAdministeringService } from '../access/permissions.js'
import { type Claims, endedWithAddress } from '../access/tokens.js'
import type { Transaction } from '../database/database.js'
import type { RateLimits } from '../limits/rate-limits.js'
import type { AdministeredUserRow, AdministeredUsers } from '../models/administered-user.js'
import type { Administered } from '../models/email.js'
import type { Services } from '../models/service.js'
import type { User, Users } from '../models/user.js'
import type { AdministrationPolicy, OpenPolicy, Policy, ServicePolicy, UserPolicy } from '../policy/row.js'
import type { Settings } from '../process/settings.js'
import { type Call, type CallingService, checkPresence, checkShape, type IncomingCall } from '../requests/call.js'
import { refuse } from '../requests/refusal.js'
import { isBlank } from '../requests/required-fields.js'
import { usernameKey } from '../rules/names.js'
import type { Records, RpcsOf, Steps } from './context.js'
import type { BoundRpc } from './run.js'
import { type Changes, type TransactionDeps, transactFor } from './transaction.js'

/** An RPC whose row isn't known to the compiler. */
type AnyRpc = Steps<DescMethodUnary, Policy> | Steps<DescMethodUnary, Policy>['handle']

/** Puts the RPCs of a service behind their rows, for `createCalls`. */
export function bindRpcs<S extends DescService, Rows extends { readonly [K in keyof S['method']]: Policy }>(
  deps: CallersDeps & TransactionDeps,
  service: S,
  rows: Rows,
  rpcs: RpcsOf<S, Rows>,
): readonly [DescService, ReadonlyMap<DescMethodUnary, BoundRpc>] {
  const bound = new Map(
    service.methods.map(each => {
      const method = each as DescMethodUnary
      const policy = rows[method.localName as keyof Rows]
      const rpc = rpcs[method.localName as keyof typeof rpcs] as unknown as AnyRpc
      const steps = typeof rpc === 'function' ? { handle: rpc } : rpc
      return [method, { policy, handle: bind(deps, policy, steps) }]
    }),
  )
  return [service, bound]
}

function bind(
  deps: CallersDeps & TransactionDeps,
  policy: Policy,
  { admit, check, handle }: Steps<DescMethodUnary, Policy>,
): BoundRpc['handle'] {
  return async (request: Message, call) => {
    const { context, named, find, changes } = await enter(deps, policy, { request, call, admit })
    if (deps.settings.strict === 'on') checkStrictly(policy, call)
    // A message that can't be decoded has no fields for the RPC to list.
    if (call.undecodable || policy.caller !== 'anyone' || !policy.listsMalformed) checkShape(call)
    const read = check?.(request, { ...context, target: named } as never)
    const target = await find?.()
    checkPresence(call)
    const transact = changes && transactFor(deps, { policy, request, call, changes, target })
    return await handle(request, Object.assign(context, { target, transact }) as never, read)
  }
}

/** Refuses what `AUTH_STRICT` refuses: RPCs whose row says so, and secrets in the query of the URL. */
function checkStrictly({ strict }: Policy, { secretsInQuery }: Call): void {
  if (strict)
    refuse(Reason[strict], { text: 'This registry doesn’t offer this operation: its setting AUTH_STRICT is on.' })
  if (secretsInQuery.length === 0) return
  const message = 'Send this in the body, because programs on the way store URLs.'
  refuse(Reason.MALFORMED_REQUEST, { fields: secretsInQuery.map(field => ({ field, message })) })
}

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
  readonly rateLimits: Pick<RateLimits, 'takeServiceReads'>
  readonly settings: Pick<Settings, 'strict'>
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
  /** The context of the RPC, without its target. */
  readonly context: object
  /** The user that the request names, if it was found together with the caller. */
  readonly named?: User | undefined
  /** Finds the target. Refuses when there is none. */
  find?(): unknown
  /** How it changes something; absent for callers that change nothing in their own name. */
  changes?(): Changes
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
function enter(deps: CallersDeps, policy: Policy, arrival: Arrival): Promise<Entry> {
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
  return { context: device ? { call, device: await callers.deviceOf(call) } : { call } }
}

async function enterAsService({ callers }: CallersDeps, policy: ServicePolicy, { call }: Arrival): Promise<Entry> {
  if (!call.service) await callers.identify(call, await callers.claimsOf(call))
  return { context: { call, service: permitService(policy, call.service) } }
}

/** A service that names a user, on an RPC for users. */
async function enterForUser(
  { users, rateLimits }: CallersDeps,
  policy: UserPolicy,
  { request: { id, username }, call }: Arrival,
): Promise<Entry> {
  const { name } = permitService(policy, call.service)
  return {
    context: { call, caller: undefined },
    async find() {
      rateLimits.takeServiceReads(name, 1)
      const named = await users.findMany(
        id === undefined ? [] : [id],
        username === undefined ? [] : [usernameKey(username)],
      )
      return named[0] ?? refuse(Reason.USER_NOT_FOUND)
    },
  }
}

async function enterAsUser(deps: CallersDeps, policy: UserPolicy, { request, call, admit }: Arrival): Promise<Entry> {
  const { callers, users, administeredUsers } = deps
  const claims = await callers.claimsOf(call, policy)
  if (admit) await admit(request, { claims, call })
  checkPresence(call)
  const named = policy.target === 'username' && !isBlank(request.username) ? usernameKey(request.username!) : undefined
  const found = await callers.identify(call, claims, { ...policy, named })
  const { caller } = found
  const id = policy.target === 'usersid' ? request.answer?.usersid : undefined
  const target = id === undefined || id === caller.user.id ? found.target : await users.byId(id)
  const missing = () => refuse(policy.missing ? Reason[policy.missing] : Reason.USER_NOT_FOUND)
  // An unknown id has no record to protect.
  permit(policy, caller, target ?? (policy.target === 'usersid' ? caller.user : undefined))
  return {
    context: { call, caller },
    named: target,
    find: () => (target && isVisible(policy, caller.user, target) ? target : missing()),
    changes: () => ({
      auditContext: auditContext(call, caller.user),
      async lock(_target, t) {
        const now = await administeredUsers.lockPair(caller.user.id, target?.id, t)
        if (!now.caller || now.caller.suspended || now.caller.tokenGeneration !== caller.user.tokenGeneration)
          refuse(Reason.INVALID_TOKEN)
        if (endedWithAddress(caller.session, now.caller)) refuse(Reason.INVALID_TOKEN)
        if (!now.target || now.target.deletedAt) return missing()
        permit(policy, { user: now.caller, session: caller.session, enrolled: now.caller.enrolled }, now.target)
        return isVisible(policy, now.caller, now.target) ? now.target : missing()
      },
    }),
  }
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
  const { administrators, administeredUsers, services, references, rateLimits, notifyConcerned } = deps
  const { target: kind, signIn } = policy
  const administrator = await administrators.identify(policy, call)
  administrator.permitSignIn()

  /** The role of a user who is the target may require a more recent sign-in. */
  function permitOn<Target extends object>(target: Target): Target {
    if (kind === 'user') administrator.permitSignIn([(target as AdministeredUserRow).role])
    return target
  }

  return {
    context: { call, administrator },
    async find() {
      if (!kind) return undefined
      if (call.service && kind === 'user') rateLimits.takeServiceReads(call.service.name, 1)
      return permitOn(await references[kind].find(request[kind]))
    },
    changes: () => ({
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
    }),
  }
}
