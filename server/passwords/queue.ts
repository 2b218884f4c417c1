// Who is next: the order in which jobs wait for the hash threads. It owns fairness, and knows neither threads nor time.
import { LRUCache } from 'lru-cache'
import { upTo } from '../onfirstuse.js'

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

/** Milliseconds for which turns that an address had are remembered. */
const lately = 900_000

/** Waiting items in fair order. */
export interface Queue<T> {
  add(turn: Turn, item: T): void
  /** The item whose turn it is. */
  take(): T | undefined
  /** Takes an item out; false when it isn't waiting. */
  remove(turn: Turn, item: T): boolean
  /**
   * How many items would be taken before the last of `count` new ones. `knownShare` is the part of turns that known ones
   * take (0 to 1), so that those who come yet are counted, too.
   */
  ahead(turn: Turn, count: number, knownShare?: number): number
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
 * turns nine go to known ones; of what is left, one to each address in turn, and nine of ten to the address with the least
 * of `usedOf` (failures and sign-ups of late), where only two and twice as much count as more; among these to the one that
 * had fewest turns of late.
 */
export function createQueue<T>(usedOf: (address: string) => number = () => 0): Queue<T> {
  const known = createLine<T>()
  const others = createLine<T>()
  const turnsOf = new LRUCache<string, number>({ ...upTo(10_000), ttl: lately, noUpdateTTL: true })
  let turns = 0
  let turnsOfOthers = 0
  const rankOf = (address: string) => ({
    // One is what a sign-up itself has just counted.
    step: Math.floor(Math.log2(Math.max(1, usedOf(address)))),
    had: turnsOf.get(address) ?? 0,
  })

  function takeOther(): T | undefined {
    turnsOfOthers = (turnsOfOthers + 1) % secondEvery
    const address = turnsOfOthers === 0 ? others.lines.keys().next().value : least()
    if (address === undefined) return undefined
    turnsOf.set(address, (turnsOf.get(address) ?? 0) + 1)
    return take(others, address)
  }

  function least(): string | undefined {
    let first: { address: string; step: number; had: number } | undefined
    for (const address of others.lines.keys()) {
      const rank = rankOf(address)
      if (!first || rank.step < first.step || (rank.step === first.step && rank.had < first.had))
        first = { address, ...rank }
    }
    return first?.address
  }

  /** How many items at other addresses than the turn's would be taken before the last of `count` new ones. */
  function aheadOfOther({ address, account }: Turn, count: number): number {
    const mine = rankOf(address)
    const within = ahead(others.lines.get(address) ?? createLine<T>(), [account], count)
    let [before, behind] = [within, 0]
    for (const [other, { size }] of others.lines) {
      if (other === address) continue
      const { step, had } = rankOf(other)
      const first = step < mine.step ? size : step > mine.step ? 0 : clamp(mine.had - had + within + 1, 0, size)
      before += first
      behind += size - first
    }
    return before + Math.min(behind, secondsUntil(before, turnsOfOthers))
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
    ahead(turn, count, knownShare = 0) {
      // Until the last one's turn the other kind gets its share.
      if (!turn.known) {
        const before = aheadOfOther(turn, count)
        const least = Math.max(1 / secondEvery, 1 - knownShare)
        return Math.max(
          before + Math.min(known.size, (before + 1) * (secondEvery - 1) - turns),
          Math.round((before + 1) / least) - 1,
        )
      }
      const before = ahead(known, [turn.account], count)
      return before + Math.min(others.size, secondsUntil(before, turns))
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
  // Those that have had their turn of this round come after.
  let isBefore = true
  for (const other of line.lines.values()) {
    if (other === own) isBefore = false
    else sum += Math.min(other.size, isBefore ? within + 1 : within)
  }
  return sum
}

/** How many turns of those that come second fall before one that has `before` of its own kind ahead, `turns` after the last. */
function secondsUntil(before: number, turns: number): number {
  return Math.floor((before + turns) / (secondEvery - 1))
}

function clamp(value: number, least: number, most: number): number {
  return Math.max(least, Math.min(most, value))
}
