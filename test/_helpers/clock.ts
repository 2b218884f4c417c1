/** Clocks of database and service that a test moves together: a stopped one and a running one. */
import pg from 'pg'
import { ask, type Teardown } from './database.js'

export interface Clock {
  /** Milliseconds since 1970, as the service reads them. */
  now(): number
  /** Lets so many seconds pass, in which a process ran. */
  pass(seconds: number): Promise<void>
  /** Sets the clock ahead, or back, by so many seconds. */
  leap(seconds: number): Promise<void>
}

/**
 * Moves the last record of the clock with a statement that moves the clock, as if a process had run. A process that records
 * the clock meanwhile waits, and sees both.
 */
const running = (move: string, seconds: number) =>
  `LOCK TABLE public.clock; UPDATE public.clock SET seen_at = seen_at + interval '${Number(seconds)} seconds'; ${move}`

/**
 * Gives a database without tables functions `now` and `clock_timestamp` that precede those of PostgreSQL on the search
 * path, so that everything that the migrations create uses them.
 */
export async function stopClock(url: string): Promise<void> {
  await ask(
    url,
    `CREATE SCHEMA clock;
    CREATE TABLE clock.face AS SELECT now() AS time;
    CREATE FUNCTION clock.now() RETURNS timestamptz STABLE LANGUAGE sql AS 'SELECT time FROM clock.face';
    CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz STABLE LANGUAGE sql AS 'SELECT time FROM clock.face';
    ALTER DATABASE ${new URL(url).pathname.slice(1)} SET search_path = public, clock, pg_catalog`,
  )
}

/** The clock of such a database or of a copy: it stops at the current time. */
export async function createStoppedClock(t: Teardown, url: string): Promise<Clock> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  t.teardown(() => client.end())
  let now = Date.now()
  /** The statement that shows the time so many seconds from now. */
  const move = (seconds: number) => {
    now += seconds * 1000
    return `UPDATE clock.face SET time = to_timestamp(${now / 1000})`
  }
  await client.query(move(0))
  return {
    now: () => now,
    leap: async seconds => void (await client.query(move(seconds))),
    pass: async seconds => void (await client.query(running(move(seconds), seconds))),
  }
}

/**
 * Puts a clock that runs before PostgreSQL's own, for tests in which something waits for time to pass. Connections that
 * are open already don't see it.
 */
export async function createClock(url: string): Promise<Clock> {
  await ask(
    url,
    `CREATE SCHEMA clock;
    CREATE TABLE clock.ahead AS SELECT interval '0' AS by;
    CREATE FUNCTION clock.now() RETURNS timestamptz LANGUAGE sql STABLE
      AS 'SELECT pg_catalog.now() + by FROM clock.ahead';
    CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql
      AS 'SELECT pg_catalog.clock_timestamp() + by FROM clock.ahead';
    ALTER DATABASE ${new URL(url).pathname.slice(1)} SET search_path = clock, pg_catalog, public`,
  )
  let ahead = 0
  const move = (seconds: number) => {
    ahead += seconds * 1000
    return `UPDATE clock.ahead SET by = by + interval '${Number(seconds)} seconds'`
  }
  return {
    now: () => Date.now() + ahead,
    leap: async seconds => void (await ask(url, move(seconds))),
    pass: async seconds => void (await ask(url, running(move(seconds), seconds))),
  }
}
