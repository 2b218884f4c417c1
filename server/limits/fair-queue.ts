// The order in which requests of many networks wait: a start-time fair queue (Goyal, Vin and Cheng, 1996), nested by network.

/** An entry of the queue. */
export interface Entry {
  /** Its networks, innermost first. */
  readonly networks: readonly string[]
  /** What it costs, in any unit that all entries share. */
  readonly cost: number
}

/** How many entries may wait. */
export interface QueueBounds {
  readonly innermost: number
  readonly outermost: number
  readonly all: number
}

/** Entries in fair order. */
export interface FairQueue<T extends Entry> {
  /** Adds an entry. Returns the entry that has to leave because a bound is exceeded: the newest of the longest line. */
  add(entry: T): T | undefined
  /** The entry that is next; it stays. */
  peek(): T | undefined
  /** Takes out the entry that is next. */
  take(): T | undefined
  /** Takes an entry out of its line; false when it isn't waiting. */
  remove(entry: T): boolean
  /** Takes out every entry of which that is so. */
  removeIf(isSo: (entry: T) => boolean): T[]
  readonly size: number
}

/**
 * A network with those that wait in it, or in the networks inside it. `start` is the tag of the next entry, `finish` the tag
 * that it had when the last one was taken, `virtual` the tag of the line inside that was served last.
 */
interface Line<T> {
  readonly parent: Line<T> | undefined
  start: number
  finish: number
  virtual: number
  size: number
  /** Whether it is in the heap of its parent: an empty line stays there until it would be next, or is forgotten. */
  queued: boolean
  /** Its place among lines with the same tag: the one that has been in the heap for longest is next. */
  order: number
  /** How many lines have come into its heap. */
  entered: number
  readonly lines: Map<string, Line<T>>
  heap: Line<T>[]
  readonly entries: T[]
}

/** Empty lines that a line remembers for their tags, besides as many as it has entries. */
const remembered = 64

/**
 * A queue in which networks that wait get equal shares of cost, and the networks inside each of them likewise. Of two that
 * wait all the time, one is never ahead of the other by more than the greatest cost of both.
 */
export function createFairQueue<T extends Entry>(bounds: QueueBounds): FairQueue<T> {
  let root = createLine<T>(undefined)

  function lineOf({ networks }: T): Line<T> | undefined {
    let line: Line<T> | undefined = root
    for (let level = networks.length - 1; level >= 0 && line; level--) line = line.lines.get(networks[level]!)
    return line
  }

  /** The line inside that is next. */
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

  /** Takes an entry out of a leaf, for whatever reason but that it is served. */
  function leave(leaf: Line<T>, index: number): T {
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
    return leave(line, line.entries.length - 1)
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
      leave(leaf!, index)
      return true
    },
    removeIf(isSo) {
      const found: T[] = []
      const search = (line: Line<T>) => {
        for (const entry of line.entries) if (isSo(entry)) found.push(entry)
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
  return { parent, ...tags, size: 0, queued: false, order: 0, entered: 0, lines: new Map(), heap: [], entries: [] }
}

/** The line of a network inside another, ready for an entry. */
function enter<T>(parent: Line<T>, key: string): Line<T> {
  let line = parent.lines.get(key)
  if (!line) {
    if (parent.lines.size > 2 * parent.size + remembered) forgetEmpty(parent)
    line = createLine(parent)
    parent.lines.set(key, line)
  }
  if (!line.queued) {
    line.start = Math.max(parent.virtual, line.finish)
    enqueue(parent, line)
  }
  return line
}

/** Forgets empty lines, though one that was served a moment ago is served again sooner for it: they may come without end. */
function forgetEmpty<T>(parent: Line<T>): void {
  for (const [key, line] of parent.lines) if (line.size === 0) parent.lines.delete(key)
  parent.heap = parent.heap.filter(({ size }) => size > 0).sort((one, other) => (isBefore(one, other) ? -1 : 1))
}

/** Of lines equally long the one whose turn comes last: who has waited doesn't make room for who comes new. */
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
  line.order = parent.entered++
  let place = heap.length
  for (; place > 0; place = (place - 1) >> 1) {
    const above = heap[(place - 1) >> 1]!
    if (isBefore(above, line)) break
    heap[place] = above
  }
  heap[place] = line
}

/** Takes the first line out of the heap of its parent. */
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
