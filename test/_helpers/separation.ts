/**
 * Tells whether two samples of times can be told apart, by either of two statistics in which outliers weigh nothing:
 * - the chance that a guess "the longer one is of the second kind" is right for a pair of them (Mann and Whitney), where
 *   0.5 is no knowledge; above 0.7 they are told apart;
 * - the share of one kind in the fastest quarter of all, where noise, which only ever adds time, blurs least; above
 *   0.78 they are told apart.
 *
 * With 150 samples each, chance alone goes beyond either less than once in ten million tests, so a noisy machine isn't
 * taken for a leak; and a leak that matters, a hash or a query left out, goes far beyond them.
 */
export function separation(some: readonly number[], others: readonly number[]) {
  let longer = 0
  for (const a of some) for (const b of others) longer += b > a ? 1 : b === a ? 0.5 : 0
  const right = longer / (some.length * others.length)
  const chance = Math.max(right, 1 - right)

  const all = [...some.map(ms => ({ ms, first: true })), ...others.map(ms => ({ ms, first: false }))]
  const fastest = all.sort((a, b) => a.ms - b.ms).slice(0, Math.floor(all.length / 4))
  const ofFirst = fastest.filter(({ first }) => first).length / fastest.length
  const share = Math.max(ofFirst, 1 - ofFirst)
  return { told: chance > 0.7 || share > 0.78, chance, share, gap: Math.abs(median(others) - median(some)) }
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN
}
