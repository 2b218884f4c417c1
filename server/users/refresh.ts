import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Access } from '../access/index.js'
import type { UsersRpcs } from '../calls/context.js'
import type { Models } from '../models/index.js'
import { ownLine } from '../models/refreshed-session.js'
import { refuse } from '../requests/refusal.js'

/** Issues another token of the session of the caller, unless it has refresh tokens or was signed out. */
export function refresh({ refreshedSessions }: Models, { tokens }: Access): UsersRpcs['refresh'] {
  return async ({ stay }, { caller: { user, session } }) => {
    if (await refreshedSessions.find(user.id, ownLine(session))) refuse(Reason.INVALID_TOKEN, { text: hasLine })
    return { token: await tokens.issue(user, session, { stay: stay === true && session.stay }) }
  }
}

const hasLine = 'The session is refreshed by its refresh token, or was signed out.'
