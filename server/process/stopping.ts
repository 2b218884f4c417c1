/**
 * How a process stops. SIGTERM lets whoever sends it work notice first (`drain`); SIGINT, SIGHUP and SIGQUIT stop at
 * once; a second signal waits for nothing any more. Each step of a stop has its time and no more, so that every stop
 * ends, whatever hangs, and the steps after it have their turn: last of all the embedded database.
 */
import { setTimeout as sleep } from 'node:timers/promises'

/** Milliseconds that calls under way have to end. */
export const grace = 10_000

/** Milliseconds that each step has at least, when those before it have used up the grace. */
const least = 1_000

/** What is undone in a stop. */
export interface Step {
  /** What is waited for, as in "… didn't end in time". */
  readonly what: string
  readonly run: () => Promise<unknown>
  /** Milliseconds it has at least; 1,000 unless told. */
  readonly least?: number
}

/** How a stop was asked for. */
export interface StopRequest {
  /** Whether to say not ready first, and go on working meanwhile. */
  readonly drain: boolean
  /** Aborted when there is no more time. */
  readonly hurry: AbortSignal
}

/**
 * Runs the steps one after another, and returns what didn't end in its time. Nothing waits for that any longer; the
 * steps after it run all the same. A step that fails has ended: `onFault` is told.
 */
export async function runSteps(
  steps: readonly Step[],
  { hurry, onFault }: { hurry?: AbortSignal | undefined; onFault: (error: unknown, what: string) => void },
): Promise<string[]> {
  const hung: string[] = []
  const end = performance.now() + grace
  for (const { what, run, least: own = least } of steps) {
    const done = new AbortController()
    const left = (ms: number) => sleep(ms, true, { signal: done.signal }).catch(() => true)
    const ended = run().then(
      () => false,
      error => {
        onFault(error, what)
        return false
      },
    )
    // What the endpoints cut when the grace is over still needs a moment.
    const late = left(Math.max(end - performance.now() + least, own))
    const hurried = hurry && until(hurry, done.signal).then(() => left(own))
    if (await Promise.race([ended, late, ...(hurried ? [hurried] : [])])) hung.push(what)
    done.abort()
  }
  return hung
}

/** Resolves when the signal is aborted; listens no longer once `over` is. */
function until(signal: AbortSignal, over: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve()
  return new Promise(resolve => signal.addEventListener('abort', () => resolve(), { once: true, signal: over }))
}

/** Waits so many ms, or until there is no more time. */
export async function pause(ms: number, hurry: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal: hurry }).catch(() => {})
}

/**
 * Has the first signal that asks for it call `stop`, which returns what it didn't wait for any longer; then the process
 * ends: with 0, or with 1 and a line on standard error that says what that was.
 */
export function stopOnSignals(stop: (request: StopRequest) => Promise<readonly string[]>): void {
  // Where the terminal has gone, nobody reads, and that must not end the process before its time.
  for (const output of [process.stdout, process.stderr]) output.on('error', () => {})
  const hurry = new AbortController()
  let since: number | undefined
  const onSignal = (signal: NodeJS.Signals) => {
    if (since !== undefined) {
      // npm passes on the Ctrl-C that the terminal has sent already.
      if (performance.now() - since > 1000) hurry.abort()
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
