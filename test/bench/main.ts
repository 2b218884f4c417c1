/**
 * The benchmark. Every figure stands beside a floor that is measured in the same run, and what counts is their ratio:
 * the segments of a scenario take turns, round after round, in alternating order. docs/performance.md explains it.
 */
import { randomBytes } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { availableParallelism, cpus, tmpdir, totalmem } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import pg from 'pg'
import { startEmbedded } from '../../server/embedded/start.js'
import { stopAll } from './processes.js'
import { type Bench, type Prepared, type Row, type Sample, scenarios } from './scenarios.js'
import { loadUsers } from './users.js'

const usage = `npm run bench -- [--scenario name]… [--rounds 5] [--quick] [--out bench.json]

${Object.entries(scenarios)
  .map(
    ([name, { about, byDefault }]) => `  ${name.padEnd(12)} ${about}${byDefault === false ? ' (only when named)' : ''}`,
  )
  .join('\n')}

--quick shows within two minutes that all of it works; its figures mean little.`

const { values: options } = parseArgs({
  options: {
    scenario: { type: 'string', multiple: true },
    rounds: { type: 'string', default: '5' },
    quick: { type: 'boolean', default: false },
    out: { type: 'string', default: 'bench.json' },
    help: { type: 'boolean', default: false },
  },
})

/** A row with what it came to. */
interface Result extends Row {
  /** Figures of the last column: the median of rounds, or the percentile of all rounds together. */
  readonly value: number
  readonly floorValue?: number
  readonly ratio?: number
  /** Least and greatest ratio (or value, without a floor) of a round. */
  readonly spread: readonly [number, number]
  readonly met?: boolean
  /** How many requests a percentile rests on. */
  readonly requests?: number
}

async function main(): Promise<void> {
  if (options.help) return void console.log(usage)
  const names = options.scenario ?? Object.keys(scenarios).filter(name => scenarios[name]!.byDefault !== false)
  for (const name of names) if (!scenarios[name]) throw new Error(`There is no scenario ${name}.\n\n${usage}`)
  const rounds = options.quick ? 2 : Number(options.rounds)
  if (!Number.isInteger(rounds) || rounds < 1) throw new Error('--rounds is a whole number from 1 on')
  const scale = options.quick ? 0.1 : 1

  const folder = await mkdtemp(join(tmpdir(), 'auth-bench-'))
  await chmod(folder, 0o755)
  const log = { info() {}, warn: (text: string) => console.error(text) }
  const embedded = await startEmbedded({ dataDir: join(folder, 'database'), log })
  let cleaned: Promise<void> | undefined
  const clean = () => {
    cleaned ??= (async () => {
      await stopAll()
      await embedded.stop()
      await rm(folder, { recursive: true, force: true })
    })()
    return cleaned
  }
  process.once('SIGINT', () => clean().finally(() => process.exit(130)))
  const machine = { cores: availableParallelism(), model: cpus()[0]?.model, memory: totalmem(), node: process.version }
  const record = {
    at: new Date().toISOString(),
    machine,
    rounds,
    quick: options.quick,
    scenarios: {} as Record<string, unknown>,
  }
  let failed = false
  try {
    const bench = createBench(embedded.url, folder)
    for (const name of names) {
      const from = performance.now()
      const prepared = await scenarios[name]!.prepare(bench)
      const samples = await measure(prepared, prepared.once ? 1 : rounds, scale)
      const results = prepared.rows.map(row => evaluate(row, samples))
      const errors = errorsIn(samples)
      await stopAll()
      print(name, results, errors, (performance.now() - from) / 1000)
      failed ||= Object.keys(errors).length > 0
      record.scenarios[name] = { results, errors, samples: summarize(samples) }
      writeFileSync(options.out, `${JSON.stringify(record, null, 2)}\n`)
    }
  } finally {
    await clean()
  }
  // A goal that isn't met is a finding; a wrong answer makes the figures worthless.
  if (failed) process.exitCode = 1
}

function createBench(server: string, folder: string): Bench {
  const masterKey = randomBytes(32)
  const made = new Map<number, Promise<string>>()
  const make = async (population: number) => {
    const client = new pg.Client({ connectionString: server })
    await client.connect()
    await client.query(`CREATE DATABASE people_${population}`)
    await client.end()
    const url = new URL(server)
    url.pathname = `/people_${population}`
    await loadUsers(url.href, population, masterKey)
    return url.href
  }
  return {
    folder,
    masterKey,
    database(population) {
      const url = made.get(population) ?? make(population)
      made.set(population, url)
      return url
    },
  }
}

type Samples = Record<string, Sample[]>

/** Runs each segment once to warm up and then once a round, there and back again. */
async function measure({ segments }: Prepared, rounds: number, scale: number): Promise<Samples> {
  const samples: Samples = {}
  const entries = Object.entries(segments)
  for (const [name, run] of entries) {
    samples[name] = []
    await run(scale * 0.3)
  }
  for (let round = 0; round < rounds; round++) {
    for (const [name, run] of round % 2 ? entries.toReversed() : entries) samples[name]!.push(await run(scale))
  }
  return samples
}

function evaluate(row: Row, samples: Samples): Result {
  const subject = samples[row.subject]!
  const floor = row.floor === undefined ? undefined : samples[row.floor]!
  const each = subject.map(
    (sample, round) => figureOf(row.figure, [sample]) / (floor ? figureOf(row.figure, [floor[round]!]) : 1),
  )
  const pooled = percentileIn(row.figure) !== undefined
  const value = pooled ? figureOf(row.figure, subject) : median(subject.map(sample => figureOf(row.figure, [sample])))
  const floorValue =
    floor && (pooled ? figureOf(row.figure, floor) : median(floor.map(sample => figureOf(row.figure, [sample]))))
  const ratio = floorValue === undefined ? undefined : pooled ? value / floorValue : median(each)
  const judged = ratio ?? value
  return {
    ...row,
    value,
    ...(floorValue !== undefined && { floorValue, ratio: ratio! }),
    spread: [Math.min(...each), Math.max(...each)],
    ...(pooled && { requests: timesIn(row.figure, subject).length }),
    ...(row.goal && { met: 'least' in row.goal ? judged >= row.goal.least : judged <= row.goal.most }),
  }
}

/** A figure of several samples: a percentile of everything in them, or the figure of the only one. */
function figureOf(figure: string, samples: readonly Sample[]): number {
  const percent = percentileIn(figure)
  return percent === undefined ? samples[0]!.figures[figure]! : percentile(timesIn(figure, samples), percent)
}

function timesIn(figure: string, samples: readonly Sample[]): number[] {
  const kind = figure.startsWith('refusal') ? 'refusals' : 'latencies'
  return samples.flatMap(sample => sample[kind] ?? [])
}

function percentileIn(figure: string): number | undefined {
  const digits = /^(?:refusal )?p(\d+)$/.exec(figure)?.[1]
  return digits === undefined ? undefined : Number(digits)
}

/** The least value that so many percent of all values don't exceed. */
function percentile(values: readonly number[], percent: number): number {
  const sorted = values.toSorted((a, b) => a - b)
  return sorted[Math.max(0, Math.ceil((sorted.length * percent) / 100) - 1)] ?? Number.NaN
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = sorted.length / 2
  return sorted.length % 2 ? sorted[Math.floor(middle)]! : (sorted[middle - 1]! + sorted[middle]!) / 2
}

function errorsIn(samples: Samples): Record<string, number> {
  const errors: Record<string, number> = {}
  for (const [name, rounds] of Object.entries(samples)) {
    for (const sample of rounds) {
      for (const [what, count] of Object.entries(sample.errors ?? {})) {
        errors[`${name}: ${what}`] = (errors[`${name}: ${what}`] ?? 0) + count
      }
    }
  }
  return errors
}

/** Samples for the record: percentiles in place of every latency. */
function summarize(samples: Samples) {
  const of = (values: readonly number[] | undefined) =>
    values?.length
      ? {
          count: values.length,
          p50: percentile(values, 50),
          p99: percentile(values, 99),
          most: percentile(values, 100),
        }
      : undefined
  return Object.fromEntries(
    Object.entries(samples).map(([name, rounds]) => [
      name,
      rounds.map(({ figures, latencies, refusals }) => ({ ...figures, latency: of(latencies), refusal: of(refusals) })),
    ]),
  )
}

const units: Record<string, string> = {
  perSecond: '/s',
  logins: 'logins/s',
  processor: 'µs CPU',
  time: 'µs',
  seconds: 's',
  memory: 'MB',
}

function print(name: string, results: readonly Result[], errors: Record<string, number>, seconds: number): void {
  console.log(`\n${name}: ${scenarios[name]!.about} (${Math.round(seconds)} s)`)
  const rows = results.map(({ label, figure, value, floorValue, ratio, spread, goal, met }) => [
    label,
    units[figure] ?? figure,
    short(value),
    floorValue === undefined ? '' : short(floorValue),
    ratio === undefined ? '' : ratio.toFixed(2),
    spread.map(each => (ratio === undefined ? short(each) : each.toFixed(2))).join('–'),
    // A tenth of the time judges nothing.
    goal && !options.quick ? `${'least' in goal ? `≥ ${goal.least}` : `≤ ${goal.most}`} ${met ? 'met' : 'MISSED'}` : '',
  ])
  const table = [['', '', 'figure', 'floor', 'ratio', 'spread', 'goal'], ...rows]
  const widths = table[0]!.map((_, column) => Math.max(...table.map(row => row[column]!.length)))
  for (const row of table) {
    console.log(
      `  ${row.map((cell, column) => (column < 2 ? cell.padEnd(widths[column]!) : cell.padStart(widths[column]!))).join('  ')}`,
    )
  }
  for (const [what, count] of Object.entries(errors)) console.log(`  ${count} × ${what}`)
}

function short(value: number): string {
  return value >= 100 ? String(Math.round(value)) : value.toPrecision(3)
}

main().then(
  () => process.exit(),
  error => {
    console.error(error)
    process.exit(1)
  },
)
