import { network } from '../clientaddress.js'

/** Lets so many work at a time. */
export interface Turns {
  /** Waits for a turn of a client address, which ends when what it returns is disposed of. */
  begin(address: string): Promise<Disposable>
}

/**
 * Lets `atOnce` work at a time. Of the client addresses of those who wait each is next in turn, so that one with many
 * doesn't keep out one with few.
 */
export function createTurns(atOnce: number): Turns {
  const lines = new Map<string, (() => void)[]>()
  let working = 0

  /** Gives a turn that has ended to whoever is next. */
  function end(): void {
    const next = lines.entries().next().value
    if (!next) {
      working--
      return
    }
    const [from, line] = next
    line.shift()!()
    // To the end, behind all others.
    lines.delete(from)
    if (line.length > 0) lines.set(from, line)
  }

  const turn: Disposable = { [Symbol.dispose]: end }
  return {
    async begin(address) {
      if (working < atOnce) {
        working++
        return turn
      }
      await new Promise<void>(go => {
        const from = network(address)
        const line = lines.get(from)
        if (line) line.push(go)
        else lines.set(from, [go])
      })
      return turn
    },
  }
}
