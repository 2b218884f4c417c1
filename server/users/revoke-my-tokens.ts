import type { UsersRpc } from '../access/context.js'
import type { Users } from '../models/user.js'

/** Revokes all tokens of the caller, so that only one of two calls with the same token succeeds. */
export function revokeMyTokens({ users }: { users: Pick<Users, 'revokeTokens'> }): UsersRpc<'revokeMyTokens'> {
  return async (_request, { caller, transact }) => {
    const { id } = caller.user
    await transact(async ({ t, record }) => {
      await users.revokeTokens(id, t)
      await record({ action: 'user.revoke-own-tokens', subject_id: id })
    })
    return {}
  }
}
