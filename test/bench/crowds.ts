/** Many users behind one address without abuse: a crowd that logs in repeatedly, and a school. */
import { setTimeout as sleep } from 'node:timers/promises'
import { describe, requestFloods } from './abuse.js'
import type { Prepared, Segment } from './measure.js'
import { startFlood, startLoad } from './processes.js'
import { type Scenarios, settled, underLoad } from './segments.js'
import { type Bench, serviceOn } from './world.js'

export const crowds: Scenarios = {
  crowd: { about: '200 clients behind one address', prepare: crowd },
  school: { about: 'a school logs in beside a flood from 50 addresses', byDefault: false, prepare: school },
}

/** 200 clients that log in repeatedly and respect Retry-After, alone and beside `me` of others. */
async function crowd(bench: Bench): Promise<Prepared> {
  const { service, world } = await serviceOn(bench, 1000, bench.cost)
  const [load, lightLoad] = [startLoad(), startLoad()]
  const common = { endpoint: 'http', port: service.http } as const
  // Until then 200 logins start while none ends.
  const lead = 1.5
  const seconds = bench.seconds / 3
  const logins = (addresses: number, network: number): Segment => {
    const crowd = { ...world, accounts: world.accounts.slice(0, 400), addresses, network }
    return underLoad(load, [service], { ...common, world: crowd, mix: { login: 1 }, connections: 200, seconds, lead })
  }
  const me = underLoad(lightLoad, [service], { ...common, world, mix: { me: 1 }, connections: 64, rate: 50, seconds })
  const besideMe =
    (segment: Segment): Segment =>
    async scale => {
      const measured = segment(scale)
      await sleep(lead * 1000 * scale)
      const [{ figures, errors }, light] = await Promise.all([measured, me(scale)])
      return { figures, latencies: light.latencies!, errors: { ...errors, ...light.errors } }
    }
  const [one, many] = [logins(1, 30), logins(200, 31)]
  const segments = {
    '1 address': settled(one),
    '200 addresses': settled(many),
    '1 address beside me': settled(besideMe(one)),
    '200 addresses beside me': settled(besideMe(many)),
  }
  const least = { figure: 'perSecond', goal: { least: 0.9 } } as const
  const beside = { subject: '1 address beside me', baseline: '200 addresses beside me' } as const
  return {
    segments,
    rows: [
      {
        label: 'logins of 200 clients at 1 address ÷ at 200',
        subject: '1 address',
        baseline: '200 addresses',
        ...least,
      },
      { label: 'the same beside 50 me a second', ...beside, ...least },
      { label: 'me then', ...beside, figure: 'p99' },
    ],
  }
}

/**
 * All users of a school log in during the first fifteenth of the time, for the first time from there, and 3% mistype once.
 * The flood sends all kinds of requests in turn, for accounts outside the school.
 */
async function school(bench: Bench): Promise<Prepared> {
  const users = bench.users ?? 2000
  const population = 20 * Math.ceil((1200 + 1.1 * users) / 20)
  const { service, world } = await serviceOn(bench, population, bench.cost)
  const common = { endpoint: 'http', port: service.http } as const
  const [load, flood] = [startLoad(), startFlood()]
  const victims = world.accounts.slice(0, 1000)
  const pupils = { ...world, accounts: world.accounts.slice(1000, 1000 + users), addresses: 1, network: 40 }
  return {
    rounds: 1,
    segments: {
      async school(scale) {
        const part = 2 * bench.seconds * scale
        const visits = pupils.accounts.map((_, index) => ({
          after: (index * part) / pupils.accounts.length,
          steps: index % 33 === 16 ? (['mistyped login', 'login'] as const) : (['login'] as const),
        }))
        const plan = { port: service.http, floods: requestFloods, origin: '50', network: 100, victims } as const
        await flood.ask({ ...plan, seconds: 15 * part + 60 })
        const flooding = flood.ask('go')
        const job = { ...common, world: pupils, visits, connections: visits.length, seconds: 15 * part }
        const came = await load.ask(job)
        flood.tell('stop')
        return {
          figures: { left: came.late, last: came.last, users: visits.length },
          latencies: came.latencies,
          errors: { ...came.lost, ...came.errors },
          note: describe(await flooding),
        }
      },
    },
    rows: [
      { label: 'users of the school', subject: 'school', figure: 'users' },
      { label: 'left out at the end', subject: 'school', figure: 'left', goal: { most: 0 } },
      { label: 'the last is in after', subject: 'school', figure: 'last' },
      { label: 'from coming to being in', subject: 'school', figure: 'p50' },
    ],
  }
}
