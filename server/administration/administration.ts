import type { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { createAdministrators } from '../access/administrator.js'
import type { Admission } from '../access/admission.js'
import { createCallers } from '../access/caller.js'
import type { Keyring } from '../access/keyring.js'
import { createOneTimeCodes } from '../access/one-time-codes.js'
import type { SignIns } from '../access/sign-in.js'
import { createTokens } from '../access/tokens.js'
import type { Registry } from '../models/define-models.js'
import { adminTokenTtl } from '../models/signing-key.js'
import type { UndeclaredProxies } from '../observability/undeclared-proxy.js'
import { createQuotas } from '../outbox/quotas.js'
import type { Passwords } from '../passwords/hash.js'
import type { PasswordPolicy } from '../passwords/policy.js'
import type { Pool } from '../passwords/pool.js'
import { administrationAudience, type Settings } from '../process/settings.js'
import type { OpenPage } from '../requests/paging.js'
import { getAuditEvent, listAuditEvents, verifyAuditLog } from './audit-log.js'
import { getConfiguration } from './configuration.js'
import type { Rpc } from './context.js'
import { diagnose } from './doctor.js'
import { discardEmail, getEmail, listEmails, retryEmail, retryFailedEmails, sendTestEmail } from './emails.js'
import { finishImport, importBatch } from './imports/batch.js'
import { abortImport, getImport, listImports, startImport } from './imports/imports.js'
import { createOrganizationRows } from './imports/organizations.js'
import { undoImport } from './imports/undo.js'
import { createUserRows } from './imports/users.js'
import { getMigrations } from './migrations.js'
import { createChanges } from './mutations.js'
import {
  activateOrganization,
  createOrganization,
  deactivateOrganization,
  deleteOrganization,
  getOrganization,
  listOrganizations,
  rotateOrganizationKey,
  updateOrganization,
} from './organizations.js'
import {
  createQuestion,
  getQuestion,
  linkQuestion,
  listQuestions,
  listUnmatchedQuestions,
  offerQuestion,
  orderQuestions,
  retireQuestion,
  updateQuestion,
} from './questions.js'
import { createReferences } from './references.js'
import { getOrganizationSecrets, getUserSecrets } from './secrets.js'
import { createNotifyAdministrators, createNotifyConcerned } from './security-notices.js'
import {
  createService,
  createServiceKey,
  deleteService,
  deleteServiceKey,
  getService,
  listServices,
  updateService,
} from './services.js'
import { confirmTotp, enrollTotp, getSession, removeTotp, signIn } from './session.js'
import {
  getIssuer,
  getSigningKey,
  listSigningKeys,
  retireSigningKey,
  rotateSigningKey,
  setIssuer,
} from './signing-keys.js'
import {
  activateUser,
  deleteUser,
  resumeUser,
  revokeTokens,
  rotateProviderKey,
  setOrganization,
  setRole,
  suspendUser,
  undeleteUser,
} from './users/changes.js'
import { eraseUser, exportUser } from './users/data.js'
import { explainUser } from './users/explain.js'
import { createUser, updateUser } from './users/forms.js'
import { getUser, listUsers } from './users/list.js'
import { listLockouts } from './users/lockouts.js'
import { clearAnswers, sendRecoveryKey, setPassword, unlockUser } from './users/support.js'
import { eraseUnactivatedUsers } from './users/unactivated.js'

/** What Administration is made of. */
export interface AdministrationDeps extends Registry {
  readonly settings: Settings
  /** `iss` of tokens. */
  readonly issuer: string
  readonly keyring: Keyring
  readonly signIns: SignIns
  readonly passwords: Passwords
  readonly policy: PasswordPolicy
  readonly pool: Pick<Pool, 'stats'>
  readonly openPage: OpenPage
  readonly admission: Pick<Admission, 'takeServiceReads' | 'refundServiceReads'>
  readonly now: () => number
  /** Proxies that are missing in `AUTH_TRUSTED_PROXIES`, as far as this process saw; absent where it serves no clients. */
  readonly undeclaredProxies?: UndeclaredProxies['found']
}

/** The RPCs, and what the steps of a call to one are made of. */
export function createAdministration(deps: AdministrationDeps) {
  const { keyring, issuer, now, users, settings } = deps
  const lifetime = { ttl: adminTokenTtl, ownTtl: true }
  // A session by answers or a mailed key never opens Administration.
  const adminTokens = createTokens({
    keyring,
    issuer,
    audience: administrationAudience,
    ...lifetime,
    methods: ['pwd'],
    now,
  })
  const all = {
    ...deps,
    adminTokens,
    oneTimeCodes: createOneTimeCodes(deps),
    references: createReferences(deps),
    quotas: createQuotas(deps.emailQuotas, deps.counterKeys, settings.limitFactor, now),
    notifyAdministrators: createNotifyAdministrators(deps),
    rowsOf: { organizations: createOrganizationRows(deps), users: createUserRows(deps) },
  }
  const rpcs: { readonly [K in keyof typeof Administration.method]: Rpc<K> } = {
    signIn: signIn(all),
    getSession: getSession(all),
    enrollTotp: enrollTotp(all),
    confirmTotp: confirmTotp(all),
    removeTotp: removeTotp(all),

    listUsers: listUsers(all),
    getUser: getUser(all),
    createUser: createUser(all),
    updateUser: updateUser(all),
    activateUser: activateUser(all),
    suspendUser: suspendUser(all),
    resumeUser: resumeUser(all),
    unlockUser: unlockUser(all),
    clearAnswers: clearAnswers(all),
    setPassword: setPassword(all),
    setRole: setRole(all),
    setOrganization: setOrganization(all),
    rotateProviderKey: rotateProviderKey(all),
    revokeTokens: revokeTokens(all),
    sendRecoveryKey: sendRecoveryKey(all),
    deleteUser: deleteUser(all),
    undeleteUser: undeleteUser(all),
    eraseUser: eraseUser(all),
    eraseUnactivatedUsers: eraseUnactivatedUsers(all),
    explainUser: explainUser(all),
    listLockouts: listLockouts(all),
    exportUser: exportUser(all),

    listOrganizations: listOrganizations(all),
    getOrganization: getOrganization(all),
    createOrganization: createOrganization(all),
    updateOrganization: updateOrganization(all),
    activateOrganization: activateOrganization(all),
    deactivateOrganization: deactivateOrganization(all),
    rotateOrganizationKey: rotateOrganizationKey(all),
    deleteOrganization: deleteOrganization(all),

    listQuestions: listQuestions(all),
    getQuestion: getQuestion(),
    createQuestion: createQuestion(all),
    updateQuestion: updateQuestion(all),
    offerQuestion: offerQuestion(all),
    retireQuestion: retireQuestion(all),
    orderQuestions: orderQuestions(all),
    listUnmatchedQuestions: listUnmatchedQuestions(all),
    linkQuestion: linkQuestion(all),

    listSigningKeys: listSigningKeys(all),
    getSigningKey: getSigningKey(all),
    rotateSigningKey: rotateSigningKey(all),
    retireSigningKey: retireSigningKey(all),
    getIssuer: getIssuer(all),
    setIssuer: setIssuer(all),

    listEmails: listEmails(all),
    getEmail: getEmail(all),
    retryEmail: retryEmail(all),
    retryFailedEmails: retryFailedEmails(all),
    discardEmail: discardEmail(all),
    sendTestEmail: sendTestEmail(all),

    startImport: startImport(all),
    importBatch: importBatch(all),
    finishImport: finishImport(all),
    abortImport: abortImport(all),
    undoImport: undoImport(all),
    getImport: getImport(all),
    listImports: listImports(all),
    getUserSecrets: getUserSecrets(all),
    getOrganizationSecrets: getOrganizationSecrets(all),

    listAuditEvents: listAuditEvents(all),
    getAuditEvent: getAuditEvent(all),
    verifyAuditLog: verifyAuditLog(all),

    getMigrations: getMigrations(all),
    getConfiguration: getConfiguration(all),
    diagnose: diagnose(all),
    listServices: listServices(all),
    getService: getService(all),
    updateService: updateService(all),
    createService: createService(all),
    deleteService: deleteService(all),
    createServiceKey: createServiceKey(all),
    deleteServiceKey: deleteServiceKey(all),
  }
  return {
    rpcs,
    administrators: createAdministrators({ callers: createCallers(adminTokens, users), now }),
    changes: createChanges({ ...deps, notifyConcerned: createNotifyConcerned(deps) }),
    references: all.references,
    admission: deps.admission,
  }
}
