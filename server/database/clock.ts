import type { Database } from './database.js'
import { sql } from './sql.js'

/** Milliseconds between two readings. Between readings, the monotonic clock of the process advances the time. */
const interval = 1_000

/** Maximum milliseconds of the round trip of a reading. Slower readings are too inaccurate. */
const maxRoundTrip = 1_000

/**
 * Reads the clock of the database now and at intervals. While the database is unavailable, the last reading applies. Replicas
 * compare only times of this clock, which they share.
 */
export async function followClock(database: Pick<Database, 'read'>) {
  let ahead: number | undefined
  async function follow() {
    const sent = performance.now()
    const [row] = await database.read<{ now: number }>(
      sql('clock')`SELECT (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now`,
    )
    const back = performance.now()
    if (ahead === undefined || back - sent < maxRoundTrip) ahead = row!.now - (sent + back) / 2
  }
  await follow()
  const timer = setInterval(() => void follow().catch(() => {}), interval).unref()
  return {
    /** Returns the time in ms since 1970. */
    now: () => Math.round(ahead! + performance.now()),
    /** Stops reading the clock. */
    stop: () => clearInterval(timer),
  }
}
