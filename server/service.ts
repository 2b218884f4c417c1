import { ServerCredentials } from '@grpc/grpc-js'
import { createGateway, type Gateway } from '../gateway/http.js'
import { createCallers } from './access/caller.js'
import { createKeyring } from './access/keyring.js'
import { createTokens } from './access/tokens.js'
import { createCalls } from './calls/dispatch.js'
import { createGrpcServer } from './calls/grpc.js'
import { createInProcessTransport } from './calls/inprocess.js'
import { isUnreachable } from './database/connection.js'
import type { Located } from './database/source.js'
import { createForgotPasswordsService } from './forgotpasswords/forgotpasswords.js'
import { type Installation, install } from './installation.js'
import type { Log } from './log.js'
import { startMaintenance } from './maintenance.js'
import { createMetrics } from './metrics.js'
import { openRegistry } from './models/definemodels.js'
import { startMail } from './outbox/compose.js'
import { chooseLocale } from './outbox/texts.js'
import { createPasswordPolicy, createPasswords } from './passwords/hash.js'
import { createHashing } from './passwords/pool.js'
import type { Address, Settings } from './settings.js'
import { createUsersService, type UsersDeps } from './users/users.js'

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
 * when somebody has begun to start it already.
 */
export async function startService(settings: Settings, log: Log, at?: Promise<Located>): Promise<Service> {
  const metrics = createMetrics()
  const hashing = createHashing({
    cost: settings.bcryptCost,
    onWait: ms => metrics.observeWait(ms),
    onFault: error => log.error({ err: error }, 'a hashing thread broke and is replaced'),
  })
  metrics.watchHashing(() => hashing.stats())
  // What is to be undone when the service stops, or when its start fails half-way: last first.
  const undo: (() => Promise<unknown>)[] = [() => hashing.close()]
  const stop = async () => {
    for (const step of undo.splice(0).reverse()) await step()
  }
  try {
    const registry = await openRegistry(settings, { log, ...(at && { at }) })
    undo.push(() => registry.close())
    const passwords = createPasswords({ pepper: registry.masterKey.pepper, cost: settings.bcryptCost, hashing })
    const installation = await install(registry, settings, passwords, 'service')
    if (installation.weakness) log.warn(`AUTH_ADMIN_PASSWORD is weak: ${installation.weakness}`)

    const keyring = createKeyring(registry.signingKeys)
    // Better no start than one that lets nobody in.
    await keyring.signer().catch(cause => {
      if (isUnreachable(cause)) throw cause
      throw new Error('AUTH_MASTER_KEY is not the key that this database was set up with.', { cause })
    })
    const { issuer, audience, tokenTtl: ttl } = settings
    const tokens = createTokens({ keyring, issuer, audience, ttl })
    const deps: UsersDeps = {
      ...registry,
      callers: createCallers(tokens, registry.users),
      tokens,
      keyring,
      hashing,
      passwords,
      policy: createPasswordPolicy({ minLength: settings.passwordMinLength, denylistFile: settings.passwordDenylist }),
      chooseLocale: acceptLanguage => chooseLocale(acceptLanguage, settings.mailLocale),
    }
    const users = createUsersService(deps)
    const calls = createCalls({
      users,
      forgotPasswords: createForgotPasswordsService(deps),
      log,
      observe: metrics.observe,
    })

    const post = startMail(registry, settings, log)
    undo.push(() => post.close())
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

/** TLS where certificates are set; callers must present one where the authority for theirs is set. */
function credentialsOf({ tlsCert, tlsKey, tlsCa }: Settings): ServerCredentials {
  if (!tlsCert || !tlsKey) return ServerCredentials.createInsecure()
  const pair = { cert_chain: tlsCert, private_key: tlsKey }
  return ServerCredentials.createSsl(tlsCa ?? null, [pair], tlsCa !== undefined)
}
