/** A moment on both clocks of this machine. */
export interface Moment {
  /** ms since 1970; jumps when the clock is set. */
  readonly wall: number
  /** ms since the start of the process; stands still while the machine sleeps. */
  readonly monotonic: number
}

/** The present moment. */
export function present(): Moment {
  return { wall: Date.now(), monotonic: performance.now() }
}

/** ms since a moment: the greater of both clocks, so that neither sleep nor a clock set back makes an age too low. */
export function elapsedSince({ wall, monotonic }: Moment): number {
  return Math.max(Date.now() - wall, performance.now() - monotonic)
}

/** Resolves after so many ms, or when the signal aborts. */
export function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const end = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', end)
      resolve()
    }
    const timer = setTimeout(end, ms)
    signal.addEventListener('abort', end)
    if (signal.aborted) end()
  })
}

/** ms to wait after another failure than these: 250 ms, doubled each time up to 5 s, less up to half of it at random. */
export function backOff(failures: number): number {
  return Math.min(5_000, 250 * 2 ** failures) * (1 - Math.random() / 2)
}
