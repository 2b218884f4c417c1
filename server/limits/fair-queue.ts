// Start-time fair queuing (Goyal, Vin and Cheng, 1996), hierarchical, with ranks.

/** An entry of the queue. */
export interface Entry {
  /** Names of its lines, innermost first, such as the networks of a client. */
  readonly networks: readonly string[]
  /** Its cost, in the same unit for all entries. */
  readonly cost: number
}

/** Maximum entries of an innermost line and of an outermost line, if these are bounded, and in all. */
export interface QueueBounds {
  readonly innermost?: number
  readonly outermost?: number
  readonly all: number
}

/** Entries in fair order. */
export type FairQueue<T extends Entry> = ReturnType<typeof createFairQueue<T>>

/** The line of a network: its entries, or the lines inside it. */
interface Line<T> {
  readonly parent: Line<T> | undefined
  rank: number
  /** The start tag of the next entry. An empty line keeps it. */
  start: number
  /** Virtual time: the greatest start tag of an inner line that was served. */
  virtual: number
  /** Entries in it and inside it. */
  size: number
  /** Turns since an inner line above the lowest rank had one. */
  turns: number
  readonly lines: Map<string, Line<T>>
  /** The inner lines that have entries, by rank and start tag. */
  readonly waiting: Line<T>[]
  readonly entries: T[]
}

/** One of this many turns in a line goes to an inner line above the lowest rank. */
const cycle = 10

/** Inner lines that a line may have, beyond twice its entries, before it removes empty ones with their tags. */
const maxEmptyLines = 64

/**
 * Creates a queue in which lines of the same rank get equal shares of cost, and the lines inside each of them, too: the
 * shares of two lines that wait all the time differ by at most the sum of their greatest costs. While lines of the lowest
 * rank wait, those of higher ranks together get one of ten turns, in the order of their last turns. `rankOf` returns the
 * rank of the line of an entry at a level, each time that the line begins to wait.
 */
export function createFairQueue<T extends Entry>(
  bounds: QueueBounds,
  rankOf: (entry: T, level: number) => number = () => 0,
) {
  let root = createLine<T>()

  /** The inner line that is next. */
  function next({ waiting, turns }: Line<T>): Line<T> {
    const [first, last] = [waiting[0]!, waiting.at(-1)!]
    if (turns < cycle - 1 || last.rank === first.rank) return first
    const passedOver = waiting.filter(({ rank }) => rank > first.rank)
    return passedOver.reduce((earliest, each) => (each.start < earliest.start ? each : earliest))
  }

  function nextLeaf(): Line<T> | undefined {
    if (root.size === 0) return undefined
    let line = root
    while (line.waiting.length > 0) line = next(line)
    return line
  }

  /** Adds an entry, and returns its innermost line. */
  function insert(entry: T): Line<T> {
    root.size++
    let line = root
    for (let level = entry.networks.length - 1; level >= 0; level--) {
      const name = entry.networks[level]!
      const inner = line.lines.get(name) ?? addLine(line, name)
      if (inner.size++ === 0) wait(inner, Math.max(line.virtual, inner.start), rankOf(entry, level))
      line = inner
    }
    line.entries.push(entry)
    return line
  }

  /** Removes an entry that isn't served: the tags of its lines stay. */
  function removeAt(leaf: Line<T>, index: number): void {
    leaf.entries.splice(index, 1)
    for (let line = leaf; line.parent; line = line.parent) if (--line.size === 0) leave(line)
    if (--root.size === 0) root = createLine<T>()
  }

  function lineOf({ networks }: T): Line<T> | undefined {
    let line: Line<T> | undefined = root
    for (let level = networks.length - 1; level >= 0 && line; level--) line = line.lines.get(networks[level]!)
    return line
  }

  function remove(entry: T): boolean {
    const leaf = lineOf(entry)
    const index = leaf?.entries.lastIndexOf(entry) ?? -1
    if (index >= 0) removeAt(leaf!, index)
    return index >= 0
  }

  /** The newest entry of the longest line, which leaves when the entries with one in a leaf exceed a bound. */
  function excess(leaf: Line<T>, networks: readonly string[]): T | undefined {
    const { innermost, outermost } = bounds
    const outer = root.lines.get(networks.at(-1)!)!
    if (innermost !== undefined && leaf.size > innermost) return leaf.entries.at(-1)
    if (outermost !== undefined && outer.size > outermost) return newestOfLongest(outer)
    return excessOfAll()
  }

  /** The same, of all lines. */
  function excessOfAll(): T | undefined {
    if (root.size <= bounds.all) return undefined
    const { waiting } = root
    return newestOfLongest(longest(waiting.filter(({ rank }) => rank === waiting.at(-1)!.rank)))
  }

  return {
    /**
     * Adds an entry. When that exceeds a bound, removes and returns the newest entry of the longest line; of the outermost
     * lines, only those of the highest rank lose entries.
     */
    add(entry: T): T | undefined {
      const evicted = excess(insert(entry), entry.networks)
      if (evicted) remove(evicted)
      return evicted
    },
    /** Removes and returns one more entry beyond the bound of all, if that has become smaller. */
    evict(): T | undefined {
      const evicted = excessOfAll()
      if (evicted) remove(evicted)
      return evicted
    },
    /** Whether `add` would keep such an entry now. */
    hasRoom(like: Entry): boolean {
      const entry = { ...like } as T
      const evicted = excess(insert(entry), entry.networks)
      remove(entry)
      return evicted !== entry
    },
    /** How many entries would be served before such an entry, if no more come. */
    ahead(like: Entry): number {
      const entry = { ...like } as T
      const leaf = insert(entry)
      let ahead = leaf.size - 1
      for (let line = leaf; line.parent; line = line.parent) {
        const rounds = ahead + 1
        let lower = 0
        for (const each of line.parent.waiting) {
          if (each.rank < line.rank) lower += each.size
          else if (each.rank === line.rank && each !== line) ahead += Math.min(each.size, rounds)
        }
        ahead += Math.min(lower, (cycle - 1) * rounds)
      }
      remove(entry)
      return ahead
    },
    /** Charges lines more for an entry that was served: their other entries wait longer. */
    charge(networks: readonly string[], cost: number): void {
      let line: Line<T> | undefined = root
      for (let level = networks.length - 1; level >= 0; level--) {
        line = line.lines.get(networks[level]!)
        if (!line) return
        line.start += cost
        if (line.size === 0) continue
        leave(line)
        wait(line, line.start, line.rank)
      }
    },
    /** Returns the next entry without removing it. */
    peek: (): T | undefined => nextLeaf()?.entries[0],
    /** Removes and returns the next entry. */
    take(): T | undefined {
      const leaf = nextLeaf()
      if (!leaf) return undefined
      const entry = leaf.entries.shift()!
      for (let [line, level] = [leaf, 0]; line.parent; line = line.parent) {
        const { parent } = line
        parent.turns = line.rank > parent.waiting[0]!.rank ? 0 : parent.turns + 1
        leave(line)
        // A line of a higher rank falls behind; that gives it no right to what it didn't get.
        parent.virtual = Math.max(parent.virtual, line.start)
        line.start = parent.virtual + entry.cost
        if (--line.size > 0) wait(line, line.start, rankOf(entry, level))
        level++
      }
      if (--root.size === 0) root = createLine<T>()
      return entry
    },
    /** Removes an entry; false when it isn't in the queue. */
    remove,
    get size() {
      return root.size
    },
  }
}

function createLine<T>(parent?: Line<T>): Line<T> {
  return { parent, rank: 0, start: 0, virtual: 0, size: 0, turns: 0, lines: new Map(), waiting: [], entries: [] }
}

function addLine<T>(parent: Line<T>, name: string): Line<T> {
  // The number of empty lines is unbounded. Those that are removed lose their tags, so a recent one may be served again too
  // soon.
  if (parent.lines.size > 2 * parent.size + maxEmptyLines) {
    for (const [name, line] of parent.lines) if (line.size === 0) parent.lines.delete(name)
  }
  const line = createLine(parent)
  parent.lines.set(name, line)
  return line
}

/** Adds a line to the waiting ones of its parent, behind those with the same rank and tag. */
function wait<T>(line: Line<T>, start: number, rank: number): void {
  const { waiting } = line.parent!
  const isAfter = (other: Line<T>) => other.rank < rank || (other.rank === rank && other.start <= start)
  waiting.splice(waiting.findLastIndex(isAfter) + 1, 0, Object.assign(line, { start, rank }))
}

function leave<T>(line: Line<T>): void {
  const { waiting } = line.parent!
  waiting.splice(waiting.indexOf(line), 1)
}

function newestOfLongest<T>(from: Line<T>): T {
  let line = from
  while (line.waiting.length > 0) line = longest(line.waiting)
  return line.entries.at(-1)!
}

/** The longest line; of equally long ones the one that is served last. */
function longest<T>(lines: readonly Line<T>[]): Line<T> {
  return lines.reduce((longest, each) => (each.size >= longest.size ? each : longest))
}
