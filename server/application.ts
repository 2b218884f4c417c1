// What the service is made of: access, the RPCs behind their rows, and the calls of each endpoint. The service (service.ts)
// and the command line on the database itself (local-application.ts) both make it here. It starts nothing and listens
// nowhere.
import { Administration } from '../proto/gen/auth/v1/administration_pb.js'
import { Changes } from '../proto/gen/auth/v1/changes_pb.js'
import { ForgotPasswords } from '../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../proto/gen/auth/v1/users_pb.js'
import { createAdmission } from './access/admission.js'
import { createCallers } from './access/caller.js'
import type { ChangesRpc, ForgotPasswordsRpc, UsersRpc } from './access/context.js'
import { createKeyring, type Keyring } from './access/keyring.js'
import { createServiceKeys, type ServiceKeys } from './access/service-keys.js'
import { createSignIns } from './access/sign-in.js'
import { createTokens } from './access/tokens.js'
import { type AdministrationDeps, createAdministration } from './administration/administration.js'
import { bindAdministration } from './calls/administration.js'
import { type Calls, type CallsDeps, createCalls } from './calls/dispatch.js'
import { bindUserCalls, type UserCallsDeps } from './calls/users.js'
import { createHub, type Hub } from './changes/hub.js'
import { poll } from './changes/poll.js'
import { loginByUsernameAndAnswers, saveForgotPasswordQuestionsUsersAnswers } from './forgotpasswords/answers.js'
import { passwordUpdateByUsername } from './forgotpasswords/password.js'
import { findAllForgotPasswordQuestions } from './forgotpasswords/questions.js'
import { loginByUsernameAndKey, sendKeyByEmail } from './forgotpasswords/recovery-key.js'
import { createEmailRequests } from './limits/email-requests.js'
import type { Registry } from './models/define-models.js'
import type { TokenIssuer } from './models/token-issuer.js'
import { createNotifyOwner } from './outbox/notice.js'
import { createQuotas } from './outbox/quotas.js'
import { chooseLocale } from './outbox/texts.js'
import { createPasswords } from './passwords/hash.js'
import { createPasswordPolicy } from './passwords/policy.js'
import { createPool, type PoolOptions } from './passwords/pool.js'
import { createRenewals } from './passwords/renewal.js'
import { changesPolicies } from './policy/changes.js'
import { forgotPasswordsPolicies } from './policy/forgotpasswords.js'
import { usersPolicies } from './policy/users.js'
import type { Settings } from './process/settings.js'
import { createPaging } from './requests/paging.js'
import { activate } from './users/activate.js'
import { sendAdminKeyByEmailPartner } from './users/activation-email.js'
import { deleteMe } from './users/delete-me.js'
import { confirmEmail, setEmail } from './users/email.js'
import { existsByNickname, existsByUsername } from './users/exists.js'
import { listUsers } from './users/list.js'
import { login } from './users/login.js'
import { batchGetUsers, getMe, getUser } from './users/lookup.js'
import { deactivateMember, listMembers } from './users/members.js'
import { exportMe, listMyEvents } from './users/my-data.js'
import { updateMe } from './users/profile.js'
import { rotateProviderKey } from './users/provider-key.js'
import { refresh } from './users/refresh.js'
import { revokeMyTokens } from './users/revoke-my-tokens.js'
import { signUp } from './users/sign-up.js'
import { setUsername } from './users/username.js'
import { getKeys, getServerMetadata, introspect, verifyToken } from './users/verify-token.js'

/** The RPCs of a process. */
export interface Application {
  /** `Users`, `ForgotPasswords` and `Changes`, for clients. */
  readonly calls: Calls
  /** `Administration`, for administrators. */
  readonly administration: Calls
  readonly serviceKeys: ServiceKeys
  readonly keyring: Keyring
  /** What calls wait for changes with. */
  readonly hub: Hub
}

/** What an application is made from. */
export interface ApplicationDeps
  extends Pick<CallsDeps, 'ready' | 'scheduler' | 'log' | 'observe' | 'refused'>,
    Pick<AdministrationDeps, 'undeclaredProxies'> {
  readonly registry: Registry
  readonly settings: Settings
  readonly hashing: Hashing
  /** Issuer and audience of tokens. */
  readonly tokenIssuer: TokenIssuer
  /** The clock of the database, in ms since 1970. */
  readonly now: () => number
  /** The clock of what a process keeps in memory, in ms since 1970. */
  readonly processNow: () => number
}

/** The hash queue and the counts by which it ranks networks. */
export type Hashing = ReturnType<typeof createHashing>

/** Makes what hashes passwords. An installation needs it before there can be an application. */
export function createHashing(
  registry: Registry,
  { limitFactor: factor, bcryptCost: cost }: Pick<Settings, 'limitFactor' | 'bcryptCost'>,
  { now, ...options }: { now: () => number } & Omit<PoolOptions, 'cost' | 'recentCount' | 'onRefused'>,
) {
  const admission = createAdmission({ ...registry, factor, now })
  const pool = createPool({ ...options, cost, recentCount: admission.recentCount, onRefused: admission.countRefusal })
  return { admission, pool, passwords: createPasswords({ pepper: registry.masterKey.pepper, cost, pool }) }
}

/** Makes all RPCs. */
export function createApplication(deps: ApplicationDeps): Application {
  const { registry, settings, hashing, tokenIssuer, now, processNow, undeclaredProxies, ...common } = deps
  const { limitFactor: factor, passwordMinLength: minLength, passwordDenylist: denylistFile, timeZone } = settings
  const { attempts, counterKeys, emailQuotas, emails, users } = registry
  const { admission, pool, passwords } = hashing
  const keyring = createKeyring(registry.signingKeys, now)
  const tokens = createTokens({ ...tokenIssuer, keyring, ttl: settings.tokenTtl, now })
  const localeOf = (acceptLanguage: string | undefined) => chooseLocale(acceptLanguage, settings.mailLocale)
  const parts = {
    ...registry,
    ...hashing,
    keyring,
    tokens,
    callers: createCallers(tokens, users),
    signIns: createSignIns({ attempts, counterKeys, admission, pool, passwords, factor }),
    emailRequests: createEmailRequests(factor),
    renewals: createRenewals({ passwords, users, log: common.log }),
    policy: createPasswordPolicy({ minLength, denylistFile }),
    openPage: createPaging(registry.masterKey),
    hub: createHub(registry.changeFeed),
    chooseLocale: localeOf,
    notifyOwner: createNotifyOwner(emails, localeOf),
    quotas: createQuotas(emailQuotas, counterKeys, factor, now),
    timeZone,
    factor,
    now,
    issuer: tokenIssuer.issuer,
  }
  const administration = createAdministration({ ...parts, settings, undeclaredProxies })
  const serviceKeys = createServiceKeys({ ...registry, ...settings, admission, log: common.log, now: processNow })
  return {
    calls: createCalls({ ...common, services: bindServices(parts), serviceKeys }),
    administration: createCalls({
      ...common,
      services: [[Administration, bindAdministration(administration, administration.rpcs)]],
      serviceKeys,
      group: 'administration',
    }),
    serviceKeys,
    keyring,
    hub: parts.hub,
  }
}

/** The RPCs of users, behind their rows. */
function bindServices(parts: Parts) {
  const users: { readonly [K in keyof typeof usersPolicies]: UsersRpc<K> } = {
    signUp: signUp(parts),
    activate: activate(parts),
    login: login(parts),
    getMe: getMe(parts),
    updateMe: updateMe(parts),
    refresh: refresh(parts),
    getUser: getUser(parts),
    batchGetUsers: batchGetUsers(parts),
    listUsers: listUsers(parts),
    setEmail: setEmail(parts),
    confirmEmail: confirmEmail(parts),
    setUsername: setUsername(parts),
    revokeMyTokens: revokeMyTokens(parts),
    deleteMe: deleteMe(parts),
    exportMe: exportMe(parts),
    listMyEvents: listMyEvents(parts),
    rotateProviderKey: rotateProviderKey(parts),
    listMembers: listMembers(parts),
    deactivateMember: deactivateMember(parts),
    sendAdminKeyByEmailPartner: sendAdminKeyByEmailPartner(parts),
    existsByUsername: existsByUsername(parts),
    existsByNickname: existsByNickname(parts),
    verifyToken: verifyToken(parts),
    introspect: introspect(parts),
    getServerMetadata: getServerMetadata(parts),
    getKeys: getKeys(parts),
  }
  const forgotPasswords: { readonly [K in keyof typeof forgotPasswordsPolicies]: ForgotPasswordsRpc<K> } = {
    findAllForgotPasswordQuestions: findAllForgotPasswordQuestions(parts),
    loginByUsernameAndAnswers: loginByUsernameAndAnswers(parts),
    loginByUsernameAndKey: loginByUsernameAndKey(parts),
    passwordUpdateByUsername: passwordUpdateByUsername(parts),
    saveForgotPasswordQuestionsUsersAnswers: saveForgotPasswordQuestionsUsersAnswers(parts),
    sendKeyByEmail: sendKeyByEmail(parts),
  }
  const changes: { readonly [K in keyof typeof changesPolicies]: ChangesRpc<K> } = { poll: poll(parts) }
  return [
    [Users, bindUserCalls(parts, Users, usersPolicies, users)],
    [ForgotPasswords, bindUserCalls(parts, ForgotPasswords, forgotPasswordsPolicies, forgotPasswords)],
    [Changes, bindUserCalls(parts, Changes, changesPolicies, changes)],
  ] as const
}

/** What the RPCs of users are made from: each takes the parts that it names. */
type Parts = UserCallsDeps &
  Parameters<typeof signUp>[0] &
  Parameters<typeof activate>[0] &
  Parameters<typeof login>[0] &
  Parameters<typeof batchGetUsers>[0] &
  Parameters<typeof listUsers>[0] &
  Parameters<typeof rotateProviderKey>[0] &
  Parameters<typeof listMembers>[0] &
  Parameters<typeof deactivateMember>[0] &
  Parameters<typeof verifyToken>[0] &
  Parameters<typeof updateMe>[0] &
  Parameters<typeof setUsername>[0] &
  Parameters<typeof setEmail>[0] &
  Parameters<typeof confirmEmail>[0] &
  Parameters<typeof getMe>[0] &
  Parameters<typeof deleteMe>[0] &
  Parameters<typeof exportMe>[0] &
  Parameters<typeof listMyEvents>[0] &
  Parameters<typeof sendAdminKeyByEmailPartner>[0] &
  Parameters<typeof getKeys>[0] &
  Parameters<typeof getServerMetadata>[0] &
  Parameters<typeof loginByUsernameAndAnswers>[0] &
  Parameters<typeof loginByUsernameAndKey>[0] &
  Parameters<typeof passwordUpdateByUsername>[0] &
  Parameters<typeof sendKeyByEmail>[0] &
  Parameters<typeof poll>[0]
