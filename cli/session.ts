import { existsSync } from 'node:fs'
import { hostname, userInfo } from 'node:os'
import { join } from 'node:path'
import type { LocalApplication } from '../server/local-application.js'
import type { Settings } from '../server/process/settings.js'
import { fail } from './exit-codes.js'

/** A command's work on the database itself. */
export interface Session extends LocalApplication {
  readonly settings: Settings
  /** Who runs the command, for the audit log: `cli:<system user>@<host>`. */
  readonly actor: string
}

/** Signals on which a command closes the database before it ends. */
const signals = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT'] as const

/** How a registry is opened. */
export interface Opening {
  /** Creates the embedded database if it doesn't exist. */
  readonly create?: boolean
  /** False for a registry whose tables may be missing: its data keys aren't loaded. */
  readonly installed?: boolean
}

/** Opens the registry that the settings name, whether the service runs or not. The caller closes it. */
export async function openSession(opening: Opening = {}): Promise<Session> {
  const { create = false, installed = !create } = opening
  const { readSettings } = await import('../server/process/settings.js')
  const settings = readSettings(process.env)
  if (!create && !settings.databaseUrl && !existsSync(join(settings.dataDir, 'postgres'))) {
    fail(
      `There is no registry in ${settings.dataDir}: run \`auth-admin install\` first, or set DATABASE_URL or AUTH_DATA_DIR.`,
    )
  }
  const [{ openLocalApplication }, { createLog }] = await Promise.all([
    import('../server/local-application.js'),
    import('../server/observability/log.js'),
  ])
  const level = settings.logLevel === 'info' ? 'warn' : settings.logLevel
  const log = createLog(level, line => process.stderr.write(`${JSON.parse(line).level}: ${JSON.parse(line).msg}\n`))
  const actor = `cli:${systemUser()}@${hostname()}`
  const local = await openLocalApplication(settings, { log, actor })
  let stopped = false
  const stop = () => {
    stopped = true
    void local.close().finally(() => process.exit(130))
  }
  for (const signal of signals) process.once(signal, stop)
  // After a signal, calls in flight fail because the database is closed. The process ends before they report that.
  const unlessStopped = <T>(work: () => Promise<T>) => (stopped ? new Promise<never>(() => {}) : work())
  const seal = () => unlessStopped(local.seal)
  const close = () =>
    unlessStopped(async () => {
      for (const signal of signals) process.off(signal, stop)
      await local.close()
    })
  try {
    if (installed) await local.registry.masterKey.load()
    return { ...local, settings, actor, seal, close }
  } catch (error) {
    await close()
    throw error
  }
}

/** Opens the registry for `work`, and closes it when the work has ended. */
export async function withRegistry<T>(work: (session: Session) => Promise<T>, opening?: Opening): Promise<T> {
  const session = await openSession(opening)
  try {
    const result = await work(session)
    await session.seal()
    return result
  } finally {
    await session.close()
  }
}

/** The name of the system user, or its id where it has no name, as in a container. */
function systemUser(): string {
  try {
    return userInfo().username
  } catch {
    return String(process.getuid?.() ?? 'unknown')
  }
}
