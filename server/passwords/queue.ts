// Who is next: the order in which jobs wait for the hash threads. It owns fairness, and knows neither threads nor time.
/** Where jobs belong in the queue of the hash threads. */
export interface Turn {
  /** Whether it is a sign-in of an active account at an address that the account knows. */
  readonly known: boolean
  /** Client address, by network: those that aren't known take turns by it. */
  readonly address: string
  /** Account, by the key of its username: within an address, and among the known, accounts take turns. */
  readonly account: string
}

/** Of so many turns one goes to those that come second, even while the others wait. */
const secondEvery = 10

/** Steps in which the shares of two addresses are compared: whoever used a little more isn't behind for that. */
const steps = 20

/** Waiting items in fair order. */
export interface Queue<T> {
  add(turn: Turn, item: T): void
  /** The item whose turn it is. */
  take(): T | undefined
  /** Takes an item out; false when it isn't waiting. */
  remove(turn: Turn, item: T): boolean
  /** How many items would be taken before the last of `count` new ones. */
  ahead(turn: Turn, count: number): number
  /** Takes out the newest item of whoever has most waiting, if that is more than this turn's with `count` new ones. */
  makeRoom(turn: Turn, count: number): T | undefined
  readonly size: number
}

/** Items of one account, or lines that take turns: a Map keeps the order in which they (re-)entered. */
interface Line<T> {
  size: number
  readonly lines: Map<string, Line<T>>
  readonly items: T[]
}

/**
 * A queue in which nobody gets more turns by waiting more often, by inventing accounts, or at more connections. Of ten
 * turns nine go to known ones; of what is left nine of ten to the address that has used least of its limits, of which
 * `usedOf` tells the share (0 to 1), and one to each address in turn.
 */
export function createQueue<T>(usedOf: (address: string) => number = () => 0): Queue<T> {
  const known = createLine<T>()
  const others = createLine<T>()
  let turns = 0
  let turnsOfOthers = 0
  const stepOf = (address: string) => Math.floor(usedOf(address) * steps)

  function takeOther(): T | undefined {
    turnsOfOthers = (turnsOfOthers + 1) % secondEvery
    if (turnsOfOthers === 0) return take(others)
    let least: string | undefined
    let leastStep = Number.POSITIVE_INFINITY
    for (const address of others.lines.keys()) {
      const step = stepOf(address)
      if (step < leastStep) [least, leastStep] = [address, step]
    }
    return take(others, least)
  }

  /** How many items at other addresses than the turn's would be taken before the last of `count` new ones. */
  function aheadOfOther({ address, account }: Turn, count: number): number {
    const mine = stepOf(address)
    const within = ahead(others.lines.get(address) ?? createLine<T>(), [account], count)
    let [before, behind] = [within, 0]
    for (const [other, { size }] of others.lines) {
      if (other === address) continue
      const step = stepOf(other)
      if (step < mine) before += size
      else if (step === mine) before += Math.min(size, within + 1)
      else behind += size
    }
    return before + Math.min(behind, Math.floor((before + 1) / (secondEvery - 1)))
  }
  const pathOf = ({ known: isKnown, address, account }: Turn) =>
    isKnown ? { line: known, keys: [account] } : { line: others, keys: [address, account] }

  return {
    add(turn, item) {
      const { line, keys } = pathOf(turn)
      add(line, keys, item)
    },
    take() {
      turns = (turns + 1) % secondEvery
      return turns === 0 ? (takeOther() ?? take(known)) : (take(known) ?? takeOther())
    },
    remove(turn, item) {
      const { line, keys } = pathOf(turn)
      return remove(line, keys, item)
    },
    ahead(turn, count) {
      // Until the last one's turn the other kind gets its share.
      if (!turn.known) {
        const before = aheadOfOther(turn, count)
        return before + Math.min(known.size, (before + 1) * (secondEvery - 1))
      }
      const before = ahead(known, [turn.account], count)
      return before + Math.min(others.size, Math.floor((before + 1) / (secondEvery - 1)))
    },
    makeRoom(turn, count) {
      if (turn.known && others.size > 0) return takeNewest(others)
      const { line, keys } = pathOf(turn)
      const own = line.lines.get(keys[0]!)?.size ?? 0
      return (longestOf(line)?.size ?? 0) > own + count ? takeNewest(line) : undefined
    },
    get size() {
      return known.size + others.size
    },
  }
}

function createLine<T>(): Line<T> {
  return { size: 0, lines: new Map(), items: [] }
}

function add<T>(line: Line<T>, [key, ...rest]: readonly string[], item: T): void {
  line.size++
  if (key === undefined) {
    line.items.push(item)
    return
  }
  const next = line.lines.get(key) ?? createLine<T>()
  line.lines.set(key, next)
  add(next, rest, item)
}

/** Takes the item whose turn it is within a line: of the next line in it, or of the one of a key. */
function take<T>(line: Line<T>, key = line.lines.keys().next().value): T | undefined {
  if (line.size === 0) return undefined
  line.size--
  if (key === undefined) return line.items.shift()
  const next = line.lines.get(key)!
  const item = take(next)
  line.lines.delete(key)
  if (next.size > 0) line.lines.set(key, next)
  return item
}

/** Takes the newest item of the longest line, and of the longest within it. */
function takeNewest<T>(line: Line<T>): T | undefined {
  const longest = longestOf(line)
  line.size--
  if (!longest) return line.items.pop()
  const item = takeNewest(longest)
  if (longest.size === 0) for (const [key, each] of line.lines) if (each === longest) line.lines.delete(key)
  return item
}

function longestOf<T>(line: Line<T>): Line<T> | undefined {
  let longest: Line<T> | undefined
  for (const each of line.lines.values()) if (each.size > (longest?.size ?? 0)) longest = each
  return longest
}

function remove<T>(line: Line<T>, [key, ...rest]: readonly string[], item: T): boolean {
  const next = key === undefined ? undefined : line.lines.get(key)
  const index = key === undefined ? line.items.indexOf(item) : -1
  const found = next ? remove(next, rest, item) : index >= 0
  if (!found) return false
  line.size--
  if (index >= 0) line.items.splice(index, 1)
  else if (next?.size === 0) line.lines.delete(key!)
  return true
}

function ahead<T>(line: Line<T>, [key, ...rest]: readonly string[], count: number): number {
  if (key === undefined) return line.size + count - 1
  const own = line.lines.get(key)
  const within = ahead(own ?? createLine<T>(), rest, count)
  let sum = within
  for (const other of line.lines.values()) if (other !== own) sum += Math.min(other.size, within + 1)
  return sum
}
