#!/usr/bin/env -S node --max-semi-space-size=8
/** `auth-gateway`: the gateway as a process of its own, in front of servers that run elsewhere. */
import { followCertificates } from '../server/certificates.js'
import { createLog } from '../server/log.js'
import { httpUrl, readSettings } from '../server/settings.js'
import { grace, pause, runSteps, stopOnSignals } from '../server/stopping.js'
import { answerArguments } from '../server/usage.js'
import { createGateway } from './http.js'
import { createRemoteTransport } from './remote.js'

const usage = `auth-gateway: HTTP in front of one or more auth-server

It is set by the environment:
  AUTH_SERVER_URL                         gRPC servers: host:port, several IP addresses with ports, dns:///name:port
  AUTH_SERVER_NAME                        name that their certificates carry, where the host of the URL is another
  AUTH_TLS_CA                             authority of their certificates: turns on TLS towards them
  AUTH_TLS_CERT, AUTH_TLS_KEY             what the gateway presents to them
  AUTH_HTTP_ADDRESS                       where it listens
  AUTH_HTTP_TLS_CERT, AUTH_HTTP_TLS_KEY   what it presents to clients: turns on HTTPS
  AUTH_TRUSTED_PROXIES, AUTH_CORS_ORIGINS, AUTH_DEFAULT_REVISION, AUTH_LIMIT_FACTOR, AUTH_DRAIN, AUTH_LOG_LEVEL
`

async function main(): Promise<void> {
  const settings = readSettings(process.env)
  const { httpAddress: address, serverUrl: target, serverName } = settings
  if (!address) throw new Error('AUTH_HTTP_ADDRESS is off: there is nothing for a gateway to do.')
  const log = createLog(settings.logLevel)
  const { tlsCert: cert, tlsKey: key, tlsCa: ca, httpTlsCert, httpTlsKey } = settings
  // Without an authority nothing would tell a server from anybody else: then there is no TLS.
  const certificates = ca ? followCertificates({ cert, key, ca }, log) : undefined
  const { secure } = httpTlsCert ? followCertificates({ cert: httpTlsCert, key: httpTlsKey }, log) : {}
  const transport = createRemoteTransport({ target, serverName, ...(certificates && { certificates }) })
  const { defaultRevision, trustedProxies, corsOrigins, limitFactor } = settings
  const gateway = createGateway({
    transport,
    address,
    ...(secure && { secure }),
    defaultRevision,
    trustedProxies,
    corsOrigins,
    limitFactor,
    log,
  })

  process.stderr.write(`HTTP     ${httpUrl(settings, await gateway.listen())}\nservices ${target}\n`)
  stopOnSignals(async ({ drain, hurry }) => {
    const { drain: seconds = 5 } = settings
    if (drain && seconds > 0) {
      gateway.drain()
      await pause(seconds * 1000, hurry)
    }
    const onFault = (err: unknown) => log.error({ err }, 'the stop failed')
    const hung = await runSteps([{ what: 'calls under way', run: () => gateway.close(grace) }], { hurry, onFault })
    transport.close()
    return hung
  })
}

if (!answerArguments(usage)) {
  main().catch((error: Error) => {
    process.stderr.write(`${error.message}\n`)
    process.exit(1)
  })
}
