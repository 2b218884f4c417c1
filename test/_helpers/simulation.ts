import { mock } from 'node:test'

/** An event loop that a test controls: timers, turns of the loop, and clocks. */
export interface Simulation {
  /** Milliseconds since it began. */
  readonly now: number
  /** Runs what waits for promises that are settled. */
  flush(): Promise<void>
  /** Ends a turn of the event loop: runs the callbacks of `setImmediate` so far. */
  turn(): Promise<void>
  /** Ends turns until none has a callback to run. */
  settle(): Promise<void>
  /** Lets time pass, and runs timers and turns. */
  pass(ms: number): Promise<void>
  /** Lets time pass in which the thread is busy: no timer runs. */
  block(ms: number): void
  /** Timers that are set. */
  readonly timers: number
}

/** Runs code that waits for nothing else in a simulated event loop. */
export async function simulate(run: (loop: Simulation) => Promise<void>): Promise<void> {
  const start = Date.now()
  let now = 0
  let immediates: (() => void)[] = []
  let timers: { at: number; run: () => void }[] = []
  const flush = async () => {
    for (let ticks = 0; ticks < 8; ticks++) await undefined
  }
  const turn = async () => {
    const due = immediates
    immediates = []
    for (const each of due) each()
    await flush()
  }
  const settle = async () => {
    await flush()
    while (immediates.length > 0) await turn()
  }
  const mocks = [
    mock.method(performance, 'now', () => now),
    mock.method(Date, 'now', () => start + now),
    mock.method(
      globalThis,
      'setImmediate',
      ((run: () => void) => void immediates.push(run)) as unknown as typeof setImmediate,
    ),
    mock.method(globalThis, 'setTimeout', ((run: () => void, ms: number) => {
      const timer = { at: now + Math.max(1, Math.trunc(ms)), run }
      timers.push(timer)
      return timer
    }) as unknown as typeof setTimeout),
    mock.method(globalThis, 'clearTimeout', ((timer: object) => {
      timers = timers.filter(each => each !== timer)
    }) as unknown as typeof clearTimeout),
  ]
  try {
    await run({
      get now() {
        return now
      },
      flush,
      turn,
      settle,
      async pass(ms) {
        const end = now + ms
        for (;;) {
          const next = timers.reduce<number>((first, { at }) => Math.min(first, at), end)
          now = Math.max(now, next)
          const due = timers.filter(({ at }) => at <= now)
          timers = timers.filter(({ at }) => at > now)
          for (const each of due) each.run()
          await flush()
          await turn()
          if (due.length === 0 && now >= end) break
        }
        await settle()
      },
      block(ms) {
        now += ms
      },
      get timers() {
        return timers.length
      },
    })
  } finally {
    for (const each of mocks) each.mock.restore()
  }
}
