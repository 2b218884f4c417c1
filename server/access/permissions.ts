// Who may do what: one row for each protected RPC, and the function that every one of them asks. Those of Administration
// are asked by administrator.ts.
import type { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { CallingService } from '../call.js'
import type { User } from '../models/user.js'
import { refuse } from '../refusal.js'
import type { ScopeName } from '../scopes.js'
import type { Caller } from './caller.js'

/** Whose records an RPC opens. */
export interface Permission {
  /** Whose holder may use it on its own record, active or not. */
  readonly own: 'every role' | 'ROLE_INSTITUTION' | 'nobody'
  /** What an active ROLE_INSTITUTION may use it on. */
  readonly institution: 'own only' | 'users of its organization' | 'nothing'
  /** What an active ROLE_ADMIN may use it on. */
  readonly admin: 'any user' | 'own only' | 'nothing'
  /** What a ROLE_ADMIN may use it on in a session that began by answers. */
  readonly adminByAnswers: 'own only' | 'nothing'
  /** The scope with which a service may use it, on any user; without one it may not. */
  readonly service: ScopeName | 'nothing'
}

const ownRecord = {
  own: 'every role',
  institution: 'own only',
  admin: 'any user',
  adminByAnswers: 'nothing',
  service: 'nothing',
} as const

/** The table. */
export const permissions = {
  getMe: { ...ownRecord, adminByAnswers: 'own only' },
  refresh: ownRecord,
  activate: ownRecord,
  saveForgotPasswordQuestionsUsersAnswers: ownRecord,
  passwordUpdateByUsername: ownRecord,
  setEmail: { ...ownRecord, admin: 'own only' },
  confirmEmail: { ...ownRecord, admin: 'own only' },
  revokeMyTokens: { ...ownRecord, admin: 'own only' },
  getUser: {
    ...ownRecord,
    institution: 'users of its organization',
    adminByAnswers: 'own only',
    service: 'users.read',
  },
  batchGetUsers: {
    own: 'nobody',
    institution: 'nothing',
    admin: 'nothing',
    adminByAnswers: 'nothing',
    service: 'users.read',
  },
  sendAdminKeyByEmailPartner: { ...ownRecord, own: 'ROLE_INSTITUTION' },
} as const satisfies Record<string, Permission>

/**
 * What an RPC of Administration asks of its caller:
 * - `nothing`: it is how a session begins;
 * - `administrator`: an active ROLE_ADMIN with a token of the audience `auth-admin`, or somebody on the database itself;
 * - `final`: the same, by a sign-in at most 15 minutes old, and the name of what it is done to, since it can't be undone;
 * - `final of administrators`: that when it makes or unmakes an administrator.
 */
export type AdministrationPermission = 'nothing' | 'administrator' | 'final' | 'final of administrators'

/** The table of Administration. */
export const administrationPermissions = {
  signIn: 'nothing',
  getSession: 'administrator',
  enrollTotp: 'administrator',
  confirmTotp: 'administrator',
  removeTotp: 'final',
  listUsers: 'administrator',
  getUser: 'administrator',
  createUser: 'final of administrators',
  updateUser: 'administrator',
  activateUser: 'final of administrators',
  suspendUser: 'administrator',
  resumeUser: 'administrator',
  unlockUser: 'administrator',
  setPassword: 'administrator',
  setRole: 'final of administrators',
  setOrganization: 'administrator',
  revokeTokens: 'administrator',
  sendRecoveryKey: 'administrator',
  deleteUser: 'administrator',
  undeleteUser: 'administrator',
  eraseUser: 'final',
  explainUser: 'administrator',
  exportUser: 'administrator',
  listOrganizations: 'administrator',
  getOrganization: 'administrator',
  createOrganization: 'administrator',
  updateOrganization: 'administrator',
  activateOrganization: 'administrator',
  deactivateOrganization: 'administrator',
  rotateOrganizationKey: 'administrator',
  deleteOrganization: 'final',
  listQuestions: 'administrator',
  createQuestion: 'administrator',
  updateQuestion: 'administrator',
  offerQuestion: 'administrator',
  retireQuestion: 'administrator',
  listUnmatchedQuestions: 'administrator',
  linkQuestion: 'administrator',
  listServices: 'administrator',
  createService: 'administrator',
  deleteService: 'final',
  createServiceKey: 'administrator',
  deleteServiceKey: 'administrator',
  listSigningKeys: 'administrator',
  rotateSigningKey: 'administrator',
  retireSigningKey: 'final',
  getIssuer: 'administrator',
  setIssuer: 'final',
  listEmails: 'administrator',
  getEmail: 'administrator',
  retryEmail: 'administrator',
  discardEmail: 'administrator',
  sendTestEmail: 'administrator',
  listAuditEvents: 'administrator',
  verifyAuditLog: 'administrator',
  getMigrations: 'administrator',
  getConfiguration: 'administrator',
  diagnose: 'administrator',
} as const satisfies Record<keyof typeof Administration.method, AdministrationPermission>

/** Refuses with ACCESS_DENIED unless a service may use an RPC. */
export function permitService(rpc: keyof typeof permissions, { scopes }: CallingService): void {
  const { service }: Permission = permissions[rpc]
  if (service === 'nothing' || !scopes.includes(service)) refuse(Reason.ACCESS_DENIED)
}

/** Refuses with ACCESS_DENIED unless the caller may use an RPC on a user; on nobody, when there is none. */
export function permit(
  rpc: keyof typeof permissions,
  { user: caller, session, admin }: Caller,
  target: Pick<User, 'id' | 'organizationId'> | undefined,
): void {
  const { own, institution, adminByAnswers, ...row }: Permission = permissions[rpc]
  const isOwn = target?.id === caller.id && (own === 'every role' || caller.role === own)
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
  if (!isOwn && !isMember && !(admin && row.admin === 'any user')) refuse(Reason.ACCESS_DENIED)
}
