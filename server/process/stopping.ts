/**
 * How a process stops. SIGTERM first gives load balancers time to notice (`drain`); SIGINT, SIGHUP and SIGQUIT stop at
 * once; a second signal ends all waiting, or under npm, which repeats signals, a third. Each step of a stop has limited
 * time, so that every stop ends, and a step that hangs doesn't keep the later ones from running: the embedded database is
 * the last.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'

/** Milliseconds that calls in flight have to end. */
export const grace = 10_000

/** Milliseconds that each step has at least, when the steps before it have used up the grace period. */
const minimum = 1_000

/** Milliseconds that all steps have together in a hurry, and that each has then at least: the database needs some, too. */
const hurried = { all: 400, each: 100 }

/** How a stop was requested. */
interface StopRequest {
  /** Seconds to report not ready first, and keep working meanwhile. */
  readonly drain: number
  /** Aborted when the stop must not wait any longer. */
  readonly hurry: AbortSignal
}

/**
 * Creates a stop: the steps that undo a start, also one that fails. A step that fails has ended; `onFault` receives its error.
 */
export function createStop(onFault: (error: unknown, what: string) => void) {
  const steps: { what: string; run: () => Promise<unknown>; least: number; always: boolean }[] = []
  const closing: (() => Promise<unknown>)[] = []
  const inHurry: (() => unknown)[] = []
  return {
    /**
     * Adds a step, which runs before those added earlier, and has at least `least` milliseconds, with `always` also in a hurry.
     * `what` it waits for is what "Stopped without waiting for …" names.
     */
    onStop: (what: string, run: () => Promise<unknown>, least = minimum, always = false) =>
      void steps.unshift({ what, run, least, always }),
    /** Adds what closes an endpoint or ends a job: the first step runs all of them at once. */
    onClose: (close: () => Promise<unknown>) => void closing.push(close),
    /** Adds what a hurry ends at once, so that calls in flight that wait for it end. */
    onHurry: (work: () => unknown) => void inHurry.push(work),
    /**
     * Runs the steps one after another, and returns those that did not end in their time, or before `hurry`. The later steps
     * run nevertheless.
     */
    async stop(hurry?: AbortSignal): Promise<readonly string[]> {
      if (hurry) void aborted(hurry).then(() => inHurry.map(work => work()))
      const all = closing.splice(0)
      const first = {
        what: 'calls and jobs in flight',
        run: () => Promise.all(all.map(close => close())),
        least: minimum,
        always: false,
      }
      const hung: string[] = []
      const end = performance.now() + grace
      let hurriedSince: number | undefined
      for (const { what, run, least, always } of [first, ...steps.splice(0)]) {
        const done = new AbortController()
        const left = (ms: number) => sleep(ms, true, { signal: done.signal }).catch(() => true)
        const ended = run()
          .catch(error => onFault(error, what))
          .then(() => false)
        // Connections that the endpoints cut at the end of the grace period need a moment to close.
        const late = left(Math.max(end - performance.now() + minimum, least))
        const wait = async (signal: AbortSignal) => {
          await aborted(signal, done.signal)
          hurriedSince ??= performance.now()
          return left(always ? least : Math.max(hurriedSince + hurried.all - performance.now(), hurried.each))
        }
        if (await Promise.race([ended, late, hurry ? wait(hurry) : late])) hung.push(what)
        done.abort()
      }
      return hung
    },
  }
}

/** Resolves when the signal is aborted, unless `done` is aborted before. */
function aborted(signal: AbortSignal, done?: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve()
  return new Promise(resolve =>
    signal.addEventListener('abort', () => resolve(), { once: true, ...(done && { signal: done }) }),
  )
}

/** Waits the given ms, or until `hurry` is aborted. */
export async function pause(ms: number, hurry: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal: hurry }).catch(() => {})
}

/**
 * Calls `stop` on the first signal, then ends the process: with 0, or, where `stop` returns steps that did not end, with 1
 * and a line on standard error that names them. `seconds` is the drain after SIGTERM.
 */
export function stopOnSignals(
  log: Pick<Logger, 'info'>,
  seconds: number,
  stop: (request: StopRequest) => Promise<readonly string[]>,
): void {
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
    const drain = signal === 'SIGTERM' ? seconds : 0
    log.info({ signal, drain }, 'stopping')
    void stop({ drain, hurry: hurry.signal })
      .catch((error: Error) => [`the stop, which failed (${error.message})`])
      .then(hung => {
        if (hung.length > 0) process.stderr.write(`Stopped without waiting any longer for ${hung.join(', ')}.\n`)
        log.info('stopped')
        process.exit(hung.length > 0 ? 1 : 0)
      })
  }
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP', 'SIGQUIT'] as const) process.on(signal, onSignal)
}
