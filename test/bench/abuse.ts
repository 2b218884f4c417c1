/**
 * How a flood affects other clients: each flood of floods.ts compared with a quiet window of the same round, on a separate
 * service. The scenarios don't depend on how the service defends itself.
 */
import { type FloodName, floods, type Origin } from './floods.js'
import type { Goal, Prepared, Row, Segment } from './measure.js'
import { createOthers } from './others.js'
import { startFlood } from './processes.js'
import type { Scenarios } from './scenarios.js'
import { type Bench, serviceOn } from './world.js'

/** The origins of floods, in words. */
const origins: Readonly<Record<Origin, string>> = { one: 'one address', 48: 'a /48' }

/** A scenario for each of these floods (`all`: every one) from each origin that it has. */
export function abuse(names: readonly string[]): Scenarios {
  if (names.length === 0) throw new Error('Name a flood: --flood NAME, or --flood all.')
  const scenarios: Scenarios = {}
  for (const name of names.includes('all') ? Object.keys(floods) : names) {
    const flood = floods[name as FloodName]
    if (!flood) throw new Error(`There is no flood ${name}; there are ${Object.keys(floods).join(', ')}, and all.`)
    for (const origin of flood.origins) {
      const prepare = (bench: Bench) => beside(name as FloodName, origin, bench)
      scenarios[`${name} from ${origins[origin]}`] = { about: flood.about, prepare }
    }
  }
  return scenarios
}

/** The last numbers of the networks that floods come from; each window has separate ones, which were never blocked before. */
const firstNetwork = 100

async function beside(name: FloodName, origin: Origin, bench: Bench): Promise<Prepared> {
  const forwarded = origin === '48'
  const { service, world } = await serviceOn(bench, 2000, 10, {
    AUTH_ADMIN_ADDRESS: '127.0.0.1:0',
    ...(forwarded && { AUTH_TRUSTED_PROXIES: '127.0.0.0/8' }),
  })
  const others = createOthers({ ...world, forwarded })
  await others.warmUp(service)
  let windows = 0
  const quiet: Segment = scale => others.measure(service, bench.seconds * scale)
  const flood: Segment = async scale => {
    const seconds = bench.seconds * scale
    const attacker = startFlood()
    const victims = world.accounts.slice(0, 1000)
    const network = firstNetwork + windows++
    await attacker.ask({ port: service.http, flood: name, origin, network, victims, seconds: seconds + 2 })
    const flooding = attacker.ask('go')
    // All its connections are opened at once, and closed at once.
    const atStart = await others.slowest(service, 1)
    const sample = await others.measure(service, seconds)
    const atEnd = await others.slowest(service, 2)
    await flooding
    await attacker.stop()
    if (!service.alive()) throw new Error(`The flood ${name} has ended the service.`)
    await others.calm(service)
    return { ...sample, figures: { ...sample.figures, 'slowest me, ends': Math.max(atStart, atEnd) } }
  }
  return { rounds: 3, segments: { quiet, flood }, rows: rowsOf(name, origin) }
}

/** The rows of a flood, with its goals. */
function rowsOf(name: FloodName, origin: Origin): Row[] {
  const narrow = origin === 'one'
  const compared = { subject: 'flood', baseline: 'quiet' } as const
  const worst = { subject: 'flood', worst: true } as const
  const none = narrow && { goal: { most: 0 } as const }
  const wait: Goal = narrow ? { most: 2, orPlus: 15 } : { most: 3, orPlus: 30 }
  return [
    { ...compared, label: 'logins of known users', figure: 'perSecond', goal: { least: narrow ? 0.85 : 0.75 } },
    // A burst has a separate goal.
    name === 'burst'
      ? { ...worst, label: 'slowest me', figure: 'slowest me', goal: { most: 1000 } }
      : { ...compared, label: 'me, 50 a second', figure: 'me p99', goal: wait },
    { ...worst, label: 'slowest me as the flood begins or ends', figure: 'slowest me, ends', goal: { most: 1000 } },
    ...['newcomers', 'owners', 'administrators'].map(who => {
      return { ...worst, label: `${who} left out, of 3`, figure: `${who} left out`, ...none }
    }),
    { ...worst, label: 'probes not answered in 1 s', figure: 'probes', goal: { most: 0 } },
    { ...worst, label: 'most memory', figure: 'memory', goal: { most: 300 } },
  ]
}
