import type { UsersRpc } from '../access/context.js'
import type { Tokens } from '../access/tokens.js'

/** Exchanges a token for a fresh one of the same session. */
export function refresh({ tokens }: { tokens: Tokens }): UsersRpc<'refresh'> {
  return async (_request, { caller }) => ({ token: await tokens.issue(caller.user, caller.session) })
}
