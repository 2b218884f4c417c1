import type { Access } from '../access/index.js'
import type { UsersRpcs } from '../calls/context.js'

/** Issues another token of the session of the caller. */
export function refresh({ tokens }: Access): UsersRpcs['refresh'] {
  return async (_request, { caller }) => ({ token: await tokens.issue(caller.user, caller.session) })
}
