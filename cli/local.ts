import { existsSync } from 'node:fs'
import { hostname, userInfo } from 'node:os'
import { join, resolve } from 'node:path'
import { fail } from './exit-codes.js'
import { say } from './terminal/output.js'
import { withProgress } from './terminal/progress.js'

/** A command's work on the database itself. */
export type Session = Awaited<ReturnType<typeof openSession>>

/** Signals on which a command closes the database before it ends. */
const signals = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT'] as const

/** How a registry is opened. */
export interface Opening {
  /** Creates the embedded database if it doesn't exist. */
  readonly create?: boolean
  /** False for a registry whose tables may be missing: its data keys aren't loaded. */
  readonly installed?: boolean
}

/** Names the database that a command is about to change, after `doing`, unless the command prints JSON. */
export async function announce(doing: string, { json }: { readonly json?: boolean }): Promise<string> {
  const database = await nameDatabase()
  if (!json) say(`${doing} ${database}.`)
  return database
}

/** The database of the settings, without secrets: its folder, or name, host and port. */
export async function nameDatabase(): Promise<string> {
  const [{ formatAddress, readSettings }, { readDatabaseUrl }] = await Promise.all([
    import('../server/process/settings.js'),
    import('../server/process/database-url.js'),
  ])
  const { databaseUrl, dataDir } = readSettings(process.env)
  if (!databaseUrl) return `the embedded database in ${resolve(dataDir)}`
  const { host, port, database } = readDatabaseUrl(databaseUrl).config
  return `the database ${database} at ${formatAddress({ host, port })}`
}

/** Opens the registry that the settings name, whether the service runs or not. The caller closes it. */
export async function openSession(opening: Opening = {}) {
  const { create = false, installed = !create } = opening
  const [{ readSettings }, { checkDataFolder }] = await Promise.all([
    import('../server/process/settings.js'),
    import('../server/process/data-folder.js'),
  ])
  const settings = readSettings(process.env)
  if (!settings.databaseUrl) await checkDataFolder(settings.dataDir)
  if (!create && !settings.databaseUrl && !existsSync(join(settings.dataDir, 'postgres'))) {
    fail(
      `There is no registry in ${settings.dataDir}: sign in to a server with \`auth-admin login\`, set DATABASE_URL or AUTH_DATA_DIR, or create a registry with \`auth-admin install\`.`,
      5,
    )
  }
  const [{ openLocalApplication }, { explainingRights }, { createLog }] = await Promise.all([
    import('../server/local-application.js'),
    import('../server/database/requirements.js'),
    import('../server/observability/log.js'),
  ])
  const level = settings.logLevel === 'info' ? 'warn' : settings.logLevel
  const log = createLog(level, line => {
    const { level, msg, rpc, err } = JSON.parse(line)
    // The command itself says why its call failed.
    if (!(rpc && err)) process.stderr.write(`${level}: ${msg}\n`)
  })
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
    if (installed) await explainingRights(local.registry.database, local.registry.dataKeys.load)
    // `actor` is for the audit log: `cli:<system user>@<host>`.
    return { ...local, settings, actor, seal, close }
  } catch (error) {
    await close()
    throw error
  }
}

/** Opens the registry for `work`, and closes it when the work has ended. */
export async function withRegistry<T>(work: (session: Session) => Promise<T>, opening?: Opening): Promise<T> {
  const session = await withProgress('Opening the database', () => openSession(opening))
  try {
    const { explainingRights } = await import('../server/database/requirements.js')
    const result = await explainingRights(session.registry.database, () => work(session))
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
