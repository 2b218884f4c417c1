// The fair order of jobs for the hash threads.

/** The attributes of a job that decide its place in the queue. */
export interface Place {
  /** A sign-in of an active account that knows the network; a call of Administration; any other. */
  readonly kind: 'known' | 'administration' | 'other'
  /** Networks of the client address, innermost first. Jobs other than known ones are queued by network. */
  readonly networks: readonly string[]
  /** Username key of the account. Known jobs are queued by account, others by account within the innermost network. */
  readonly account: string
}

/** Waiting jobs in fair order. */
export interface Queue<T> {
  add(job: T): void
  /** Removes and returns the next job. */
  take(): T | undefined
  /** Removes a job; false when it isn't waiting. */
  remove(job: T): boolean
  /** Whether a new job would be in the longest line. */
  isLongest(place: Place): boolean
  /** The newest job of the longest line, outermost first; a known job only when all are known. */
  longest(): T | undefined
  readonly size: number
}

/** A line of jobs of one account, or of inner lines. */
interface Line<T> {
  readonly key: string
  readonly outer: Line<T> | undefined
  /** Inner lines, in the order of their last turns. */
  readonly lines: Map<string, Line<T>>
  readonly jobs: T[]
  /** Jobs in the line and its inner lines. */
  size: number
  /** Turns since an inner line above the lowest rank had one. */
  turns: number
}

/** One of this many turns in a line goes to an inner line above the lowest rank. */
const cycle = 10

/** Ranks of the lines other than networks and accounts. */
const ranks = new Map([
  ['known', 0],
  ['rest', 1],
  ['other', 0],
  ['administration', 1],
])

/** The keys of the lines that lead to a job, outermost first. `@` keeps accounts and networks apart. */
function pathOf({ kind, networks, account }: Place): string[] {
  return kind === 'known' ? [kind, `@${account}`] : ['rest', kind, ...networks.toReversed(), `@${account}`]
}

/**
 * Creates a queue of nested lines, served round-robin. In each line, nine of ten turns go to the inner lines of the
 * lowest rank, and one to those of higher ranks. Known jobs rank before the rest, others before Administration, and
 * networks by the binary logarithm of `recentCount`, their recent failures, sign-ups and refusals. A client gets no more turns by
 * more jobs, accounts, or networks inside its network.
 */
export function createQueue<T extends { readonly place: Place }>(
  recentCount: (network: string) => number = () => 0,
): Queue<T> {
  const root = createLine<T>('')

  function rankOf(key: string): number {
    return ranks.get(key) ?? (key.startsWith('@') ? 0 : Math.round(Math.log2(1 + recentCount(key))))
  }

  /** Returns the inner line that is next, and moves it behind all others. */
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

  function find(path: readonly string[]): Line<T> | undefined {
    let line: Line<T> | undefined = root
    for (const key of path) line = line?.lines.get(key)
    return line
  }

  /** Removes a job from its line, and lines that become empty. */
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
      for (const key of pathOf(job.place)) {
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
      return removeAt(line, 0)
    },
    remove(job) {
      const line = find(pathOf(job.place))
      const index = line ? line.jobs.indexOf(job) : -1
      if (index >= 0) removeAt(line!, index)
      return index >= 0
    },
    isLongest(place) {
      const [first, ...path] = pathOf(place)
      if (first === 'known' && root.lines.has('rest')) return false
      let line = root.lines.get(first!)
      for (const key of path) {
        const own = line?.lines.get(key)
        for (const other of line?.lines.values() ?? []) if (other.size > (own?.size ?? 0) + 1) return false
        line = own
      }
      return true
    },
    longest() {
      let line = root.lines.get('rest') ?? root
      while (line.lines.size > 0) line = longestOf(line)
      return line.jobs.at(-1)
    },
    get size() {
      return root.size
    },
  }
}

function createLine<T>(key: string, outer?: Line<T>): Line<T> {
  return { key, outer, lines: new Map(), jobs: [], size: 0, turns: 0 }
}

/** The longest inner line; of equally long ones the last, which is the newest. */
function longestOf<T>(line: Line<T>): Line<T> {
  return [...line.lines.values()].reduce((longest, each) => (each.size >= longest.size ? each : longest))
}
