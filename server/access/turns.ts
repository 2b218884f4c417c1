/** Lets so many work at a time. */
export interface Turns {
  /** Waits for a turn of a client address; returns what ends it. */
  begin(address: string): Promise<() => void>
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
    const [address, line] = next
    line.shift()!()
    // To the end, behind all others.
    lines.delete(address)
    if (line.length > 0) lines.set(address, line)
  }

  return {
    async begin(address) {
      if (working < atOnce) working++
      else
        await new Promise<void>(go => {
          const line = lines.get(address)
          if (line) line.push(go)
          else lines.set(address, [go])
        })
      return end
    },
  }
}
