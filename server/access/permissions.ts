// Who may do what: one row for each protected RPC, and the function that every one of them asks.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { User } from '../models/user.js'
import { refuse } from '../refusal.js'
import type { Caller } from './caller.js'

/** Whose records an RPC opens. */
export interface Permission {
  /** Whose holder may use it on its own record, active or not. */
  readonly own: 'every role' | 'ROLE_INSTITUTION'
  /** What an active ROLE_INSTITUTION may use it on. */
  readonly institution: 'own only' | 'users of its organization'
  /** What an active ROLE_ADMIN may use it on. */
  readonly admin: 'any user'
  /** What a ROLE_ADMIN may use it on in a session that began by answers. */
  readonly adminByAnswers: 'own only' | 'nothing'
}

const ownRecord = { own: 'every role', institution: 'own only', admin: 'any user', adminByAnswers: 'nothing' } as const

/** The table. */
export const permissions = {
  getMe: { ...ownRecord, adminByAnswers: 'own only' },
  refresh: ownRecord,
  activate: ownRecord,
  saveForgotPasswordQuestionsUsersAnswers: ownRecord,
  passwordUpdateByUsername: ownRecord,
  getUser: { ...ownRecord, institution: 'users of its organization', adminByAnswers: 'own only' },
  sendAdminKeyByEmailPartner: { ...ownRecord, own: 'ROLE_INSTITUTION' },
} as const satisfies Record<string, Permission>

/** Refuses with ACCESS_DENIED unless the caller may use an RPC on a user; on nobody, when there is none. */
export function permit(
  rpc: keyof typeof permissions,
  { user: caller, session, admin }: Caller,
  target: Pick<User, 'id' | 'organizationId'> | undefined,
): void {
  const { own, institution, adminByAnswers }: Permission = permissions[rpc]
  const isOwn = target?.id === caller.id && (own === 'every role' || caller.role === own || admin)
  if (caller.role === 'ROLE_ADMIN' && session.method === 'kba') {
    if (adminByAnswers === 'own only' && isOwn) return
    refuse(Reason.ACCESS_DENIED)
  }
  const isMember =
    institution === 'users of its organization' &&
    caller.role === 'ROLE_INSTITUTION' &&
    caller.active &&
    caller.organizationId !== null &&
    target?.organizationId === caller.organizationId
  if (!isOwn && !isMember && !admin) refuse(Reason.ACCESS_DENIED)
}
