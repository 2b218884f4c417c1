// Room that is bounded, and the order of those who wait for it.

/** Room for so much at once, which comes back evenly. */
export interface Room {
  /** Takes as much as a weight unless nothing is left, however much it is; 0 only asks. */
  take(weight: number): boolean
}

/** Room for `atOnce`, of which `perSecond` comes back in a second. */
export function createRoom(atOnce: number, perSecond: number): Room {
  let room = atOnce
  let at = performance.now()
  return {
    take(weight) {
      const now = performance.now()
      room = Math.min(atOnce, room + ((now - at) / 1000) * perSecond)
      at = now
      if (room < 1) return false
      room -= weight
      return true
    },
  }
}

/** Those who wait, by a key such as their address: each key is next in turn, so that one with many keeps out no other. */
export interface FairQueue<T> {
  add(key: string, item: T): void
  /** Whether anybody waits under a key. */
  has(key: string): boolean
  /** Who is next, and stays. */
  first(): T | undefined
  /** Takes out who is next; its key goes behind all others. */
  take(): void
  /** Takes out an item that waits under a key; the others there keep their turn. */
  delete(key: string, item: T): void
  /** Takes out everybody of whom that is so. */
  remove(isSo: (item: T) => boolean): T[]
}

/** A queue in which nobody waits yet. */
export function createFairQueue<T>(): FairQueue<T> {
  // A Map keeps the order in which keys (re-)entered.
  const lines = new Map<string, T[]>()
  return {
    add(key, item) {
      const line = lines.get(key)
      if (line) line.push(item)
      else lines.set(key, [item])
    },
    has: key => lines.has(key),
    first: () => lines.values().next().value?.[0],
    take() {
      const [key, line] = lines.entries().next().value!
      line.shift()
      lines.delete(key)
      if (line.length > 0) lines.set(key, line)
    },
    delete(key, item) {
      const line = lines.get(key)!
      line.splice(line.indexOf(item), 1)
      if (line.length === 0) lines.delete(key)
    },
    remove(isSo) {
      const removed: T[] = []
      for (const [key, line] of lines) {
        const left: T[] = []
        for (const item of line) (isSo(item) ? removed : left).push(item)
        if (left.length > 0) lines.set(key, left)
        else lines.delete(key)
      }
      return removed
    },
  }
}
