/**
 * How a process stops. SIGTERM first gives load balancers time to notice (`drain`); SIGINT, SIGHUP and SIGQUIT stop at
 * once; a second signal ends all waiting, or under npm, which repeats signals, a third. Each step of a stop has limited
 * time, so that every stop ends, and a step that hangs doesn't keep the later ones from running: the embedded database is
 * the last.
 */
import { setTimeout as sleep } from 'node:timers/promises'

/** Milliseconds that calls in flight have to end. */
export const grace = 10_000

/** Milliseconds that each step has at least, when the steps before it have used up the grace period. */
const minimum = 1_000

/** A step of a stop. */
export interface Step {
  /** What it waits for, as in "Stopped without waiting for …". */
  readonly what: string
  readonly run: () => Promise<unknown>
  /** Milliseconds that it has at least, 1,000 by default. */
  readonly least?: number
}

/** How a stop was requested. */
export interface StopRequest {
  /** Whether to report not ready first, and keep working meanwhile. */
  readonly drain: boolean
  /** Aborted when the stop must not wait any longer. */
  readonly hurry: AbortSignal
}

/**
 * Runs the steps one after another, and returns those that did not end in their time. The later steps run nevertheless. A
 * step that fails has ended; `onFault` receives its error.
 */
export async function runSteps(
  steps: readonly Step[],
  { hurry, onFault }: { hurry?: AbortSignal | undefined; onFault: (error: unknown, what: string) => void },
): Promise<string[]> {
  const hung: string[] = []
  const end = performance.now() + grace
  for (const { what, run, least: own = minimum } of steps) {
    const done = new AbortController()
    const left = (ms: number) => sleep(ms, true, { signal: done.signal }).catch(() => true)
    const ended = run().then(
      () => false,
      error => {
        onFault(error, what)
        return false
      },
    )
    // Connections that the endpoints cut at the end of the grace period need a moment to close.
    const late = left(Math.max(end - performance.now() + minimum, own))
    const hurried = hurry && aborted(hurry, done.signal).then(() => left(own))
    if (await Promise.race([ended, late, ...(hurried ? [hurried] : [])])) hung.push(what)
    done.abort()
  }
  return hung
}

/** Resolves when the signal is aborted, unless `done` is aborted before. */
function aborted(signal: AbortSignal, done: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve()
  return new Promise(resolve => signal.addEventListener('abort', () => resolve(), { once: true, signal: done }))
}

/** Waits the given ms, or until `hurry` is aborted. */
export async function pause(ms: number, hurry: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal: hurry }).catch(() => {})
}

/**
 * Calls `stop` on the first signal, then ends the process: with 0, or, where `stop` returns steps that did not end, with 1
 * and a line on standard error that names them.
 */
export function stopOnSignals(stop: (request: StopRequest) => Promise<readonly string[]>): void {
  // Writing fails when the terminal is gone. That must not end the process early.
  for (const output of [process.stdout, process.stderr]) output.on('error', () => {})
  const hurry = new AbortController()
  let since: number | undefined
  // npm forwards the Ctrl-C that the terminal has sent to this process already, on a busy machine seconds later.
  let repeats = process.env.npm_lifecycle_event === undefined ? 0 : 1
  const onSignal = (signal: NodeJS.Signals) => {
    if (since !== undefined) {
      // A terminal that closes sends its signal twice.
      if (performance.now() - since > 1000 && repeats-- <= 0) hurry.abort()
      return
    }
    since = performance.now()
    void stop({ drain: signal === 'SIGTERM', hurry: hurry.signal })
      .catch((error: Error) => [`the stop, which failed (${error.message})`])
      .then(hung => {
        if (hung.length > 0) process.stderr.write(`Stopped without waiting any longer for ${hung.join(', ')}.\n`)
        process.exit(hung.length > 0 ? 1 : 0)
      })
  }
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP', 'SIGQUIT'] as const) process.on(signal, onSignal)
}
