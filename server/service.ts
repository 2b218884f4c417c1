import { ServerCredentials } from '@grpc/grpc-js'
import { createGateway, type Gateway } from '../gateway/http.js'
import { type Admission, createAdmission } from './access/admission.js'
import { createCallers } from './access/caller.js'
import { createKeyring, type Keyring } from './access/keyring.js'
import { createSignIns } from './access/signin.js'
import { createTokens } from './access/tokens.js'
import { createCalls, type Implementations } from './calls/dispatch.js'
import { createGrpcServer } from './calls/grpc.js'
import { createInProcessTransport } from './calls/inprocess.js'
import { isUnreachable } from './database/connection.js'
import type { Source } from './database/source.js'
import { loginByUsernameAndAnswers, saveForgotPasswordQuestionsUsersAnswers } from './forgotpasswords/answers.js'
import { createTellOwner } from './forgotpasswords/notice.js'
import { passwordUpdateByUsername } from './forgotpasswords/password.js'
import { findAllForgotPasswordQuestions } from './forgotpasswords/questions.js'
import { loginByUsernameAndKey, sendKeyByEmail } from './forgotpasswords/recoverykey.js'
import { type Installation, install } from './installation.js'
import type { Log } from './log.js'
import { startMaintenance } from './maintenance.js'
import { createMetrics } from './metrics.js'
import { openRegistry, type Registry } from './models/definemodels.js'
import { startMail } from './outbox/compose.js'
import { createQuotas } from './outbox/quotas.js'
import { chooseLocale } from './outbox/texts.js'
import { createPasswords } from './passwords/hash.js'
import { createPasswordPolicy } from './passwords/policy.js'
import { createPool, type Pool } from './passwords/pool.js'
import { createRenewals } from './passwords/renewal.js'
import type { Address, Settings } from './settings.js'
import { activate } from './users/activate.js'
import { sendAdminKeyByEmailPartner } from './users/activationemail.js'
import { existsByNickname, existsByUsername } from './users/exists.js'
import { login } from './users/login.js'
import { getMe, getUser } from './users/lookup.js'
import { refresh } from './users/refresh.js'
import { signUp } from './users/signup.js'
import { getKeys, verifyToken } from './users/verifytoken.js'

/** A running service. */
export interface Service {
  /** Where it listens; ports are the real ones. */
  readonly addresses: { readonly grpc: Address; readonly http?: Address; readonly metrics?: Address }
  readonly installation: Installation
  /** Takes nothing new, lets calls, e-mails and statements under way end, and releases everything. */
  stop(): Promise<void>
}

/** Milliseconds that calls under way have to end when the service stops. */
const grace = 10_000

/** Milliseconds between two looks at whether the database answers. */
const pulse = 5_000

/**
 * Starts everything: database, installation, gRPC server, gateway, mail, maintenance, metrics. `at` is the database
 * when somebody has begun to start it already; `now` is the clock, in ms since 1970.
 */
export async function startService(
  settings: Settings,
  log: Log,
  { at, now = Date.now }: { at?: Promise<Source>; now?: () => number } = {},
): Promise<Service> {
  const metrics = createMetrics()
  // What is to be undone when the service stops, or when its start fails half-way: last first.
  const undo: (() => Promise<unknown>)[] = []
  const stop = async () => {
    for (const step of undo.splice(0).reverse()) await step()
  }
  try {
    const registry = await openRegistry(settings, { log, ...(at && { at }) })
    undo.push(() => registry.close())
    const { issuer, audience, tokenTtl: ttl, limitFactor: factor } = settings
    const admission = createAdmission({ ...registry, factor, now })
    const pool = createPool({
      cost: settings.bcryptCost,
      usedOf: admission.usedOf,
      onWait: ms => metrics.observeWait(ms),
      onFault: error => log.error({ err: error }, 'a hash thread broke and is replaced'),
    })
    undo.push(() => pool.close())
    metrics.watchHashing(() => pool.stats())
    const passwords = createPasswords({ pepper: registry.masterKey.pepper, cost: settings.bcryptCost, pool })
    const installation = await install(registry, settings, passwords, 'service')
    if (installation.weakness) log.warn(`AUTH_ADMIN_PASSWORD is weak: ${installation.weakness}`)

    await registry.signingKeys.raiseTtl(settings.tokenTtl)
    const keyring = createKeyring(registry.signingKeys, now)
    // Better no start than one that lets nobody in.
    await keyring.signer().catch(cause => {
      if (isUnreachable(cause)) throw cause
      throw new Error('AUTH_MASTER_KEY is not the key that this database was set up with.', { cause })
    })
    const calls = createCalls({
      ...createImplementations({
        ...registry,
        ...createAccess(registry, { keyring, issuer, audience, ttl, pool, admission, factor, now }),
        pool,
        passwords,
        renewals: createRenewals({ passwords, users: registry.users, log }),
        policy: createPasswordPolicy({
          minLength: settings.passwordMinLength,
          denylistFile: settings.passwordDenylist,
        }),
        chooseLocale: acceptLanguage => chooseLocale(acceptLanguage, settings.mailLocale),
        keyring,
        timeZone: settings.timeZone,
        factor,
        now,
      }),
      log,
      observe: metrics.observe,
    })

    const sender = startMail(registry, settings, log, now)
    undo.push(() => sender.close())
    const maintenance = startMaintenance(registry, settings, log)
    undo.push(async () => maintenance.stop())

    const grpc = createGrpcServer({ calls, log, ...settings })
    const grpcPort = await grpc.listen(settings.grpcAddress, credentialsOf(settings))
    undo.push(() => grpc.close(grace))
    const beating = setInterval(() => {
      const answer = registry.database.run({ name: 'pulse', text: 'SELECT 1' }, [])
      answer.then(
        () => grpc.setServing(true),
        () => grpc.setServing(false),
      )
    }, pulse)
    undo.push(async () => clearInterval(beating))
    const addresses: { grpc: Address; http?: Address; metrics?: Address } = {
      grpc: { ...settings.grpcAddress, port: grpcPort },
    }
    if (settings.metricsAddress) {
      addresses.metrics = { ...settings.metricsAddress, port: await metrics.listen(settings.metricsAddress) }
      undo.push(() => metrics.close())
    }
    if (settings.httpAddress) {
      const gateway: Gateway = createGateway({
        transport: createInProcessTransport(calls),
        address: settings.httpAddress,
        defaultRevision: settings.defaultRevision,
        trustedProxies: settings.trustedProxies,
        corsOrigins: settings.corsOrigins,
        limitFactor: factor,
        log,
      })
      addresses.http = await gateway.listen()
      undo.push(() => gateway.close(grace))
    }
    return { addresses, installation, stop }
  } catch (error) {
    await stop()
    throw error
  }
}

/** Who may do what: callers, tokens, limits, sign-ins. */
function createAccess(
  { users, attempts, subjects, audit }: Registry,
  options: {
    keyring: Keyring
    issuer: string
    audience: string
    ttl: number
    pool: Pool
    admission: Admission
    factor: number
    now: () => number
  },
) {
  const { pool, admission, factor, ...issuing } = options
  const tokens = createTokens(issuing)
  return {
    tokens,
    callers: createCallers(tokens, users),
    admission,
    signIns: createSignIns({ attempts, subjects, admission, audit, pool, factor }),
  }
}

/** One function for each RPC. */
function createImplementations(
  deps: Omit<AllDeps, 'tellOwner' | 'quotas'> & Pick<Registry, 'emailQuotas'>,
): Implementations {
  const all: AllDeps = {
    ...deps,
    tellOwner: createTellOwner(deps.emails, deps.chooseLocale),
    quotas: createQuotas(deps.emailQuotas, deps.subjects, deps.factor),
  }
  return {
    users: {
      signUp: signUp(all),
      activate: activate(all),
      login: login(all),
      getMe: getMe(all),
      refresh: refresh(all),
      getUser: getUser(all),
      sendAdminKeyByEmailPartner: sendAdminKeyByEmailPartner(all),
      existsByUsername: existsByUsername(all),
      existsByNickname: existsByNickname(all),
      verifyToken: verifyToken(all),
      getKeys: getKeys(all),
    },
    forgotPasswords: {
      findAllForgotPasswordQuestions: findAllForgotPasswordQuestions(all),
      loginByUsernameAndAnswers: loginByUsernameAndAnswers(all),
      loginByUsernameAndKey: loginByUsernameAndKey(all),
      passwordUpdateByUsername: passwordUpdateByUsername(all),
      saveForgotPasswordQuestionsUsersAnswers: saveForgotPasswordQuestionsUsersAnswers(all),
      sendKeyByEmail: sendKeyByEmail(all),
    },
  }
}

/** What the RPCs are made of: each takes what it names of it. */
type AllDeps = Parameters<typeof signUp>[0] &
  Parameters<typeof activate>[0] &
  Parameters<typeof login>[0] &
  Parameters<typeof getMe>[0] &
  Parameters<typeof sendAdminKeyByEmailPartner>[0] &
  Parameters<typeof getKeys>[0] &
  Parameters<typeof loginByUsernameAndAnswers>[0] &
  Parameters<typeof loginByUsernameAndKey>[0] &
  Parameters<typeof passwordUpdateByUsername>[0] &
  Parameters<typeof sendKeyByEmail>[0]

/** TLS where certificates are set; callers must present one where the authority for theirs is set. */
function credentialsOf({ tlsCert, tlsKey, tlsCa }: Settings): ServerCredentials {
  if (!tlsCert || !tlsKey) return ServerCredentials.createInsecure()
  const pair = { cert_chain: tlsCert, private_key: tlsKey }
  return ServerCredentials.createSsl(tlsCa ?? null, [pair], tlsCa !== undefined)
}
