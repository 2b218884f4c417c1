import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { endOf, refuseEnded, type Tokens } from '../access/tokens.js'
import type { UsersRpcs } from '../calls/context.js'
import { type RefreshedSessions, refreshOf } from '../models/refreshed-session.js'
import type { NotifyOwner } from '../outbox/notice.js'
import type { Settings } from '../process/settings.js'
import { refuse } from '../requests/refusal.js'

/**
 * Issues the next token of the session of the caller, or the newest again. A copy of an old token ends the refreshing of the
 * session; if the caller is active, it gets an e-mail.
 */
export function refresh(deps: {
  readonly tokens: Tokens
  readonly refreshedSessions: RefreshedSessions
  readonly notifyOwner: NotifyOwner
  readonly settings: Pick<Settings, 'strict'>
  readonly now: () => number
}): UsersRpcs['refresh'] {
  const { tokens, refreshedSessions, notifyOwner, settings, now } = deps
  return async (_request, { call, caller, transact }) => {
    const { user, session } = caller
    const { id, refreshes: number } = session
    const ends = endOf(session)
    if (ends * 1000 <= now()) refuseEnded()
    const expired = session.expiresAt * 1000 <= now()
    const wakes = session.method === 'pwd' && user.role !== 'ROLE_ADMIN' && settings.strict === 'off'
    const token = { number, expired, wakes }
    const next = async () => ({ token: await tokens.issue(user, { ...session, refreshes: number + 1 }) })

    // Most tokens are the newest of their session: no statement reads the session before the one that changes it.
    const presumed = refreshOf({ newest: number, ended: false }, token)
    const of = { userId: user.id, id, endsAt: new Date(ends * 1000) }
    if (presumed === 'next' && (await refreshedSessions.advance(of, number))) return next()
    const result = refreshOf(await refreshedSessions.find(user.id, id), token)
    if (result === 'newest') return next()
    if (result === 'copied')
      await transact(async ({ t, record, target }) => {
        if (!(await refreshedSessions.end(user.id, id, t))) return
        if (target.active) await notifyOwner('session-ended', target, call, t)
        await record({ action: 'session.end', subject_id: user.id })
      })
    return refuse(Reason.INVALID_TOKEN)
  }
}
