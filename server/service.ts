import { createGateway, type Gateway } from '../gateway/http.js'
import { createGatewayMetrics } from '../gateway/metrics.js'
import { Administration } from '../proto/gen/auth/v1/administration_pb.js'
import { ForgotPasswords } from '../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../proto/gen/auth/v1/users_pb.js'
import { type Admission, createAdmission } from './access/admission.js'
import { createCallers } from './access/caller.js'
import type { ForgotPasswordsRpc, UsersRpc } from './access/context.js'
import { createKeyring, type Keyring } from './access/keyring.js'
import { createServiceKeys } from './access/service-keys.js'
import { createSignIns } from './access/sign-in.js'
import { createTokens } from './access/tokens.js'
import { bindAdministration } from './calls/administration.js'
import { createCalls } from './calls/dispatch.js'
import { createGrpcListener } from './calls/grpc-listener.js'
import { createInProcessTransport } from './calls/in-process.js'
import { bindUserCalls, type UserCallsDeps } from './calls/users.js'
import { followClock } from './database/clock.js'
import { awaitDatabase, type Source } from './database/database-choice.js'
import { loginByUsernameAndAnswers, saveForgotPasswordQuestionsUsersAnswers } from './forgotpasswords/answers.js'
import { createNotifyOwner } from './forgotpasswords/notice.js'
import { passwordUpdateByUsername } from './forgotpasswords/password.js'
import { findAllForgotPasswordQuestions } from './forgotpasswords/questions.js'
import { loginByUsernameAndKey, sendKeyByEmail } from './forgotpasswords/recovery-key.js'
import { type Installation, install } from './installation.js'
import { startMaintenance } from './jobs/maintenance.js'
import { startSealing } from './jobs/sealing.js'
import { createEmailRequests } from './limits/email-requests.js'
import { createScheduler, schedulerLimits } from './limits/scheduler.js'
import { openRegistry, type Registry } from './models/define-models.js'
import type { Log } from './observability/log.js'
import { createMetrics } from './observability/metrics.js'
import { createMetricsEndpoint } from './observability/metrics-endpoint.js'
import { createUndeclaredProxies } from './observability/undeclared-proxy.js'
import { startMail } from './outbox/compose.js'
import { createQuotas } from './outbox/quotas.js'
import { chooseLocale } from './outbox/texts.js'
import { createPasswords, type Passwords } from './passwords/hash.js'
import { createPasswordPolicy } from './passwords/policy.js'
import { createPool, type Pool } from './passwords/pool.js'
import { createRenewals } from './passwords/renewal.js'
import { forgotPasswordsPolicies } from './policy/forgotpasswords.js'
import { usersPolicies } from './policy/users.js'
import { followCertificates } from './process/certificates.js'
import type { Address, Settings } from './process/settings.js'
import { grace, runSteps, type Step } from './process/stopping.js'
import { makeAdministrator } from './rules/roles.js'
import { activate } from './users/activate.js'
import { sendAdminKeyByEmailPartner } from './users/activation-email.js'
import { confirmEmail, setEmail } from './users/email.js'
import { existsByNickname, existsByUsername } from './users/exists.js'
import { login } from './users/login.js'
import { batchGetUsers, getMe, getUser } from './users/lookup.js'
import { refresh } from './users/refresh.js'
import { revokeMyTokens } from './users/revoke-my-tokens.js'
import { signUp } from './users/sign-up.js'
import { getKeys, verifyToken } from './users/verify-token.js'

/** A running service. */
export interface Service {
  /** Where it listens; ports are the real ones. */
  readonly addresses: {
    readonly grpc: Address
    readonly http?: Address
    readonly metrics?: Address
    readonly admin?: Address
  }
  readonly installation: Installation
  /** Says at every endpoint that it isn't ready; everything works on. */
  drain(): void
  /**
   * Takes nothing new, lets calls, e-mails and statements under way end, and releases everything. Returns what it didn't
   * wait for any longer: past its time, or once there is no more (`hurry`).
   */
  stop(hurry?: AbortSignal): Promise<readonly string[]>
}

/** Milliseconds between two looks at whether the database takes writes. */
const pulse = 1_000

/**
 * Starts everything: database, installation, gRPC server, gateway, mail, maintenance, metrics. `at` is the database
 * when somebody has begun to start it already; `now` is the clock, in ms since 1970, instead of the database's; `signal`
 * ends the wait for a database that isn't up yet.
 */
export async function startService(
  settings: Settings,
  log: Log,
  { at, now: given, signal }: { at?: Promise<Source>; now?: () => number; signal?: AbortSignal } = {},
): Promise<Service> {
  const endpoint = createMetricsEndpoint()
  const metrics = createMetrics(endpoint)
  // What is to be undone when the service stops, or when its start fails half-way: last first.
  const undo: Step[] = []
  const endpoints: (() => Promise<void>)[] = []
  let draining = false
  const stop = (hurry?: AbortSignal) => {
    draining = true
    const steps = undo.splice(0).reverse()
    const closing = endpoints.splice(0)
    // All at once, and before what their calls need.
    steps.unshift({ what: 'calls under way', run: () => Promise.all(closing.map(close => close())) })
    return runSteps(steps, { hurry, onFault: (err, what) => log.error({ err, what }, 'a step of the stop failed') })
  }
  try {
    const registry = await openRegistry(settings, { log, ...(at && { at }) })
    // It must not be left behind: it has its own ways to end it, one after another.
    undo.push({ what: 'the embedded PostgreSQL', run: registry.release, least: 30_000 })
    undo.push({ what: 'statements under way', run: registry.database.close })
    const { tokenTtl: ttl, limitFactor: factor } = settings
    // What this process remembers by itself goes by its own clock.
    const admission = createAdmission({ ...registry, factor, now: given ?? Date.now })
    const pool = createPool({
      cost: settings.bcryptCost,
      recentCount: admission.recentCount,
      onWait: ms => metrics.observeWait(ms),
      onFault: error => log.error({ err: error }, 'a hash thread broke and is replaced'),
    })
    undo.push({ what: 'hashes under way', run: pool.close })
    metrics.watchHashing(() => pool.stats())
    const passwords = createPasswords({ pepper: registry.masterKey.pepper, cost: settings.bcryptCost, pool })
    const work = () => install(registry, settings, passwords, 'service')
    const installation = await (settings.databaseUrl ? awaitDatabase(work, settings, log, signal) : work())
    if (installation.weakness) log.warn(`AUTH_ADMIN_PASSWORD is weak: ${installation.weakness}`)
    const { administrators } = await registry.totpSecrets.coverage()
    if (administrators === 0) log.warn(`there is no active administrator: run \`${makeAdministrator}\``)

    const clock = given ? { now: given, stop() {} } : await followClock(registry.database)
    undo.push({ what: 'the clock', run: async () => clock.stop() })
    const { now } = clock
    await registry.signingKeys.raiseTtl(settings.tokenTtl)
    const keyring = createKeyring(registry.signingKeys, now)
    // Better no start than one that lets nobody in.
    await keyring.signer()
    const ready = async () => !draining && (await registry.database.isWritable())
    const deps = {
      ...registry,
      ...createAccess(registry, { keyring, ...installation.tokens, ttl, pool, passwords, admission, factor, now }),
      pool,
      passwords,
      renewals: createRenewals({ passwords, users: registry.users, log }),
      policy: createPasswordPolicy({ minLength: settings.passwordMinLength, denylistFile: settings.passwordDenylist }),
      chooseLocale: (acceptLanguage: string | undefined) => chooseLocale(acceptLanguage, settings.mailLocale),
      keyring,
      timeZone: settings.timeZone,
      factor,
      now,
    }
    metrics.watchDatabase(registry, ready)
    const scheduler = createScheduler(schedulerLimits, () => pool.stats().running > 0)
    endpoint.watchScheduler(scheduler.stats)
    // What waits then is to be done in the time that is left.
    endpoints.push(async () => scheduler.open())
    const common = { ready, scheduler, log, observe: metrics.observe, refused: metrics.refused }
    const serviceKeys = createServiceKeys({ ...registry, ...settings, admission, log, now: given ?? Date.now })
    const calls = createCalls({
      ...common,
      services: bindServices(deps),
      serviceKeys,
    })

    // Stops after everything that leaves events.
    const sealing = startSealing(registry, log)
    undo.push({ what: 'sealing the audit log', run: sealing.stop })
    const sender = startMail(registry, settings, log, now, metrics.refused)
    undo.push({ what: 'e-mails under way', run: sender.close })
    const maintenance = startMaintenance(registry, settings, log)
    undo.push({ what: 'maintenance', run: maintenance.stop })

    const { tlsCert: cert, tlsKey: key, tlsCa: ca, httpTlsCert, httpTlsKey } = settings
    const certificates = cert ? followCertificates({ cert, key, ca }, log) : undefined
    // Administrators show who they are by tokens: no certificate is asked of them.
    const adminCertificates = cert && settings.adminAddress ? followCertificates({ cert, key }, log) : undefined
    const httpCertificates = httpTlsCert ? followCertificates({ cert: httpTlsCert, key: httpTlsKey }, log) : undefined
    if (certificates) endpoint.watchCertificate('grpc', certificates.endsAt)
    if (httpCertificates) endpoint.watchCertificate('http', httpCertificates.endsAt)
    undo.push({
      what: 'certificates',
      run: async () => {
        certificates?.stop()
        httpCertificates?.stop()
        adminCertificates?.stop()
      },
    })
    const proxies = createUndeclaredProxies({ registry: endpoint.registry, log, now: given ?? Date.now })
    const grpc = createGrpcListener({ calls, log, certificates, onSender: proxies.watch('grpc'), ...settings })
    const grpcPort = await grpc.listen(settings.grpcAddress)
    endpoints.push(() => grpc.close(grace))
    let serving = true
    const beating = setInterval(async () => {
      const now = await ready()
      if (draining || now === serving) return
      serving = now
      grpc.setServing(now)
      if (now) log.info('ready: the database takes writes again')
      else log.warn('not ready: the database takes no writes, or not in time')
    }, pulse)
    undo.push({ what: 'the pulse', run: async () => clearInterval(beating) })
    const addresses: { grpc: Address; http?: Address; metrics?: Address; admin?: Address } = {
      grpc: { ...settings.grpcAddress, port: grpcPort },
    }
    if (settings.adminAddress) {
      const { createAdministration } = await import('./administration/administration.js')
      const administration = createAdministration({
        ...deps,
        settings,
        issuer: installation.tokens.issuer,
        undeclaredProxies: proxies.found,
      })
      const admin = createGrpcListener({
        calls: createCalls({
          ...common,
          services: [[Administration, bindAdministration(administration, administration.rpcs)]],
        }),
        log,
        certificates: adminCertificates,
        trustedProxies: [],
        gatewayNames: [],
      })
      const port = await admin.listen(settings.adminAddress)
      addresses.admin = { ...settings.adminAddress, port }
      endpoints.push(() => admin.close(grace))
    }
    let gateway: Gateway | undefined
    if (settings.httpAddress) {
      gateway = createGateway({
        transport: createInProcessTransport(calls),
        scheduler,
        serviceOf: serviceKeys.cachedName,
        address: settings.httpAddress,
        defaultRevision: settings.defaultRevision,
        trustedProxies: settings.trustedProxies,
        onSender: proxies.watch('http'),
        corsOrigins: settings.corsOrigins,
        ...(httpCertificates && { secure: httpCertificates.secure }),
        log,
        metrics: createGatewayMetrics(endpoint.registry),
      })
      addresses.http = await gateway.listen()
      endpoints.push(() => gateway!.close(grace))
    }
    // Last, since `/readyz` there says that all others listen.
    if (settings.metricsAddress) {
      endpoint.watchReady(ready)
      addresses.metrics = {
        ...settings.metricsAddress,
        port: await endpoint.listen(settings.metricsAddress, certificates?.secure),
      }
      undo.push({ what: 'metrics', run: endpoint.close })
    }
    const drain = () => {
      draining = true
      grpc.setServing(false)
      gateway?.drain()
    }
    return { addresses, installation, drain, stop }
  } catch (error) {
    await stop()
    throw error
  }
}

/** Who may do what: callers, tokens, limits, sign-ins. */
function createAccess(
  { users, attempts, counterKeys }: Registry,
  options: {
    keyring: Keyring
    issuer: string
    audience: string
    ttl: number
    pool: Pool
    passwords: Passwords
    admission: Admission
    factor: number
    now: () => number
  },
) {
  const { pool, passwords, admission, factor, ...issuing } = options
  const tokens = createTokens(issuing)
  return {
    tokens,
    callers: createCallers(tokens, users),
    admission,
    emailRequests: createEmailRequests(factor),
    signIns: createSignIns({ attempts, counterKeys, admission, pool, passwords, factor }),
  }
}

/** The RPCs of users, behind their rows. */
function bindServices(deps: Omit<AllDeps, 'notifyOwner' | 'quotas'> & Pick<Registry, 'emailQuotas'>) {
  const all: AllDeps = {
    ...deps,
    notifyOwner: createNotifyOwner(deps.emails, deps.chooseLocale),
    quotas: createQuotas(deps.emailQuotas, deps.counterKeys, deps.factor, deps.now),
  }
  const users: { readonly [K in keyof typeof usersPolicies]: UsersRpc<K> } = {
    signUp: signUp(all),
    activate: activate(all),
    login: login(all),
    getMe: getMe(all),
    refresh: refresh(all),
    getUser: getUser(all),
    batchGetUsers: batchGetUsers(all),
    setEmail: setEmail(all),
    confirmEmail: confirmEmail(all),
    revokeMyTokens: revokeMyTokens(all),
    sendAdminKeyByEmailPartner: sendAdminKeyByEmailPartner(all),
    existsByUsername: existsByUsername(all),
    existsByNickname: existsByNickname(all),
    verifyToken: verifyToken(all),
    getKeys: getKeys(all),
  }
  const forgotPasswords: { readonly [K in keyof typeof forgotPasswordsPolicies]: ForgotPasswordsRpc<K> } = {
    findAllForgotPasswordQuestions: findAllForgotPasswordQuestions(all),
    loginByUsernameAndAnswers: loginByUsernameAndAnswers(all),
    loginByUsernameAndKey: loginByUsernameAndKey(all),
    passwordUpdateByUsername: passwordUpdateByUsername(all),
    saveForgotPasswordQuestionsUsersAnswers: saveForgotPasswordQuestionsUsersAnswers(all),
    sendKeyByEmail: sendKeyByEmail(all),
  }
  return [
    [Users, bindUserCalls(all, Users, usersPolicies, users)],
    [ForgotPasswords, bindUserCalls(all, ForgotPasswords, forgotPasswordsPolicies, forgotPasswords)],
  ] as const
}

/** What the RPCs are made of: each takes what it names of it. */
type AllDeps = UserCallsDeps &
  Parameters<typeof signUp>[0] &
  Parameters<typeof activate>[0] &
  Parameters<typeof login>[0] &
  Parameters<typeof batchGetUsers>[0] &
  Parameters<typeof verifyToken>[0] &
  Parameters<typeof setEmail>[0] &
  Parameters<typeof confirmEmail>[0] &
  Parameters<typeof sendAdminKeyByEmailPartner>[0] &
  Parameters<typeof getKeys>[0] &
  Parameters<typeof loginByUsernameAndAnswers>[0] &
  Parameters<typeof loginByUsernameAndKey>[0] &
  Parameters<typeof passwordUpdateByUsername>[0] &
  Parameters<typeof sendKeyByEmail>[0]
