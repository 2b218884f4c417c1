/**
 * What others feel while somebody floods: their logins and `me` beside a flood of each kind, from one address and from
 * 50, each beside a quiet window of the same length; newcomers; a school; many clients behind one address.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { type Kind, kinds } from './attacks.js'
import type { FloodReport } from './flood.js'
import type { Job } from './load.js'
import type { Prepared, Row, Segment } from './measure.js'
import type { Operation } from './operations.js'
import { startFlood, startLoad } from './processes.js'
import { type Load, type Scenarios, settled, underLoad } from './segments.js'
import { type Bench, serviceOn } from './world.js'

/** The last numbers of the networks that floods come from; each window has its own, which nobody has held up before. */
let network = 100

export const rude: Scenarios = {
  ...Object.fromEntries(
    kinds.map(kind => [
      `rude-${kind}`,
      { about: `others beside a flood of ${kind}`, byDefault: false, prepare: (bench: Bench) => beside(kind, bench) },
    ]),
  ),
  'rude-crowd': { about: '200 clients behind one address', prepare: crowd },
  'rude-school': { about: 'a school logs in beside a flood from 50 addresses', byDefault: false, prepare: school },
}

async function beside(kind: Kind, bench: Bench): Promise<Prepared> {
  const { service, world } = await serviceOn(bench, 2000, bench.cost)
  const known = { ...world, accounts: world.accounts.slice(0, 8), addresses: 8 }
  const common = { endpoint: 'http', port: service.http } as const
  const [logins, light, arrivals] = [startLoad(), startLoad(), startLoad()]
  // From here on the accounts know their addresses; and what runs often has been compiled.
  const visits = known.accounts.map(() => ({ after: 0, steps: Array<Operation>(5).fill('login') }))
  const { late } = await logins.ask({ ...common, world: known, visits, connections: 1, seconds: 60 })
  if (late > 0) throw new Error('It took more than a minute to log in five times: this machine is too busy.')
  await light.ask({ ...common, world, mix: { me: 1 }, connections: 16, seconds: 1 })

  let series = 1
  const window =
    (addresses: number): Segment =>
    async scale => {
      const seconds = bench.seconds * scale
      const victims = world.accounts.slice(0, 1000)
      const plan = { port: service.http, kinds: [kind], addresses, network: network++, victims, seconds }
      const flood = addresses > 0 ? startFlood() : undefined
      await flood?.ask(plan)
      // At addresses that nobody came from before.
      const newcomers = { ...world, network: 20 + series, series: series++ }
      const visits = [0.1, 0.3, 0.5].map(part => ({ after: part * seconds, steps: newcomer }))
      const [flooded, theirs, me, came] = await Promise.all([
        flood?.ask('go'),
        logins.ask({ ...common, world: known, mix: { login: 1 }, connections: 8, seconds }),
        light.ask({ ...common, world, mix: { me: 1 }, connections: 64, rate: 50, seconds }),
        arrivals.ask({ ...common, world: newcomers, visits, connections: 1, seconds }),
      ])
      await flood?.stop()
      await calm(light, { ...common, world, mix: { me: 1 }, connections: 1, rate: 20, seconds: 0.5 })
      return {
        figures: {
          perSecond: theirs.perSecond,
          left: came.late,
          newcomer: came.count === 0 ? Number.NaN : Math.max(...came.latencies) / 1000,
        },
        latencies: me.latencies,
        errors: { ...theirs.errors, ...me.errors, ...came.errors },
        ...(flooded && { note: describe(flooded) }),
      }
    }

  const rows = ['1 address', '50 addresses'].flatMap((subject, index): Row[] => {
    const row = { subject, baseline: index === 0 ? 'quiet' : 'quiet again' }
    const alone = { subject }
    return [
      { ...row, label: `logins beside a flood from ${subject}`, figure: 'perSecond', goal: { least: 0.85 } },
      { ...row, label: 'me beside it', figure: 'p99', goal: { most: 2 } },
      { ...row, label: 'slowest of 3 newcomers, signed up and in', figure: 'newcomer' },
      { ...alone, label: 'newcomers left out', figure: 'left', goal: { most: 0 } },
    ]
  })
  return {
    once: true,
    segments: { quiet: window(0), '1 address': window(1), 'quiet again': window(0), '50 addresses': window(50) },
    rows,
  }
}

const newcomer = ['sign-up', 'first login'] as const

/** Waits until `me` is answered at once again, a minute at most. */
async function calm(load: Load, job: Job): Promise<void> {
  for (let turn = 0; turn < 60; turn++) {
    await sleep(500)
    const { latencies, count } = await load.ask(job)
    if (count === 10 && Math.max(...latencies) < 50) return
  }
}

function describe({ answers, cut, cores }: FloodReport): string {
  const total = Object.values(answers).reduce((sum, each) => sum + each, 0)
  const shares = Object.entries(answers).map(([status, count]) => `${status} ${count}`)
  return `its client took ${cores.toFixed(2)} cores; ${total} answers (${shares.join(', ')}), ${cut} connections cut`
}

/** Two hundred who log in again and again, and wait as they are told. */
async function crowd(bench: Bench): Promise<Prepared> {
  const { service, world } = await serviceOn(bench, 1000, bench.cost)
  const load = startLoad()
  const from = (addresses: number, network: number): Segment => {
    const crowd = { ...world, accounts: world.accounts.slice(0, 400), addresses, network }
    const job = { world: crowd, mix: { login: 1 }, connections: 200, seconds: bench.seconds / 6, lead: 1.5 } as const
    return settled(underLoad(load, [service], { ...job, endpoint: 'http', port: service.http }))
  }
  return {
    segments: { '1 address': from(1, 30), '200 addresses': from(200, 31) },
    rows: [
      {
        label: 'logins of 200 clients at 1 address ÷ at 200',
        subject: '1 address',
        baseline: '200 addresses',
        figure: 'perSecond',
        goal: { least: 0.9 },
      },
    ],
  }
}

/**
 * Everybody of a school comes in the first of 15 windows, for the first time from there, and 3% mistype once. Those who
 * flood take all kinds in turn and know other accounts than the school's.
 */
async function school(bench: Bench): Promise<Prepared> {
  const population = 20 * Math.ceil((1200 + 1.1 * bench.users) / 20)
  const { service, world } = await serviceOn(bench, population, bench.cost)
  const common = { endpoint: 'http', port: service.http } as const
  const [load, flood] = [startLoad(), startFlood()]
  const victims = world.accounts.slice(0, 1000)
  const pupils = { ...world, accounts: world.accounts.slice(1000, 1000 + bench.users), addresses: 1, network: 40 }
  return {
    once: true,
    segments: {
      async school(scale) {
        const [first, seconds] = [bench.seconds * scale, 15 * bench.seconds * scale]
        const visits = pupils.accounts.map((_, index) => ({
          after: (index * first) / pupils.accounts.length,
          steps: index % 33 === 16 ? (['mistyped login', 'login'] as const) : (['login'] as const),
        }))
        const plan = { port: service.http, kinds, addresses: 50, network: network++, victims }
        await flood.ask({ ...plan, seconds: seconds + 60 })
        const flooding = flood.ask('go')
        const came = await load.ask({ ...common, world: pupils, visits, connections: visits.length, seconds })
        flood.tell('stop')
        return {
          figures: { left: came.late, last: came.last, users: visits.length },
          latencies: came.latencies,
          errors: came.errors,
          note: describe(await flooding),
        }
      },
    },
    rows: [
      { label: 'users of the school', subject: 'school', figure: 'users' },
      { label: 'left out after 15 windows', subject: 'school', figure: 'left', goal: { most: 0 } },
      { label: 'the last is in after', subject: 'school', figure: 'last' },
      { label: 'from coming to being in', subject: 'school', figure: 'p50' },
    ],
  }
}
