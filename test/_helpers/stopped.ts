/** Calls that are paused at their end, when they record their event and hold all their locks. */
import pg from 'pg'
import type { Teardown } from './database.js'
import type { TestService } from './service.js'
import { waitForValue } from './wait.js'

/** An advisory lock that nothing else in the database uses. */
const stop = 4_711

/** Blocks every event, starts each call once the one before waits for a lock, then unblocks. Returns the statuses. */
export async function stopEvents<T>(
  t: Teardown,
  { env }: TestService,
  calls: readonly (() => Promise<{ readonly status: T }>)[],
): Promise<T[]> {
  const connect = async () => {
    const client = new pg.Client({ connectionString: env.DATABASE_URL! })
    await client.connect()
    t.teardown(() => client.end())
    return client
  }
  const [holder, observer] = [await connect(), await connect()]
  const waiting = async () => {
    const { rows } = await observer.query<{ n: number }>(
      `SELECT count(*)::int AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`,
    )
    return rows[0]!.n
  }
  await holder.query(`
    CREATE OR REPLACE FUNCTION stop_event() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS
      'BEGIN PERFORM pg_advisory_xact_lock_shared(${stop}); RETURN new; END';
    CREATE OR REPLACE TRIGGER stop_event BEFORE INSERT ON audit_staged FOR EACH ROW EXECUTE FUNCTION stop_event();
    SELECT pg_advisory_lock(${stop})`)
  const begun: Promise<{ readonly status: T }>[] = []
  for (const call of calls) {
    begun.push(call())
    await waitForValue(waiting, value => value >= begun.length)
  }
  await holder.query(`SELECT pg_advisory_unlock(${stop})`)
  return (await Promise.all(begun)).map(({ status }) => status)
}
