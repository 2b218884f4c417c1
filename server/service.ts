// The service: its listeners, its readiness, and the order in which it stops. What it serves is made by application.ts.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Transport } from '@connectrpc/connect'
import type { Registry } from 'prom-client'
import { isProvider, noProvider } from './access/provider.js'
import { createApplication } from './application.js'
import { type GrpcDeps, type GrpcServer, startGrpcServer } from './calls/grpc.js'
import { createInProcessTransport } from './calls/in-process.js'
import { followClock } from './database/clock.js'
import type { Source } from './database/database-choice.js'
import { explainingRights } from './database/requirements.js'
import { awaitDatabase } from './database/wait-at-start.js'
import { findKeptPassword, install, issuerProblem } from './installation.js'
import { startHeartbeat } from './jobs/heartbeat.js'
import { startMaintenance } from './jobs/maintenance.js'
import { startSealing } from './jobs/sealing.js'
import { startWrapping } from './jobs/wrapping.js'
import { createScheduler, type Scheduler, schedulerLimits } from './limits/scheduler.js'
import { openRegistry } from './models/index.js'
import type { Log } from './observability/log.js'
import { createMetrics } from './observability/metrics.js'
import { createMetricsEndpoint } from './observability/metrics-endpoint.js'
import { createUndeclaredProxies } from './observability/undeclared-proxy.js'
import { startMail } from './outbox/compose.js'
import { createHashing } from './passwords/index.js'
import { type CertificateFiles, type Certificates, followCertificates } from './process/certificates.js'
import { type Address, isLoopback, type Settings } from './process/settings.js'
import { createStop, grace } from './process/stopping.js'
import type { Sender } from './requests/client-address.js'
import { named } from './rules/remedies.js'

/** A running service. */
export type Service = Awaited<ReturnType<typeof startService>>

/** What each part of a start uses, and what undoes it. */
type Start = ReturnType<typeof begin>

/** Options of a start. */
interface StartOptions {
  /** The database where its start has begun already. */
  readonly at?: Promise<Source>
  /** A clock, in ms since 1970, that replaces the database's. */
  readonly now?: () => number
  /** Ends the wait for a database that isn't up yet. */
  readonly signal?: AbortSignal
}

/** Creates what answers on the HTTP port: programs hand it over, because the gateway knows this folder. */
type CreateHttp = (parts: {
  readonly transport: Transport
  readonly scheduler: Scheduler
  readonly serviceOf: (authorization: string | undefined) => string | undefined
  readonly address: Address
  readonly knownAs?: readonly string[]
  readonly secure: Certificates['secure'] | undefined
  readonly settings: Settings
  readonly onSender: (sender: Sender, forwardedFor: string | undefined) => void
  readonly log: Log
  readonly registry: Registry
}) => {
  listen(): Promise<Address>
  drain(): void
  close(graceMs: number): Promise<void>
}

/** Milliseconds between two checks whether the database takes writes. */
const checkInterval = 1_000

/** Maximum milliseconds of a check whether a key signs. */
const signerLimit = 1_000

/** Starts everything: database, installation, gRPC servers, gateway, e-mails, maintenance, metrics. */
export async function startService(settings: Settings, log: Log, createHttp: CreateHttp, options: StartOptions = {}) {
  const start = begin(settings, log, options)
  try {
    const opened = await openDatabase(start, options)
    const { installation, registry, hashing } = opened
    const passwordFile = findKeptPassword(registry, settings, hashing.passwords).catch(() => undefined)
    const running = await run(start, opened, options)
    const listening = await listen(start, running, createHttp)
    return {
      installation,
      /** The file that keeps the present password of the default administrator, if one does. */
      passwordFile,
      /** Where it listens, with the real ports. */
      addresses: listening.addresses,
      /** Reports at every endpoint that it isn't ready, and keeps working. */
      drain() {
        start.draining.abort()
        listening.drain()
      },
      /**
       * Takes nothing new, lets calls, e-mails and statements in flight end, and releases everything. Returns the steps that
       * did not end in their time, or before `hurry`.
       */
      stop(hurry?: AbortSignal) {
        start.draining.abort()
        return start.stop(hurry)
      },
    }
  } catch (error) {
    await start.stop()
    throw error
  }
}

function begin(settings: Settings, log: Log, { now = () => performance.now() }: StartOptions) {
  const endpoint = createMetricsEndpoint()
  const stop = createStop((err, what) => log.error({ err, what }, 'a step of the stop failed'))
  return {
    settings,
    log,
    processNow: now,
    endpoint,
    metrics: createMetrics(endpoint),
    /** Aborted when no endpoint reports any longer that it is ready. */
    draining: new AbortController(),
    ...stop,
  }
}

/** Opens the database and the hash threads, installs the registry where needed, and begins the record of this process. */
async function openDatabase(
  { settings, log, metrics, processNow, onStop, onHurry }: Start,
  { at, signal }: StartOptions,
) {
  const registry = await openRegistry(settings, { log, at })
  // PostgreSQL must not outlive this process: `release` tries several ways to stop it in turn.
  onStop('the embedded PostgreSQL', registry.release, 30_000, true)
  // Longer than `close` waits before it cuts its connections.
  onStop('statements in flight', registry.database.close, 2_000)
  const hashing = createHashing(registry, settings, {
    now: processNow,
    onWait: metrics.observeWait,
    onFault: error => log.error({ err: error }, 'a hash thread failed and is replaced'),
  })
  onStop('hashes in flight', hashing.pool.close)
  onHurry(() => hashing.pool.close().catch(() => {}))
  metrics.watchHashing(hashing.pool.stats)
  const work = async () => {
    const installation = await install(registry, settings, hashing.passwords, 'service', {
      onDue: migrations => log.info({ migrations }, 'Running migrations'),
      onLocked: () => log.warn('a migration waits for a transaction that holds its table'),
    })
    const self = await registry.processes.add(settings.httpAddress ? 'all-in-one' : 'server', installation.tokens)
    return { installation, self }
  }
  const { installation, self } = await (settings.databaseUrl
    ? awaitDatabase(() => explainingRights(registry.database, work), settings, log, signal)
    : work())
  onStop('the record of this process', await startHeartbeat(registry, self, log), 2_500)
  if (installation.weakness) log.warn(`AUTH_ADMIN_PASSWORD is weak: ${installation.weakness}`)
  const wrongIssuer = issuerProblem(installation.tokens)
  if (wrongIssuer) log.warn(wrongIssuer)
  const { administrators } = await registry.totpSecrets.coverage()
  if (administrators === 0) log.warn(`there is no active administrator: run ${named('create administrator')}`)
  if (!isProvider(installation.tokens.issuer) && (await registry.services.countClients()) > 0)
    log.warn({ issuer: installation.tokens.issuer }, noProvider)
  return { registry, hashing, installation }
}

/** Makes all RPCs, and starts the jobs. */
async function run(
  start: Start,
  { registry, hashing, installation }: Awaited<ReturnType<typeof openDatabase>>,
  options: StartOptions,
) {
  const { settings, log, processNow, endpoint, metrics, draining, onStop, onClose } = start
  const clock = options.now ? { now: options.now, stop() {} } : await followClock(registry.database)
  onStop('the clock', async () => clock.stop())
  const { now } = clock
  metrics.watchClock(now)
  await registry.signingKeys.raiseTtl(settings.tokenTtl)
  // Like the probe of the database, it doesn't wait for one that went silent.
  const canSign = () =>
    Promise.race([
      registry.signingKeys.signer().then(
        kid => kid !== undefined,
        () => false,
      ),
      sleep(signerLimit, false, { ref: false }),
    ])
  const ready = async () => !draining.signal.aborted && (await registry.database.isWritable()) && (await canSign())
  const waysBack = {
    without: async () => (await registry.administeredUsers.withoutWayBack(settings.strict !== 'on')).without,
  }
  metrics.watchDatabase({ ...registry, waysBack }, ready)
  if (!settings.databaseUrl) metrics.watchVolume(settings.dataDir)
  const scheduler = createScheduler(schedulerLimits, hashing.pool)
  endpoint.watchScheduler(scheduler.stats)
  // Calls that wait for their turn when the stop begins get it at once.
  onClose(async () => scheduler.open())
  const proxies = createUndeclaredProxies({ registry: endpoint.registry, log, now: processNow })
  const application = createApplication({
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
  metrics.watchFeed(application.feedReader.waiting)
  onClose(async () => application.feedReader.close())
  // Without a key no user could sign in: the start fails instead.
  const { kid, signsAt } = await application.keyring.signer()
  if (signsAt.getTime() > now())
    log.warn({ kid }, 'the time of the signing key lies ahead of the clock of the database')

  // Sealing stops after everything that appends events.
  onStop('sealing the audit log', startSealing(registry, log), 2_500)
  onStop('e-mails in flight', startMail(registry, settings, log, now, metrics.refused).close)
  // They serve no call, and stop with the endpoints: without a database, each would take its time.
  onClose(startMaintenance(registry, settings, log).stop)
  onClose(startWrapping(registry, hashing.passwords, log))
  return { application, scheduler, proxies, ready, issuer: installation.tokens.issuer }
}

type Running = Awaited<ReturnType<typeof run>>

/** Opens the ports, and keeps their health checks up to date. */
async function listen(start: Start, running: Running, createHttp: CreateHttp) {
  const { settings, log, endpoint, draining, onStop, onClose } = start
  const { application, scheduler, proxies, ready, issuer } = running
  const { grpcAddress, adminAddress, httpAddress, metricsAddress, trustedProxies, gatewayNames } = settings
  const { tlsCert: cert, tlsKey: key, tlsCa: ca } = settings
  const servers: GrpcServer[] = []
  const serve = async (address: Address, deps: GrpcDeps): Promise<Address> => {
    const server = await startGrpcServer(address, deps)
    servers.push(server)
    onClose(() => server.close(grace))
    return { ...address, port: server.port }
  }
  const setServing = (serving: boolean) => {
    for (const server of servers) server.setServing(serving)
  }
  const certificates = follow(start, { cert, key, ca }, 'grpc')
  const onSender = proxies.watch('grpc')
  const grpc = await serve(grpcAddress, {
    calls: application.calls,
    certificates,
    trustedProxies,
    gatewayNames,
    onSender,
  })
  // Administrators identify themselves by tokens, and need no certificate.
  const adminDeps = { calls: application.administration, trustedProxies: [], gatewayNames: [] }
  const admin =
    adminAddress && (await serve(adminAddress, { ...adminDeps, certificates: follow(start, { cert, key }) }))
  let serving = true
  const checking = setInterval(async () => {
    const now = await ready()
    if (draining.signal.aborted || now === serving) return
    serving = now
    setServing(now)
    if (now) log.info('ready: the database takes writes again')
    else log.warn('not ready: the database takes no writes, or not in time, or has no key that signs')
  }, checkInterval)
  onStop('the readiness check', async () => clearInterval(checking))
  const { httpTlsCert, httpTlsKey } = settings
  const gateway =
    httpAddress &&
    createHttp({
      transport: createInProcessTransport(application.calls),
      scheduler,
      serviceOf: application.serviceKeys.cachedName,
      address: httpAddress,
      ...(isLoopback(httpAddress.host) && { knownAs: [issuer] }),
      secure: follow(start, { cert: httpTlsCert, key: httpTlsKey }, 'http')?.secure,
      settings,
      onSender: proxies.watch('http'),
      log,
      registry: endpoint.registry,
    })
  const http = gateway && (await gateway.listen())
  if (gateway) onClose(() => gateway.close(grace))
  let metrics: Address | undefined
  // Last, since `/readyz` there reports that all others listen.
  if (metricsAddress) {
    endpoint.watchReady(ready)
    metrics = { ...metricsAddress, port: await endpoint.listen(metricsAddress, certificates?.secure) }
    onStop('metrics', endpoint.close)
  }
  return {
    addresses: { grpc, http, metrics, admin },
    drain() {
      setServing(false)
      application.feedReader.close()
      gateway?.drain()
    },
  }
}

/** Follows certificates, if there are any. Without `of`, those of `grpc` are followed once more, and not logged again. */
function follow({ endpoint, log, onStop }: Start, files: CertificateFiles, of?: 'grpc' | 'http') {
  if (!files.cert) return undefined
  const certificates = followCertificates(files, of && log, of === 'http' ? 'AUTH_HTTP_TLS' : 'AUTH_TLS')
  if (of) endpoint.watchCertificate(of, certificates.endsAt)
  onStop('certificates', async () => certificates.stop())
  return certificates
}
