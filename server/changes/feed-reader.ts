// Follows the end of the feed for all calls that wait in this process: while there are such calls, one statement reads what
// was sealed since the last one.
import { setTimeout as sleep } from 'node:timers/promises'
import type { ChangeFeed, FeedChange, FeedEnd, Link } from '../models/change-feed.js'
import type { Call } from '../requests/call.js'

/** The end of the feed, with the links and the changes before it that this process has read. */
export interface Recent extends FeedEnd {
  /** Consecutive links; the last one is the head. */
  readonly links: readonly Link[]
  readonly changes: readonly FeedChange[]
  /** When the statement began, by `performance.now()`. */
  readonly readAt: number
}

/** A call that waits. */
interface Wait {
  /** Whether a change ends the wait. */
  readonly wants: (change: FeedChange) => boolean
  /** Maximum milliseconds. */
  readonly ms: number
  /** Read after each statement: an abort signal takes a tenth of a call's processor time. */
  readonly caller: Pick<Call, 'gone'>
}

/** Follows the end of the feed. */
export type FeedReader = ReturnType<typeof createFeedReader>

/** Minimum milliseconds between two statements. */
const interval = 200

/** Additional milliseconds for each waiting call beyond 300: one change ends all waits, and each answer takes time. */
const perWait = 0.6

/** Milliseconds before the next statement after a failed one. */
const afterFailure = 1_000

/** Maximum number of links kept. Calls with an older cursor read by index. */
const maxLinks = 20_000

/** Creates a feed reader. It sends no statement before its first call. */
export function createFeedReader(feed: Pick<ChangeFeed, 'tail'>) {
  let recent: Recent | undefined
  let startedAt = Number.NEGATIVE_INFINITY
  let last: Promise<unknown> = Promise.resolve()
  let next: Promise<Recent> | undefined
  let following = false
  let closed = false
  const waits = new Set<Pick<Wait, 'wants' | 'caller'> & { end(): void }>()

  const pause = () => Math.max(interval, waits.size * perWait)

  async function read(): Promise<Recent> {
    startedAt = performance.now()
    const readAt = startedAt
    const before = recent
    const { links, changes, ...end } = await feed.tail(before?.head)
    if (!before || !links) {
      recent = { ...end, links: [end.head], changes: [], readAt }
      // What these calls wait for may be among what was skipped.
      for (const wait of waits) wait.end()
      return recent
    }
    const kept = [...before.links, ...links].slice(-maxLinks)
    // What was sealed at an earlier time still is; but a database may take over whose clock is behind.
    const asOf = end.now < before.now || end.asOf > before.asOf ? end.asOf : before.asOf
    const all = changes.length === 0 ? before.changes : [...before.changes, ...changes]
    recent = { ...end, asOf, links: kept, changes: all.filter(({ id }) => id > kept[0]!.id), readAt }
    if (changes.length > 0) for (const wait of waits) if (changes.some(wait.wants)) wait.end()
    return recent
  }

  /** Returns what the next statement reads. Statements follow one another, and callers share the next one. */
  function readNext(): Promise<Recent> {
    if (!next) {
      next = last.then(async () => {
        const early = startedAt + pause() - performance.now()
        if (early > 0) await sleep(early)
        next = undefined
        return read()
      })
      last = next.catch(() => {})
    }
    return next
  }

  /** Reads while calls wait. */
  async function follow(): Promise<void> {
    following = true
    while (waits.size > 0) {
      await readNext().catch(() => sleep(afterFailure))
      for (const wait of waits) if (wait.caller.gone) wait.end()
    }
    following = false
  }

  return {
    /** Returns the end of the feed, from a statement that began an interval ago at most. */
    async latest() {
      return recent && performance.now() - recent.readAt < pause() ? recent : readNext()
    },
    /**
     * Waits for a change that was read after `from`, at most until the time is over or the feed reader is closed, or about an
     * interval longer than the caller stays connected. Returns what was read last.
     */
    async wait(from: Recent, { wants, ms, caller }: Wait) {
      if (ms <= 0 || closed || caller.gone || recent !== from) return recent ?? from
      await new Promise<void>(resolve => {
        const end = () => {
          clearTimeout(timer)
          waits.delete(wait)
          resolve()
        }
        const timer = setTimeout(end, ms)
        const wait = { wants, caller, end }
        waits.add(wait)
        if (!following) void follow()
      })
      return recent ?? from
    },
    /** Number of waits. */
    waiting: () => waits.size,
    /** Whether it is closed. */
    get closed() {
      return closed
    },
    /** Ends all waits. */
    close() {
      closed = true
      for (const wait of waits) wait.end()
    },
  }
}
