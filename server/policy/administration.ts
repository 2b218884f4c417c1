import type { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import type { Policy } from './policy.js'

/** What a policy says unless it says otherwise. */
const byAdministrator = {
  caller: 'administrator',
  target: 'registry',
  signIn: 'session',
  cost: 2,
  reasons: [],
  audit: [],
  limits: [],
} as const

/** Reads and changes of one record, which the request refers to. */
const onUser = { ...byAdministrator, target: 'user' } as const
const onOrganization = { ...byAdministrator, target: 'organization' } as const
const onQuestion = { ...byAdministrator, target: 'question' } as const

/** What is open to holders of desk, too. */
const byDesk = { ...byAdministrator, desk: true } as const
const onUserByDesk = { ...onUser, desk: true } as const

/** Reads that are open to services, too. */
const read = { ...byAdministrator, scopes: ['administration.read'] } as const
const readByDesk = { ...read, desk: true } as const
const organizationScopes = ['administration.read', 'organizations.write'] as const

/** What limits the users that a service reads. */
const readsUsers = { limits: ['serviceReads'] } as const

/** Seconds for what reads, or goes through, much of the database. */
const long = 600

/** What changes all members of an organization, in pages. */
const onMembers = {
  ...byAdministrator,
  cost: 50,
  reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND', 'CONFIRMATION_NEEDED'],
  seconds: 30,
} as const

/** What gives desk, or takes it. */
const onDesk = {
  ...onUser,
  signIn: 'recent',
  reasons: ['STALE_ETAG', 'WRONG_STATE', 'JUSTIFICATION_NEEDED'],
} as const

/** The policies of `auth.v1.Administration`. */
export const administrationPolicies = {
  signIn: {
    cost: 1.4,
    caller: 'anyone',
    reasons: ['MISSING_PARAMETER', 'INVALID_CREDENTIALS', 'CODE_NEEDED', 'SIGN_IN_AGAIN', 'TOO_MANY_ATTEMPTS'],
    audit: ['session.admin-login'],
    limits: ['account', 'failures', 'hashing'],
  },
  getSession: { ...byDesk, scopes: organizationScopes },
  enrollTotp: { ...byDesk, signIn: 'recent', reasons: ['WRONG_STATE'] },
  confirmTotp: {
    ...byDesk,
    signIn: 'recent',
    reasons: ['WRONG_STATE', 'INVALID_ARGUMENT', 'STALE_ETAG'],
    audit: ['user.enroll-totp'],
  },
  removeTotp: {
    ...onUser,
    signIn: 'recent',
    reasons: ['CONFIRMATION_NEEDED', 'JUSTIFICATION_NEEDED'],
    audit: ['user.remove-totp'],
  },
  listUsers: {
    ...readByDesk,
    ...readsUsers,
    reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND', 'TOO_MANY_ATTEMPTS'],
  },
  getUser: {
    ...onUserByDesk,
    ...readsUsers,
    scopes: ['administration.read'],
    reasons: ['TOO_MANY_ATTEMPTS'],
    audit: ['user.show-key'],
  },
  createUser: {
    ...byAdministrator,
    signIn: 'recent for administrators',
    reasons: [
      'INVALID_SIGN_UP',
      'INVALID_ARGUMENT',
      'RECORD_NOT_FOUND',
      'CONFIRMATION_NEEDED',
      'JUSTIFICATION_NEEDED',
      'WRONG_STATE',
    ],
    audit: ['user.add'],
    limits: ['hashing'],
  },
  updateUser: {
    ...onUserByDesk,
    signIn: 'recent for administrators',
    reasons: ['INVALID_SIGN_UP', 'STALE_ETAG', 'WRONG_STATE', 'JUSTIFICATION_NEEDED'],
    audit: ['user.edit', 'user.set-email'],
  },
  activateUser: {
    ...onUserByDesk,
    signIn: 'recent for administrators',
    reasons: ['RECORD_NOT_FOUND', 'STALE_ETAG', 'CONFIRMATION_NEEDED', 'WRONG_STATE', 'JUSTIFICATION_NEEDED'],
    audit: ['user.activate'],
  },
  suspendUser: {
    ...onUserByDesk,
    signIn: 'recent for administrators',
    reasons: ['STALE_ETAG', 'WRONG_STATE', 'LAST_ADMINISTRATOR', 'JUSTIFICATION_NEEDED'],
    audit: ['user.suspend'],
  },
  resumeUser: {
    ...onUserByDesk,
    signIn: 'recent for administrators',
    reasons: ['STALE_ETAG', 'WRONG_STATE', 'JUSTIFICATION_NEEDED'],
    audit: ['user.resume'],
  },
  unlockUser: { ...onUserByDesk, signIn: 'recent for administrators', audit: ['user.unlock'] },
  suspendUsers: { ...onMembers, audit: ['user.suspend'] },
  resumeUsers: { ...onMembers, audit: ['user.resume'] },
  issueKey: {
    ...onUserByDesk,
    reasons: ['WRONG_STATE', 'JUSTIFICATION_NEEDED'],
    audit: ['user.issue-key'],
  },
  issueKeys: {
    ...byDesk,
    cost: 50,
    reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND', 'JUSTIFICATION_NEEDED'],
    audit: ['user.issue-key'],
    seconds: 30,
  },
  grantDesk: { ...onDesk, audit: ['user.grant-desk'] },
  revokeDesk: { ...onDesk, audit: ['user.revoke-desk'] },
  clearAnswers: {
    ...onUser,
    signIn: 'recent for administrators',
    reasons: ['WRONG_STATE', 'JUSTIFICATION_NEEDED'],
    audit: ['user.clear-answers'],
  },
  setPassword: {
    ...onUser,
    signIn: 'recent for administrators',
    reasons: ['INVALID_PASSWORD', 'WRONG_STATE', 'JUSTIFICATION_NEEDED'],
    audit: ['user.set-password'],
    limits: ['hashing'],
  },
  setRole: {
    ...onUser,
    signIn: 'recent for administrators',
    reasons: ['STALE_ETAG', 'CONFIRMATION_NEEDED', 'WRONG_STATE', 'LAST_ADMINISTRATOR', 'JUSTIFICATION_NEEDED'],
    audit: ['user.set-role'],
  },
  setOrganization: {
    ...onUser,
    reasons: ['RECORD_NOT_FOUND', 'STALE_ETAG', 'WRONG_STATE', 'JUSTIFICATION_NEEDED'],
    audit: ['user.set-organization'],
  },
  rotateProviderKey: {
    ...onUser,
    reasons: ['STALE_ETAG', 'WRONG_STATE', 'JUSTIFICATION_NEEDED'],
    audit: ['user.rotate-provider-key'],
  },
  revokeTokens: { ...onUser, reasons: ['WRONG_STATE', 'JUSTIFICATION_NEEDED'], audit: ['user.revoke-tokens'] },
  sendRecoveryKey: {
    ...onUserByDesk,
    signIn: 'recent for administrators',
    reasons: ['WRONG_STATE', 'TOO_MANY_ATTEMPTS'],
    audit: ['user.send-key'],
    limits: ['recovery'],
  },
  deleteUser: {
    ...onUser,
    signIn: 'recent for administrators',
    reasons: ['STALE_ETAG', 'LAST_ADMINISTRATOR', 'JUSTIFICATION_NEEDED'],
    audit: ['user.delete'],
  },
  undeleteUser: {
    ...onUser,
    signIn: 'recent for administrators',
    reasons: ['STALE_ETAG', 'JUSTIFICATION_NEEDED'],
    audit: ['user.undelete'],
  },
  eraseUser: {
    ...onUser,
    signIn: 'recent',
    reasons: ['CONFIRMATION_NEEDED', 'LAST_ADMINISTRATOR', 'JUSTIFICATION_NEEDED'],
    audit: ['user.erase'],
    seconds: long,
  },
  eraseUnactivatedUsers: {
    ...byAdministrator,
    signIn: 'recent',
    reasons: ['INVALID_ARGUMENT', 'CONFIRMATION_NEEDED'],
    audit: ['user.erase'],
    seconds: long,
  },
  explainUser: { ...onUserByDesk, ...readsUsers, scopes: ['administration.read'], reasons: ['TOO_MANY_ATTEMPTS'] },
  listLockouts: { ...readByDesk, reasons: ['INVALID_ARGUMENT'] },
  exportUser: { ...onUser, audit: ['user.export'], seconds: long },
  listOrganizations: { ...byDesk, scopes: organizationScopes, reasons: ['INVALID_ARGUMENT'] },
  getOrganization: { ...onOrganization, desk: true, scopes: organizationScopes, audit: ['organization.show-key'] },
  createOrganization: {
    ...byAdministrator,
    scopes: ['organizations.write'],
    reasons: ['INVALID_ARGUMENT', 'NAME_TAKEN'],
    audit: ['organization.add'],
  },
  updateOrganization: {
    ...onOrganization,
    scopes: ['organizations.write'],
    reasons: ['STALE_ETAG', 'NAME_TAKEN'],
    audit: ['organization.edit'],
  },
  activateOrganization: { ...onOrganization, reasons: ['STALE_ETAG'], audit: ['organization.activate'] },
  deactivateOrganization: { ...onOrganization, reasons: ['STALE_ETAG'], audit: ['organization.deactivate'] },
  rotateOrganizationKey: { ...onOrganization, reasons: ['STALE_ETAG'], audit: ['organization.rotate-key'] },
  deleteOrganization: {
    ...onOrganization,
    signIn: 'recent',
    reasons: ['CONFIRMATION_NEEDED', 'STALE_ETAG', 'WRONG_STATE'],
    audit: ['organization.delete'],
  },
  listQuestions: { ...read, reasons: ['INVALID_ARGUMENT'] },
  getQuestion: { ...onQuestion, scopes: ['administration.read'] },
  createQuestion: { ...byAdministrator, reasons: ['INVALID_ARGUMENT', 'NAME_TAKEN'], audit: ['question.add'] },
  updateQuestion: { ...onQuestion, reasons: ['STALE_ETAG', 'NAME_TAKEN'], audit: ['question.edit'] },
  offerQuestion: { ...onQuestion, reasons: ['STALE_ETAG'], audit: ['question.restore'] },
  retireQuestion: { ...onQuestion, reasons: ['STALE_ETAG'], audit: ['question.retire'] },
  orderQuestions: {
    ...byAdministrator,
    reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND'],
    audit: ['question.order'],
  },
  listUnmatchedQuestions: { ...read, reasons: ['INVALID_ARGUMENT'] },
  linkQuestion: { ...onQuestion, audit: ['question.link'], seconds: long },
  listServices: { ...read, reasons: ['INVALID_ARGUMENT'] },
  getService: { ...read, reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND'] },
  createService: {
    ...byAdministrator,
    signIn: 'recent',
    reasons: ['INVALID_ARGUMENT', 'NAME_TAKEN'],
    audit: ['service.add'],
  },
  updateService: {
    ...byAdministrator,
    signIn: 'recent',
    reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND', 'NAME_TAKEN', 'STALE_ETAG'],
    audit: ['service.edit'],
  },
  deleteService: {
    ...byAdministrator,
    signIn: 'recent',
    reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND', 'CONFIRMATION_NEEDED'],
    audit: ['service.delete'],
  },
  createServiceKey: {
    ...byAdministrator,
    signIn: 'recent',
    reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND'],
    audit: ['service.add-key'],
  },
  deleteServiceKey: {
    ...byAdministrator,
    signIn: 'recent',
    reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND'],
    audit: ['service.delete-key'],
  },
  listSigningKeys: read,
  getSigningKey: { ...read, reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND'] },
  rotateSigningKey: { ...byAdministrator, signIn: 'recent', audit: ['signing-key.rotate'] },
  retireSigningKey: {
    ...byAdministrator,
    signIn: 'recent',
    reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND', 'CONFIRMATION_NEEDED'],
    audit: ['signing-key.retire'],
  },
  getIssuer: read,
  setIssuer: {
    ...byAdministrator,
    signIn: 'recent',
    reasons: ['INVALID_ARGUMENT', 'CONFIRMATION_NEEDED'],
    audit: ['registry.set-issuer'],
  },
  listEmails: { ...readByDesk, reasons: ['INVALID_ARGUMENT', 'USER_NOT_FOUND'] },
  getEmail: { ...readByDesk, reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND'] },
  retryEmail: { ...byAdministrator, reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND'], audit: ['email.retry'] },
  retryFailedEmails: { ...byAdministrator, audit: ['email.retry'] },
  discardEmail: { ...byAdministrator, reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND'], audit: ['email.discard'] },
  sendTestEmail: { ...byAdministrator, seconds: 30, reasons: ['INVALID_ARGUMENT'], audit: ['email.test'] },
  startImport: {
    ...byDesk,
    signIn: 'recent',
    reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND', 'WRONG_STATE', 'JUSTIFICATION_NEEDED'],
    audit: ['import.start'],
    seconds: long,
  },
  importBatch: {
    ...byDesk,
    cost: 50,
    reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND', 'WRONG_STATE'],
    audit: ['organization.import', 'user.import', 'user.set-organization', 'user.set-password'],
    limits: ['hashing'],
    seconds: long,
  },
  finishImport: {
    ...byDesk,
    reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND', 'WRONG_STATE'],
    audit: ['organization.import', 'user.import', 'user.set-organization', 'user.set-password'],
    seconds: long,
  },
  abortImport: {
    ...byDesk,
    reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND'],
    audit: ['import.abort'],
  },
  getImport: { ...readByDesk, reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND'] },
  listImports: { ...readByDesk, reasons: ['INVALID_ARGUMENT'] },
  getUserSecrets: {
    ...byAdministrator,
    signIn: 'recent',
    reasons: ['INVALID_ARGUMENT'],
    audit: ['user.export-secrets'],
  },
  getOrganizationSecrets: {
    ...byAdministrator,
    signIn: 'recent',
    reasons: ['INVALID_ARGUMENT'],
    audit: ['organization.export-secrets'],
  },
  listAuditEvents: { ...read, reasons: ['INVALID_ARGUMENT', 'USER_NOT_FOUND'] },
  getAuditEvent: { ...read, reasons: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND'] },
  verifyAuditLog: { ...read, reasons: ['INVALID_ARGUMENT'], seconds: long },
  getMigrations: { ...read, reasons: ['WRONG_STATE'] },
  getConfiguration: read,
  diagnose: { ...read, seconds: long },
} as const satisfies Record<keyof typeof Administration.method, Policy>
