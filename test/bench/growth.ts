/** What processes of the service and their database hold over time, and which of it grows without end. */
import { readdirSync, readFileSync, statSync } from 'node:fs'
import pg from 'pg'
import { percentile } from './measure.js'
import { memory, processorSeconds, type ServiceProcess } from './processes.js'

type Figures = Record<string, number>

/** A process, with the file of its log. */
export interface Observed {
  readonly name: string
  readonly log: string
  readonly service: ServiceProcess
  /** Whether it is about to end. */
  readonly stopping: boolean
}

/** Metrics of a process. */
const gauges: readonly [metric: string, label: string, scale?: number][] = [
  ['nodejs_heap_size_used_bytes', 'heap MB', 1e6],
  ['nodejs_external_memory_bytes', 'external MB', 1e6],
  ['nodejs_active_handles_total', 'handles'],
  ['auth_http_connections{state="open"}', 'connections of clients'],
  ['auth_requests{state="running"}', 'requests'],
  ['auth_feed_waiting', 'watchers'],
  ['auth_outbox_waiting', 'e-mails waiting'],
  ['auth_outbox_oldest_seconds', 'oldest e-mail s'],
  ['auth_outbox_failed', 'e-mails failed'],
  ['auth_audit_staged', 'events staged'],
  ['auth_audit_oldest_seconds', 'oldest event s'],
]

/** Tables that grow with what users and operators do, and with what. */
const growing: Record<string, string> = {
  users: 'sign-ups and imports',
  audit_events: 'events, until the end of their retention',
  known_addresses: 'users and their networks',
  email_quotas: 'recipients of a day',
  imports: 'imports',
  import_records: 'imports, until maintenance',
  import_batches: 'imports',
}

/** Parts of the time whose medians are compared: after the warm-up, in the middle, and at the end. */
const parts = [
  [0.08, 0.18],
  [0.45, 0.55],
  [0.9, 1.1],
] as const

/** Observes processes and the database at a URL. */
export async function observeGrowth(url: string) {
  const database = new pg.Client({ connectionString: url, application_name: 'bench' })
  await database.connect()
  // Its next query fails then.
  database.on('error', () => {})
  const query = async (text: string) => (await database.query(text)).rows
  // The service sets limits for all sessions.
  await query('SET statement_timeout = 0; SET transaction_timeout = 0')
  const tables = await query("SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
  const counts = tables.map(
    ({
      name,
    }) => `SELECT '${name}' AS name, count(*)::int AS rows, pg_total_relation_size('${name}')::float / 1e3 AS size
      FROM ${name}`,
  )
  const samples: { at: number; figures: Figures }[] = []
  let before: { at: number; counters: Figures } = { at: performance.now(), counters: {} }

  return {
    query,
    /** Takes a sample at a part of the whole time, from 0 to 1, with own figures and counters. */
    async sample(at: number, processes: readonly Observed[], own: Figures, counters: Figures): Promise<Figures> {
      const figures = { ...own }
      const counted = { ...counters }
      for (const { name, log, service } of processes.filter(({ stopping }) => !stopping)) {
        const { pid, metrics } = service
        const text = await (await fetch(`http://127.0.0.1:${metrics}/metrics`)).text()
        figures[`${name} memory MB`] = memory(pid)
        figures[`${name} descriptors`] = readdirSync(`/proc/${pid}/fd`).length
        counted[`${name} processor s`] = processorSeconds([pid])
        counted[`${name} log kB`] = statSync(log).size / 1e3
        for (const [metric, label, scale = 1] of gauges) {
          const value = text.split('\n').find(line => line.startsWith(`${metric} `))
          if (value !== undefined) figures[`${name} ${label}`] = Number(value.split(' ')[1]) / scale
        }
      }
      const now = performance.now()
      for (const [name, value] of Object.entries(counted)) {
        const last = before.counters[name] ?? 0
        // A new process counts from 0.
        figures[`${name} a minute`] = ((value - (last > value ? 0 : last)) * 60_000) / (now - before.at)
      }
      before = { at: now, counters: { ...before.counters, ...counted } }
      const [{ connections, size }] = await query(
        `SELECT (SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
          pg_database_size(current_database())::float / 1e6 AS size`,
      )
      Object.assign(figures, { 'PostgreSQL connections': connections, 'database MB': size })
      for (const { name, rows, size } of await query(counts.join(' UNION ALL ')))
        Object.assign(figures, { [`${name} rows`]: rows, [`${name} kB`]: size })
      samples.push({ at, figures })
      return figures
    },
    /** Closes the connection. Returns the table of medians, and the figures that grow without end. */
    async end() {
      await database.end()
      return tableOf(samples)
    },
  }
}

/** A figure grows without end if it does so after the middle, without a cause that is known to end. */
function tableOf(samples: readonly { at: number; figures: Figures }[]): { lines: string[]; grown: string[] } {
  const grown: string[] = []
  const lines = [...new Set(samples.flatMap(({ figures }) => Object.keys(figures)))].flatMap(name => {
    const values = parts.map(([from, to]) => {
      const those = samples.filter(({ at }) => at >= from && at < to)
      return percentile(
        those.flatMap(({ figures }) => figures[name] ?? []),
        50,
      )
    })
    const [begin = 0, middle = 0, last = 0] = values
    if (values.every(value => !value)) return []
    const cause = name === 'database MB' ? 'its tables' : growing[name.replace(/ (rows|kB)$/, '')]
    const slack = name.endsWith(' MB') ? 8 : name.includes(' kB') ? 300 : 10
    const isWork = / ms$|^failed|(answers|e-mails|processor s) a minute$/.test(name)
    const grows = !cause && !isWork && last > middle * 1.1 + slack
    if (grows) grown.push(name)
    const verdict = grows ? 'GROWS' : cause && last > middle ? `grows with ${cause}` : isWork ? '' : 'level'
    return [[name.padEnd(40), ...[...values, last / begin].map(value => short(value).padStart(9)), verdict].join(' ')]
  })
  const header = [''.padEnd(40), ...['begin', 'middle', 'end', 'ratio'].map(cell => cell.padStart(9))].join(' ')
  return { lines: [header, ...lines], grown }
}

/** How often each warning or error stands in logs. */
export function warningsIn(logs: readonly string[]): Figures {
  const found: Figures = {}
  for (const line of logs.flatMap(log => readFileSync(log, 'utf8').split('\n'))) {
    if (!/^\{"level":"(warn|error|fatal)"/.test(line)) continue
    const said = String(JSON.parse(line).msg)
    found[said] = (found[said] ?? 0) + 1
  }
  return found
}

/** A number of three digits. */
export function short(value = Number.NaN): string {
  return Number.isNaN(value) ? '–' : value >= 100 ? String(Math.round(value)) : String(Number(value.toPrecision(3)))
}
