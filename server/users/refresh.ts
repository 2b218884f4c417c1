import type { UsersRpc } from '../access/context.js'
import type { Tokens } from '../access/tokens.js'

/** Issues a new token for the session of the caller. The former one stays valid. */
export function refresh({ tokens }: { tokens: Tokens }): UsersRpc<'refresh'> {
  return async (_request, { caller }) => ({ token: await tokens.issue(caller.user, caller.session) })
}
