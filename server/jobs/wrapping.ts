import { randomInt } from 'node:crypto'
import { availableParallelism } from 'node:os'
import { performance } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Models } from '../models/index.js'
import type { Log } from '../observability/log.js'
import type { Passwords } from '../passwords/hash.js'
import { startJob } from './job.js'

/** Delays in ms: before the first round, between two rounds, and after a failed one. A round ends when no answer is left. */
const times = { first: 5_000, interval: 10 * 60_000, afterFailure: 10_000 }

/** Answers, or hashes of passwords, that a round reads at once. */
const batch = 20

/** Hashes in flight: one thread stays free for sign-ins, where there is more than one. */
const atOnce = Math.max(1, availableParallelism() - 1)

/**
 * The share of the time for which the main thread may be busy. If it was busier during a batch, the next batch waits several
 * times as long as that one took: calls need the processors themselves.
 */
const busy = { share: 0.25, pause: 4 }

/**
 * Hashes answers that were imported from the older implementation, which are stored as keyed digests until then, and seals hashes
 * of passwords that version 1.0.0 imported. Every replica runs it; two that take the same store one. Returns a function that
 * stops, and waits for the hashes in progress.
 */
export function startWrapping(
  { answers, users }: Pick<Models, 'answers' | 'users'>,
  passwords: Pick<Passwords, 'wrap' | 'seal'>,
  log: Pick<Log, 'warn'>,
  { first, interval, afterFailure }: typeof times = times,
) {
  /** Hashes some answers of users from an id on. Returns whether the hash threads took them. */
  async function wrapFrom(userId: number, signal: AbortSignal): Promise<boolean> {
    const waiting = await answers.keyed(userId, batch)
    let taken = true
    const work = async () => {
      for (let answer = waiting.shift(); answer && taken && !signal.aborted; answer = waiting.shift()) {
        const hash = await passwords.wrap(answer.keyed)
        if (hash === undefined) taken = false
        else await answers.wrap(answer, hash)
      }
    }
    await Promise.all(Array.from({ length: atOnce }, work))
    return taken
  }

  /** Seals hashes until none is bare. */
  async function sealAll(signal: AbortSignal): Promise<void> {
    for (
      let bare = await users.bareHashes(batch);
      bare.length > 0 && !signal.aborted;
      bare = await users.bareHashes(batch)
    )
      for (const { id, hash } of bare) await users.renewPassword(id, hash, passwords.seal(hash))
  }

  /** Seals hashes, hashes answers until none is left, and returns the delay of the next round. */
  async function round(signal: AbortSignal): Promise<number> {
    await sealAll(signal)
    for (;;) {
      const last = signal.aborted ? 0 : await answers.lastKeyed()
      if (last === 0) return interval
      const [begun, usage] = [performance.now(), performance.eventLoopUtilization()]
      // Replicas begin anywhere, so that they seldom take the same answer.
      if (!(await wrapFrom(randomInt(last) + 1, signal))) return afterFailure
      if (performance.eventLoopUtilization(usage).utilization > busy.share)
        await sleep(busy.pause * (performance.now() - begun), undefined, { signal, ref: false }).catch(() => {})
    }
  }

  const message = 'imported hashes can’t be sealed, or answers hashed; the next round goes on'
  return startJob(first, round, { log, message, delay: afterFailure })
}
