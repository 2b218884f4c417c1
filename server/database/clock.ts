import type { Database } from './connection.js'

/** The clock of the database, which all replicas share: times that they compare come from it alone. */
export interface Clock {
  /** Milliseconds since 1970. */
  now(): number
  /** Stops reading the clock. */
  stop(): void
}

/** Milliseconds between two readings. In between, the process counts by its monotonic clock. */
const interval = 30_000

/** Milliseconds beyond which a reading is too inexact. */
const maxRoundTrip = 1_000

const read = { name: 'clock', text: 'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now' }

/** Reads the database's clock now and regularly. While the database is unavailable, the last reading counts. */
export async function followClock(database: Pick<Database, 'read'>): Promise<Clock> {
  let ahead: number | undefined
  async function follow() {
    const sent = performance.now()
    const [row] = await database.read<{ now: number }>(read, [])
    const back = performance.now()
    if (ahead === undefined || back - sent < maxRoundTrip) ahead = row!.now - (sent + back) / 2
  }
  await follow()
  const timer = setInterval(() => void follow().catch(() => {}), interval).unref()
  return {
    now: () => Math.round(ahead! + performance.now()),
    stop: () => clearInterval(timer),
  }
}
