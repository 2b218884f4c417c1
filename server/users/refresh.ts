import type { Users } from '../../proto/gen/auth/v1/users_pb.js'
import type { Callers } from '../access/caller.js'
import { permit } from '../access/permissions.js'
import type { Tokens } from '../access/tokens.js'
import type { Unary } from '../call.js'

/** Exchanges a token for a fresh one of the same session. */
export function refresh(deps: { callers: Callers; tokens: Tokens }): Unary<typeof Users.method.refresh> {
  return async (_request, call) => {
    const caller = await deps.callers.identify(call)
    permit('refresh', caller, caller.user)
    return { token: await deps.tokens.issue(caller.user, caller.session) }
  }
}
