#!/usr/bin/env -S node --max-semi-space-size=8
/** `auth-gateway`: the gateway as a process of its own, in front of servers that run elsewhere. */
import { create } from '@bufbuild/protobuf'
import { createScheduler, schedulerLimits } from '../server/limits/scheduler.js'
import { createLog } from '../server/observability/log.js'
import { createMetricsEndpoint } from '../server/observability/metrics-endpoint.js'
import { createUndeclaredProxies } from '../server/observability/undeclared-proxy.js'
import { followCertificates } from '../server/process/certificates.js'
import { httpUrl, metricsUrl, readSettings } from '../server/process/settings.js'
import { grace, pause, runSteps, stopOnSignals } from '../server/process/stopping.js'
import { answerArguments } from '../server/process/usage.js'
import { createGateway } from './http.js'
import { createGatewayMetrics } from './metrics.js'
import { createRemoteTransport } from './remote.js'
import { readiness } from './routes.js'

const usage = `auth-gateway: HTTP in front of one or more auth-server

It is set by the environment:
  AUTH_SERVER_URL                         gRPC servers: host:port, several IP addresses with ports, dns:///name:port
  AUTH_SERVER_NAME                        name that their certificates carry, where the host of the URL is another
  AUTH_TLS_CA                             authority of their certificates: turns on TLS towards them
  AUTH_TLS_CERT, AUTH_TLS_KEY             what the gateway presents to them, and to Prometheus
  AUTH_HTTP_ADDRESS                       where it listens
  AUTH_HTTP_TLS_CERT, AUTH_HTTP_TLS_KEY   what it presents to clients: turns on HTTPS
  AUTH_METRICS_ADDRESS                    where Prometheus finds its metrics, and probes
                                          /healthz and /readyz; 127.0.0.1:9091 unless told
  AUTH_TRUSTED_PROXIES, AUTH_CORS_ORIGINS, AUTH_DEFAULT_REVISION, AUTH_DRAIN, AUTH_LOG_LEVEL
`

/** Where metrics are unless told: a server on the same machine has the port before. */
const defaultMetricsAddress = '127.0.0.1:9091'

async function main(): Promise<void> {
  const settings = readSettings({
    ...process.env,
    AUTH_METRICS_ADDRESS: process.env.AUTH_METRICS_ADDRESS || defaultMetricsAddress,
  })
  const { httpAddress: address, serverUrl: target, serverName } = settings
  if (!address) throw new Error('AUTH_HTTP_ADDRESS is off: there is nothing for a gateway to do.')
  const log = createLog(settings.logLevel)
  const { tlsCert: cert, tlsKey: key, tlsCa: ca, httpTlsCert, httpTlsKey } = settings
  const certificates = cert || ca ? followCertificates({ cert, key, ca }, log) : undefined
  const httpCertificates = httpTlsCert ? followCertificates({ cert: httpTlsCert, key: httpTlsKey }, log) : undefined
  // Without an authority nothing would tell a server from anybody else: then there is no TLS.
  const transport = createRemoteTransport({ target, serverName, ...(ca && certificates && { certificates }) })
  const endpoint = createMetricsEndpoint()
  const metrics = createGatewayMetrics(endpoint.registry)
  metrics.watchServers(transport.servers)
  if (certificates) endpoint.watchCertificate('servers', certificates.endsAt)
  if (httpCertificates) endpoint.watchCertificate('http', httpCertificates.endsAt)
  const { defaultRevision, trustedProxies, corsOrigins } = settings
  // What waits for a server needs no place here: the server schedules it by itself.
  const scheduler = createScheduler({ ...schedulerLimits, slots: Number.POSITIVE_INFINITY }, () => false)
  endpoint.watchScheduler(scheduler.stats)
  const gateway = createGateway({
    transport,
    scheduler,
    address,
    ...(httpCertificates && { secure: httpCertificates.secure }),
    defaultRevision,
    trustedProxies,
    onSender: createUndeclaredProxies({ registry: endpoint.registry, log, now: Date.now }).watch('http'),
    corsOrigins,
    log,
    metrics,
  })

  let draining = false
  endpoint.watchReady(async () => {
    if (draining) return false
    const { rpc, timeout, holds } = readiness
    const { message } = await transport.unary(rpc, undefined, timeout, undefined, create(rpc.input))
    return holds(message)
  })
  const { metricsAddress } = settings
  const secure = cert ? certificates?.secure : undefined
  const http = httpUrl(settings, await gateway.listen())
  // Last, since `/readyz` there says that the other listens.
  const port = metricsAddress && (await endpoint.listen(metricsAddress, secure))
  const shown = metricsAddress && port && `metrics  ${metricsUrl(settings, { ...metricsAddress, port })}\n`
  process.stderr.write(`HTTP     ${http}\n${shown ?? ''}services ${target}\n`)
  stopOnSignals(async ({ drain, hurry }) => {
    draining = true
    const { drain: seconds = 5 } = settings
    if (drain && seconds > 0) {
      gateway.drain()
      await pause(seconds * 1000, hurry)
    }
    const onFault = (err: unknown) => log.error({ err }, 'the stop failed')
    // What waits then is to be done in the time that is left.
    scheduler.open()
    const hung = await runSteps([{ what: 'calls under way', run: () => gateway.close(grace) }], { hurry, onFault })
    transport.close()
    await endpoint.close()
    return hung
  })
}

if (!answerArguments(usage)) {
  main().catch((error: Error) => {
    process.stderr.write(`${error.message}\n`)
    process.exit(1)
  })
}
