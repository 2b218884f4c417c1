import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Users as UsersService } from '../../proto/gen/auth/v1/users_pb.js'
import { type Callers, traces } from '../access/caller.js'
import { permit } from '../access/permissions.js'
import type { Unary } from '../call.js'
import type { Database } from '../database/connection.js'
import type { Audit } from '../models/audit.js'
import type { Users } from '../models/user.js'
import { refuse } from '../refusal.js'

/** Logs the token's holder out everywhere. */
export function revokeMyTokens(deps: {
  database: Database
  users: Users
  audit: Audit
  callers: Callers
}): Unary<typeof UsersService.method.revokeMyTokens> {
  const { database, users, audit, callers } = deps
  return async (_request, call) => {
    const caller = await callers.identify(call)
    const { user } = caller
    permit('revokeMyTokens', caller, user)
    await database.transact(async t => {
      // Of two at once with one token, the first revokes it.
      if (!(await users.lockOwn(user.id, user.tokenGeneration, t))) refuse(Reason.INVALID_TOKEN)
      await users.revokeTokens(user.id, t)
      const event = { action: 'user.revoke-own-tokens', outcome: 'ok', subject_id: user.id } as const
      await audit.append({ ...traces(call, user), ...event }, t)
    })
    return {}
  }
}
