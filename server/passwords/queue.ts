// Which job is next: the order in which jobs wait for the hash threads. It owns fairness, and knows neither threads nor time.

/** Where a job belongs in the queue. */
export interface Turn {
  /** A sign-in of an active account that knows the network; what Administration asks for; anything else. */
  readonly kind: 'known' | 'administration' | 'other'
  /** Networks of the client address, innermost first: jobs that aren't known take turns by them. */
  readonly networks: readonly string[]
  /** Account, by the key of its username: accounts take turns among known jobs, and within a network. */
  readonly account: string
}

/** Waiting jobs in fair order. */
export interface Queue<T> {
  add(job: T): void
  /** Removes and returns the job that is next. */
  take(): T | undefined
  /** Removes a job; false when it isn't waiting. */
  remove(job: T): boolean
  /** Upper bound of the jobs that are taken before the last of `count` new ones, as things stand. */
  ahead(turn: Turn, count: number): number
  /** Removes and returns the newest job of the longest line, outermost first; a known one only if no other waits. */
  evict(): T | undefined
  readonly size: number
}

/** The jobs of one account, or lines that take turns: the Map keeps the order of their last turns. */
interface Line<T> {
  readonly key: string
  readonly outer: Line<T> | undefined
  readonly lines: Map<string, Line<T>>
  readonly jobs: T[]
  size: number
  /** Turns since one of a higher rank than the lowest had one. */
  turns: number
}

/** Of so many turns in a line one goes to an inner line above the lowest rank. */
const cycle = 10

/** Turns over which the share of known jobs is averaged. */
const window = 50

/** Ranks of the lines that are neither networks nor accounts. */
const ranks = new Map([
  ['known', 0],
  ['rest', 1],
  ['other', 0],
  ['administration', 1],
])

/** The lines that lead to a job, outermost first. The key of an account is no network's. */
function pathOf({ kind, networks, account }: Turn): string[] {
  return kind === 'known' ? [kind, `@${account}`] : ['rest', kind, ...networks.toReversed(), `@${account}`]
}

/**
 * A queue of nested lines. In each line, of ten turns nine go to the inner lines of the lowest rank, and one to those of
 * higher ranks, round-robin. Known jobs rank before the rest, others before Administration, and networks
 * by the binary logarithm of `usedOf`, which says how much a network failed and signed up lately. Neither more jobs, nor
 * more accounts, nor more networks within a network gain a client more turns.
 */
export function createQueue<T extends { readonly turn: Turn }>(
  usedOf: (network: string) => number = () => 0,
): Queue<T> {
  const root = createLine<T>('')
  let knownShare = 0

  function rankOf(key: string): number {
    // One is what a sign-up itself has just counted.
    return ranks.get(key) ?? (key.startsWith('@') ? 0 : Math.floor(Math.log2(Math.max(1, usedOf(key)))))
  }

  /** The inner line whose turn it is; its next one comes after those of all others. */
  function next(line: Line<T>): Line<T> {
    const ranked = [...line.lines.values()].map(inner => ({ inner, rank: rankOf(inner.key) }))
    const lowest = Math.min(...ranked.map(({ rank }) => rank))
    const passedOver = ++line.turns >= cycle && ranked.find(({ rank }) => rank > lowest)
    if (passedOver) line.turns = 0
    const { inner } = passedOver || ranked.find(({ rank }) => rank === lowest)!
    line.lines.delete(inner.key)
    line.lines.set(inner.key, inner)
    return inner
  }

  /** Upper bound of the turns in a line until an inner line, which may be new, has had so many of them. */
  function turnsUntil(line: Line<T> | undefined, own: string, turns: number): number {
    const ownRank = rankOf(own)
    let [lower, equal, higher, lowest, sharing, seen] = [0, 0, 0, ownRank, 1, 1]
    for (const { key, size } of line?.lines.values() ?? []) {
      if (key === own) continue
      const rank = rankOf(key)
      if (rank < ownRank) lower += size
      else if (rank === ownRank) equal += Math.min(size, turns)
      else higher += size
      // Lines above the lowest rank share the tenth turns.
      if (rank < lowest) [lowest, sharing] = [rank, seen]
      else if (rank > lowest) sharing++
      seen++
    }
    const untilOwn = turns * (cycle * sharing - 1) - Math.min(cycle - 1, line?.turns ?? 0)
    const before = turns + equal + Math.min(lower, untilOwn)
    return before + Math.min(higher, Math.ceil(before / (cycle - 1)))
  }

  function find(path: readonly string[]): Line<T> | undefined {
    let line: Line<T> | undefined = root
    for (const key of path) line = line?.lines.get(key)
    return line
  }

  /** Removes a job from its line, and the lines that are empty then. */
  function removeAt(leaf: Line<T>, index: number): T {
    const [job] = leaf.jobs.splice(index, 1)
    for (let line: Line<T> | undefined = leaf; line; line = line.outer) {
      if (--line.size === 0) line.outer?.lines.delete(line.key)
    }
    return job!
  }

  return {
    add(job) {
      let line = root
      for (const key of pathOf(job.turn)) {
        line.size++
        const inner: Line<T> = line.lines.get(key) ?? createLine(key, line)
        line.lines.set(key, inner)
        line = inner
      }
      line.size++
      line.jobs.push(job)
    },
    take() {
      if (root.size === 0) return undefined
      let line = root
      while (line.lines.size > 0) line = next(line)
      const job = removeAt(line, 0)
      knownShare += (Number(job.turn.kind === 'known') - knownShare) / window
      return job
    },
    remove(job) {
      const line = find(pathOf(job.turn))
      const index = line ? line.jobs.indexOf(job) : -1
      if (index >= 0) removeAt(line!, index)
      return index >= 0
    },
    ahead(turn, count) {
      const path = pathOf(turn)
      let turns = (find(path)?.size ?? 0) + count
      let inner = turns
      for (let depth = path.length - 1; depth >= 0; depth--) {
        inner = turns
        turns = turnsUntil(find(path.slice(0, depth)), path[depth]!, inner)
      }
      // Known jobs that arrive meanwhile take their share, too.
      const share = turn.kind === 'known' ? 1 : Math.max(1 / cycle, 1 - knownShare)
      return Math.max(turns, Math.round(inner / share)) - 1
    },
    evict() {
      if (root.size === 0) return undefined
      let line = root.lines.get('rest') ?? root
      while (line.lines.size > 0) line = longestOf(line)
      return removeAt(line, line.jobs.length - 1)
    },
    get size() {
      return root.size
    },
  }
}

function createLine<T>(key: string, outer?: Line<T>): Line<T> {
  return { key, outer, lines: new Map(), jobs: [], size: 0, turns: 0 }
}

/** Of several that are as long it is the last, which a newcomer's is. */
function longestOf<T>(line: Line<T>): Line<T> {
  return [...line.lines.values()].reduce((longest, each) => (each.size >= longest.size ? each : longest))
}
