/**
 * The benchmark: runs scenarios and prints their tables. measurements.md explains it.
 *
 * Every figure is compared with a baseline of the same run and build, and the result is their ratio. scenarios.ts names what is
 * measured, measure.ts says how; load.ts and flood.ts are the clients, each in a separate process.
 */
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { startEmbedded } from '../../server/embedded/start.js'
import { abuse } from './abuse.js'
import { floods } from './floods.js'
import { evaluate, goalText, measure, type Result, type Samples, sumOf } from './measure.js'
import { stopAll } from './processes.js'
import { type Scenarios, scenarios, usual } from './scenarios.js'

const lines = (all: Readonly<Record<string, { about: string }>>) =>
  Object.entries(all).map(([name, { about }]) => `  ${name.padEnd(17)} ${about}`)

const usage = `npm run bench -- [--scenario name]… [options]

${lines(scenarios).join('\n')}
  abuse             others beside floods; takes --flood

Without a name: ${usual.join(', ')}.

  --rounds 5        rounds; the default is 3 for abuse, 1 for memory, otherwise 5
  --quick           a tenth of the time, to see that everything works; the figures mean little
  --flood NAME      a flood of abuse; may be given more than once, or all
  --seconds 30      length of a window of abuse, and of the load of memory
  --users NUMBER    users of the large registry of scale (10,000,000)
  --data FOLDER     folder of a database that is kept, with the registries of scale; the default is a temporary one
  --against FOLDER  front: another checkout with its dist, measured in turn

Floods:
${lines(floods).join('\n')}`

const { values: options } = parseArgs({
  options: {
    scenario: { type: 'string', multiple: true, default: [...usual] },
    rounds: { type: 'string' },
    quick: { type: 'boolean', default: false },
    flood: { type: 'string', multiple: true, default: [] },
    seconds: { type: 'string', default: '30' },
    users: { type: 'string', default: '10000000' },
    data: { type: 'string' },
    against: { type: 'string' },
    help: { type: 'boolean', default: false },
  },
})

async function main(): Promise<void> {
  if (options.help) return void console.log(usage)
  const chosen = named(options.scenario)
  const rounds = options.rounds === undefined ? undefined : wholeNumber('rounds')
  const [seconds, users] = [wholeNumber('seconds'), wholeNumber('users')]
  const missed: string[] = []

  const folder = await mkdtemp(join(tmpdir(), 'auth-bench-'))
  await chmod(folder, 0o755)
  const log = { info() {}, warn: (text: string) => console.error(text) }
  const embedded = await startEmbedded({ dataDir: resolve(options.data ?? join(folder, 'database')), log })
  let cleaned: Promise<void> | undefined
  const clean = () => {
    cleaned ??= (async () => {
      await stopAll()
      await embedded.stop()
      await rm(folder, { recursive: true, force: true })
    })()
    return cleaned
  }
  for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => clean().finally(() => process.exit(130)))
  const bench = { server: embedded.url, folder, seconds, users, against: options.against && resolve(options.against) }
  try {
    for (const [name, { about, prepare }] of Object.entries(chosen)) {
      const from = performance.now()
      const prepared = await prepare(bench)
      const usually = options.quick ? 1 : (prepared.rounds ?? 5)
      const samples = await measure(prepared, rounds ?? usually, options.quick ? 0.1 : 1)
      const results = prepared.rows.map(row => evaluate(row, samples))
      await stopAll()
      print(`${name}: ${about} (${Math.round((performance.now() - from) / 1000)} s)`, results, samples)
      missed.push(...results.filter(({ met }) => met === false).map(({ label }) => `${name}: ${label}`))
    }
  } finally {
    await clean()
  }
  if (!options.quick && missed.length > 0)
    console.log(`\nGoals that were missed:\n${missed.map(each => `  ${each}`).join('\n')}`)
}

/** The scenarios of these names. */
function named(names: readonly string[]): Scenarios {
  const chosen: Scenarios = {}
  for (const name of names) {
    if (name === 'abuse') Object.assign(chosen, abuse(options.flood))
    else if (scenarios[name]) chosen[name] = scenarios[name]
    else throw new Error(`There is no scenario ${name}.\n\n${usage}`)
  }
  return chosen
}

function wholeNumber(name: 'rounds' | 'seconds' | 'users'): number {
  const number = Number(options[name])
  if (!Number.isInteger(number) || number < 1) throw new Error(`--${name} is a whole number from 1 on`)
  return number
}

const units: Record<string, string> = {
  perSecond: '/s',
  processor: 'µs CPU',
  time: 'µs',
  seconds: 's',
  memory: 'MB',
  'me p99': 'ms p99',
  'slowest me': 'ms',
  'slowest me, ends': 'ms',
  p99: 'ms p99',
}

function print(title: string, results: readonly Result[], samples: Samples): void {
  console.log(`\n${title}`)
  const rows = results.map(({ label, figure, value, baselineValue, ratio, spread, goal, met }) => [
    label,
    units[figure] ?? '',
    short(value),
    baselineValue === undefined ? '' : short(baselineValue),
    ratio?.toFixed(2) ?? '',
    spread.map(each => (ratio === undefined ? short(each) : each.toFixed(2))).join('–'),
    // A tenth of the time is too short for results.
    goal && !options.quick ? `${goalText(goal)} ${met ? 'met' : 'MISSED'}` : '',
  ])
  const table = [['', '', 'figure', 'baseline', 'ratio', 'spread', 'goal'], ...rows]
  const widths = table[0]!.map((_, column) => Math.max(...table.map(row => row[column]!.length)))
  for (const row of table) {
    const cells = row.map((cell, column) =>
      column < 2 ? cell.padEnd(widths[column]!) : cell.padStart(widths[column]!),
    )
    console.log(`  ${cells.join('  ').trimEnd()}`)
  }
  for (const [segment, rounds] of Object.entries(samples)) {
    for (const [what, count] of Object.entries(sumOf(rounds.map(({ errors }) => errors)))) {
      console.log(`  ${count} × ${segment}: ${what}`)
      // A missed goal is a result; a wrong answer invalidates the figures.
      process.exitCode = 1
    }
  }
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
