/** Logins on one database by 1, 2 and 4 replicas, with commits as they are and with commits that take 5 ms more. */
import pg from 'pg'
import type { Prepared, Row, Segment } from './measure.js'
import { type ServiceProcess, startLoad } from './processes.js'
import { underLoad } from './segments.js'
import { type Bench, serviceOn } from './world.js'

/** Clients at a time, over all replicas. */
const connections = 64

const counts = [1, 2, 4] as const

export async function replicas(bench: Bench): Promise<Prepared> {
  const { service, world, again } = await serviceOn(bench, 1000, 4)
  const services = [service]
  while (services.length < Math.max(...counts)) services.push(await again())
  const loads = services.map(() => startLoad())

  /** Logins at the first `count` replicas, each with its share of the clients and of the accounts. */
  const logins =
    (count: number, milliseconds: number): Segment =>
    async scale => {
      await delayCommits(bench.server, milliseconds)
      const on = services.slice(0, count)
      const samples = await Promise.all(
        on.map(({ http }: ServiceProcess, index) => {
          const accounts = world.accounts.filter((_, each) => each % count === index)
          return underLoad(loads[index]!, on, {
            world: { ...world, accounts, network: world.network + index },
            endpoint: 'http',
            port: http,
            mix: { login: 1 },
            connections: connections / count,
            seconds: 4,
            lead: 1,
          })(scale)
        }),
      )
      await delayCommits(bench.server, 0)
      const errors: Record<string, number> = {}
      for (const [what, times] of samples.flatMap(sample => Object.entries(sample.errors ?? {})))
        errors[what] = (errors[what] ?? 0) + times
      return { figures: { logins: samples.reduce((sum, { figures }) => sum + figures.perSecond!, 0) }, errors }
    }

  const name = (count: number, milliseconds: number) => `${count} of ${Math.max(...counts)}, +${milliseconds} ms`
  const segments = [0, 5].flatMap(milliseconds =>
    counts.map(count => [name(count, milliseconds), logins(count, milliseconds)] as const),
  )
  const rows = [0, 5].flatMap(milliseconds =>
    counts.map((count): Row => {
      const row = { label: `${count} replicas, +${milliseconds} ms`, subject: name(count, milliseconds) }
      if (count === 1) return { ...row, figure: 'logins' }
      return { ...row, label: `${row.label}, ÷ 1`, baseline: name(1, milliseconds), figure: 'logins' }
    }),
  )
  const goal = { label: '2 replicas, +5 ms', subject: name(2, 5), figure: 'logins', goal: { least: 600 } }
  return { segments: Object.fromEntries(segments), rows: [...rows, goal] }
}

/**
 * Makes PostgreSQL wait before each flush of its WAL, as with a slow disk or a remote standby: concurrent commits
 * are flushed together, and transactions hold their locks until then.
 */
async function delayCommits(server: string, milliseconds: number): Promise<void> {
  const client = new pg.Client({ connectionString: server })
  await client.connect()
  try {
    await client.query(`ALTER SYSTEM SET commit_delay = ${milliseconds * 1000}`)
    await client.query('ALTER SYSTEM SET commit_siblings = 0')
    await client.query('SELECT pg_reload_conf()')
  } finally {
    await client.end()
  }
}
