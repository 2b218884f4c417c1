// What the service is made of: access, the RPCs behind their rows, and the calls of each endpoint. The service (service.ts)
// and the command line on the database itself (local-application.ts) both make it here. It starts nothing and listens
// nowhere.
import { Administration } from '../proto/gen/auth/v1/administration_pb.js'
import { Changes } from '../proto/gen/auth/v1/changes_pb.js'
import { ForgotPasswords } from '../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../proto/gen/auth/v1/users_pb.js'
import { createAdministrators } from './access/administrator.js'
import { createCallers } from './access/caller.js'
import { createKeyring } from './access/keyring.js'
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
import { bindRpcs } from './calls/pipeline.js'
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
import { adminTokenTtl } from './models/signing-key.js'
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
import { administrationAudience, type Settings } from './process/settings.js'
import { createOrganizationRegistrar } from './registration/organizations.js'
import { createRegistrar } from './registration/registrar.js'
import { chooseLocale } from './requests/locale.js'
import { createPaging } from './requests/paging.js'
import { activate } from './users/activate.js'
import { sendAdminKeyByEmailPartner } from './users/activation-email.js'
import { deleteMe } from './users/delete-me.js'
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
  return { rateLimits, pool, passwords: createPasswords({ pepper: registry.masterKey.pepper, cost, pool }) }
}

/** Makes what RPCs are made from. */
function createParts(deps: ApplicationDeps) {
  const { registry, settings, hashing, tokenIssuer, now, processNow, undeclaredProxies, log } = deps
  const { limitFactor: factor, passwordMinLength: minLength, passwordDenylist: denylistFile, timeZone } = settings
  const { attempts, counterKeys, emailQuotas, emails, users } = registry
  const { rateLimits, pool, passwords } = hashing
  const { issuer, audience } = tokenIssuer
  const keyring = createKeyring(registry.signingKeys, now, processNow)
  const tokens = createTokens({ ...tokenIssuer, keyring, ttl: settings.tokenTtl, now })
  const adminTokens = createTokens({
    issuer,
    audience: administrationAudience,
    unactivated: false,
    keyring,
    ttl: adminTokenTtl,
    ownTtl: true,
    // A session by answers or a mailed key never opens Administration.
    methods: ['pwd'],
    now,
  })
  const knownAccounts = createKnownAccounts(attempts)
  const localeOf = (acceptLanguage: string | undefined) => chooseLocale(acceptLanguage, settings.mailLocale)
  return {
    ...registry,
    ...hashing,
    settings,
    undeclaredProxies,
    keyring,
    tokens,
    adminTokens,
    callers: createCallers(tokens, users),
    administrators: createAdministrators({ callers: createCallers(adminTokens, users), now }),
    signIns: createSignIns({ attempts, counterKeys, rateLimits, knownAccounts, pool, passwords, factor }),
    oneTimeCodes: createOneTimeCodes({ ...registry, settings, now }),
    knownAccounts,
    emailRequests: createEmailRequests(factor),
    log,
    policy: createPasswordPolicy({ minLength, denylistFile }),
    openPage: createPaging(registry.masterKey),
    feedReader: createFeedReader(registry.changeFeed),
    chooseLocale: localeOf,
    notifyOwner: createNotifyOwner(emails, localeOf),
    notifyAdministrators: createNotifyAdministrators({ ...registry, settings }),
    quotas: createQuotas(emailQuotas, counterKeys, factor, processNow),
    references: createReferences(registry),
    registrar: createRegistrar(registry),
    organizationRegistrar: createOrganizationRegistrar(registry),
    notifyConcerned: createNotifyConcerned({ emails, settings }),
    timeZone,
    factor,
    now,
    processNow,
    issuer,
    audience,
  }
}

/** Makes all RPCs of a process. */
export function createApplication(deps: ApplicationDeps) {
  const { registry, settings, hashing, processNow: now, ...common } = deps
  const parts = createParts(deps)
  const rowsOf = {
    organizations: createOrganizationRows(parts),
    users: createUserRows(parts),
  }

  const services: CallsDeps['services'] = [
    bindRpcs(parts, Users, usersPolicies, {
      signUp: signUp(parts),
      login: login(parts),
      refresh: refresh(parts),
      ...tokenRpcs(parts),
      ...lookUpRpcs(parts),
      updateMe: updateMe(parts),
      ...emailRpcs(parts),
      setUsername: setUsername(parts),
      deleteMe: deleteMe(parts),
      ...myDataRpcs(parts),
      activate: activate(parts),
      sendAdminKeyByEmailPartner: sendAdminKeyByEmailPartner(parts),
      rotateProviderKey: rotateProviderKey(parts),
      ...memberRpcs(parts),
      ...existsRpcs(parts),
    }),
    bindRpcs(parts, ForgotPasswords, forgotPasswordsPolicies, {
      ...answerRpcs(parts),
      ...recoveryKeyRpcs(parts),
      passwordUpdateByUsername: passwordUpdateByUsername(parts),
    }),
    bindRpcs(parts, Changes, changesPolicies, { poll: poll(parts) }),
  ]
  const administration: CallsDeps['services'] = [
    bindRpcs(parts, Administration, administrationPolicies, {
      ...sessionRpcs(parts),
      ...userReadRpcs(parts),
      ...userCreateUpdateRpcs(parts),
      ...userStateRpcs(parts),
      ...userSupportRpcs(parts),
      ...userDataRpcs(parts),
      explainUser: explainUser(parts),
      listLockouts: listLockouts(parts),
      eraseUnactivatedUsers: eraseUnactivatedUsers(parts),
      ...organizationRpcs(parts),
      ...questionRpcs(parts),
      ...serviceRpcs(parts),
      ...signingKeyRpcs(parts),
      ...queuedEmailRpcs(parts),
      ...importRpcs(parts),
      importBatch: importBatch({ ...parts, rowsOf }),
      finishImport: finishImport({ ...parts, rowsOf }),
      ...secretRpcs(parts),
      ...auditLogRpcs(parts),
      ...deploymentRpcs(parts),
      diagnose: diagnose(parts),
    }),
  ]
  const { rateLimits } = hashing
  const serviceKeys = createServiceKeys({ ...registry, ...settings, rateLimits, log: common.log, now })
  return {
    /** `Users`, `ForgotPasswords` and `Changes`, for clients. */
    calls: createCalls({ ...common, services, serviceKeys }),
    /** `Administration`, for administrators. */
    administration: createCalls({ ...common, services: administration, serviceKeys, group: 'administration' }),
    serviceKeys,
    keyring: parts.keyring,
    /** What calls wait for changes with. */
    feedReader: parts.feedReader,
  }
}
