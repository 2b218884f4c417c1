/**
 * Observability owns what operators see of a process: its log, spans, metrics and probes. This file has the metrics of a
 * server, which docs/metrics.md lists. It declares the interfaces that it needs of the folders above, and imports none
 * of them.
 */
import { statfs } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import type { DescMethodUnary } from '@bufbuild/protobuf'
import { Counter, Gauge, Histogram } from 'prom-client'
import { type Limit, limitMeanings } from '../requests/refusal.js'
import type { MetricsEndpoint } from './metrics-endpoint.js'

/** The database and its queues. */
interface Watched {
  readonly database: {
    /** Connections, callers that wait for one and that got none in time, and errors by class of SQLSTATE. */
    stats(): Readonly<Record<'inUse' | 'idle' | 'most' | 'waiting' | 'timeouts', number>> & {
      readonly errors: ReadonlyMap<string, number>
    }
  }
  readonly emails: { backlog(): Promise<{ waiting: number; oldestSeconds: number; failed: number }> }
  readonly audit: {
    backlog(): Promise<{ staged: number; oldestSeconds: number }>
    lastBackup(): Promise<number>
  }
  readonly signingKeys: { signerAge(): Promise<number | undefined> }
  readonly waysBack: { without(): Promise<number> }
  readonly clock: { doubt(): Promise<number> }
}

/** Milliseconds for which a number that costs much is kept. */
const seldom = 600_000

/** Milliseconds that a scrape waits for the database. Values that come later aren't exported. */
const timeout = 2_500

/** Creates the metrics of a server. No label holds a user, an address or a caller's text. */
export function createMetrics(endpoint: Pick<MetricsEndpoint, 'registry' | 'beforeScrape' | 'expose'>) {
  const { registry, beforeScrape, expose } = endpoint
  const registers = [registry]
  const calls = new Counter({
    name: 'auth_calls_total',
    help: 'Calls by RPC and outcome: OK, the reason of the refusal, or CANCELLED if the caller disconnected.',
    labelNames: ['rpc', 'outcome'],
    registers,
  })
  const duration = new Histogram({
    name: 'auth_call_seconds',
    help: 'Time from the arrival of a call to its answer, in seconds.',
    labelNames: ['rpc'],
    buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10],
    registers,
  })
  const refusals = new Counter({
    name: 'auth_refusals_total',
    help: 'Refused calls and withheld e-mails, by the limit that was reached.',
    labelNames: ['limit'],
    registers,
  })
  // Exported from the start, so that the first refusal is an increase.
  for (const limit of Object.keys(limitMeanings)) refusals.inc({ limit }, 0)
  const wait = new Histogram({
    name: 'auth_hash_wait_seconds',
    help: 'Time that a password or answer waited for a hash thread, in seconds.',
    buckets: [0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10],
    registers,
  })

  /** Exports numbers that are read before each scrape, in gauges by name; those that can't be read in time aren't exported. */
  function expect<T>(
    read: () => Promise<T>,
    gauges: Record<string, [help: string, of: (value: T) => number | undefined]>,
  ) {
    const all = Object.entries(gauges).map(([name, [help, of]]) => [new Gauge({ name, help, registers }), of] as const)
    const set = (value: T | undefined) => {
      for (const [gauge, of] of all) {
        const number = value === undefined ? undefined : of(value)
        if (number === undefined) gauge.remove()
        else gauge.set(number)
      }
    }
    beforeScrape(latest(read, set))
  }

  return {
    /** Counts a call by its outcome. */
    observe(method: DescMethodUnary, outcome: string, seconds: number) {
      calls.inc({ rpc: method.name, outcome })
      duration.observe({ rpc: method.name }, seconds)
    },
    /** Counts a refusal by the limit that was reached. */
    refused: (limit: Limit) => refusals.inc({ limit }),
    /** Records how long a hash waited for its turn, in ms. */
    observeWait: (ms: number) => wait.observe(ms / 1000),
    /** Exports the state of the hash queue. */
    watchHashing(stats: () => { readonly waiting: number; readonly running: number; readonly shed: number }) {
      expose(Gauge, 'auth_hash_queue', 'Hashes that calls wait for, waiting and running.', 'state', () => {
        const { waiting, running } = stats()
        return { waiting, running }
      })
      const shed = 'Calls refused because their hash would have been too late.'
      expose(Counter, 'auth_hash_shed_total', shed, undefined, () => stats().shed)
    },
    /** Exports the number of calls that wait for changes. */
    watchFeed: (waiting: () => number) =>
      expose(Gauge, 'auth_feed_waiting', 'Calls of services that wait for changes.', undefined, waiting),
    /** Exports by how much the clock of this machine differs from that of the database, whose time `now` returns. */
    watchClock: (now: () => number) =>
      expose(
        Gauge,
        'auth_clock_difference_seconds',
        'Difference between the clocks of this machine and of the database, in seconds.',
        undefined,
        () => Math.abs(now() - Date.now()) / 1000,
      ),
    /** Exports the state of the database and of its queues, and whether the process is ready. */
    watchDatabase({ database, emails, audit, signingKeys, waysBack, clock }: Watched, isReady: () => Promise<boolean>) {
      const connections = 'Connections of the pool: in use, idle, and maximum.'
      expose(Gauge, 'auth_database_connections', connections, 'state', () => {
        const { inUse, idle, most } = database.stats()
        return { 'in use': inUse, idle, most }
      })
      const waiting = 'Callers that wait for a connection of the pool.'
      expose(Gauge, 'auth_database_waiting', waiting, undefined, () => database.stats().waiting)
      const timeouts = 'Callers that got no connection of the pool within 10 seconds.'
      expose(Counter, 'auth_database_timeouts_total', timeouts, undefined, () => database.stats().timeouts)
      const errors = 'Errors of the database, by class of SQLSTATE; connect, lost and silent for connections.'
      // Class 53 is exported from the start, so that the first error of a full disk is an increase.
      expose(Counter, 'auth_database_errors_total', errors, 'class', () => {
        return { 53: 0, ...Object.fromEntries(database.stats().errors) }
      })
      const ready = new Gauge({
        name: 'auth_ready',
        help: 'Whether this process is ready: 1, or 0, as at /readyz.',
        registers,
      })
      beforeScrape(latest(isReady, is => ready.set(Number(is ?? false))))
      expect(() => emails.backlog(), {
        auth_outbox_waiting: ['E-mails waiting to be sent, up to 10,000.', ({ waiting }) => waiting],
        auth_outbox_oldest_seconds: ['Age of the oldest waiting e-mail, in seconds.', each => each.oldestSeconds],
        auth_outbox_failed: ['E-mails that failed permanently in the last 7 days.', ({ failed }) => failed],
      })
      expect(() => audit.backlog(), {
        auth_audit_staged: ['Events of the audit log not sealed yet, up to 10,000.', ({ staged }) => staged],
        auth_audit_oldest_seconds: [
          'Age of the oldest event that is not sealed, in seconds.',
          each => each.oldestSeconds,
        ],
      })
      expect(() => audit.lastBackup(), {
        auth_backup_timestamp_seconds: ['Time of the last backup, in seconds since 1970; 0 without one.', at => at],
      })
      expect(
        kept(() => waysBack.without(), seldom),
        {
          auth_accounts_without_way_back: [
            'Active accounts, of the newest 100,000, without an e-mail address and answers to two questions; at most 10 minutes old.',
            without => without,
          ],
        },
      )
      expect(() => clock.doubt(), {
        auth_clock_doubt_seconds: [
          'Seconds of running for which nothing is deleted by age because the clock leapt; 0 otherwise.',
          seconds => seconds,
        ],
      })
      expect(async () => ({ age: await signingKeys.signerAge() }), {
        auth_signing_key_age_seconds: ['Time since the signing key began to sign, in seconds.', ({ age }) => age],
      })
    },
    /** Exports the size and the free bytes of the volume of a folder, which has the embedded database. */
    watchVolume: (folder: string) =>
      expect(() => statfs(folder), {
        auth_data_volume_size_bytes: [
          'Size of the volume that has the embedded database.',
          ({ bsize, blocks }) => blocks * bsize,
        ],
        auth_data_volume_free_bytes: [
          'Free bytes of the volume that has the embedded database.',
          ({ bsize, bavail }) => bavail * bsize,
        ],
      }),
  }
}

/** Returns a function that reads a value at most once in `ms`. */
function kept<T>(read: () => Promise<T>, ms: number): () => Promise<T> {
  let last: { readonly value: T; readonly at: number } | undefined
  return async () => {
    if (last === undefined || performance.now() - last.at > ms) last = { value: await read(), at: performance.now() }
    return last.value
  }
}

/**
 * Returns a function that reads a value and exports it, or exports undefined where the read fails or takes too long.
 * Concurrent scrapes share a read, so that reads don't pile up while the database is unreachable.
 */
function latest<T>(read: () => Promise<T>, set: (value: T | undefined) => void): () => Promise<void> {
  let reading: Promise<T | undefined> | undefined
  return async () => {
    reading ??= read()
      .catch(() => undefined)
      .finally(() => {
        reading = undefined
      })
    set(await Promise.race([reading, sleep(timeout, undefined, { ref: false })]))
  }
}
