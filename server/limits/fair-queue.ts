// Start-time fair queuing (Goyal, Vin and Cheng, 1996), hierarchical by network.

/** An entry of the queue. */
export interface Entry {
  /** Its networks, innermost first. */
  readonly networks: readonly string[]
  /** Its cost, in the same unit for all entries. */
  readonly cost: number
}

/** Maximum entries of an innermost network, of an outermost network, and in all. */
export interface QueueBounds {
  readonly innermost: number
  readonly outermost: number
  readonly all: number
}

/** Entries in fair order. */
export interface FairQueue<T extends Entry> {
  /** Adds an entry. When that exceeds a bound, removes and returns the newest entry of the longest line. */
  add(entry: T): T | undefined
  /** Returns the next entry without removing it. */
  peek(): T | undefined
  /** Removes and returns the next entry. */
  take(): T | undefined
  /** Removes an entry; false when it isn't in the queue. */
  remove(entry: T): boolean
  /** Removes and returns all entries that match the predicate. */
  removeIf(matches: (entry: T) => boolean): T[]
  readonly size: number
}

/**
 * The line of a network: its entries, or the lines of the networks inside it. The tags of the algorithm: `start` of the
 * next entry, `finish` of the last entry taken, `virtual` time, the start tag of the inner line that was served last.
 */
interface Line<T> {
  readonly parent: Line<T> | undefined
  start: number
  finish: number
  virtual: number
  size: number
  /** Whether the heap of its parent holds it. A line that becomes empty stays in the heap until it is first there. */
  queued: boolean
  /** Breaks ties between lines with the same tag: the one that entered the heap first is next. */
  order: number
  /** Number of insertions into its heap. */
  insertions: number
  readonly lines: Map<string, Line<T>>
  heap: Line<T>[]
  readonly entries: T[]
}

/** Inner lines that a line may have, beyond twice its entries, before it removes empty ones with their tags. */
const maxEmptyLines = 64

/**
 * Creates a queue in which waiting networks get equal shares of cost, and the networks inside each of them, too. The
 * shares of two networks that wait all the time differ by at most the sum of their greatest costs.
 */
export function createFairQueue<T extends Entry>(bounds: QueueBounds): FairQueue<T> {
  let root = createLine<T>(undefined)

  function lineOf({ networks }: T): Line<T> | undefined {
    let line: Line<T> | undefined = root
    for (let level = networks.length - 1; level >= 0 && line; level--) line = line.lines.get(networks[level]!)
    return line
  }

  /** The next inner line; removes empty lines before it from the heap. */
  function first(line: Line<T>): Line<T> {
    while (line.heap[0]!.size === 0) dequeue(line)
    return line.heap[0]!
  }

  function firstLeaf(): Line<T> | undefined {
    if (root.size === 0) return undefined
    let line = root
    while (line.heap.length > 0 && line.entries.length === 0) line = first(line)
    return line
  }

  /** Removes an entry that isn't served: the tags of its lines stay. */
  function removeAt(leaf: Line<T>, index: number): T {
    const [entry] = leaf.entries.splice(index, 1)
    for (let line: Line<T> | undefined = leaf; line; line = line.parent) line.size--
    if (root.size === 0) root = createLine<T>(undefined)
    return entry!
  }

  function takeNewest(from: Line<T>): T {
    let line = from
    while (line.lines.size > 0) {
      let longest: Line<T> | undefined
      for (const each of line.lines.values())
        if (each.size > 0 && (!longest || isEvictedFirst(each, longest))) longest = each
      line = longest!
    }
    return removeAt(line, line.entries.length - 1)
  }

  return {
    add(entry) {
      const { networks } = entry
      root.size++
      let line = root
      for (let level = networks.length - 1; level >= 0; level--) {
        line = enter(line, networks[level]!)
        line.size++
      }
      line.entries.push(entry)
      if (line.size > bounds.innermost) return takeNewest(line)
      const outermost = root.lines.get(networks.at(-1)!)!
      if (outermost.size > bounds.outermost) return takeNewest(outermost)
      return root.size > bounds.all ? takeNewest(root) : undefined
    },
    peek: () => firstLeaf()?.entries[0],
    take() {
      const leaf = firstLeaf()
      if (!leaf) return undefined
      const entry = leaf.entries.shift()!
      for (let line = leaf; line.parent; line = line.parent) {
        line.parent.virtual = line.start
        line.size--
        dequeue(line.parent)
        line.finish = line.start + entry.cost
        line.start = line.finish
        if (line.size > 0) enqueue(line.parent, line)
      }
      root.size--
      if (root.size === 0) root = createLine<T>(undefined)
      return entry
    },
    remove(entry) {
      const leaf = lineOf(entry)
      const index = leaf?.entries.indexOf(entry) ?? -1
      if (index < 0) return false
      removeAt(leaf!, index)
      return true
    },
    removeIf(matches) {
      const found: T[] = []
      const search = (line: Line<T>) => {
        for (const entry of line.entries) if (matches(entry)) found.push(entry)
        for (const inner of line.lines.values()) if (inner.size > 0) search(inner)
      }
      search(root)
      for (const entry of found) this.remove(entry)
      return found
    },
    get size() {
      return root.size
    },
  }
}

function createLine<T>(parent: Line<T> | undefined): Line<T> {
  const tags = { start: 0, finish: 0, virtual: 0 }
  return { parent, ...tags, size: 0, queued: false, order: 0, insertions: 0, lines: new Map(), heap: [], entries: [] }
}

/** Returns the line of a network inside another, in the heap of its parent. Creates it if needed. */
function enter<T>(parent: Line<T>, key: string): Line<T> {
  let line = parent.lines.get(key)
  if (!line) {
    if (parent.lines.size > 2 * parent.size + maxEmptyLines) removeEmpty(parent)
    line = createLine(parent)
    parent.lines.set(key, line)
  }
  if (!line.queued) {
    line.start = Math.max(parent.virtual, line.finish)
    enqueue(parent, line)
  }
  return line
}

/**
 * Removes empty lines, whose number is unbounded. They lose their tags, so a recent one may be served again too soon.
 */
function removeEmpty<T>(parent: Line<T>): void {
  for (const [key, line] of parent.lines) if (line.size === 0) parent.lines.delete(key)
  parent.heap = parent.heap.filter(({ size }) => size > 0).sort((one, other) => (isBefore(one, other) ? -1 : 1))
}

/** Whether a line is longer than another; of equally long ones the one that is served later loses an entry. */
function isEvictedFirst<T>(one: Line<T>, other: Line<T>): boolean {
  return one.size === other.size ? isBefore(other, one) : one.size > other.size
}

function isBefore<T>(one: Line<T>, other: Line<T>): boolean {
  return one.start < other.start || (one.start === other.start && one.order < other.order)
}

/** Adds a line to the binary heap of its parent. */
function enqueue<T>(parent: Line<T>, line: Line<T>): void {
  const { heap } = parent
  line.queued = true
  line.order = parent.insertions++
  let place = heap.length
  for (; place > 0; place = (place - 1) >> 1) {
    const above = heap[(place - 1) >> 1]!
    if (isBefore(above, line)) break
    heap[place] = above
  }
  heap[place] = line
}

/** Removes the first line from the heap. */
function dequeue<T>({ heap }: Line<T>): void {
  heap[0]!.queued = false
  const last = heap.pop()!
  if (heap.length === 0) return
  let place = 0
  for (;;) {
    let below = 2 * place + 1
    if (below >= heap.length) break
    if (below + 1 < heap.length && isBefore(heap[below + 1]!, heap[below]!)) below++
    if (!isBefore(heap[below]!, last)) break
    heap[place] = heap[below]!
    place = below
  }
  heap[place] = last
}
