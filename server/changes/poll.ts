import type { MessageInitShape } from '@bufbuild/protobuf'
import { durationMs, timestampFromDate } from '@bufbuild/protobuf/wkt'
import { ChangeKind, type PollResponseSchema, Restart } from '../../proto/gen/auth/v1/changes_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { ChangesRpcs } from '../calls/context.js'
import { tooManyAttempts } from '../limits/rate-limits.js'
import type { ChangeFeed, FeedChange, FeedEnd, Link } from '../models/change-feed.js'
import type { Call } from '../requests/call.js'
import { checkPresence, inTime } from '../requests/deadline.js'
import { type FieldViolation, refuse } from '../requests/refusal.js'
import { wrongFields } from '../requests/wrong-fields.js'
import type { ScopeName } from '../rules/scopes.js'
import type { FeedReader, Recent } from './feed-reader.js'

/** Maximum changes of a page. Each has less than 100 bytes, as JSON too. */
const pageSize = 1_000

/** Maximum milliseconds of a wait. */
const maxWait = 10_000

/** Milliseconds before the deadline of the caller at which a wait ends. */
const lead = 500

/** Milliseconds between the times at which waits of two seconds or more end. */
const endsEvery = 500

/** Maximum milliseconds that a statement may take beyond the wait: then the database is unavailable. */
const maxAge = 2_000

/** Maximum calls of a service that wait in this process. */
const maxWaits = 2_000

type Kind = Exclude<ChangeKind, ChangeKind.UNSPECIFIED>

/** The scope that each kind of change needs. */
const scopes: Readonly<Record<Kind, ScopeName>> = {
  [ChangeKind.REVOCATIONS]: 'tokens.watch',
  [ChangeKind.USERS]: 'users.watch',
}

/** Where an answer ends, and what it has. */
interface Page extends Pick<FeedEnd, 'asOf' | 'now'> {
  readonly link: Link
  readonly changes: readonly FeedChange[]
  readonly more: boolean
}

/** Returns the changes after a cursor, and waits for one. */
export function poll(deps: { changeFeed: ChangeFeed; feedReader: FeedReader }): ChangesRpcs['poll'] {
  const { changeFeed, feedReader } = deps
  /** Number of calls of each service that wait. */
  const waiting = new Map<string, number>()

  async function wait(service: string, call: Call, work: () => Promise<Recent>): Promise<Recent> {
    const others = waiting.get(service) ?? 0
    if (others >= maxWaits) throw tooManyAttempts(10, 'watchers')
    waiting.set(service, others + 1)
    try {
      return await (call.turn?.pause(work) ?? work())
    } finally {
      waiting.set(service, waiting.get(service)! - 1)
    }
  }

  /** Reads a page by index; undefined if the log doesn't have the link, with the reason. */
  async function read(link: Link): Promise<Page | Restart> {
    const found = await changeFeed.page(link, pageSize + 1)
    if (found.link === 'lost') return Restart.CURSOR_LOST
    if (found.link === 'expired') return Restart.CURSOR_EXPIRED
    return cut(found.changes, found)
  }

  return async ({ cursor, kinds, wait: duration }, { call, service }) => {
    const asked = [...new Set(kinds)]
    for (const kind of asked) {
      const scope = scopes[kind as Kind]
      if (scope && !service.scopes.includes(scope)) refuse(Reason.ACCESS_DENIED)
    }
    const wanted = duration === undefined ? 0 : durationMs(duration)
    const given = cursor === '' ? undefined : readCursor(cursor)
    const wrong: FieldViolation[] = []
    if (asked.length === 0 || asked.some(kind => !scopes[kind as Kind]))
      wrong.push({
        field: 'kinds',
        reason: 'UNKNOWN_VALUE',
        message: 'Give one or more of CHANGE_KIND_REVOCATIONS and CHANGE_KIND_USERS.',
      })
    if (wanted < 0) wrong.push({ field: 'wait', reason: 'OUT_OF_RANGE', message: 'Must not be negative.' })
    if (given === 'malformed')
      wrong.push({ field: 'cursor', reason: 'MALFORMED', message: 'Must be the cursor of a response, or empty.' })
    if (wrong.length > 0 || given === 'malformed') wrongFields(wrong)

    const wants = wantsOf(asked)
    const snapshot = async (restart: Restart) => {
      if (!asked.includes(ChangeKind.REVOCATIONS)) {
        const { head, asOf, now } = await feedReader.latest()
        return { ...toResponse({ link: head, asOf, now, changes: [], more: false }, asked), restart }
      }
      const page = await read(await changeFeed.start())
      // Retention may just have deleted the event of the start.
      if (typeof page === 'number') refuse(Reason.UNAVAILABLE, { retryAfter: 1 })
      return { ...toResponse(page, asked), restart }
    }
    if (!given) return snapshot(Restart.UNSPECIFIED)

    const limit = Math.max(0, Math.min(wanted, maxWait, call.deadline - Date.now() - lead))
    const until = endOfWait(limit)
    let link = given
    for (let recent = await inTime(limit + maxAge, Reason.UNAVAILABLE, feedReader.latest()); ; ) {
      const page = after(recent, link) ?? (await read(link))
      if (typeof page === 'number') return snapshot(page)
      const left = Math.ceil(until - performance.now())
      if (page.more || left <= 0 || page.changes.some(wants)) return toResponse(page, asked)
      // Another process doesn't end.
      if (feedReader.closed) refuse(Reason.UNAVAILABLE, { retryAfter: 1 })
      link = page.link
      recent = await wait(service.name, call, () => feedReader.wait(recent, { wants, ms: left, caller: call }))
      checkPresence(call)
      if (recent.readAt + maxAge < performance.now()) refuse(Reason.UNAVAILABLE, { retryAfter: 1 })
      if (feedReader.closed) return toResponse(after(recent, link) ?? page, asked)
    }
  }
}

/**
 * When a wait of so many milliseconds ends, by `performance.now()`. Long waits end together: 50 responses at once take half
 * the processor time of 50 responses one by one.
 */
function endOfWait(ms: number): number {
  const end = performance.now() + ms
  return ms < 2_000 ? end : end - (end % endsEvery)
}

/** Reads a cursor, `id:hash`. */
function readCursor(text: string): Link | 'malformed' {
  const [, id, hash] = /^(\d{1,15}):([0-9a-f]{0,64})$/.exec(text) ?? []
  return id === undefined || hash === undefined ? 'malformed' : { id: Number(id), hash }
}

/** The changes after a link that this process has read; undefined if it has not read them all, or not that link. */
function after({ links, changes, ...end }: Recent, { id, hash }: Link): Page | undefined {
  if (links[id - links[0]!.id]?.hash !== hash) return undefined
  return cut(changes.slice(changes.findLastIndex(change => change.id <= id) + 1), end)
}

/** Cuts changes at the size of a page: an event of an import is as many changes as it has ids. */
function cut(changes: readonly FeedChange[], { head, asOf, now }: FeedEnd): Page {
  let size = 0
  const end = changes.findIndex(({ userIds = [], organizationIds = [] }, index) => {
    size += Math.max(1, userIds.length, organizationIds.length)
    return size > pageSize && index > 0
  })
  if (end < 0) return { link: head, changes, asOf, now, more: false }
  return { link: changes[end - 1]!, changes: changes.slice(0, end), asOf, now, more: true }
}

/** Whether a change is of one of the kinds. */
function wantsOf(kinds: readonly ChangeKind[]): (change: FeedChange) => boolean {
  const [revocations, users] = [kinds.includes(ChangeKind.REVOCATIONS), kinds.includes(ChangeKind.USERS)]
  return ({ revocation, retiredKey, userIds, organizationIds }) =>
    (revocations && (revocation !== undefined || retiredKey !== undefined)) ||
    (users && (userIds !== undefined || organizationIds !== undefined))
}

/** Of each user the latest revocation, and each id once. */
function toResponse(
  { link, changes, asOf, now, more }: Page,
  kinds: readonly ChangeKind[],
): MessageInitShape<typeof PollResponseSchema> {
  const those = (kind: ChangeKind) => (kinds.includes(kind) ? changes : [])
  const revoked = new Map<number, number>()
  const [keys, users, organizations] = [new Set<string>(), new Set<number>(), new Set<number>()]
  for (const { revocation, retiredKey } of those(ChangeKind.REVOCATIONS)) {
    if (revocation) revoked.set(revocation.userId, revocation.minGeneration)
    if (retiredKey !== undefined) keys.add(retiredKey)
  }
  for (const { userIds = [], organizationIds = [] } of those(ChangeKind.USERS)) {
    for (const id of userIds) users.add(id)
    for (const id of organizationIds) organizations.add(id)
  }
  return {
    cursor: `${link.id}:${link.hash}`,
    more,
    asOf: more ? undefined : timestampFromDate(asOf),
    now: more ? undefined : timestampFromDate(now),
    revocations: [...revoked].map(([userId, minGeneration]) => ({ sub: String(userId), minGeneration })),
    retiredKeys: [...keys],
    userIds: [...users],
    organizationIds: [...organizations],
  }
}
