// The registry as a command on the database itself holds it: for what has to be done before a service runs, or beside it.
import type { Transaction } from './database/connection.js'
import type { AuditEvent } from './models/audit.js'
import { openRegistry, type Registry } from './models/define-models.js'
import type { Log } from './observability/log.js'
import { createPasswords, type Passwords } from './passwords/hash.js'
import { createPool } from './passwords/pool.js'
import type { Settings } from './process/settings.js'

export type { Registry }

/** An event without what is the same for all events of a command. */
export type Change = Pick<AuditEvent, 'action' | 'subject_id' | 'object' | 'reason'>

/** A registry that is open. */
export interface LocalRegistry {
  readonly registry: Registry
  /**
   * Makes a change and appends its event to the audit log, in one transaction. `work` returns its result and the event;
   * without an event it changed nothing.
   */
  change<T>(work: (t: Transaction) => Promise<{ result: T; event?: Change }>): Promise<T>
  /** Runs `work` with what hashes passwords, on one thread that ends with it. */
  withPasswords<T>(work: (passwords: Passwords) => Promise<T>): Promise<T>
  /** Seals what was appended: perhaps no service runs that would do it. What is left then waits for one. */
  seal(): Promise<void>
  close(): Promise<void>
}

/** Connections of a command. */
const connections = 3

/** Milliseconds that a hash may wait on a command line. */
const maxWaitMs = 60_000

/** Opens the registry that the settings name. `actor` is who does it, for the audit log. */
export async function openLocalRegistry(
  settings: Settings,
  { log, actor }: { log: Log; actor: string },
): Promise<LocalRegistry> {
  const registry = await openRegistry(settings, { log, connections })
  const { database, audit, masterKey } = registry
  return {
    registry,
    change: work =>
      database.transact(async t => {
        const { result, event } = await work(t)
        if (event) await audit.append({ ...event, outcome: 'ok', actor }, t)
        return result
      }),
    async withPasswords(work) {
      const { bcryptCost: cost } = settings
      const pool = createPool({ cost, count: 1, maxWaitMs })
      try {
        return await work(createPasswords({ pepper: masterKey.pepper, cost, pool }))
      } finally {
        await pool.close()
      }
    },
    async seal() {
      while (await audit.seal().catch(() => false));
    },
    close: registry.close,
  }
}
