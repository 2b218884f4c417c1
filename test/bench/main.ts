/**
 * The benchmark: runs scenarios and prints their tables. measurements.md explains it.
 *
 * Every figure is compared with a baseline of the same run and build, and the result is their
 * ratio. scenarios.ts, logins.ts, scale.ts and abuse.ts define what is measured, measure.ts how; load.ts and flood.ts are the clients,
 * each in a separate process.
 */
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { startEmbedded } from '../../server/embedded/start.js'
import { abuse } from './abuse.js'
import { floodNames, floodOf } from './floods.js'
import { errorsIn, evaluate, goalText, measure, type Result, type Samples } from './measure.js'
import { stopAll } from './processes.js'
import { scenarios as fixed } from './scenarios.js'
import type { Scenarios } from './segments.js'

const usage = `npm run bench -- [--scenario name]… [options]

${Object.entries(fixed)
  .map(
    ([name, { about, byDefault }]) => `  ${name.padEnd(17)} ${about}${byDefault === false ? ' (only when named)' : ''}`,
  )
  .join('\n')}
  abuse             others beside floods; takes --flood (only when named)

  --rounds 5        rounds; the default is 3 for abuse and 1 for some scenarios, otherwise 5
  --quick           a tenth of the time, to see that everything works; the figures mean little
  --flood NAME      a flood of abuse; may be given more than once, or all
  --seconds 30      length of a window of abuse
  --users NUMBER    users of the large registry of scale (10,000,000)
  --data FOLDER     folder of a database that is kept, with the registries of scale; the default is a temporary one
  --cost 10         cost of the hashes of abuse
  --against FOLDER  front: another checkout with its dist, measured in turn

Floods:
${floodNames.map(name => `  ${name.padEnd(17)} ${floodOf(name).about} (${floodOf(name).origins.join(', ')})`).join('\n')}`

const { values: options } = parseArgs({
  options: {
    scenario: { type: 'string', multiple: true },
    rounds: { type: 'string' },
    quick: { type: 'boolean', default: false },
    flood: { type: 'string', multiple: true },
    seconds: { type: 'string', default: '30' },
    users: { type: 'string' },
    data: { type: 'string' },
    cost: { type: 'string', default: '10' },
    against: { type: 'string' },
    help: { type: 'boolean', default: false },
  },
})

async function main(): Promise<void> {
  if (options.help) return void console.log(usage)
  const scenarios = chosen(options.scenario)
  const rounds = options.rounds === undefined ? undefined : wholeNumber('rounds')
  const scale = options.quick ? 0.1 : 1
  const sizes = {
    seconds: wholeNumber('seconds'),
    cost: wholeNumber('cost'),
  }
  const given = {
    ...(options.users !== undefined && { users: wholeNumber('users') }),
    ...(options.against !== undefined && { against: resolve(options.against) }),
  }
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
  let failed = false
  try {
    for (const [name, { about, prepare }] of Object.entries(scenarios)) {
      const from = performance.now()
      const prepared = await prepare({ server: embedded.url, folder, ...sizes, ...given })
      const usual = prepared.rounds === undefined ? (options.quick ? 2 : 5) : options.quick ? 1 : prepared.rounds
      const samples = await measure(prepared, rounds ?? usual, scale)
      const results = prepared.rows.map(row => evaluate(row, samples))
      const errors = errorsIn(samples)
      await stopAll()
      print(`${name}: ${about} (${Math.round((performance.now() - from) / 1000)} s)`, results, samples)
      missed.push(...results.filter(({ met }) => met === false).map(({ label }) => `${name}: ${label}`))
      failed ||= Object.keys(errors).length > 0
    }
  } finally {
    await clean()
  }
  if (!options.quick && missed.length > 0)
    console.log(`\nGoals that were missed:\n${missed.map(each => `  ${each}`).join('\n')}`)
  // A missed goal is a result; a wrong answer invalidates the figures.
  if (failed) process.exitCode = 1
}

/** The requested scenarios, or those of a run without names. */
function chosen(names: readonly string[] | undefined): Scenarios {
  if (!names) return Object.fromEntries(Object.entries(fixed).filter(([, { byDefault }]) => byDefault !== false))
  const scenarios: Scenarios = {}
  for (const name of names) {
    if (name === 'abuse') Object.assign(scenarios, abuse(options.flood ?? []))
    else if (fixed[name]) scenarios[name] = fixed[name]
    else throw new Error(`There is no scenario ${name}.\n\n${usage}`)
  }
  return scenarios
}

function wholeNumber(name: 'rounds' | 'seconds' | 'users' | 'cost'): number {
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
  p99: 'ms p99',
}

function print(title: string, results: readonly Result[], samples: Samples): void {
  console.log(`\n${title}`)
  const rounds = Math.max(...Object.values(samples).map(each => each.length))
  const rows = results.map(({ label, figure, value, baselineValue, ratio, spread, goal, met }) => [
    label,
    units[figure] ?? '',
    short(value),
    baselineValue === undefined ? '' : short(baselineValue),
    ratio === undefined ? '' : Number.isNaN(ratio) ? '–' : ratio.toFixed(2),
    rounds === 1 ? '' : spread.map(each => (ratio === undefined ? short(each) : each.toFixed(2))).join('–'),
    // A tenth of the time is too short for results.
    goal && !options.quick ? `${goalText(goal)} ${met ? 'met' : 'MISSED'}` : '',
  ])
  const table = [['', '', 'figure', 'baseline', 'ratio', rounds === 1 ? '' : 'spread', 'goal'], ...rows]
  const widths = table[0]!.map((_, column) => Math.max(...table.map(row => row[column]!.length)))
  for (const row of table) {
    const cells = row.map((cell, column) =>
      column < 2 ? cell.padEnd(widths[column]!) : cell.padStart(widths[column]!),
    )
    console.log(`  ${cells.join('  ').trimEnd()}`)
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
