/** Logins, which are mostly hashing: at full speed, and beside light calls. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Prepared, Row, Segment } from './measure.js'
import { startBaseline, startLoad } from './processes.js'
import { settled, underLoad } from './segments.js'
import { type Bench, serviceOn } from './world.js'

/** Logins at cost 10 and 12, and `me` beside 64 and 200 of them. */
export async function logins(bench: Bench): Promise<Prepared> {
  const baseline = await startBaseline('bcrypt')
  const [load, lightLoad] = [startLoad(), startLoad()]
  const segments: Record<string, Segment> = {}
  const rows: Row[] = []
  for (const cost of [10, 12]) {
    const { service, world } = await serviceOn(bench, 1000, cost)
    const on = { endpoint: 'http', port: service.http } as const
    const crowd = { ...world, accounts: world.accounts.slice(0, 400), addresses: 200 }
    // Until then as many logins start while none ends.
    const lead = 1.5
    const storm = (connections: number, seconds: number) =>
      underLoad(load, [service], { ...on, world: crowd, operation: 'login', connections, seconds, lead })
    const openLoop = { operation: 'me', connections: 64, rate: 50, seconds: 20 } as const
    const me = underLoad(lightLoad, [service], { ...on, ...openLoop, world })
    const meBeside =
      (clients: number): Segment =>
      async scale => {
        const logins = storm(clients, 20)(scale)
        await sleep(lead * 1000 * scale)
        const sample = await me(scale)
        const { figures, errors } = await logins
        const perSecond = figures.perSecond!
        return { ...sample, figures: { ...sample.figures, perSecond }, errors: { ...sample.errors, ...errors } }
      }
    const [alone, bare, full] = [`me alone ${cost}`, `bcrypt ${cost}`, `logins ${cost}`]
    segments[alone] = me
    segments[bare] = async scale => ({ figures: await baseline.ask({ cost, seconds: (cost === 10 ? 4 : 6) * scale }) })
    segments[full] = settled(storm(200, cost === 10 ? 4 : 7))
    const least = cost === 10 ? 0.93 : 0.95
    const ofLogins = { figure: 'perSecond', goal: { least } } as const
    rows.push({ label: `logins, cost ${cost} ÷ bare bcrypt`, subject: full, baseline: bare, ...ofLogins })
    for (const clients of [64, 200]) {
      const subject = `me beside ${clients} logins, cost ${cost}`
      segments[subject] = settled(meBeside(clients))
      rows.push({ label: subject, subject, baseline: alone, figure: 'p99', goal: { most: 2 } })
    }
    const beside = { subject: `me beside 200 logins, cost ${cost}`, baseline: full, figure: 'perSecond' }
    rows.push({ label: `logins beside me, cost ${cost}`, ...beside, goal: { least: 0.95 } })
  }
  return { segments, rows }
}
