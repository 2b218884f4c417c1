import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { GetUserRequest, UserReference, Users as UsersService } from '../../proto/gen/auth/v1/users_pb.js'
import type { Admission } from '../access/admission.js'
import type { Callers } from '../access/caller.js'
import { permit, permitService } from '../access/permissions.js'
import type { CallingService, Unary } from '../call.js'
import type { MasterKey } from '../masterkey.js'
import type { User, Users } from '../models/user.js'
import { usernameKey } from '../names.js'
import { type FieldViolation, refuse } from '../refusal.js'
import { isBlank, required } from '../required.js'
import { toUserRecord } from './userrecord.js'

/** Most users that a service reads at once. */
const mostAtOnce = 500

interface Deps {
  callers: Callers
  users: Pick<Users, 'several'>
  admission: Pick<Admission, 'takeServiceReads'>
  masterKey: MasterKey
}

/** Returns the record of the token's holder. */
export function getMe(deps: Pick<Deps, 'callers' | 'masterKey'>): Unary<typeof UsersService.method.getMe> {
  return async (_request, call) => {
    const caller = await deps.callers.identify(call)
    permit('getMe', caller, caller.user)
    return { user: toUserRecord(caller.user, caller, deps.masterKey) }
  }
}

/** Returns the record of a named user; to services, without keys. */
export function getUser(deps: Deps): Unary<typeof UsersService.method.getUser> {
  const { callers, masterKey } = deps
  return async (request, call) => {
    if (call.service) return { user: await getForService(deps, call.service, request) }
    const key = usernameKey(request.username ?? '')
    const { caller, target } = await callers.identifyWith(call, key)
    permit('getUser', caller, isBlank(request.username) ? caller.user : target)
    if (request.id !== undefined) malformed([{ field: 'id', message: 'Only services may ask by id.' }])
    required({ username: request.username })
    return { user: toUserRecord(target ?? refuse(Reason.USER_NOT_FOUND), caller, masterKey) }
  }
}

async function getForService(
  { users, admission, masterKey }: Omit<Deps, 'callers'>,
  service: CallingService,
  { id, username }: GetUserRequest,
) {
  permitService('getUser', service)
  if (id !== undefined && username !== undefined)
    malformed([{ field: 'id', message: 'Give id or username, not both.' }])
  if (id === undefined) required({ username })
  admission.takeServiceReads(service.name, 1)
  const [user] = await users.several(
    id === undefined ? [] : [id],
    username === undefined ? [] : [usernameKey(username)],
  )
  return toUserRecord(user ?? refuse(Reason.USER_NOT_FOUND), undefined, masterKey)
}

/** Returns many users, for services. */
export function batchGetUsers(deps: Deps): Unary<typeof UsersService.method.batchGetUsers> {
  const { callers, users, admission, masterKey } = deps
  return async ({ references }, call) => {
    const { service } = call
    if (!service) {
      await callers.identify(call)
      refuse(Reason.ACCESS_DENIED)
    }
    permitService('batchGetUsers', service)
    checkReferences(references)
    admission.takeServiceReads(service.name, references.length)
    const ids = references.flatMap(({ user }) => (user.case === 'id' ? [user.value] : []))
    const keys = references.flatMap(({ user }) => (user.case === 'username' ? [usernameKey(user.value)] : []))
    const found = await users.several(ids, keys)
    const byId = new Map(found.map(user => [user.id, user]))
    const byKey = new Map(found.map(user => [user.usernameKey, user]))
    const find = ({ user }: UserReference): User | undefined =>
      user.case === 'id' ? byId.get(user.value) : byKey.get(usernameKey(user.value ?? ''))
    return {
      users: references.flatMap(reference => {
        const user = find(reference)
        return user ? [toUserRecord(user, undefined, masterKey)] : []
      }),
      missing: references.filter(reference => !find(reference)),
    }
  }
}

function checkReferences(references: readonly UserReference[]): void {
  if (references.length > mostAtOnce) {
    malformed([{ field: 'references', message: `Name at most ${mostAtOnce} users.` }])
  }
  const wrong = references.flatMap(({ user }, index) =>
    user.case === undefined ? [{ field: `references[${index}]`, message: 'Give an id or a username.' }] : [],
  )
  if (wrong.length > 0) malformed(wrong)
}

function malformed(fields: readonly FieldViolation[]): never {
  refuse(Reason.MALFORMED_REQUEST, { fields })
}
