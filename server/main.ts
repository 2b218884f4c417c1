#!/usr/bin/env -S node --max-semi-space-size=8 --max-old-space-size=512
/** `auth-server`: the service as a process. `npm start` runs it, too. */

import { resolveDatabase, type Source } from './database/database-choice.js'
import { createLog, type Log } from './observability/log.js'
import { checkPorts } from './process/check-ports.js'
import { checkDataFolder, openDataFolder } from './process/data-folder.js'
import { warnOfRisks } from './process/risky-settings.js'
import { formatAddress, httpUrl, isLocalUrl, metricsUrl, readSettings, type Settings } from './process/settings.js'
import { grace, pause, stopOnSignals } from './process/stopping.js'
import { answerArguments } from './process/usage.js'
import { warnOfNode } from './process/version.js'
import { commandOf, named } from './rules/remedies.js'
import type { Service } from './service.js'

const usage = `auth-server: the registry of users over HTTP and gRPC

Environment variables:
  DATABASE_URL                            PostgreSQL; unset: an embedded one in AUTH_DATA_DIR
  AUTH_MASTER_KEY                         wraps the keys of the registry
  AUTH_ISSUER                             URL of the registry for clients, in tokens
  AUTH_HTTP_ADDRESS                       address of the HTTP port; off behind an auth-gateway
  AUTH_GRPC_ADDRESS                       address of the gRPC port
  AUTH_METRICS_ADDRESS                    address of metrics for Prometheus, and of /healthz and /readyz for probes
  AUTH_HTTP_TLS_CERT, AUTH_HTTP_TLS_KEY   certificate for HTTP clients: enables HTTPS
  AUTH_TLS_CERT, AUTH_TLS_KEY             certificate of the other ports: enables TLS
  AUTH_TLS_CA                             authority of the certificates that gRPC callers must present
  AUTH_TRUSTED_PROXIES                    addresses of load balancers, and of gateways that present no certificate
and all other settings except AUTH_SERVER_*.
`

/** Starts, prints the addresses, and stops on a signal. */
async function main(): Promise<void> {
  const settings = readSettings(process.env)
  const log = createLog(settings.logLevel)
  warnOfNode(log)
  warnOfRisks(settings, log)
  const { grpcAddress, httpAddress, metricsAddress, adminAddress } = settings
  await checkPorts({
    AUTH_GRPC_ADDRESS: grpcAddress,
    AUTH_HTTP_ADDRESS: httpAddress,
    AUTH_METRICS_ADDRESS: metricsAddress,
    AUTH_ADMIN_ADDRESS: adminAddress,
  })
  await checkFolder(settings)
  const stopping = new AbortController()
  const { signal } = stopping
  let database!: Promise<Source>
  // An embedded database starts while the rest is loaded. Loading blocks this thread, so the launch goes first.
  const launched = new Promise<unknown>(resolve => {
    database = resolveDatabase(settings, log, { onLaunch: () => resolve(undefined), signal })
    database.then(resolve, resolve)
  })
  const starting = launched.then(() => start(settings, log, { at: database, signal }))
  stopOnSignals(log, settings.drain ?? (settings.databaseUrl ? 5 : 0), async ({ drain, hurry }) => {
    stopping.abort()
    const service = await Promise.race([
      starting.catch(() => undefined),
      pause(grace, hurry).then(() => 'late' as const),
    ])
    if (service === 'late') {
      // A database that this process launched must not outlive it. A start that was given up has ended its own.
      await (await database.catch(() => undefined))?.stop()
      return ['the start']
    }
    if (drain > 0 && service) {
      service.drain()
      await pause(drain * 1000, hurry)
    }
    return service?.stop(hurry) ?? []
  })

  const service = await starting.catch(error => {
    // A stop during the start makes it fail: that is no error.
    if (signal.aborted) return undefined
    throw error
  })
  if (service && !httpAddress && !settings.issuer && isLocalUrl(service.installation.tokens.issuer))
    log.warn(
      { issuer: service.installation.tokens.issuer },
      `AUTH_ISSUER is not set, and the issuer of tokens is an address of this machine: unless the gateway listens there, run ${named('set issuer')} with the URL of the gateway`,
    )
  if (service && !signal.aborted) process.stderr.write(await greeting(service, settings))
}

/** Loads the service, and starts it. */
async function start(settings: Settings, log: Log, options: { at: Promise<Source>; signal: AbortSignal }) {
  const [{ startService }, { createGateway }] = await Promise.all([
    import('./service.js'),
    import('../gateway/http.js'),
  ])
  return startService(settings, log, createGateway, options)
}

/**
 * Checks the data folder. A service with its own database uses it for e-mails if there is no mail server, and may start without
 * one that no setting names: a container often has no folder to write to.
 */
async function checkFolder({ dataDir, databaseUrl, smtpUrl, origins }: Settings): Promise<void> {
  const named = origins.settings.some(({ name, origin }) => name === 'AUTH_DATA_DIR' && origin !== 'default')
  if (databaseUrl && (smtpUrl || !named)) await checkDataFolder(dataDir)
  else await openDataFolder(dataDir)
}

/** What a user needs first: addresses, administrator, and a request to try. */
async function greeting({ addresses, installation, passwordFile }: Service, settings: Settings): Promise<string> {
  const { password, administrator, tokens } = installation
  const admin = settings.adminUsername
  const file = await passwordFile
  const http = addresses.http && httpUrl(settings, addresses.http)
  const lines = [
    `gRPC     ${formatAddress(addresses.grpc)}`,
    http && `HTTP     ${http}`,
    addresses.metrics && `metrics  ${metricsUrl(settings, addresses.metrics)}`,
    http && tokens.issuer !== http && `issuer   ${tokens.issuer} (see ${commandOf('see issuer')})`,
    addresses.admin &&
      `login    ${commandOf('sign in', { URL: `${settings.tlsCert ? 'https' : 'http'}://${formatAddress(addresses.admin)}` })}`,
    // Without a terminal, a log may keep what is written here.
    password && process.stderr.isTTY
      ? `admin    ${administrator}, password ${password.text} (kept in ${password.file})`
      : `admin    ${admin}${file ? `, password kept in ${file}` : ''}`,
    http && file && `try      curl '${http}/users/login' -d username=${admin} --data-urlencode password@${file}`,
    file && `         ${commandOf('create organization')}`,
    file && `         ${commandOf('diagnose')}`,
    http && !file && `try      curl '${http}/forgotpasswords/findallforgotpasswordquestions'`,
  ]
  return `${lines.filter(Boolean).join('\n')}\n`
}

if (!answerArguments(usage)) {
  main().catch((error: Error) => {
    process.stderr.write(`${process.env.AUTH_LOG_LEVEL === 'debug' ? error.stack : error.message}\n`)
    process.exit(1)
  })
}
