import { timestampDate, timestampFromDate } from '@bufbuild/protobuf/wkt'
import { Administration, type ListAuditEventsRequest } from '../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { AdministrationRpcs } from '../calls/context.js'
import type { References } from '../calls/steps.js'
import type { Audit } from '../models/audit.js'
import type { VerifiedLink } from '../models/audit-chain.js'
import type { AuditFilter, RecordedEvent } from '../models/audit-list.js'
import type { Models } from '../models/index.js'
import type { OpenPage } from '../requests/paging.js'
import { Refusal, refuse } from '../requests/refusal.js'
import { checkText } from '../requests/texts.js'
import { wrongField } from '../requests/wrong-fields.js'

/** Where a list continues. */
interface EventCursor {
  /** Before this sealed event. */
  readonly beforeId?: number
  /** Before this unsealed event, which may be sealed by now. */
  readonly beforeSeq?: string
  /** With `follow`: behind this sealed event. */
  readonly afterId?: number
}

/** Events that a call reads when no index selects them. */
export const stretch = 100_000

/** Milliseconds by which the time of an event may be before that of an earlier one: as long as a transaction lasts. */
export const disorder = 3_600_000

/** The RPCs of the audit log. */
export function auditLogRpcs({ audit, users }: Models, references: References, openPage: OpenPage) {
  return {
    /** Lists events of the audit log. A page may hold fewer than asked for, or none, before the end. */
    async listAuditEvents(request) {
      const page = openPage<EventCursor>(Administration.method.listAuditEvents, request)
      const filter = await readFilter(references, request, page.size)
      const { events, next } = request.follow
        ? await follow(audit, filter, page.after)
        : await listNewest(audit, filter, page.after ?? {})
      const names = await namesIn(users, events)
      return { events: events.map(event => toEvent(event, names)), nextPageToken: next && page.next(next) }
    },

    /** Returns a sealed event. */
    async getAuditEvent(request) {
      const id = Number(request.id ?? 0n)
      if (!Number.isSafeInteger(id) || id < 1) wrongField('id', 'MISSING', 'Specify the id of an event.')
      const [event] = await audit.list({ limit: 1 }, { fromId: id, beforeId: id + 1 })
      if (!event) return refuse(Reason.RECORD_NOT_FOUND, { text: `There is no event ${id}.` })
      return { event: toEvent(event, await namesIn(users, [event])) }
    },

    /** Checks a stretch of the audit log. */
    async verifyAuditLog(request) {
      const { known } = request
      if (known !== undefined && !/^\d{1,15}:[\da-f]{64}$/.test(known))
        wrongField('known', 'MALFORMED', 'Use a link, id:hash, that an earlier check returned.')
      const page = openPage<VerifiedLink>(Administration.method.verifyAuditLog, { ...request, pageSize: 0 })
      const { events, staged, next, ...found } = await audit.verify(known, page.after)
      return {
        ...found,
        events: BigInt(events),
        staged: BigInt(staged),
        nextPageToken: next && page.next(next),
      }
    },
  } satisfies Partial<AdministrationRpcs>
}

/** The usernames of actors and subjects, by id. */
function namesIn(users: Models['users'], events: readonly RecordedEvent[]) {
  const ids = events.flatMap(({ actor_id, subject_id }) => [actor_id, subject_id].filter(id => id !== null))
  return users.usernames([...new Set(ids)])
}

/** The newest events before a place, newest first. */
async function listNewest(audit: Audit, filter: AuditFilter, place: EventCursor) {
  const { beforeId, beforeSeq } = place
  const indexed = filter.subjectId !== undefined || filter.actorId !== undefined
  const end = beforeId ?? (await audit.ends(0)).newest + 1
  const fromId = Math.max(0, end - stretch)
  const rows = await audit.list(
    { ...filter, limit: filter.limit + 1 },
    {
      beforeId,
      beforeSeq,
      fromId: indexed ? undefined : fromId,
    },
  )
  const events = rows.reverse().slice(0, filter.limit)
  if (rows.length > filter.limit) {
    const { id, seq } = events.at(-1)!
    return { events, next: id === null ? { beforeSeq: seq! } : { beforeId: Number(id) } }
  }
  if (indexed) return { events }
  const { oldest, from } = await audit.ends(fromId)
  const over = fromId <= oldest || (filter.since && from && from.getTime() < filter.since.getTime() - disorder)
  return { events, next: over ? undefined : { beforeId: fromId } }
}

/** The next events, oldest first; without a place, from the end of the log on. */
async function follow(audit: Audit, filter: AuditFilter, place: EventCursor | undefined) {
  const { newest } = await audit.ends(0)
  const afterId = place?.afterId
  if (afterId === undefined) return { events: [], next: { afterId: newest } }
  const upToId = Math.min(newest, afterId + stretch)
  const events = await audit.follow(filter, afterId, upToId)
  const last = events.length === filter.limit ? Number(events.at(-1)!.id) : upToId
  return { events, next: { afterId: Math.max(afterId, last) } }
}

/** Returns the id of the user that a reference names. `#id` also names an erased user, whose events stay under its id. */
async function userIdOf(references: References, reference: string, field: string): Promise<number> {
  try {
    return (await references.user.find(reference, field)).id
  } catch (error) {
    const { sign, id } = /^(?<sign>#?)(?<id>\d{1,9})$/.exec(reference.trim())?.groups ?? {}
    if (id === undefined || !(error instanceof Refusal && error.reason === Reason.USER_NOT_FOUND)) throw error
    if (!sign) refuse(Reason.USER_NOT_FOUND, { text: `There is no user ${id}. For an erased user, use #${id}.` })
    return Number(id)
  }
}

async function readFilter(
  references: References,
  request: ListAuditEventsRequest,
  limit: number,
): Promise<AuditFilter> {
  const { user, actor, timeFrom, timeTo } = request
  const action = checkText('action', request.action)
  const { outcome } = request
  if (outcome && outcome !== 'ok' && outcome !== 'refused') wrongField('outcome', 'UNKNOWN_VALUE', 'Use ok or refused.')
  return {
    limit,
    subjectId: user ? await userIdOf(references, user, 'user') : undefined,
    actorId: actor ? await userIdOf(references, actor, 'actor') : undefined,
    action,
    outcome: outcome || undefined,
    since: timeFrom && timestampDate(timeFrom),
    until: timeTo && timestampDate(timeTo),
  }
}

function toEvent({ id, at, seq: _, ...event }: RecordedEvent, names: ReadonlyMap<number, string>) {
  const { actor_id, subject_id, request_id, reason, object, address, ...rest } = event
  return {
    ...rest,
    id: id === null ? undefined : BigInt(id),
    time: timestampFromDate(at),
    reason: reason ?? undefined,
    actorId: actor_id ?? undefined,
    subjectId: subject_id ?? undefined,
    object: object ?? undefined,
    address: address ?? undefined,
    requestId: request_id ?? undefined,
    actorUsername: names.get(actor_id ?? 0),
    subjectUsername: names.get(subject_id ?? 0),
  }
}
