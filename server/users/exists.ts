import { type Admission, tooManyAttempts } from '../access/admission.js'
import type { UsersRpc } from '../access/context.js'
import type { Users } from '../models/user.js'
import { required } from '../requests/required-fields.js'
import { nicknameKey, usernameKey } from '../rules/names.js'

interface Deps {
  readonly users: Pick<Users, 'taken'>
  readonly admission: Pick<Admission, 'takeLookUp'>
}

/** Returns whether a username is taken, without regard to look-alikes. */
export function existsByUsername({ users, admission }: Deps): UsersRpc<'existsByUsername'> {
  return async (request, { call }) => {
    if (!admission.takeLookUp(call.address)) throw tooManyAttempts(1, 'lookUps')
    const { username } = required({ username: request.username })
    return { exists: (await users.taken(usernameKey(username), '')).username }
  }
}

/** Returns whether a nickname is taken, without regard to look-alikes. */
export function existsByNickname({ users, admission }: Deps): UsersRpc<'existsByNickname'> {
  return async (request, { call }) => {
    if (!admission.takeLookUp(call.address)) throw tooManyAttempts(1, 'lookUps')
    const { nickname } = required({ nickname: request.nickname })
    return { exists: (await users.taken('', nicknameKey(nickname))).nickname }
  }
}
