import { setTimeout as sleep } from 'node:timers/promises'
import { explain } from '../../../exit-codes.js'

/** Attempts of a call that fails because the service is busy or away, and seconds between two of them. */
const attempts = { most: 8, seconds: 15 }

/** Repeats a call that can succeed later, of a kind that takes effect once. */
export async function untilAnswered<T>(call: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await call()
    } catch (error) {
      const { exitCode, retryAfter = 0 } = await explain(error)
      if (exitCode !== 7 || attempt === attempts.most) throw error
      await sleep(1000 * Math.min(Math.max(retryAfter, attempt), attempts.seconds))
    }
  }
}
