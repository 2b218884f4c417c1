import { existsSync } from 'node:fs'
import module from 'node:module'
import { adminPasswordFile, resolveDatabase } from './database/source.js'
import { createLog } from './log.js'
import type { Service } from './service.js'
import { readSettings, type Settings, write } from './settings.js'

// Compiled code is kept for the next start, by versions of Node.js that can (22.8 and newer).
;(module as { enableCompileCache?: () => void }).enableCompileCache?.()

/** The service as a process: starts, says where it is, and stops on SIGINT or SIGTERM. */
async function main(): Promise<void> {
  const settings = readSettings(process.env)
  const log = createLog(settings.logLevel)
  if (settings.recoveryEmail === 'any') {
    log.warn(
      'AUTH_RECOVERY_EMAIL=any: whoever knows a username can have a recovery key sent to an address of their own',
    )
  }
  if (settings.bcryptCost < 10) log.warn('AUTH_BCRYPT_COST is below 10: hashes are cheap to guess at')

  let stoppingSince: number | undefined
  // The database comes up while the rest is loaded. Loading keeps this thread busy, so the launch goes first.
  let launched = () => {}
  const launch = new Promise<void>(resolve => {
    launched = resolve
  })
  const at = resolveDatabase(settings, log, launched)
  at.then(launched, launched)
  const starting = launch
    .then(() => import('./service.js'))
    .then(({ startService }) => startService(settings, log, { at }))
  const stop = async () => {
    if (stoppingSince !== undefined) {
      // npm passes on the Ctrl-C that the terminal has sent already. A later signal ends the process at once.
      if (Date.now() - stoppingSince > 1000) process.exit(1)
      return
    }
    stoppingSince = Date.now()
    const service = await starting.catch(() => undefined)
    await service?.stop()
    process.exit(0)
  }
  process.on('SIGINT', stop)
  process.on('SIGTERM', stop)

  const service = await starting
  if (stoppingSince === undefined) process.stderr.write(greeting(service, settings))
}

/** What a user needs to know first. */
function greeting({ addresses, installation }: Service, settings: Settings): string {
  const { password, administrator } = installation
  const admin = settings.adminUsername
  const made = adminPasswordFile(settings.dataDir)
  const file = existsSync(made) ? made : undefined
  const http = addresses.http && `http://${write(addresses.http)}`
  const lines = [
    `gRPC     ${write(addresses.grpc)}`,
    http && `HTTP     ${http}`,
    addresses.metrics && `metrics  http://${write(addresses.metrics)}/metrics`,
    password && `admin    ${administrator}, password ${password.text} (kept in ${password.file})`,
    !password && `admin    ${admin}${file ? `, password kept in ${file}` : ''}`,
    http && file && `try      curl '${http}/users/login' -d username=${admin} --data-urlencode password@${file}`,
    http && !file && `try      curl '${http}/forgotpasswords/findallforgotpasswordquestions'`,
  ]
  return `${lines.filter(Boolean).join('\n')}\n`
}

main().catch((error: Error) => {
  process.stderr.write(`${process.env.AUTH_LOG_LEVEL === 'debug' ? error.stack : error.message}\n`)
  process.exit(1)
})
