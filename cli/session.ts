import { existsSync } from 'node:fs'
import { userInfo } from 'node:os'
import { join } from 'node:path'
import type { Transaction } from '../server/database/connection.js'
import type { AuditEvent } from '../server/models/audit.js'
import type { Registry } from '../server/models/definemodels.js'
import type { Passwords } from '../server/passwords/hash.js'
import type { Settings } from '../server/settings.js'
import { fail } from './failure.js'

/** What a command works with. */
export interface Session {
  readonly settings: Settings
  readonly registry: Registry
  /** Who runs it, for the audit log: `cli:<system user>`. */
  readonly actor: string
  /**
   * Makes a change and appends its event to the audit log, in one transaction. `work` returns its result and the event;
   * without an event it changed nothing.
   */
  change<T>(work: (t: Transaction) => Promise<{ result: T; event?: Change }>): Promise<T>
}

/** Signals at which a command leaves the database before it ends. */
const signals = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT'] as const

/** An event without what is the same for all events of a command. */
export type Change = Pick<AuditEvent, 'action' | 'subject_id' | 'object' | 'reason'>

/**
 * Opens the registry that the settings name, whether the service runs or not, and closes it when `work` has ended.
 * `create` lets it make an embedded database that isn't there yet; `installed: false` is for a registry whose tables may
 * be missing: nothing can be sealed or opened in it.
 */
export async function withRegistry<T>(
  work: (session: Session) => Promise<T>,
  { create = false, installed = !create }: { create?: boolean; installed?: boolean } = {},
): Promise<T> {
  const { readSettings } = await import('../server/settings.js')
  const settings = readSettings(process.env)
  if (!create && !settings.databaseUrl && !existsSync(join(settings.dataDir, 'postgres'))) {
    fail(
      `There is no registry in ${settings.dataDir}: run \`auth-admin install\` first, or set DATABASE_URL or AUTH_DATA_DIR.`,
    )
  }
  const [{ openRegistry }, { createLog }] = await Promise.all([
    import('../server/models/definemodels.js'),
    import('../server/log.js'),
  ])
  const level = settings.logLevel === 'info' ? 'warn' : settings.logLevel
  const log = createLog(level, line => process.stderr.write(`${JSON.parse(line).level}: ${JSON.parse(line).msg}\n`))
  const registry = await openRegistry(settings, { log, connections: 3 })
  const stop = () => void registry.close().finally(() => process.exit(130))
  for (const signal of signals) process.once(signal, stop)
  const actor = `cli:${systemUser()}`
  let changes = create
  try {
    if (installed) await registry.masterKey.load()
    const result = await work({
      settings,
      registry,
      actor,
      change: work => {
        changes = true
        return registry.database.transact(async t => {
          const { result, event } = await work(t)
          if (event) await registry.audit.append({ ...event, outcome: 'ok', actor }, t)
          return result
        })
      },
    })
    // Perhaps no service runs that would do it; what is left then waits for one.
    while (changes && (await registry.audit.seal().catch(() => false)));
    return result
  } finally {
    for (const signal of signals) process.off(signal, stop)
    await registry.close()
  }
}

/** Runs `work` with what hashes passwords, on one thread that ends with it. */
export async function withPasswords<T>(
  { settings, registry }: Pick<Session, 'settings' | 'registry'>,
  work: (passwords: Passwords) => Promise<T>,
): Promise<T> {
  const [{ createPool }, { createPasswords }] = await Promise.all([
    import('../server/passwords/pool.js'),
    import('../server/passwords/hash.js'),
  ])
  const cost = settings.bcryptCost
  const pool = createPool({ cost, count: 1, patience: 60_000 })
  try {
    return await work(createPasswords({ pepper: registry.masterKey.pepper, cost, pool }))
  } finally {
    await pool.close()
  }
}

/** A user id without a name (in a container) stands for itself. */
function systemUser(): string {
  try {
    return userInfo().username
  } catch {
    return String(process.getuid?.() ?? 'unknown')
  }
}
