/**
 * The benchmark: runs scenarios, prints their tables, keeps everything in a file. docs/performance.md explains it.
 *
 * Every figure stands beside a baseline that is measured in the same run and on the same build, and what counts is their
 * ratio. scenarios.ts and rude.ts say what is measured, measure.ts how; load.ts and flood.ts are the clients, each in a
 * process of its own.
 */
import { createHash } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { chmod, mkdtemp, readdir, rm } from 'node:fs/promises'
import { availableParallelism, cpus, tmpdir, totalmem } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { startEmbedded } from '../../server/embedded/start.js'
import { costs } from './costs.js'
import { errorsIn, evaluate, measure, type Result, type Samples, summarize } from './measure.js'
import { root, stopAll } from './processes.js'
import { rude } from './rude.js'
import { scenarios as steady } from './scenarios.js'

const scenarios = { ...steady, ...rude, ...costs }

const usage = `npm run bench -- [--scenario name]… [options]

${Object.entries(scenarios)
  .map(
    ([name, { about, byDefault }]) => `  ${name.padEnd(17)} ${about}${byDefault === false ? ' (only when named)' : ''}`,
  )
  .join('\n')}
  rude              all whose names begin with it

  --rounds 5        rounds; the rude ones, unless told, have one
  --quick           a tenth of the time, to see that everything works; the figures mean little
  --seconds 60      length of a window of the rude ones
  --users 2000      users of rude-school
  --cost 10         cost of the hashes in the rude ones
  --out bench.json  file for everything that was measured`

const { values: options } = parseArgs({
  options: {
    scenario: { type: 'string', multiple: true },
    rounds: { type: 'string' },
    quick: { type: 'boolean', default: false },
    seconds: { type: 'string', default: '60' },
    users: { type: 'string', default: '2000' },
    cost: { type: 'string', default: '10' },
    out: { type: 'string', default: 'bench.json' },
    help: { type: 'boolean', default: false },
  },
})

async function main(): Promise<void> {
  if (options.help) return void console.log(usage)
  const names = chosen(options.scenario)
  const rounds = options.rounds === undefined ? undefined : wholeNumber('rounds')
  const scale = options.quick ? 0.1 : 1
  const sizes = { seconds: wholeNumber('seconds'), users: wholeNumber('users'), cost: wholeNumber('cost') }

  const build = await digestOfBuild()
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
  const kept = { at: new Date().toISOString(), machine, build, options, scenarios: {} as Record<string, unknown> }
  let failed = false
  try {
    for (const name of names) {
      const from = performance.now()
      const prepared = await scenarios[name]!.prepare({ server: embedded.url, folder, ...sizes })
      const samples = await measure(prepared, rounds ?? (prepared.once ? 1 : options.quick ? 2 : 5), scale)
      const results = prepared.rows.map(row => evaluate(row, samples))
      const errors = errorsIn(samples)
      await stopAll()
      print(name, results, samples, (performance.now() - from) / 1000)
      failed ||= Object.keys(errors).length > 0
      kept.scenarios[name] = { results, errors, samples: summarize(samples) }
      writeFileSync(options.out, `${JSON.stringify(kept, null, 2)}\n`)
    }
  } finally {
    await clean()
  }
  if (build !== (await digestOfBuild())) throw new Error('dist was built anew meanwhile: the rows aren’t of one build.')
  // A goal that isn't met is a finding; a wrong answer makes the figures worthless.
  if (failed) process.exitCode = 1
}

function chosen(given: readonly string[] | undefined): string[] {
  const all = Object.keys(scenarios)
  if (!given) return all.filter(name => scenarios[name]!.byDefault !== false)
  const names = given.flatMap(name => (name === 'rude' ? Object.keys(rude) : name))
  for (const name of names) if (!scenarios[name]) throw new Error(`There is no scenario ${name}.\n\n${usage}`)
  return names
}

function wholeNumber(name: 'rounds' | 'seconds' | 'users' | 'cost'): number {
  const number = Number(options[name])
  if (!Number.isInteger(number) || number < 1) throw new Error(`--${name} is a whole number from 1 on`)
  return number
}

/** Names what is measured: a digest of all compiled files. */
async function digestOfBuild(): Promise<string> {
  const hash = createHash('sha256')
  const files = (await readdir(join(root, 'dist'), { recursive: true })).filter(name => name.endsWith('.js'))
  for (const name of files.sort()) hash.update(name).update(readFileSync(join(root, 'dist', name)))
  return hash.digest('hex').slice(0, 12)
}

const units: Record<string, string> = {
  perSecond: '/s',
  logins: 'logins/s',
  processor: 'µs CPU',
  cost: 'ms',
  off: '',
  time: 'µs',
  seconds: 's',
  memory: 'MB',
  newcomer: 's',
  left: '',
  last: 's',
  users: '',
  level: '',
  'memory level': '',
  'handles level': '',
  'p99 level': '',
  'server memory': 'MB',
  answers: '',
  unavailable: '',
  late: '',
  p50: 'ms p50',
  p99: 'ms p99',
  'refusal p99': 'ms p99',
}

function print(name: string, results: readonly Result[], samples: Samples, seconds: number): void {
  console.log(`\n${name}: ${scenarios[name]!.about} (${Math.round(seconds)} s)`)
  const rounds = Math.max(...Object.values(samples).map(each => each.length))
  const rows = results.map(({ label, figure, value, baselineValue, ratio, spread, goal, met }) => [
    label,
    units[figure] ?? figure,
    short(value),
    baselineValue === undefined ? '' : short(baselineValue),
    ratio === undefined ? '' : Number.isNaN(ratio) ? '–' : ratio.toFixed(2),
    rounds === 1 ? '' : spread.map(each => (ratio === undefined ? short(each) : each.toFixed(2))).join('–'),
    // A tenth of the time judges nothing.
    goal && !options.quick ? `${'least' in goal ? `≥ ${goal.least}` : `≤ ${goal.most}`} ${met ? 'met' : 'MISSED'}` : '',
  ])
  const table = [['', '', 'figure', 'baseline', 'ratio', rounds === 1 ? '' : 'spread', 'goal'], ...rows]
  const widths = table[0]!.map((_, column) => Math.max(...table.map(row => row[column]!.length)))
  for (const row of table) {
    const cells = row.map((cell, column) =>
      column < 2 ? cell.padEnd(widths[column]!) : cell.padStart(widths[column]!),
    )
    console.log(`  ${cells.join('  ').trimEnd()}`)
  }
  for (const [segment, each] of Object.entries(samples)) {
    for (const { note } of each) if (note) console.log(`  ${segment}: ${note}`)
  }
  for (const [what, count] of Object.entries(errorsIn(samples))) console.log(`  ${count} × ${what}`)
}

function short(value: number): string {
  if (Number.isNaN(value)) return '–'
  return value >= 100 ? String(Math.round(value)) : value.toPrecision(3)
}

main().then(
  () => process.exit(),
  error => {
    console.error(error)
    process.exit(1)
  },
)
