import type { Database } from './connection.js'

/** The clock of the database, which all replicas have in common: what two of them compare is told by no other. */
export interface Clock {
  /** Milliseconds since 1970. */
  now(): number
  /** Looks no more. */
  stop(): void
}

/** Milliseconds between two looks. In between the process counts by a clock of its own that nobody sets. */
const interval = 30_000

/** A look that takes longer, in ms, says too little. */
const quick = 1_000

const look = { name: 'clock', text: 'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now' }

/** Looks at the database's clock, and again from time to time. While the database is away it goes by the last look. */
export async function followClock(database: Pick<Database, 'read'>): Promise<Clock> {
  let ahead: number | undefined
  async function follow() {
    const sent = performance.now()
    const [row] = await database.read<{ now: number }>(look, [])
    const back = performance.now()
    if (ahead === undefined || back - sent < quick) ahead = row!.now - (sent + back) / 2
  }
  await follow()
  const timer = setInterval(() => void follow().catch(() => {}), interval).unref()
  return {
    now: () => Math.round(ahead! + performance.now()),
    stop: () => clearInterval(timer),
  }
}
