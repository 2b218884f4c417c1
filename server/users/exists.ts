import type { UsersRpcs } from '../calls/context.js'
import type { Limits } from '../limits/index.js'
import { tooManyAttempts } from '../limits/rate-limits.js'
import type { Models } from '../models/index.js'
import type { Call } from '../requests/call.js'
import { required } from '../requests/required-fields.js'
import { nicknameKey, usernameKey } from '../rules/names.js'

/** The RPCs that say whether a name is taken, without regard to look-alikes. */
export function existsRpcs({ users }: Models, { rateLimits }: Limits) {
  const count = ({ address }: Call) => {
    if (!rateLimits.takeLookUp(address)) throw tooManyAttempts(1, 'lookUps')
  }
  return {
    async existsByUsername(request, { call }) {
      count(call)
      const { username } = required({ username: request.username })
      return { exists: (await users.taken(usernameKey(username), '')).username }
    },

    async existsByNickname(request, { call }) {
      count(call)
      const { nickname } = required({ nickname: request.nickname })
      return { exists: (await users.taken('', nicknameKey(nickname))).nickname }
    },
  } satisfies Partial<UsersRpcs>
}
