// What the service is made of: access, the RPCs behind their rows, and the calls of each endpoint. The service (service.ts)
// and the command line on the database itself (local-application.ts) both make it here. It starts nothing and listens
// nowhere.
import { Administration } from '../proto/gen/auth/v1/administration_pb.js'
import { Changes } from '../proto/gen/auth/v1/changes_pb.js'
import { ForgotPasswords } from '../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../proto/gen/auth/v1/users_pb.js'
import { createAdministrators } from './access/administrator.js'
import { createAdministratorSessions } from './access/administrator-session.js'
import { createCallers } from './access/caller.js'
import { createKeyring } from './access/keyring.js'
import { createSeals } from './access/seals.js'
import { createServiceKeys } from './access/service-keys.js'
import { createSignIns } from './access/sign-in.js'
import { createTokens } from './access/tokens.js'
import { createOneTimeCodes } from './access/totp.js'
import { auditLogRpcs } from './administration/audit-log.js'
import { deploymentRpcs } from './administration/deployment.js'
import { diagnose } from './administration/doctor.js'
import { emailRpcs as queuedEmailRpcs } from './administration/emails.js'
import { finishImport, importBatch } from './administration/imports/batch.js'
import { importRpcs } from './administration/imports/imports.js'
import { createOrganizationRows } from './administration/imports/organizations.js'
import { createUserRows } from './administration/imports/users.js'
import { organizationRpcs } from './administration/organizations.js'
import { questionRpcs } from './administration/questions.js'
import { createReferences } from './administration/references.js'
import { secretRpcs } from './administration/secrets.js'
import { createNotifyAdministrators, createNotifyConcerned } from './administration/security-notices.js'
import { serviceRpcs } from './administration/services.js'
import { sessionRpcs } from './administration/session.js'
import { signingKeyRpcs } from './administration/signing-keys.js'
import { userCreateUpdateRpcs } from './administration/users/create-update.js'
import { userDataRpcs } from './administration/users/data.js'
import { explainUser } from './administration/users/explain.js'
import { userReadRpcs } from './administration/users/list.js'
import { listLockouts } from './administration/users/lockouts.js'
import { userStateRpcs } from './administration/users/state.js'
import { userSupportRpcs } from './administration/users/support.js'
import { eraseUnactivatedUsers } from './administration/users/unactivated.js'
import { bindAdministration, bindRpcs } from './calls/pipeline.js'
import { type CallsDeps, createCalls } from './calls/run.js'
import { createFeedReader } from './changes/feed-reader.js'
import { poll } from './changes/poll.js'
import { answerRpcs } from './forgotpasswords/answers.js'
import { passwordUpdateByUsername } from './forgotpasswords/password.js'
import { recoveryKeyRpcs } from './forgotpasswords/recovery-key.js'
import { createEmailRequests } from './limits/email-requests.js'
import { createKnownAccounts } from './limits/known-accounts.js'
import { createRateLimits } from './limits/rate-limits.js'
import type { Registry } from './models/define-models.js'
import type { TokenIssuer } from './models/token-issuer.js'
import type { UndeclaredProxies } from './observability/undeclared-proxy.js'
import { createNotifyOwner } from './outbox/notice.js'
import { createQuotas } from './outbox/quotas.js'
import { createPasswords } from './passwords/hash.js'
import { createPasswordPolicy } from './passwords/policy.js'
import { createPool, type PoolOptions } from './passwords/pool.js'
import { administrationPolicies } from './policy/administration.js'
import { changesPolicies } from './policy/changes.js'
import { forgotPasswordsPolicies } from './policy/forgotpasswords.js'
import { usersPolicies } from './policy/users.js'
import type { Settings } from './process/settings.js'
import { createOrganizationRegistrar } from './registration/organizations.js'
import { createRegistrar } from './registration/registrar.js'
import { chooseLocale as selectLocale } from './requests/locale.js'
import { createPaging } from './requests/paging.js'
import { activate } from './users/activate.js'
import { sendAdminKeyByEmailPartner } from './users/activation-email.js'
import { deleteMe } from './users/delete-me.js'
import { deleteMyAnswers } from './users/delete-my-answers.js'
import { emailRpcs } from './users/email.js'
import { existsRpcs } from './users/exists.js'
import { login } from './users/login.js'
import { lookUpRpcs } from './users/look-ups.js'
import { memberRpcs } from './users/members.js'
import { myDataRpcs } from './users/my-data.js'
import { updateMe } from './users/profile.js'
import { rotateProviderKey } from './users/provider-key.js'
import { refresh } from './users/refresh.js'
import { setUsername } from './users/rename.js'
import { signUp } from './users/sign-up.js'
import { tokenRpcs } from './users/tokens.js'

/** What an application is made from. */
interface ApplicationDeps extends Pick<CallsDeps, 'ready' | 'scheduler' | 'log' | 'observe' | 'refused'> {
  readonly registry: Registry
  readonly settings: Settings
  readonly hashing: Hashing
  /** Issuer and audience of tokens. */
  readonly tokenIssuer: TokenIssuer
  /** The clock of the database, in ms since 1970. */
  readonly now: () => number
  /** The clock of what a process keeps in memory, in ms, which nobody sets. */
  readonly processNow: () => number
  /** Proxies that are missing in `AUTH_TRUSTED_PROXIES`, as far as this process saw; absent where it serves no clients. */
  readonly undeclaredProxies?: UndeclaredProxies['found']
}

/** The hash queue and the counts by which it ranks networks. */
type Hashing = ReturnType<typeof createHashing>

/** Makes what hashes passwords. An installation needs it before there can be an application. */
export function createHashing(
  registry: Registry,
  { limitFactor: factor, bcryptCost: cost }: Pick<Settings, 'limitFactor' | 'bcryptCost'>,
  { now, ...options }: { now: () => number } & Omit<PoolOptions, 'cost' | 'recentCount' | 'onRefused'>,
) {
  const rateLimits = createRateLimits({ ...registry, factor, now })
  const pool = createPool({ ...options, cost, recentCount: rateLimits.recentCount, onRefused: rateLimits.countRefusal })
  return { rateLimits, pool, passwords: createPasswords({ masterKey: registry.masterKey, cost, pool }) }
}

/** Makes all RPCs of a process. */
export function createApplication(deps: ApplicationDeps) {
  const { registry, settings, hashing, tokenIssuer, now, processNow, undeclaredProxies, ...common } = deps
  const { limitFactor: factor, passwordMinLength: minLength, passwordDenylist: denylistFile, timeZone } = settings
  const { database, masterKey, counterKeys, users, administeredUsers, userBatches, formerUsernames } = registry
  const { attempts, audit, buckets, changeFeed, emailQuotas, emails, erasure, imports, mailedKeys } = registry
  const { organizations, questions, sealingKeys, services, signingKeys, tokenIssuers, totpSecrets, userData } = registry
  const { rateLimits, pool, passwords } = hashing
  const { issuer, audience } = tokenIssuer
  const { log } = common

  const keyring = createKeyring(signingKeys, now, processNow)
  const tokens = createTokens({ ...tokenIssuer, keyring, ttl: settings.tokenTtl, now })
  const callers = createCallers(tokens, users)
  const administratorSessions = createAdministratorSessions({ seals: createSeals(sealingKeys, processNow), now })
  const administrators = createAdministrators({ sessions: administratorSessions, users, now })
  const serviceKeys = createServiceKeys({ services, ...settings, rateLimits, log, now: processNow })
  const knownAccounts = createKnownAccounts(attempts)
  const signIns = createSignIns({ database, attempts, counterKeys, rateLimits, knownAccounts, pool, passwords, factor })
  const oneTimeCodes = createOneTimeCodes({ database, totpSecrets, emails, settings, now })
  const emailRequests = createEmailRequests(factor)
  const policy = createPasswordPolicy({ minLength, denylistFile })
  const openPage = createPaging(masterKey)
  const feedReader = createFeedReader(changeFeed)
  const chooseLocale = (acceptLanguage: string | undefined) => selectLocale(acceptLanguage, settings.mailLocale)
  const notifyOwner = createNotifyOwner(emails, chooseLocale)
  const notifyAdministrators = createNotifyAdministrators({ administeredUsers, emails, settings })
  const notifyConcerned = createNotifyConcerned({ emails, settings })
  const quotas = createQuotas(emailQuotas, counterKeys, factor, processNow)
  const references = createReferences({ administeredUsers, formerUsernames, organizations, questions })
  const registrar = createRegistrar({ users, userBatches, organizations, emails })
  const organizationRegistrar = createOrganizationRegistrar({ organizations, emails })

  // What several nouns get.
  const accounts = { database, users, administeredUsers, audit, rateLimits, settings }
  const mails = { emails, quotas, chooseLocale }
  const form = { policy, timeZone, now }
  const sessions = { signIns, tokens, passwords, notifyOwner, now }
  const userChanges = { users, administeredUsers, masterKey, references, registrar, notifyAdministrators, settings }
  const failures = { attempts, buckets, counterKeys, totpSecrets, mailedKeys, settings }

  const usersRpcs = {
    signUp: signUp({ ...accounts, ...form, ...sessions, registrar, questions, pool }),
    login: login({ signIns, tokens, passwords, users, log }),
    refresh: refresh({ tokens }),
    ...tokenRpcs({ callers, keyring, users, issuer, audience }),
    ...lookUpRpcs({ users, administeredUsers, userData, questions, rateLimits, masterKey, openPage }),
    updateMe: updateMe({ ...form, users, registrar, administeredUsers, rateLimits, masterKey, chooseLocale }),
    ...emailRpcs({ ...mails, users, mailedKeys, signIns, now }),
    setUsername: setUsername({ ...form, users, registrar, formerUsernames, signIns, rateLimits, chooseLocale }),
    deleteMe: deleteMe({ users, signIns, notifyOwner, now }),
    deleteMyAnswers: deleteMyAnswers({ questions, signIns, notifyOwner, now }),
    ...myDataRpcs({ userData, quotas, openPage }),
    activate: activate({ ...failures, users, organizations, rateLimits, audit, factor, processNow }),
    sendAdminKeyByEmailPartner: sendAdminKeyByEmailPartner({ ...mails, organizations, emailRequests }),
    rotateProviderKey: rotateProviderKey({ users, administeredUsers, masterKey, chooseLocale }),
    ...memberRpcs({ administeredUsers, users, notifyOwner, masterKey, openPage }),
    ...existsRpcs({ users, rateLimits }),
  }
  const forgotPasswordsRpcs = {
    ...answerRpcs({ ...sessions, questions }),
    ...recoveryKeyRpcs({ ...accounts, ...sessions, mailedKeys, emails, knownAccounts, emailRequests, chooseLocale }),
    passwordUpdateByUsername: passwordUpdateByUsername({ ...sessions, users, policy, settings }),
  }
  const rowsOf = {
    organizations: createOrganizationRows({ organizations, organizationRegistrar, settings }),
    users: createUserRows({ ...form, registrar, users, userBatches, organizations, questions, passwords }),
  }
  const importDeps = { imports, pool, masterKey, settings, rowsOf }
  const administrationRpcs = {
    ...sessionRpcs({
      ...userChanges,
      signIns,
      oneTimeCodes,
      sessions: administratorSessions,
      totpSecrets,
      issuer,
      now,
    }),
    ...userReadRpcs({ administeredUsers, masterKey, references, openPage, rateLimits }),
    ...userCreateUpdateRpcs({ ...userChanges, ...form, passwords }),
    ...userStateRpcs(userChanges),
    ...userSupportRpcs({ ...userChanges, ...failures, questions, emails, emailQuotas, quotas, passwords, policy }),
    ...userDataRpcs({ notifyAdministrators, administeredUsers, userData, erasure, openPage }),
    explainUser: explainUser({ ...failures, userData, masterKey, quotas }),
    listLockouts: listLockouts({ ...failures, administeredUsers, audit, openPage, now }),
    eraseUnactivatedUsers: eraseUnactivatedUsers({ administeredUsers, erasure, openPage }),
    ...organizationRpcs({ organizations, users, references, organizationRegistrar, settings, openPage }),
    ...questionRpcs({ questions, references, openPage }),
    ...serviceRpcs({ services, tokenIssuers, openPage, now }),
    ...signingKeyRpcs({ signingKeys, sealingKeys, questions, tokenIssuers, services, settings }),
    ...queuedEmailRpcs({ emails, openPage, settings }),
    ...importRpcs({ imports, users, pool, openPage }),
    importBatch: importBatch(importDeps),
    finishImport: finishImport(importDeps),
    ...secretRpcs({ userBatches, organizations, passwords }),
    ...auditLogRpcs({ references, audit, users, openPage }),
    ...deploymentRpcs({ database, settings }),
    diagnose: diagnose({ ...registry, settings, undeclaredProxies }),
  }
  const steps = { ...accounts, callers, administrators, references, services, notifyConcerned }
  const { signIn, ...byAdministrators } = administrationPolicies
  const forAll: CallsDeps['services'] = [
    [Users, bindRpcs(steps, Users, usersPolicies, usersRpcs)],
    [ForgotPasswords, bindRpcs(steps, ForgotPasswords, forgotPasswordsPolicies, forgotPasswordsRpcs)],
    [Changes, bindRpcs(steps, Changes, changesPolicies, { poll: poll({ changeFeed, feedReader }) })],
  ]
  const administration: CallsDeps['services'] = [
    [
      Administration,
      [
        ...bindRpcs(steps, Administration, { signIn }, administrationRpcs),
        ...bindAdministration(steps, Administration, byAdministrators, administrationRpcs),
      ],
    ],
  ]
  return {
    /** `Users`, `ForgotPasswords` and `Changes`, for clients. */
    calls: createCalls({ ...common, services: forAll, serviceKeys }),
    /** `Administration`, for administrators. */
    administration: createCalls({ ...common, services: administration, serviceKeys, group: 'administration' }),
    serviceKeys,
    keyring,
    /** What calls wait for changes with. */
    feedReader,
  }
}
