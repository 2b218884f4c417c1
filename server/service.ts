// The service: its listeners, its readiness, and the order in which it stops. What it serves is made by application.ts.
import { createGateway, type Gateway } from '../gateway/http.js'
import { createGatewayMetrics } from '../gateway/metrics.js'
import { createApplication, createHashing } from './application.js'
import { type GrpcServer, startGrpcServer } from './calls/grpc.js'
import { createInProcessTransport } from './calls/in-process.js'
import { followClock } from './database/clock.js'
import { awaitDatabase, type Source } from './database/database-choice.js'
import { explainingRights } from './database/rights.js'
import { findKeptPassword, type Installation, install } from './installation.js'
import { startHeartbeat } from './jobs/heartbeat.js'
import { startMaintenance } from './jobs/maintenance.js'
import { startSealing } from './jobs/sealing.js'
import { startWrapping } from './jobs/wrapping.js'
import { createScheduler, schedulerLimits } from './limits/scheduler.js'
import { openRegistry } from './models/define-models.js'
import type { Log } from './observability/log.js'
import { createMetrics } from './observability/metrics.js'
import { createMetricsEndpoint } from './observability/metrics-endpoint.js'
import { createUndeclaredProxies } from './observability/undeclared-proxy.js'
import { startMail } from './outbox/compose.js'
import { followCertificates } from './process/certificates.js'
import type { Address, Settings } from './process/settings.js'
import { grace, runSteps, type Step } from './process/stopping.js'
import { makeAdministrator } from './rules/roles.js'

/** A running service. */
export interface Service {
  /** Where it listens, with the real ports. */
  readonly addresses: {
    readonly grpc: Address
    readonly http?: Address
    readonly metrics?: Address
    readonly admin?: Address
  }
  readonly installation: Installation
  /** The file that keeps the present password of the default administrator, if one does. */
  readonly passwordFile: Promise<string | undefined>
  /** Reports at every endpoint that it isn't ready, and keeps working. */
  drain(): void
  /**
   * Takes nothing new, lets calls, e-mails and statements in flight end, and releases everything. Returns the steps that
   * did not end in their time, or before `hurry`.
   */
  stop(hurry?: AbortSignal): Promise<readonly string[]>
}

/** Milliseconds between two checks whether the database takes writes. */
const checkInterval = 1_000

/**
 * Starts everything: database, installation, gRPC servers, gateway, e-mails, maintenance, metrics. `at` is the database
 * where its start has begun already; `now` is a clock, in ms since 1970, that replaces the database's; `signal` ends the
 * wait for a database that isn't up yet.
 */
export async function startService(
  settings: Settings,
  log: Log,
  { at, now: given, signal }: { at?: Promise<Source>; now?: () => number; signal?: AbortSignal } = {},
): Promise<Service> {
  const endpoint = createMetricsEndpoint()
  const metrics = createMetrics(endpoint)
  // The steps of a stop, also of one after a failed start: last first.
  const undo: Step[] = []
  const endpoints: (() => Promise<void>)[] = []
  let draining = false
  const stop = (hurry?: AbortSignal) => {
    draining = true
    const steps = undo.splice(0).reverse()
    const closing = endpoints.splice(0)
    // All at once, and before what their calls need.
    steps.unshift({ what: 'calls and jobs in flight', run: () => Promise.all(closing.map(close => close())) })
    return runSteps(steps, { hurry, onFault: (err, what) => log.error({ err, what }, 'a step of the stop failed') })
  }
  try {
    const registry = await openRegistry(settings, { log, ...(at && { at }) })
    // It must not outlive this process: it has several ways to stop, which it tries in turn.
    undo.push({ what: 'the embedded PostgreSQL', run: registry.release, least: 30_000 })
    undo.push({ what: 'statements in flight', run: registry.database.close })
    const processNow = given ?? Date.now
    const hashing = createHashing(registry, settings, {
      now: processNow,
      onWait: metrics.observeWait,
      onFault: error => log.error({ err: error }, 'a hash thread failed and is replaced'),
    })
    const { pool, passwords } = hashing
    undo.push({ what: 'hashes in flight', run: pool.close })
    metrics.watchHashing(pool.stats)
    const work = async () => {
      const installation = await install(registry, settings, passwords, 'service', () =>
        log.warn('a migration waits for a transaction that holds its table'),
      )
      const self = await registry.processes.add(settings.httpAddress ? 'all-in-one' : 'server', installation.tokens)
      return { installation, self }
    }
    const { installation, self } = await (settings.databaseUrl
      ? awaitDatabase(() => explainingRights(registry.database, work), settings, log, signal)
      : work())
    undo.push({ what: 'the record of this process', run: startHeartbeat(registry, self, log).stop, least: 2_500 })
    const passwordFile = findKeptPassword(registry, settings, passwords).catch(() => undefined)
    if (installation.weakness) log.warn(`AUTH_ADMIN_PASSWORD is weak: ${installation.weakness}`)
    const { administrators } = await registry.totpSecrets.coverage()
    if (administrators === 0) log.warn(`there is no active administrator: run \`${makeAdministrator}\``)

    const clock = given ? { now: given, stop() {} } : await followClock(registry.database)
    undo.push({ what: 'the clock', run: async () => clock.stop() })
    const { now } = clock
    await registry.signingKeys.raiseTtl(settings.tokenTtl)
    const ready = async () => !draining && (await registry.database.isWritable())
    metrics.watchDatabase(registry, ready)
    if (!settings.databaseUrl) metrics.watchVolume(settings.dataDir)
    const scheduler = createScheduler(schedulerLimits, () => pool.stats().running > 0)
    endpoint.watchScheduler(scheduler.stats)
    // Calls that wait for their turn when the stop begins get it at once.
    endpoints.push(async () => scheduler.open())
    const proxies = createUndeclaredProxies({ registry: endpoint.registry, log, now: processNow })
    const { calls, administration, serviceKeys, keyring, hub } = createApplication({
      registry,
      settings,
      hashing,
      tokenIssuer: installation.tokens,
      now,
      processNow,
      log,
      ready,
      scheduler,
      observe: metrics.observe,
      refused: metrics.refused,
      undeclaredProxies: proxies.found,
    })
    metrics.watchFeed(hub.waiting)
    endpoints.push(async () => hub.close())
    // Without a key no user could sign in: the start fails instead.
    await keyring.signer()

    // It stops after everything that appends events.
    const sealing = startSealing(registry, log)
    undo.push({ what: 'sealing the audit log', run: sealing.stop, least: 2_500 })
    const sender = startMail(registry, settings, log, now, metrics.refused)
    undo.push({ what: 'e-mails in flight', run: sender.close })
    const maintenance = startMaintenance(registry, settings, log)
    const wrapping = startWrapping(registry, passwords, log)
    // They serve no call, and stop with the endpoints: without a database, each would take its time.
    endpoints.push(maintenance.stop, wrapping.stop)

    const { tlsCert: cert, tlsKey: key, tlsCa: ca, httpTlsCert, httpTlsKey } = settings
    const certificates = cert ? followCertificates({ cert, key, ca }, log) : undefined
    // Administrators identify themselves by tokens, and need no certificate.
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
    const servers: GrpcServer[] = []
    const listen = async (address: Address, deps: Parameters<typeof startGrpcServer>[1]): Promise<Address> => {
      const server = await startGrpcServer(address, deps)
      servers.push(server)
      endpoints.push(() => server.close(grace))
      return { ...address, port: server.port }
    }
    const setServing = (serving: boolean) => {
      for (const server of servers) server.setServing(serving)
    }
    const { grpcAddress, adminAddress, httpAddress, metricsAddress, trustedProxies, gatewayNames } = settings
    const addresses: { grpc: Address; http?: Address; metrics?: Address; admin?: Address } = {
      grpc: await listen(grpcAddress, {
        calls,
        certificates,
        trustedProxies,
        gatewayNames,
        onSender: proxies.watch('grpc'),
      }),
    }
    if (adminAddress)
      addresses.admin = await listen(adminAddress, {
        calls: administration,
        certificates: adminCertificates,
        trustedProxies: [],
        gatewayNames: [],
      })
    let serving = true
    const checking = setInterval(async () => {
      const now = await ready()
      if (draining || now === serving) return
      serving = now
      setServing(now)
      if (now) log.info('ready: the database takes writes again')
      else log.warn('not ready: the database takes no writes, or not in time')
    }, checkInterval)
    undo.push({ what: 'the readiness check', run: async () => clearInterval(checking) })
    let gateway: Gateway | undefined
    if (httpAddress) {
      gateway = createGateway({
        transport: createInProcessTransport(calls),
        scheduler,
        serviceOf: serviceKeys.cachedName,
        address: httpAddress,
        defaultRevision: settings.defaultRevision,
        compatibility: settings.compatibility,
        trustedProxies,
        onSender: proxies.watch('http'),
        corsOrigins: settings.corsOrigins,
        docs: settings.docs === 'on',
        ...(httpCertificates && { secure: httpCertificates.secure }),
        log,
        metrics: createGatewayMetrics(endpoint.registry),
      })
      addresses.http = await gateway.listen()
      endpoints.push(() => gateway!.close(grace))
    }
    // Last, since `/readyz` there reports that all others listen.
    if (metricsAddress) {
      endpoint.watchReady(ready)
      const port = await endpoint.listen(metricsAddress, certificates?.secure)
      addresses.metrics = { ...metricsAddress, port }
      undo.push({ what: 'metrics', run: endpoint.close })
    }
    const drain = () => {
      draining = true
      setServing(false)
      hub.close()
      gateway?.drain()
    }
    return { addresses, installation, passwordFile, drain, stop }
  } catch (error) {
    await stop()
    throw error
  }
}
