import type { Log } from './log.js'
import type { Registry } from './models/definemodels.js'
import { tidy } from './models/housekeeping.js'
import { publishLead } from './models/signingkey.js'

/** Milliseconds between two rounds. */
const interval = 10 * 60_000

/**
 * What has to be done from time to time: deletes what has lapsed and rotates signing keys that are of age.
 * Every replica does it; each step is safe when several do.
 */
export function startMaintenance(registry: Registry, settings: { tokenTtl: number }, log: Log): { stop(): void } {
  const { database, signingKeys, audit } = registry
  async function round() {
    await tidy(database)
    await signingKeys.prune()
    await database.transact(async t => {
      const kid = await signingKeys.rotate({ force: false, lead: publishLead, tokenTtl: settings.tokenTtl }, t)
      if (!kid) return
      const event = { action: 'signing-key.rotate', outcome: 'ok', reason: 'age', actor: 'service' } as const
      await audit.append({ ...event, object: `signing-key:${kid}` }, t)
    })
  }
  const timer = setInterval(() => {
    round().catch(error => log.warn({ err: error }, 'maintenance failed; it will be tried again'))
  }, interval)
  timer.unref()
  return { stop: () => clearInterval(timer) }
}
