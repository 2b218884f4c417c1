/** How segments are measured and evaluated: ratios between segments that take turns within a round. */

/** The measurements of one turn of a segment. */
export interface Sample {
  readonly figures: Readonly<Record<string, number>>
  /** ms of every right answer of an open loop. */
  readonly latencies?: readonly number[]
  readonly errors?: Readonly<Record<string, number>>
}

/** Measures for `scale` times its usual length. */
export type Segment = (scale: number) => Promise<Sample>

/** A figure, with or without a baseline. */
export interface Row {
  readonly label: string
  readonly subject: string
  /** Segment to divide by; without one the figure is absolute. */
  readonly baseline?: string
  /** Name of a figure, or `p99`, the percentile of the latencies of all rounds together. */
  readonly figure: string
  readonly goal?: Goal
  /** Whether the round with the greatest figure counts, because no other may compensate for it; by default the median of all. */
  readonly worst?: true
}

/**
 * The goal of a ratio, or of a value without a baseline. `orPlus` permits a greater ratio while the value is greater
 * than the baseline's by no more than that.
 */
export type Goal = { readonly least: number } | { readonly most: number; readonly orPlus?: number }

/** A scenario that is ready to run. */
export interface Prepared {
  readonly segments: Readonly<Record<string, Segment>>
  readonly rows: readonly Row[]
  /** The default number of rounds, if not 5; with it, no round warms up. */
  readonly rounds?: number
}

/** A row with its result. */
export interface Result extends Row {
  /** Median of rounds, or the percentile of all rounds together. */
  readonly value: number
  readonly baselineValue?: number
  readonly ratio?: number
  /** Least and greatest ratio (or value, without a baseline) of a round. */
  readonly spread: readonly [number, number]
  readonly met?: boolean
}

/** The samples of each segment, one a round. */
export type Samples = Record<string, Sample[]>

/** Runs each segment once to warm up and then once a round, there and back again. */
export async function measure({ segments, rounds: own }: Prepared, rounds: number, scale: number): Promise<Samples> {
  const entries = Object.entries(segments)
  const samples: Samples = Object.fromEntries(entries.map(([name]) => [name, []]))
  if (own === undefined) for (const [, run] of entries) await run(scale * 0.3)
  for (let round = 0; round < rounds; round++) {
    for (const [name, run] of round % 2 ? entries.toReversed() : entries) samples[name]!.push(await run(scale))
  }
  return samples
}

/** The result of a row. */
export function evaluate(row: Row, samples: Samples): Result {
  const percentile = row.figure === 'p99'
  const of = (rounds: readonly Sample[]) =>
    percentile ? p99(rounds.flatMap(({ latencies = [] }) => latencies)) : rounds[0]!.figures[row.figure]!
  const middle = row.worst ? (values: readonly number[]) => Math.max(...values) : median
  const over = (rounds: readonly Sample[]) => (percentile ? of(rounds) : middle(rounds.map(sample => of([sample]))))
  const subject = samples[row.subject]!
  const baseline = row.baseline === undefined ? undefined : samples[row.baseline]!
  const each = subject.map((sample, round) => of([sample]) / (baseline ? of([baseline[round]!]) : 1))
  const value = over(subject)
  const baselineValue = baseline && over(baseline)
  const ratio = baselineValue === undefined ? undefined : percentile ? value / baselineValue : middle(each)
  const judged = ratio ?? value
  return {
    ...row,
    value,
    ...(baselineValue !== undefined && { baselineValue, ratio: ratio! }),
    spread: [Math.min(...each), Math.max(...each)],
    // 0 / 0 isn't a success.
    ...(row.goal && { met: Number.isFinite(judged) && reaches(row.goal, judged, value - (baselineValue ?? 0)) }),
  }
}

function reaches(goal: Goal, value: number, added: number): boolean {
  if ('least' in goal) return value >= goal.least
  return value <= goal.most || (goal.orPlus !== undefined && added <= goal.orPlus)
}

/** A goal as text for the table. */
export function goalText(goal: Goal): string {
  if ('least' in goal) return `≥ ${goal.least}`
  return goal.orPlus === undefined ? `≤ ${goal.most}` : `≤ ${goal.most} or + ${goal.orPlus}`
}

/** The least value that 99% of all values don't exceed. */
export function p99(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[Math.max(0, Math.ceil(values.length * 0.99) - 1)] ?? Number.NaN
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = (sorted.length - 1) / 2
  return (sorted[Math.floor(middle)]! + sorted[Math.ceil(middle)]!) / 2
}

/** Adds counts by what they count. */
export function sumOf(counts: readonly (Readonly<Record<string, number>> | undefined)[]): Record<string, number> {
  const sum: Record<string, number> = {}
  for (const [what, count] of counts.flatMap((each = {}) => Object.entries(each))) sum[what] = (sum[what] ?? 0) + count
  return sum
}
