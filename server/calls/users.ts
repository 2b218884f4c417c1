// The steps of a call to an RPC for users: apply the limits kept in memory, identify the caller, find the target, check
// permission, check the shape of the request, refuse a missing target, and run the RPC. A caller without permission learns
// nothing else about its request.
import type { DescMethodUnary, DescService, Message } from '@bufbuild/protobuf'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Admission } from '../access/admission.js'
import { auditContext, type Caller, type Callers } from '../access/caller.js'
import type { Change, Rpc, RpcsOf, Steps } from '../access/context.js'
import { checkAction, isVisible, permit } from '../access/permissions.js'
import type { Database } from '../database/connection.js'
import type { Audit } from '../models/audit.js'
import type { User, Users } from '../models/user.js'
import type { OpenPolicy, ServicePolicy, UserPolicy } from '../policy/policy.js'
import { type Call, type CallingService, checkPresence, checkShape, type IncomingCall } from '../requests/call.js'
import { refuse } from '../requests/refusal.js'
import { isBlank } from '../requests/required-fields.js'
import { usernameKey } from '../rules/names.js'
import type { BoundRpc } from './dispatch.js'

/** What the steps are made from. */
export interface UserCallsDeps {
  readonly callers: Callers
  readonly users: Pick<Users, 'byId' | 'findMany' | 'lockPair'>
  readonly admission: Pick<Admission, 'takeServiceReads'>
  readonly database: Pick<Database, 'transact'>
  readonly audit: Pick<Audit, 'append'>
}

/** The fields of a request that may name its target. */
interface TargetFields {
  readonly username?: string
  readonly id?: number
  readonly answer?: { readonly usersid?: number }
}

type AnyRpc = Rpc<DescMethodUnary, OpenPolicy | UserPolicy | ServicePolicy>

/** Puts the RPCs of a service behind their rows. */
export function bindUserCalls<
  S extends DescService,
  Rows extends { readonly [K in keyof S['method']]: OpenPolicy | UserPolicy | ServicePolicy },
>(deps: UserCallsDeps, { method }: S, policies: Rows, rpcs: RpcsOf<S, Rows>): Map<DescMethodUnary, BoundRpc> {
  return new Map(
    Object.keys(method).map(name => [
      method[name] as DescMethodUnary,
      {
        policy: policies[name as keyof S['method']],
        handle: bind(deps, policies[name]!, rpcs[name as keyof typeof rpcs] as unknown as AnyRpc),
      },
    ]),
  )
}

function bind(deps: UserCallsDeps, policy: OpenPolicy | UserPolicy | ServicePolicy, rpc: AnyRpc): BoundRpc['handle'] {
  const steps = (typeof rpc === 'function' ? { handle: rpc } : rpc) as Steps<DescMethodUnary, UserPolicy>
  const handle = steps.handle as (request: Message, context: object) => ReturnType<BoundRpc['handle']>
  switch (policy.caller) {
    case 'anyone':
      return async (request, call) => {
        if (call.undecodable || !policy.listsMalformed) checkShape(call)
        return handle(request, policy.device ? { call, device: await deps.callers.deviceOf(call) } : { call })
      }
    case 'service':
      return async (request, call) => {
        if (!call.service) await deps.callers.identify(call, await deps.callers.claimsOf(call))
        const service = permitService(policy, call.service)
        checkShape(call)
        return handle(request, { call, service })
      }
    case 'user':
      return (request, call) => runForUser(deps, policy, { ...steps, handle }, request, call)
  }
}

async function runForUser(
  deps: UserCallsDeps,
  policy: UserPolicy,
  { admit, check, handle }: Steps<DescMethodUnary, UserPolicy>,
  request: Message & TargetFields,
  call: IncomingCall,
) {
  const { callers, users, admission } = deps
  if (policy.scope && call.service) {
    permitService(policy, call.service)
    checkShape(call)
    check?.(request, { call, target: undefined })
    admission.takeServiceReads(call.service.name, 1)
    const { id, username } = request
    const named = await users.findMany(
      id === undefined ? [] : [id],
      username === undefined ? [] : [usernameKey(username)],
    )
    const target = named[0] ?? refuse(Reason.USER_NOT_FOUND)
    return handle(request, { call, caller: undefined, target } as never)
  }
  const claims = await callers.claimsOf(call)
  await admit?.(request, { claims, call })
  checkPresence(call)
  const { caller, target } = await findBoth(deps, policy, request, call, claims)
  // An unknown id has no record to protect.
  permit(policy, caller, target ?? (policy.target === 'usersid' ? caller.user : undefined))
  checkShape(call)
  check?.(request, { call, target })
  if (!target || !isVisible(policy, caller.user, target))
    refuse(policy.missing ? Reason[policy.missing] : Reason.USER_NOT_FOUND)
  return handle(request, {
    call,
    caller,
    target,
    transact: work => transact(deps, policy, { call, caller, target }, work),
  })
}

/** The caller, and the user that the request names; the caller itself if the request names no user. */
async function findBoth(
  { callers, users }: UserCallsDeps,
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

function transact<T>(
  { users, database, audit }: UserCallsDeps,
  policy: UserPolicy,
  { call, caller, target }: { call: Call; caller: Caller; target: User },
  work: (change: Change) => Promise<T>,
): Promise<T> {
  checkPresence(call)
  return database.transact(async t => {
    const now = await users.lockPair(caller.user.id, target.id, t)
    // The caller may have gone while this waited for the locks.
    checkPresence(call)
    if (!now.caller || now.caller.suspended || now.caller.tokenGeneration !== caller.user.tokenGeneration)
      refuse(Reason.INVALID_TOKEN)
    if (!now.target || now.target.deleted) refuse(Reason.USER_NOT_FOUND)
    permit(policy, { user: now.caller, session: caller.session, enrolled: now.caller.enrolled }, now.target)
    if (!isVisible(policy, now.caller, now.target)) refuse(Reason.USER_NOT_FOUND)
    return work({
      t,
      record(event) {
        checkAction(policy, event.action)
        return audit.append({ ...auditContext(call, caller.user), ...event, outcome: 'ok' }, t)
      },
    })
  })
}
