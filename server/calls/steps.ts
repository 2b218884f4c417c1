// The steps of a call to any RPC, in the order in which they refuse: limits kept in memory, identity and permission of the
// caller, by the policy of the RPC (anyone, a service, a user or an administrator), shape of the request, the check of the RPC,
// existence of the target, the RPC itself and, in its transaction, permission again (transaction.ts). A caller without
// permission learns nothing else about its request.
import { type DescMethodUnary, isMessage, type Message } from '@bufbuild/protobuf'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Administrator } from '../access/administrator.js'
import { auditContext } from '../access/caller.js'
import { isAdmitted, pass } from '../access/gate.js'
import { isVisible, permit, permitAdministeringService, permitDesk } from '../access/permissions.js'
import { type Claims, endedWithAddress } from '../access/tokens.js'
import type { Transaction } from '../database/database.js'
import type { AdministeredUserRow } from '../models/administered-user.js'
import type { Administered } from '../models/email.js'
import { guardedUser } from '../models/user-state.js'
import type { AdministrationPolicy, Policy, PublicPolicies, ServicePolicy, UserRights } from '../policy/policy.js'
import { type Call, type CallingService, checkShape, type IncomingCall } from '../requests/call.js'
import { checkPresence } from '../requests/deadline.js'
import { refuse } from '../requests/refusal.js'
import { isBlank } from '../requests/required-fields.js'
import { usernameKey } from '../rules/names.js'
import type { AdministrationContext, AdministrationContexts, PublicContexts, Records, Rpc, Steps } from './context.js'
import type { Parts } from './parts.js'
import type { BoundRpc } from './run.js'
import { type Changes, transactFor } from './transaction.js'

/** An RPC and its policy, for `createCalls`. */
type Bound = readonly [DescMethodUnary, BoundRpc]

/** The methods of a service that have policies. */
type Methods<Policies> = { readonly method: { readonly [K in keyof Policies]: DescMethodUnary } }

/** Puts the RPCs of a public endpoint behind their policies. */
export function bindRpcs<
  Policies extends { readonly [K in keyof Policies]: { readonly caller: keyof PublicPolicies } },
  S extends Methods<Policies>,
>(
  deps: CallersDeps,
  { method }: S,
  given: Policies & { readonly [K in keyof Policies]: PublicPolicies[Policies[K]['caller']] },
  rpcs: { readonly [K in keyof Policies]: Rpc<S['method'][K], PublicContexts[Policies[K]['caller']]> },
): readonly Bound[] {
  const entrances = publicEntrances(deps)
  const policies: { readonly [K in keyof Policies]: PublicPolicies[Policies[K]['caller']] } = given
  const bound: Bound[] = []
  for (const name in given) {
    const caller: Policies[typeof name]['caller'] = given[name].caller
    bound.push(bind(deps, method[name], policies[name], rpcs[name], entrances[caller]))
  }
  return bound
}

/** Puts RPCs of Administration behind their policies. */
export function bindAdministration<
  Policies extends { readonly [K in keyof Policies]: { readonly target: keyof Records } },
  S extends Methods<Policies>,
>(
  deps: CallersDeps,
  { method }: S,
  policies: Policies & { readonly [K in keyof Policies]: AdministrationPolicy<Policies[K]['target']> },
  rpcs: { readonly [K in keyof Policies]: Rpc<S['method'][K], AdministrationContexts[Policies[K]['target']]> },
): readonly Bound[] {
  const entrances = administrationEntrances(deps)
  const bound: Bound[] = []
  for (const name in policies) {
    const target: Policies[typeof name]['target'] = policies[name].target
    bound.push(bind(deps, method[name], policies[name], rpcs[name], entrances[target]))
  }
  return bound
}

function bind<M extends DescMethodUnary, P extends Policy, Contexts extends [unknown, unknown]>(
  deps: Pick<CallersDeps, 'settings'>,
  method: M,
  given: P,
  rpc: Rpc<M, Contexts>,
  enter: Entrance<P, Contexts>,
): Bound {
  const { admit, check, handle }: Steps<M, Contexts> = typeof rpc === 'function' ? { handle: rpc } : rpc
  const policy: Policy = given
  return [
    method,
    {
      policy,
      async handle(request, call) {
        if (!isMessage<M['input']>(request, method.input))
          throw new TypeError(`This isn't a request of ${method.name}.`)
        const admits = admit && ((claims: Claims) => admit(request, { claims, call }))
        const { checking, find } = await enter(given, { request, call, admits })
        if (deps.settings.strict === 'on') checkStrictly(policy, call)
        // A message that can't be decoded has no fields for the RPC to list.
        if (call.undecodable || policy.caller !== 'anyone' || !policy.listsMalformed) checkShape(call)
        const read = check?.(request, checking)
        const context = await find()
        checkPresence(call)
        return handle(request, context, read)
      },
    },
  ]
}

/** Refuses what `AUTH_STRICT` refuses: RPCs whose policy says so, and secrets in the query of the URL. */
function checkStrictly({ strict }: Policy, { secretsInQuery }: Call): void {
  if (strict)
    refuse(Reason[strict], { text: 'This registry doesn’t offer this operation: its setting AUTH_STRICT is on.' })
  if (secretsInQuery.length === 0) return
  const message = 'Send this in the body, because programs on the way store URLs.'
  refuse(Reason.MALFORMED_REQUEST, {
    fields: secretsInQuery.map(field => ({ field, reason: 'NOT_PERMITTED', message })),
  })
}

/** Finds what requests of Administration refer to, and locks it; both refuse when there is no such record. */
export type References = {
  readonly [K in Exclude<keyof Records, 'registry'>]: {
    /** `field` names the field of the request that refers to the record. */
    find(reference: string | undefined, field?: string): Promise<Records[K]>
    lock(id: number, t: Transaction): Promise<Records[K]>
  }
}

/** What callers are identified and permitted by, and what their changes are made of. */
export interface CallersDeps extends Pick<Parts, 'registry' | 'access' | 'limits' | 'settings'> {
  readonly references: References
  /**
   * Notifies a user who is, or was `before`, guarded of a change by an administrator; `before` is undefined for other
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
interface Entered<Contexts extends [unknown, unknown]> {
  readonly checking: Contexts[1]
  /** Finds the target. Refuses when there is none. */
  find(): Contexts[0] | Promise<Contexts[0]>
}

/** A call before its caller is known. */
interface Arrival {
  readonly request: Message & TargetFields
  readonly call: IncomingCall
  readonly admits: ((claims: Claims) => Promise<void>) | undefined
}

/** The fields of a request that may name its target. */
interface TargetFields extends Partial<Record<keyof References, string>> {
  readonly username?: string
  readonly id?: number
  readonly answer?: { readonly usersid?: number }
}

/** Identifies the caller of an RPC. Refuses a caller that its policy doesn't permit. */
type Entrance<P, Contexts extends [unknown, unknown]> = (policy: P, arrival: Arrival) => Promise<Entered<Contexts>>

type PublicEntrances = { readonly [K in keyof PublicPolicies]: Entrance<PublicPolicies[K], PublicContexts[K]> }

function publicEntrances(deps: CallersDeps): PublicEntrances {
  const { callers } = deps.access
  const { users } = deps.registry
  return {
    async anyone({ device: takesDevice }, { call }) {
      const device = takesDevice && (await callers.deviceOf(call))
      return { checking: { call }, find: () => ({ call, device }) }
    },

    async service(policy, { call }) {
      if (!call.service) await callers.identify(call, await callers.claimsOf(call))
      const service = permitService(policy, call.service)
      return { checking: { call }, find: () => ({ call, service }) }
    },

    async user(policy, arrival) {
      const { call } = arrival
      const { caller, named, find, lock } = await identifyUser(deps, policy, arrival)
      const changes = () => ({ auditContext: auditContext(call, caller.user), lock })
      const transact = transactFor(deps.registry, policy, arrival, changes)
      return { checking: { call, caller, target: named }, find: () => ({ call, caller, target: find(), transact }) }
    },

    async 'user or service'(policy, arrival) {
      const { call, request } = arrival
      if (!call.service) {
        const { caller, find } = await identifyUser(deps, policy, arrival)
        return { checking: { call }, find: () => ({ call, caller, target: find() }) }
      }
      const { name } = permitService(policy, call.service)
      const { id, username } = request
      return {
        checking: { call },
        async find() {
          deps.limits.rateLimits.takeServiceReads(name, 1)
          const named = await users.findMany(
            id === undefined ? [] : [id],
            username === undefined ? [] : [usernameKey(username)],
          )
          return { call, caller: undefined, target: named[0] ?? refuse(Reason.USER_NOT_FOUND) }
        },
      }
    },
  }
}

/** Identifies a user that calls, and the user that it names. */
async function identifyUser(deps: CallersDeps, policy: UserRights, { request, call, admits }: Arrival) {
  const { callers } = deps.access
  const { users, administeredUsers } = deps.registry
  const claims = await callers.claimsOf(call)
  if (admits) await admits(claims)
  checkPresence(call)
  const key = policy.target === 'username' && !isBlank(request.username) ? usernameKey(request.username!) : undefined
  const found = await callers.identify(call, claims, key)
  const { caller } = found
  const id = policy.target === 'usersid' ? request.answer?.usersid : undefined
  const named = id === undefined || id === caller.user.id ? found.target : await users.byId(id)
  const missing = () => refuse(policy.missing ? Reason[policy.missing] : Reason.USER_NOT_FOUND)
  // An unknown id has no record to protect.
  permit(policy, caller, named ?? (policy.target === 'usersid' ? caller.user : undefined))
  return {
    caller,
    /** The user that the request names, if there is one. */
    named,
    find: () => (named && isVisible(policy, caller.user, named) ? named : missing()),
    /** Locks both until the end of a transaction, and permits the caller again. */
    async lock(t: Transaction) {
      const now = await administeredUsers.lockPair(caller.user.id, named?.id, t)
      if (!now.caller || !pass(now.caller, 'use a token')) return refuse(Reason.INVALID_TOKEN)
      if (now.caller.tokenGeneration !== caller.user.tokenGeneration) refuse(Reason.INVALID_TOKEN)
      if (endedWithAddress(caller.session, now.caller)) refuse(Reason.INVALID_TOKEN)
      if (!now.target || now.target.deletedAt) return missing()
      permit(policy, { user: now.caller, session: caller.session, enrolled: now.caller.enrolled }, now.target)
      return isVisible(policy, now.caller, now.target) ? now.target : missing()
    },
  }
}

function permitService({ scope }: Pick<ServicePolicy, 'scope'>, service?: CallingService): CallingService {
  if (!service?.scopes.some(each => scope.includes(each))) refuse(Reason.ACCESS_DENIED)
  return service
}

/** What an RPC of Administration concerns. */
interface Subject<Target> {
  find(request: TargetFields, call: Call): Promise<Target>
  /** Locks it, unless it is the user that is locked with the caller. */
  lock(found: Target, locked: AdministeredUserRow | undefined, t: Transaction): Promise<Target>
  /** The user that it is. */
  user?(target: Target): AdministeredUserRow
}

type AdministrationEntrances = {
  readonly [K in keyof Records]: Entrance<AdministrationPolicy<K>, AdministrationContexts[K]>
}

function administrationEntrances(deps: CallersDeps): AdministrationEntrances {
  const { user, organization, question } = deps.references
  return {
    registry: enterAsAdministrator(deps, { find: async () => undefined, lock: async () => undefined }),
    user: enterAsAdministrator(deps, {
      async find(request, { service }) {
        if (service) deps.limits.rateLimits.takeServiceReads(service.name, 1)
        return user.find(request.user)
      },
      lock: async ({ id }, locked, t) => locked ?? user.lock(id, t),
      user: target => target,
    }),
    organization: enterAsAdministrator(deps, {
      find: request => organization.find(request.organization),
      lock: ({ id }, _, t) => organization.lock(id, t),
    }),
    question: enterAsAdministrator(deps, {
      find: request => question.find(request.question),
      lock: ({ id }, _, t) => question.lock(id, t),
    }),
  }
}

function enterAsAdministrator<Target>(
  deps: CallersDeps,
  subject: Subject<Target>,
): Entrance<
  AdministrationPolicy,
  [AdministrationContext<Target>, Pick<AdministrationContext, 'call' | 'administrator'>]
> {
  const { access, registry, notifyConcerned } = deps
  const { administeredUsers, services } = registry
  return async (policy, arrival) => {
    const { call } = arrival
    const administrator = await access.administrators.identify(policy, call)
    administrator.permitSignIn()

    /** A target that is guarded may require a more recent sign-in, and is closed to holders of desk. */
    function permitOn(target: Target): Target {
      const user = subject.user?.(target)
      if (user) administrator.permitSignIn(guardedUser.of(user))
      if (administrator.desk) permitDesk(policy, user)
      return target
    }

    const changesOf = (found: Target): Changes<Target> => ({
      auditContext: { ...administrator.auditContext, reason: administrator.reason },
      async lock(t) {
        const { user, service } = administrator
        if (service)
          permitAdministeringService(policy, (await services.find(service.name, t)) ?? refuse(Reason.INVALID_TOKEN))
        const { caller, target } = await administeredUsers.lockPair(user?.id, subject.user?.(found).id, t)
        if (user && !(caller && isAdmitted(caller) && caller.tokenGeneration === user.tokenGeneration))
          refuse(Reason.INVALID_TOKEN)
        return permitOn(await subject.lock(found, target, t))
      },
      async notify({ action, subject_id: subjectId }, target, read, t) {
        if (subjectId === undefined || policy.signIn === 'session') return
        const after = read ?? (await administeredUsers.lock(subjectId, t))
        const former = subject.user?.(target)
        const user = { before: former?.id === subjectId ? former : undefined, after }
        // RPCs that require more than a session record only these actions on users.
        await notifyConcerned(administrator, { action: action as Administered, subjectId }, user, t)
      },
    })

    return {
      checking: { call, administrator },
      async find() {
        const target = permitOn(await subject.find(arrival.request, call))
        return {
          call,
          administrator,
          target,
          transact: transactFor(registry, policy, arrival, () => changesOf(target)),
        }
      },
    }
  }
}
