/** Standard deviations beyond which a difference isn't chance: about once in a thousand million tests. */
const beyondChance = 6

/**
 * Tells whether two samples of times can be told apart, by either of two statistics in which outliers weigh nothing:
 * - the chance that a guess "the longer one is of the second kind" is right for a pair of them (Mann and Whitney);
 * - the share of one kind in the fastest quarter of all, where noise, which only ever adds time, blurs least.
 *
 * Both are 0.5 where there is no difference, and the kinds are distinguished where one of them is farther from that than
 * chance explains: so a noisy machine isn't taken for a leak. More samples find smaller differences.
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
  const [n, m] = [some.length, others.length]
  const told =
    chance - 0.5 > beyondChance * Math.sqrt((n + m + 1) / (12 * n * m)) ||
    share - 0.5 > beyondChance * Math.sqrt((0.25 * 0.75) / fastest.length)
  return { told, chance, share, gap: Math.abs(median(others) - median(some)) }
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN
}
