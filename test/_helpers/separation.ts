/**
 * Tells whether two samples of times can be told apart: by the chance that a guess "the longer one is of the second
 * kind" is right for a pair of them (the statistic of Mann and Whitney, in which a few outliers weigh nothing), where
 * 0.5 is no knowledge. They are told apart when a guess is right, or wrong, more than 3 times of 4.
 *
 * With 100 samples each, chance alone goes beyond that less than once in a thousand million tests, so a noisy machine
 * isn't taken for a leak; and a leak that matters, a hash or a query left out, goes far beyond it.
 */
export function separation(some: readonly number[], others: readonly number[]) {
  let longer = 0
  for (const a of some) for (const b of others) longer += b > a ? 1 : b === a ? 0.5 : 0
  const right = longer / (some.length * others.length)
  const chance = Math.max(right, 1 - right)
  return { told: chance > 0.75, chance, gap: Math.abs(median(others) - median(some)) }
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN
}
