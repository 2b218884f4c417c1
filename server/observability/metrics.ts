/**
 * Observability owns what operators see of a process: its log, spans, metrics and probes. This file has the metrics of a
 * server, which docs/metrics.md lists. It declares the interfaces that it needs of the folders above, and imports none
 * of them.
 */
import { statfs } from 'node:fs/promises'
import type { DescMethodUnary } from '@bufbuild/protobuf'
import { Counter, Gauge, Histogram } from 'prom-client'
import { type Limit, limits } from '../requests/refusal.js'
import type { MetricsEndpoint } from './metrics-endpoint.js'

/** The metrics of a server. */
export interface Metrics {
  /** Counts a call by its outcome. */
  observe(method: DescMethodUnary, outcome: string, seconds: number): void
  /** Counts a refusal by the limit that was reached. */
  refused(limit: Limit): void
  /** Records how long a hash waited for its turn, in ms. */
  observeWait(ms: number): void
  /** Exports the state of the hash queue. */
  watchHashing(stats: () => { readonly waiting: number; readonly running: number; readonly shed: number }): void
  /** Exports the number of calls that wait for changes. */
  watchFeed(waiting: () => number): void
  /** Exports the state of the database and of its queues, and whether the process is ready. */
  watchDatabase(registry: Watched, ready: () => Promise<boolean>): void
  /** Exports the size and the free bytes of the volume of a folder, which has the embedded database. */
  watchVolume(folder: string): void
}

/** The database and its queues. */
interface Watched {
  readonly database: {
    stats(): {
      /** Connections of the pool: in use, idle, and the maximum. */
      readonly inUse: number
      readonly idle: number
      readonly most: number
      /** How many statements wait for a connection, and how many got none in time. */
      readonly waiting: number
      readonly timeouts: number
      /** By class of SQLSTATE. */
      readonly errors: ReadonlyMap<string, number>
    }
  }
  readonly emails: { backlog(): Promise<{ waiting: number; oldestSeconds: number; failed: number }> }
  readonly audit: {
    backlog(): Promise<{ staged: number; oldestSeconds: number }>
    lastBackup(): Promise<number>
  }
  readonly signingKeys: { signerAge(): Promise<number | undefined> }
}

/** Milliseconds that a scrape waits for the database. Values that come later aren't exported. */
const timeout = 2_500

/** Creates the metrics of a server. No label holds a user, an address or a caller's text. */
export function createMetrics({ registry, beforeScrape }: Pick<MetricsEndpoint, 'registry' | 'beforeScrape'>): Metrics {
  const registers = [registry]
  const gauge = (name: string, help: string) => new Gauge({ name, help, registers })
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
  for (const limit of Object.keys(limits)) refusals.inc({ limit }, 0)
  const wait = new Histogram({
    name: 'auth_hash_wait_seconds',
    help: 'Time that a password or answer waited for a hash thread, in seconds.',
    buckets: [0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10],
    registers,
  })

  return {
    observe(method, outcome, seconds) {
      calls.inc({ rpc: method.name, outcome })
      duration.observe({ rpc: method.name }, seconds)
    },
    refused: limit => refusals.inc({ limit }),
    observeWait: ms => wait.observe(ms / 1000),
    watchHashing(stats) {
      new Gauge({
        name: 'auth_hash_queue',
        help: 'Hashes that calls wait for, waiting and running.',
        labelNames: ['state'],
        registers,
        collect() {
          const { waiting, running } = stats()
          this.set({ state: 'waiting' }, waiting)
          this.set({ state: 'running' }, running)
        },
      })
      new Counter({
        name: 'auth_hash_shed_total',
        help: 'Calls refused because their hash would have been too late.',
        registers,
        collect() {
          this.reset()
          this.inc(stats().shed)
        },
      })
    },
    watchFeed(waiting) {
      new Gauge({
        name: 'auth_feed_waiting',
        help: 'Calls of services that wait for changes.',
        registers,
        collect() {
          this.set(waiting())
        },
      })
    },
    watchDatabase({ database, emails, audit, signingKeys }, isReady) {
      new Gauge({
        name: 'auth_database_connections',
        help: 'Connections of the pool: in use, idle, and maximum.',
        labelNames: ['state'],
        registers,
        collect() {
          const { inUse, idle, most } = database.stats()
          this.set({ state: 'in use' }, inUse)
          this.set({ state: 'idle' }, idle)
          this.set({ state: 'most' }, most)
        },
      })
      new Gauge({
        name: 'auth_database_waiting',
        help: 'Callers that wait for a connection of the pool.',
        registers,
        collect() {
          this.set(database.stats().waiting)
        },
      })
      new Counter({
        name: 'auth_database_timeouts_total',
        help: 'Callers that got no connection of the pool within 10 seconds.',
        registers,
        collect() {
          this.reset()
          this.inc(database.stats().timeouts)
        },
      })
      new Counter({
        name: 'auth_database_errors_total',
        help: 'Errors of the database, by class of SQLSTATE; connect, lost and silent for connections.',
        labelNames: ['class'],
        registers,
        collect() {
          this.reset()
          // Exported from the start, so that the first error of a full disk is an increase.
          this.inc({ class: '53' }, 0)
          for (const [kind, count] of database.stats().errors) this.inc({ class: kind }, count)
        },
      })

      const ready = gauge('auth_ready', 'Whether this process is ready: 1, or 0, as at /readyz.')
      for (const collect of [
        latest(isReady, is => ready.set(Number(is ?? false))),
        latest(
          () => emails.backlog(),
          setAll(
            [gauge('auth_outbox_waiting', 'E-mails waiting to be sent, up to 10,000.'), ({ waiting }) => waiting],
            [
              gauge('auth_outbox_oldest_seconds', 'Age of the oldest waiting e-mail, in seconds.'),
              ({ oldestSeconds }) => oldestSeconds,
            ],
            [
              gauge('auth_outbox_failed', 'E-mails that failed permanently in the last 7 days.'),
              ({ failed }) => failed,
            ],
          ),
        ),
        latest(
          () => audit.backlog(),
          setAll(
            [
              gauge('auth_audit_staged', 'Events of the audit log not sealed yet, up to 10,000.'),
              ({ staged }) => staged,
            ],
            [
              gauge('auth_audit_oldest_seconds', 'Age of the oldest event that is not sealed, in seconds.'),
              ({ oldestSeconds }) => oldestSeconds,
            ],
          ),
        ),
        latest(
          async () => ({ at: await audit.lastBackup() }),
          setAll([
            gauge('auth_backup_timestamp_seconds', 'Time of the last backup, in seconds since 1970; 0 without one.'),
            ({ at }) => at,
          ]),
        ),
        latest(
          async () => ({ age: await signingKeys.signerAge() }),
          setAll([
            gauge('auth_signing_key_age_seconds', 'Time since the signing key began to sign, in seconds.'),
            ({ age }) => age,
          ]),
        ),
      ])
        beforeScrape(collect)
    },
    watchVolume(folder) {
      const read = async () => {
        const { bsize, blocks, bavail } = await statfs(folder)
        return { size: blocks * bsize, free: bavail * bsize }
      }
      beforeScrape(
        latest(
          read,
          setAll(
            [
              gauge('auth_data_volume_size_bytes', 'Size of the volume that has the embedded database.'),
              ({ size }) => size,
            ],
            [
              gauge('auth_data_volume_free_bytes', 'Free bytes of the volume that has the embedded database.'),
              ({ free }) => free,
            ],
          ),
        ),
      )
    },
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
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<undefined>(resolve => {
      timer = setTimeout(() => resolve(undefined), timeout)
    })
    set(await Promise.race([reading, late]))
    clearTimeout(timer)
  }
}

/** Returns a function that sets gauges to numbers of a value; gauges without a number aren't exported. */
function setAll<T>(...gauges: [Gauge, (value: T) => number | undefined][]): (value: T | undefined) => void {
  return value => {
    for (const [gauge, pick] of gauges) {
      const number = value === undefined ? undefined : pick(value)
      if (number === undefined) gauge.remove()
      else gauge.set(number)
    }
  }
}
