import { timestampMs } from '@bufbuild/protobuf/wkt'
import { type Client, Code, ConnectError } from '@connectrpc/connect'
import { type ChangeKind, type Changes, type PollResponse, Restart } from '../gen/auth/v1/changes_pb.js'
import { backOff, elapsedSince, pause, present } from './clock.js'
import type { Warning } from './warning.js'

/** Seconds that a poll waits for a change. */
const wait = 10

/** ms beyond `wait` after which a poll has failed. */
const margin = 5_000

/** ms after which an empty answer isn’t taken for that of a server that shuts down. */
const early = 5_000

/** A page of the feed. */
export interface Page
  extends Pick<PollResponse, 'cursor' | 'revocations' | 'retiredKeys' | 'userIds' | 'organizationIds'> {
  /** Why this page begins a snapshot; undefined where it continues. */
  readonly snapshot: 'START' | 'CURSOR_LOST' | 'CURSOR_EXPIRED' | undefined
  /** Whether another page is there now. */
  readonly more: boolean
  /** Database time in ms since 1970 up to which this page and those before it are complete; undefined if `more`. */
  readonly asOf: number | undefined
  /** Database time when it was asked for `asOf`. */
  readonly now: number | undefined
}

/** ms between a change and the next poll, so that changes that follow one another closely cost one poll. */
const spacing = 300

/** What follows a feed. */
export interface Follower {
  readonly changes: Client<typeof Changes>
  readonly kind: ChangeKind
  /** Where to begin; empty for a snapshot. */
  readonly cursor: string
  /** Ends the following. */
  readonly signal: AbortSignal
  readonly onWarning: (warning: Warning) => void
  /** Takes a page; resolves to the cursor of the next one. A page that it rejects comes again. */
  onPage(page: Page): string | Promise<string>
  /** Called with the error of each poll that fails. */
  onFailure?(error: ConnectError): void
}

/** Polls until the signal aborts; never rejects. */
export async function follow({
  changes,
  kind,
  signal,
  onWarning,
  onPage,
  onFailure,
  ...from
}: Follower): Promise<void> {
  let { cursor } = from
  let behind = false
  let failures = 0
  while (!signal.aborted) {
    const startedAt = present()
    // The first page of a snapshot, and the ones after it, are there at once.
    const seconds = cursor === '' || behind ? 0 : wait
    const request = { cursor, kinds: [kind], wait: { seconds: BigInt(seconds) } }
    let page: Page
    try {
      page = pageOf(cursor, await changes.poll(request, { signal, timeoutMs: seconds * 1000 + margin }))
    } catch (error) {
      if (signal.aborted) return
      const cause = ConnectError.from(error)
      // A rolling restart isn’t worth a warning.
      if (failures === (isRefused(cause) ? 0 : 3)) onWarning({ code: 'FEED_FAILED', message: explain(cause), cause })
      onFailure?.(cause)
      await pause(backOff(failures++), signal)
      continue
    }
    if (page.snapshot === 'CURSOR_LOST') onWarning({ code: 'CURSOR_LOST', message: lost })
    try {
      cursor = await onPage(page)
      failures = 0
    } catch (cause) {
      onWarning({ code: 'CHANGE_FAILED', message: 'onChange failed; it gets the same change again.', cause })
      await pause(backOff(failures++), signal)
      continue
    }
    behind = page.more
    const { revocations, retiredKeys, userIds, organizationIds } = page
    const empty = [revocations, retiredKeys, userIds, organizationIds].every(({ length }) => length === 0)
    if (seconds === 0 || behind) continue
    if (!empty) await pause(spacing, signal)
    // A server that shuts down answers at once until the connection has moved to another one.
    else if (elapsedSince(startedAt) < early) await pause(backOff(0), signal)
  }
}

const lost =
  'The registry doesn’t know the cursor of this service any more: its database was restored, lost changes in a failover, or was rewritten.'

/** Whether the registry refuses the key of this service. */
export function isRefused({ code }: ConnectError): boolean {
  return code === Code.Unauthenticated || code === Code.PermissionDenied
}

function explain({ code, rawMessage }: ConnectError): string {
  if (code === Code.Unauthenticated)
    return 'The registry refuses the key of this service: it is unknown, removed or expired.'
  if (code === Code.PermissionDenied)
    return 'The key of this service lacks a scope: tokens.watch for revocations, users.watch for users.'
  return `The feed of changes doesn’t answer: ${rawMessage}`
}

function pageOf(cursor: string, { restart, asOf, now, more, ...rest }: PollResponse): Page {
  const snapshot =
    restart === Restart.CURSOR_LOST
      ? 'CURSOR_LOST'
      : restart === Restart.CURSOR_EXPIRED
        ? 'CURSOR_EXPIRED'
        : cursor === ''
          ? 'START'
          : undefined
  return { ...rest, snapshot, more, asOf: asOf && timestampMs(asOf), now: now && timestampMs(now) }
}
