import { timestampFromMs } from '@bufbuild/protobuf/wkt'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { UsersRpcs } from '../calls/context.js'
import { ownLine } from '../models/refreshed-session.js'
import type { Settings } from '../process/settings.js'
import { refuse } from '../requests/refusal.js'
import type { Grants } from './grants.js'

/** Begins the line of an app that stays signed in, for the session of the caller. */
export function createRefreshToken(
  grants: Grants,
  settings: Pick<Settings, 'sessionDays'>,
): UsersRpcs['createRefreshToken'] {
  return async (_request, { caller: { user, session }, call }) => {
    if (!session.stay) refuse(Reason.ACCESS_DENIED, { text: 'Log in with `stay` first.' })
    if (!grants.mayStay(user))
      refuse(Reason.ACCESS_DENIED, { text: 'This session can’t stay signed in. Refresh its token instead.' })
    const ends = session.startedAt + settings.sessionDays * 86_400
    const grant = {
      userId: user.id,
      generation: user.tokenGeneration,
      line: ownLine(session),
      number: 0,
      sid: session.id,
      amr: [session.method],
      authTime: session.startedAt,
      ends,
    }
    const refreshToken = await grants.seal('refresh', await grants.exchange(grant, 'app', call))
    return { refreshToken, expireTime: timestampFromMs(ends * 1000) }
  }
}
