/**
 * How a flood affects other clients: each flood of floods.ts compared with a quiet window of the same round, on a separate
 * service. The scenarios don't depend on how the service defends itself.
 */
import { type FloodName, floodNames, floodOf, type Origin } from './floods.js'
import type { Goal, Prepared, Row, Segment } from './measure.js'
import { createOthers } from './others.js'
import { type ServiceProcess, startFlood } from './processes.js'
import type { Scenarios } from './segments.js'
import { type Bench, serviceOn } from './world.js'

/** The origins of floods, in words. */
const origins: Readonly<Record<Origin, string>> = { one: 'one address', 48: 'a /48' }

/** A scenario for each of these floods (`all`: every one) from each origin that it has. */
export function abuse(names: readonly string[]): Scenarios {
  if (names.length === 0) throw new Error('Name a flood: --flood NAME, or --flood all.')
  const scenarios: Scenarios = {}
  for (const name of names.includes('all') ? floodNames : names) {
    if (!isFlood(name)) throw new Error(`There is no flood ${name}; there are ${floodNames.join(', ')}, and all.`)
    const { about, origins: own } = floodOf(name)
    for (const origin of own) {
      const title = `${name} from ${origins[origin]}`
      scenarios[title] = { about, byDefault: false, prepare: bench => beside(name, origin, bench) }
    }
  }
  return scenarios
}

function isFlood(name: string): name is FloodName {
  return (floodNames as readonly string[]).includes(name)
}

/** The last numbers of the networks that floods come from; each window has separate ones, which were never blocked before. */
const firstNetwork = 100

async function beside(name: FloodName, origin: Origin, bench: Bench): Promise<Prepared> {
  const forwarded = origin === '48'
  const { world, again, ...first } = await serviceOn(bench, 2000, bench.cost, {
    AUTH_ADMIN_ADDRESS: '127.0.0.1:0',
    ...(forwarded && { AUTH_TRUSTED_PROXIES: '127.0.0.0/8' }),
  })
  const others = createOthers({ ...world, forwarded })
  let { service } = first
  await others.warmUp(service)

  const quiet: Segment = async scale => others.measure(await running(), bench.seconds * scale)

  let windows = 0
  const flood: Segment = async scale => {
    const { http: port } = await running()
    const seconds = bench.seconds * scale
    const attacker = startFlood()
    const victims = world.accounts.slice(0, 1000)
    await attacker.ask({ port, flood: name, origin, network: firstNetwork + windows++, victims, seconds })
    const [, sample] = await Promise.all([attacker.ask('go'), others.measure(service, seconds)])
    await attacker.stop()
    await others.calm(service)
    return sample
  }

  /** The service; a new one if a flood has ended it. */
  async function running(): Promise<ServiceProcess> {
    if (service.alive()) return service
    service = await again()
    await others.warmUp(service)
    return service
  }

  return { rounds: 3, segments: { quiet, flood }, rows: rowsOf(name, origin) }
}

/** The rows of a flood, with its goals. */
function rowsOf(name: FloodName, origin: Origin): Row[] {
  const narrow = origin === 'one'
  const compared = { subject: 'flood', baseline: 'quiet' } as const
  const worst = { subject: 'flood', worst: 'greatest' } as const
  const least = { subject: 'flood', worst: 'least' } as const
  const none = narrow && { goal: { most: 0 } as const }
  const wait: Goal = narrow ? { most: 2, orPlus: 15 } : { most: 3, orPlus: 30 }
  const all: Goal = { least: 1 }
  return [
    { ...compared, label: 'logins of known users', figure: 'perSecond', goal: { least: narrow ? 0.85 : 0.75 } },
    // A burst has a separate goal.
    name === 'burst'
      ? { ...worst, label: 'slowest me', figure: 'slowest me', goal: { most: 1000 } }
      : { ...compared, label: 'me, 50 a second', figure: 'me p99', goal: wait },
    ...['newcomers', 'owners', 'administrators'].map(who => {
      return { ...worst, label: `${who} left out, of 3`, figure: `${who} left out`, ...none }
    }),
    { ...least, label: 'probes of the metrics port in 1 s', figure: 'probes', goal: all },
    { ...worst, label: 'most memory', figure: 'memory', goal: { most: 300 } },
    { ...least, label: 'the process lives', figure: 'alive', goal: all },
  ]
}
