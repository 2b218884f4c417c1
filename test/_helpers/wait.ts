/** Waits of tests, which last while a state changes, because a busy machine may be slow. Errors show the last state. */
import { setTimeout as sleep } from 'node:timers/promises'
import { inspect, isDeepStrictEqual } from 'node:util'

/** How often a busy service is asked again before its refusal is returned. */
export const patience = 60

/** Milliseconds between two checks. */
const pause = 50

/** Consecutive checks that find no change in so many seconds on an idle machine, or longer on a busy one. */
export const looksOf = (seconds: number) => (seconds * 1000) / pause

/** Milliseconds that a wait may take: less than the timeout of AVA, which names only the test. */
const longest = 150_000

/**
 * Waits until `look` returns neither undefined nor false, and returns the result. Rejects after a minute in which `saw` returns
 * the same, or after as many checks as `quiet` returns, after 150 s in any case, and says what `saw` returned last.
 */
export function waitFor<T>(
  look: () => T | undefined | false | Promise<T | undefined | false>,
  saw?: () => unknown,
  quiet?: () => number,
): Promise<T> {
  return poll(String(look), look, saw, quiet)
}

/**
 * Waits until `read` returns `expected`, compared deeply, or a value for which `expected` returns true. Rejects as `waitFor` does,
 * and says what it returned last.
 */
export async function waitForValue<T>(
  read: () => T | Promise<T>,
  expected: T | ((value: T) => boolean),
): Promise<void> {
  let value: T | undefined
  const look = async () => {
    value = await read()
    return expected instanceof Function ? expected(value) : isDeepStrictEqual(value, expected)
  }
  await poll(`${expected instanceof Function ? expected : inspect(expected)} from ${read}`, look, () => value)
}

async function poll<T>(
  what: string,
  look: () => T | undefined | false | Promise<T | undefined | false>,
  saw: () => unknown = () => undefined,
  most = () => looksOf(60),
): Promise<T> {
  const end = performance.now() + longest
  let last: string | undefined
  for (let quiet = 0; ; quiet++) {
    const looking = Promise.resolve(look())
    if (!(await within(end - performance.now(), looking))) break
    const found = await looking
    if (found !== undefined && found !== false) return found
    const now = inspect(await saw(), { maxStringLength: null })
    if (now !== last) quiet = 0
    last = now
    // `most` may have become less since the look before.
    if (quiet >= most()) break
    await sleep(pause)
  }
  throw new Error(`timed out waiting for ${what}; last seen: ${last}`)
}

/** Whether a promise settles within so many ms: many times what it needs, and less than it would take otherwise. */
export async function within(ms: number, promise: Promise<unknown>): Promise<boolean> {
  const timer = new AbortController()
  const late = sleep(ms, false, { signal: timer.signal }).catch(() => false)
  return Promise.race([promise.then(() => true), late]).finally(() => timer.abort())
}
