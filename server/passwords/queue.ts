// The fair order of jobs for the hash threads.

/** The attributes of a job that decide its place in the queue. */
export interface Turn {
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
  /** Upper bound of the jobs that are taken before the last of `count` new ones, if no other arrives. */
  ahead(turn: Turn, count: number): number
  /** Removes and returns the newest job of the longest line, outermost first; a known job only when all are known. */
  evict(): T | undefined
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

/** A network with more waiting jobs than a user's call brings ranks as after two failures. */
const few = 3

/** Turns over which the share of known jobs is averaged. */
const window = 50

/** Ranks of the lines other than networks and accounts. */
const ranks = new Map([
  ['known', 0],
  ['rest', 1],
  ['other', 0],
  ['administration', 1],
])

/** The keys of the lines that lead to a job, outermost first. `@` keeps accounts and networks apart. */
function pathOf({ kind, networks, account }: Turn): string[] {
  return kind === 'known' ? [kind, `@${account}`] : ['rest', kind, ...networks.toReversed(), `@${account}`]
}

/**
 * Creates a queue of nested lines, served round-robin. In each line, nine of ten turns go to the inner lines of the
 * lowest rank, and one to those of higher ranks. Known jobs rank before the rest, others before Administration, and
 * networks by the binary logarithm of `recentCount`, their recent failures and sign-ups: a user who signs up or mistypes
 * once goes before a flood, which fails more often or has many jobs waiting. A client gets no more turns by more jobs, accounts, or
 * networks inside its network.
 */
export function createQueue<T extends { readonly turn: Turn }>(
  recentCount: (network: string) => number = () => 0,
): Queue<T> {
  const root = createLine<T>('')
  let knownShare = 0

  function rankOf(key: string, size: number): number {
    const fixed = ranks.get(key) ?? (key.startsWith('@') ? 0 : undefined)
    return fixed ?? Math.max(Math.round(Math.log2(Math.max(1, recentCount(key)))), size > few ? 1 : 0)
  }

  /** Returns the inner line that is next, and moves it behind all others. */
  function next(line: Line<T>): Line<T> {
    const ranked = [...line.lines.values()].map(inner => ({ inner, rank: rankOf(inner.key, inner.size) }))
    const lowest = Math.min(...ranked.map(({ rank }) => rank))
    const passedOver = ++line.turns >= cycle && ranked.find(({ rank }) => rank > lowest)
    if (passedOver) line.turns = 0
    const { inner } = passedOver || ranked.find(({ rank }) => rank === lowest)!
    line.lines.delete(inner.key)
    line.lines.set(inner.key, inner)
    return inner
  }

  /** Upper bound of the turns in a line until its inner line `own`, with `added` new jobs, has had `turns` of them. */
  function turnsUntil(line: Line<T> | undefined, own: string, added: number, turns: number): number {
    const rank = rankOf(own, (line?.lines.get(own)?.size ?? 0) + added)
    const others = [...(line?.lines.values() ?? [])]
      .filter(({ key }) => key !== own)
      .map(({ key, size }) => ({ size, rank: rankOf(key, size), last: rankOf(key, 0) }))
    let [lower, equal, higher, falling] = [0, 0, 0, 0]
    for (const other of others) {
      const falls = other.last < other.rank
      if (other.rank < rank) lower += other.size
      // A line that ranks lower when few of its jobs are left has these turns, too.
      else if (other.rank === rank) equal += Math.min(other.size, falls ? turns + few : turns)
      else {
        higher += other.size
        if (falls) falling++
      }
    }
    // Lines above the lowest rank share every tenth turn.
    const lowest = others.reduce((least, { last }) => Math.min(least, last), rank)
    const sharing = 1 + others.filter(other => other.rank > lowest).length
    const untilOwn = turns * (cycle * sharing - 1) - Math.min(cycle - 1, line?.turns ?? 0)
    let before = turns + equal + Math.min(lower, untilOwn)
    // A line that falls to the own rank has taken a tenth turn and is behind the own line.
    const each = Math.min(few, turns - 1)
    before = Math.min(before + falling * each, Math.floor((before + each) / (1 - each / (cycle - 1))))
    return before + Math.min(higher, Math.ceil(before / (cycle - 1)))
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
        turns = turnsUntil(find(path.slice(0, depth)), path[depth]!, count, inner)
      }
      // Known jobs that arrive later take turns, too: assume as many as recently.
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

/** The longest inner line; of equally long ones the last, which is the newest. */
function longestOf<T>(line: Line<T>): Line<T> {
  return [...line.lines.values()].reduce((longest, each) => (each.size >= longest.size ? each : longest))
}
