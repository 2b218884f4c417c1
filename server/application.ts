// What the service is made of: the parts of each folder, the RPCs behind their policies, and the calls of each endpoint. The service
// (service.ts) and the command line on the database itself (local-application.ts) both make it here. It starts nothing and
// listens nowhere.
import { Administration } from '../proto/gen/auth/v1/administration_pb.js'
import { Changes } from '../proto/gen/auth/v1/changes_pb.js'
import { ForgotPasswords } from '../proto/gen/auth/v1/forgotpasswords_pb.js'
import { OpenId } from '../proto/gen/auth/v1/openid_pb.js'
import { Users } from '../proto/gen/auth/v1/users_pb.js'
import { createAccess } from './access/index.js'
import { createAdministration } from './administration/index.js'
import { type CallsDeps, createCalls } from './calls/run.js'
import { bindAdministration, bindRpcs } from './calls/steps.js'
import { createFeedReader } from './changes/feed-reader.js'
import { createChangesRpcs } from './changes/index.js'
import { createForgotPasswordsRpcs } from './forgotpasswords/index.js'
import type { Registry } from './models/index.js'
import type { TokenIssuer } from './models/token-issuer.js'
import type { UndeclaredProxies } from './observability/undeclared-proxy.js'
import { createOpenId } from './openid/index.js'
import { createOutbox } from './outbox/index.js'
import type { Hashing } from './passwords/index.js'
import { administrationPolicies } from './policy/administration.js'
import { changesPolicies } from './policy/changes.js'
import { forgotPasswordsPolicies } from './policy/forgotpasswords.js'
import { openIdPolicies } from './policy/openid.js'
import { usersPolicies } from './policy/users.js'
import type { Settings } from './process/settings.js'
import { createRegistration } from './registration/index.js'
import { createUsersRpcs } from './users/index.js'

/** What an application is made from. */
interface ApplicationDeps extends Pick<CallsDeps, 'ready' | 'scheduler' | 'log' | 'observe' | 'refused'> {
  readonly registry: Registry
  readonly settings: Settings
  readonly hashing: Hashing
  /** Issuer and audience of tokens. */
  readonly tokenIssuer: TokenIssuer
  /** The clock of the database, in ms since 1970. */
  readonly now: () => number
  /** The clock of what a process keeps in memory, in ms, which can't be set. */
  readonly processNow: () => number
  /** Proxies that are missing in `AUTH_TRUSTED_PROXIES`, as far as this process saw; absent where it serves no clients. */
  readonly undeclaredProxies?: UndeclaredProxies['found']
}

/** Makes all RPCs of a process. */
export function createApplication(deps: ApplicationDeps) {
  const { registry, settings, hashing, tokenIssuer, now, processNow, undeclaredProxies, ...common } = deps
  const { limits } = hashing
  const access = createAccess(registry, limits, hashing, { settings, tokenIssuer, log: deps.log, now, processNow })
  const outbox = createOutbox(registry, settings, processNow)
  const registration = createRegistration(registry, settings, now)
  const parts = { registry, limits, hashing, access, outbox, registration, settings, log: deps.log }
  const { rpcs, references, notifyConcerned } = createAdministration(parts, undeclaredProxies)
  const openId = createOpenId(parts)
  const feedReader = createFeedReader(registry.changeFeed)

  const binding = { ...parts, references, notifyConcerned }
  const { signIn, ...byAdministrators } = administrationPolicies
  const ofAdministration = [
    ...bindRpcs(binding, Administration, { signIn }, rpcs),
    ...bindAdministration(binding, Administration, byAdministrators, rpcs),
  ]
  const forClients: CallsDeps['services'] = [
    [Users, bindRpcs(binding, Users, usersPolicies, { ...createUsersRpcs(parts), ...openId.ofUsers })],
    [ForgotPasswords, bindRpcs(binding, ForgotPasswords, forgotPasswordsPolicies, createForgotPasswordsRpcs(parts))],
    [OpenId, bindRpcs(binding, OpenId, openIdPolicies, openId.rpcs)],
    [Changes, bindRpcs(binding, Changes, changesPolicies, createChangesRpcs(registry, feedReader))],
  ]
  const { serviceKeys, keyring } = access
  const administration: CallsDeps['services'] = [[Administration, ofAdministration]]
  return {
    /** `Users`, `ForgotPasswords`, `OpenId` and `Changes`, for clients. */
    calls: createCalls({ ...common, services: forClients, serviceKeys }),
    /** `Administration`, for administrators. */
    administration: createCalls({ ...common, services: administration, serviceKeys, group: 'administration' }),
    serviceKeys,
    keyring,
    /** What calls wait for changes with. */
    feedReader,
  }
}
