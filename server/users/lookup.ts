import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Users as UsersService } from '../../proto/gen/auth/v1/users_pb.js'
import type { Callers } from '../access/caller.js'
import { permit } from '../access/permissions.js'
import type { Unary } from '../call.js'
import type { MasterKey } from '../masterkey.js'
import { usernameKey } from '../names.js'
import { refuse } from '../refusal.js'
import { isBlank, required } from '../required.js'
import { toUserRecord } from './userrecord.js'

/** Returns the record of the token's holder. */
export function getMe(deps: { callers: Callers; masterKey: MasterKey }): Unary<typeof UsersService.method.getMe> {
  return async (_request, call) => {
    const caller = await deps.callers.identify(call)
    permit('getMe', caller, caller.user)
    return { user: toUserRecord(caller.user, caller, deps.masterKey) }
  }
}

/** Returns the record of a named user. */
export function getUser(deps: { callers: Callers; masterKey: MasterKey }): Unary<typeof UsersService.method.getUser> {
  return async (request, call) => {
    const key = usernameKey(request.username ?? '')
    const { caller, target } = await deps.callers.identifyWith(call, key)
    permit('getUser', caller, isBlank(request.username) ? caller.user : target)
    required({ username: request.username })
    return { user: toUserRecord(target ?? refuse(Reason.USER_NOT_FOUND), caller, deps.masterKey) }
  }
}
