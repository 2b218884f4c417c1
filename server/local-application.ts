// The application as the command line has it on the database itself: to install, in emergencies, and for what is done while
// no service runs. A caller who holds the database's password and the master key needs no sign-in.
import { createApplication } from './application.js'
import { createInProcessTransport } from './calls/in-process.js'
import type { Transaction } from './database/database.js'
import type { AuditEvent } from './models/audit.js'
import { openRegistry } from './models/index.js'
import type { Log } from './observability/log.js'
import { createHashing } from './passwords/index.js'
import { firstIssuer, type Settings } from './process/settings.js'

/** An event without the fields that all events of a command share. */
type Change = Pick<AuditEvent, 'action' | 'subject_id' | 'object' | 'reason'>

/** Connections of a command. */
const connections = 3

/** Milliseconds that a hash may wait. */
const maxWaitMs = 60_000

/** Opens the registry that the settings name, for what a command does with it. `actor` names in the audit log who runs the command. */
export async function openLocalApplication(settings: Settings, { log, actor }: { log: Log; actor: string }) {
  const registry = await openRegistry(settings, { log, connections })
  const { database, audit, tokenIssuers } = registry
  const processNow = () => performance.now()
  const hashing = createHashing(registry, settings, { now: processNow, count: 1, maxWaitMs })
  return {
    registry,
    /** Hashes passwords on one thread. */
    passwords: hashing.passwords,
    /**
     * Makes a change and appends its event to the audit log, in one transaction. `work` returns its result and the event;
     * without an event it changed nothing.
     */
    change: <T>(work: (t: Transaction) => Promise<{ result: T; event?: Change }>): Promise<T> =>
      database.transact(async t => {
        const { result, event } = await work(t)
        if (event) await audit.append({ ...event, outcome: 'ok', actor }, t)
        return result
      }),
    /** Opens Administration. It needs the data keys. `reason` is for the audit log. */
    async administer(reason?: string) {
      // `doctor` runs without a database, too.
      const tokenIssuer = (await tokenIssuers.find().catch(() => undefined)) ?? firstIssuer(settings)
      const { administration } = createApplication({
        registry,
        settings,
        hashing,
        tokenIssuer,
        now: Date.now,
        processNow,
        log,
        ready: async () => true,
        observe() {},
        refused() {},
      })
      return createInProcessTransport(administration, { local: { actor, reason } })
    },
    /** Seals the events that were appended: perhaps no service runs that does. Events that can't be sealed stay staged. */
    async seal() {
      while (await audit.seal().catch(() => false));
    },
    async close() {
      await hashing.pool.close()
      await registry.close()
    },
  }
}
