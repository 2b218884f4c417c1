/** Milliseconds for which requests are begun in one turn of the event loop. */
const slice = 5

/**
 * Begins what comes at the same time in slices: a thousand requests that arrive together would keep the thread from
 * whoever comes a moment later. While some wait, each turn of the event loop begins what has just come for a slice, and
 * what waits, in its order, for another.
 */
export function inSlices<Given extends readonly unknown[]>(begin: (...given: Given) => void): typeof begin {
  const waiting: Given[] = []
  let scheduled = false
  /** When the present turn began the first that came. */
  let from: number | undefined

  function schedule() {
    if (scheduled) return
    scheduled = true
    setImmediate(() => {
      scheduled = false
      from = undefined
      if (waiting.length > 0) goOn(performance.now())
    })
  }

  function goOn(since: number) {
    begin(...waiting.shift()!)
    if (waiting.length === 0) return
    // What it does before it first waits for others is done in ticks.
    if (performance.now() - since < slice) process.nextTick(goOn, since)
    else schedule()
  }

  return (...given) => {
    const now = performance.now()
    from ??= now
    schedule()
    if (now - from < slice) begin(...given)
    else waiting.push(given)
  }
}
