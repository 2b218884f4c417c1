/**
 * How a flood affects other clients: each flood of floods.ts compared with a quiet window of the same round, on a separate
 * service. The scenarios don't depend on how the service defends itself.
 */
import type { FloodReport } from './flood.js'
import { type FloodName, floodNames, floodOf, type Origin } from './floods.js'
import type { Goal, Prepared, Row, Segment } from './measure.js'
import { createOthers } from './others.js'
import { type ServiceProcess, startFlood } from './processes.js'
import type { Scenarios } from './segments.js'
import { type Bench, serviceOn } from './world.js'

/** The origins of floods, as values of `--from` and in words. */
const origins: Readonly<Record<Origin, string>> = {
  one: 'one address',
  50: '50 addresses',
  48: 'a /48',
}

/** A scenario for each flood (`all`: every one) from each given origin that it supports; by default from all of them. */
export function abuse(names: readonly string[], from: readonly string[] = Object.keys(origins)): Scenarios {
  if (names.length === 0) throw new Error('Name a flood: --flood NAME, or --flood all.')
  const scenarios: Scenarios = {}
  for (const name of names.includes('all') ? floodNames : names) {
    if (!isFlood(name)) throw new Error(`There is no flood ${name}; there are ${floodNames.join(', ')}, and all.`)
    const { about, origins: own } = floodOf(name)
    for (const origin of own.filter(each => from.includes(each))) {
      const title = `${name} from ${origins[origin]}`
      scenarios[title] = { about, byDefault: false, prepare: bench => beside(name, origin, bench) }
    }
  }
  const unknown = from.find(each => !(each in origins))
  if (unknown !== undefined) throw new Error(`A flood comes from ${Object.keys(origins).join(', ')}, not ${unknown}.`)
  if (Object.keys(scenarios).length === 0) throw new Error(`${names} doesn’t come from ${from}.`)
  return scenarios
}

function isFlood(name: string): name is FloodName {
  return (floodNames as readonly string[]).includes(name)
}

/** The last numbers of the networks that floods come from; each window has separate ones, which were never blocked before. */
const firstNetwork = 100

async function beside(name: FloodName, origin: Origin, bench: Bench): Promise<Prepared> {
  const { lasts = 0 } = floodOf(name)
  const forwarded = origin === '48'
  const { world, again, ...first } = await serviceOn(bench, 2000, bench.cost, {
    AUTH_ADMIN_ADDRESS: '127.0.0.1:0',
    ...(forwarded && { AUTH_TRUSTED_PROXIES: '127.0.0.0/8' }),
  })
  const others = createOthers({ ...world, forwarded })
  let { service } = first
  await others.warmUp(service)

  const quiet: Segment = async scale => {
    const { figures, errors, lost } = await others.measure(await running(), bench.seconds * scale)
    return { figures, errors, note: listed(lost) }
  }

  let windows = 0
  const flood: Segment = async scale => {
    const { http } = await running()
    const network = firstNetwork + windows++
    const seconds = bench.seconds * scale
    const attacker = startFlood()
    const plan = { port: http, flood: name, origin, network, victims: world.accounts.slice(0, 1000) }
    await attacker.ask({ ...plan, seconds: Math.max(seconds, lasts * scale) })
    const [flooded, { figures, errors, lost }] = await Promise.all([
      attacker.ask('go'),
      others.measure(service, seconds),
    ])
    await attacker.stop()
    await others.calm(service)
    const held = lasts > 0 && { held: 1 - flooded.cut / flooded.made }
    return {
      figures: { ...figures, ...held },
      errors,
      note: [describe(flooded), listed(lost)].filter(Boolean).join('; '),
    }
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
  const wait: Goal = narrow ? { most: 2, orPlus: 15 } : { most: 3, orPlus: 30 }
  const none = (narrow || origin === '50') && { goal: { most: 0 } as const }
  const compared = { subject: 'flood', baseline: 'quiet' } as const
  const worst = { subject: 'flood', worst: 'greatest' } as const
  const least = { subject: 'flood', worst: 'least' } as const
  const all: Goal = { least: 1 }
  const rows: Row[] = [
    { ...compared, label: 'logins of known users', figure: 'perSecond', goal: { least: narrow ? 0.85 : 0.75 } },
    // A burst has a separate goal.
    { ...compared, label: 'me, 50 a second', figure: 'me p99', ...(name !== 'burst' && { goal: wait }) },
    { ...worst, label: 'newcomers left out, of 3', figure: 'newcomers left out', ...none },
    { ...worst, label: 'slowest newcomer, signed up and in', figure: 'newcomer' },
    { ...worst, label: 'owners at new networks left out, of 3', figure: 'owners left out', ...none },
    { ...worst, label: 'administrators left out, of 3', figure: 'administrators left out', ...none },
    { ...least, label: 'probes of the metrics port in 1 s', figure: 'probes', goal: all },
    { ...least, label: 'me over a new connection in 1 s', figure: 'connected' },
    { ...worst, label: 'most memory', figure: 'memory', goal: { most: 300 } },
    { ...least, label: 'the process lives', figure: 'alive', goal: all },
  ]
  if (name === 'burst') rows.push({ ...worst, label: 'slowest me', figure: 'slowest me', goal: { most: 1000 } })
  if (name === 'unread') rows.push({ ...worst, label: 'unread connections that are open after 40 s', figure: 'held' })
  return rows
}

/** A summary of a flood, in a line. */
function describe({ answers, made, open, cut, cores, limit }: FloodReport): string {
  const total = Object.values(answers).reduce((sum, each) => sum + each, 0)
  const shares = Object.entries(answers).map(([status, count]) => `${status} ${count}`)
  const connections = `${made} connections, ${open} at a time, ${cut} cut`
  const fewer = limit === undefined ? '' : ` (no more than ${limit}: this system lets a process open no more files)`
  return `its client took ${cores.toFixed(2)} cores; ${total} answers (${shares.join(', ')}); ${connections}${fewer}`
}

function listed(counts: Readonly<Record<string, number>>): string {
  return Object.entries(counts)
    .map(([what, count]) => `${count} × ${what.slice(0, 80).trim()}`)
    .join(', ')
}
