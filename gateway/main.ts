#!/usr/bin/env -S node --max-semi-space-size=8 --max-old-space-size=512
/** `auth-gateway`: the gateway as a separate process, for an edge without keys and database. */
import { create } from '@bufbuild/protobuf'
import { createScheduler, noHashing, schedulerLimits } from '../server/limits/scheduler.js'
import { createLog } from '../server/observability/log.js'
import { createMetricsEndpoint } from '../server/observability/metrics-endpoint.js'
import { createUndeclaredProxies } from '../server/observability/undeclared-proxy.js'
import { followCertificates } from '../server/process/certificates.js'
import { checkPorts } from '../server/process/check-ports.js'
import { httpUrl, isLocalTarget, metricsUrl, readSettings } from '../server/process/settings.js'
import { createStop, grace, pause, stopOnSignals } from '../server/process/stopping.js'
import { answerArguments } from '../server/process/usage.js'
import { warnOfNode } from '../server/process/version.js'
import { createGateway } from './http.js'
import { readiness } from './operations.js'
import { createRemoteTransport, maxStreams } from './remote.js'

const usage = `auth-gateway: HTTP without keys and database, in front of auth-server

Environment variables:
  AUTH_SERVER_URL                         the gRPC server, or a load balancer before several: host:port or
                                          dns:///name:port
  AUTH_SERVER_NAME                        name in their certificates, if it differs from the host of the URL
  AUTH_TLS_CA                             authority of their certificates: enables TLS to them
  AUTH_TLS_CERT, AUTH_TLS_KEY             certificate of the gateway for them, and for Prometheus
  AUTH_HTTP_ADDRESS                       address of the HTTP port
  AUTH_HTTP_TLS_CERT, AUTH_HTTP_TLS_KEY   certificate of the gateway for clients: enables HTTPS
  AUTH_METRICS_ADDRESS                    address of metrics for Prometheus, and of /healthz and /readyz
                                          for probes; default 127.0.0.1:9091
  AUTH_TRUSTED_PROXIES, AUTH_CORS_ORIGINS, AUTH_DEFAULT_REVISION, AUTH_COMPATIBILITY, AUTH_DOCS, AUTH_DRAIN,
  AUTH_LOG_LEVEL
`

/** Default address of metrics: a server on the same machine uses the previous port. */
const defaultMetricsAddress = '127.0.0.1:9091'

async function main(): Promise<void> {
  const settings = readSettings({
    ...process.env,
    AUTH_METRICS_ADDRESS: process.env.AUTH_METRICS_ADDRESS || defaultMetricsAddress,
  })
  const { httpAddress: address, metricsAddress, serverUrl: target, serverName } = settings
  if (!address) throw new Error('AUTH_HTTP_ADDRESS is off, but a gateway needs an HTTP port.')
  await checkPorts({ AUTH_HTTP_ADDRESS: address, AUTH_METRICS_ADDRESS: metricsAddress })
  const log = createLog(settings.logLevel)
  warnOfNode(log)
  const { tlsCert: cert, tlsKey: key, tlsCa: ca, httpTlsCert, httpTlsKey } = settings
  const certificates = cert || ca ? followCertificates({ cert, key, ca }, log) : undefined
  const httpCertificates = httpTlsCert
    ? followCertificates({ cert: httpTlsCert, key: httpTlsKey }, log, 'AUTH_HTTP_TLS')
    : undefined
  // Without an authority servers can't be authenticated: then there is no TLS.
  if (!ca && !isLocalTarget(target))
    log.warn(
      'AUTH_SERVER_URL names other machines, and AUTH_TLS_CA is not set: passwords and tokens pass in clear text',
    )
  const transport = createRemoteTransport({ target, serverName, log, ...(ca && certificates && { certificates }) })
  const endpoint = createMetricsEndpoint()
  if (certificates) endpoint.watchCertificate('servers', certificates.endsAt)
  if (httpCertificates) endpoint.watchCertificate('http', httpCertificates.endsAt)
  // Calls beyond the streams of a connection wait here, fairly by network.
  const scheduler = createScheduler({ ...schedulerLimits, slots: maxStreams }, noHashing)
  endpoint.watchScheduler(scheduler.stats)
  const gateway = createGateway({
    transport,
    scheduler,
    address,
    secure: httpCertificates?.secure,
    settings,
    onSender: createUndeclaredProxies({ registry: endpoint.registry, log, now: Date.now }).watch('http'),
    log,
    registry: endpoint.registry,
  })

  let draining = false
  endpoint.watchReady(async () => {
    if (draining) return false
    const { rpc, timeout, holds } = readiness
    const { message } = await transport.unary(rpc, undefined, timeout, undefined, create(rpc.input))
    return holds(message)
  })
  const secure = cert ? certificates?.secure : undefined
  const http = httpUrl(settings, await gateway.listen())
  // Opened last, because its `/readyz` reports that the HTTP port is open.
  const port = metricsAddress && (await endpoint.listen(metricsAddress, secure))
  const shown = metricsAddress && port && `metrics  ${metricsUrl(settings, { ...metricsAddress, port })}\n`
  stopOnSignals(log, settings.drain ?? 5, async ({ drain, hurry }) => {
    draining = true
    transport.endWaits()
    if (drain > 0) {
      gateway.drain()
      await pause(drain * 1000, hurry)
    }
    const onFault = (err: unknown) => log.error({ err }, 'the stop failed')
    // Waiting requests begin now, to finish in the remaining time.
    scheduler.open()
    const { onStop, stop } = createStop(onFault)
    onStop('calls in progress', () => gateway.close(grace))
    const hung = await stop(hurry)
    transport.close()
    await endpoint.close()
    return hung
  })
  // After the signal handlers, because a supervisor may send a signal as soon as it reads this.
  process.stderr.write(`HTTP     ${http}\n${shown ?? ''}services ${target}\n`)
}

if (!answerArguments(usage)) {
  main().catch((error: Error) => {
    process.stderr.write(`${error.message}\n`)
    process.exit(1)
  })
}
