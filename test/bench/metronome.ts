/**
 * A thread that ticks at a constant rate. It sleeps exactly until each tick; timers would be late, and polling in turns
 * of the event loop would take a core from the measured processes.
 */
import { parentPort, workerData } from 'node:worker_threads'

/** When to beat. */
export interface Beats {
  /** ms since 1970, with fractions. */
  readonly start: number
  /** ms from one beat to the next. */
  readonly interval: number
  readonly count: number
}

const { start, interval, count } = workerData as Beats
const never = new Int32Array(new SharedArrayBuffer(4))

for (let beat = 0; beat < count; beat++) {
  const left = start + beat * interval - (performance.timeOrigin + performance.now())
  if (left > 0) Atomics.wait(never, 0, 0, left)
  parentPort?.postMessage(beat)
}
