// The feed of changes, from the sealed events of the audit log.
import type { Database } from '../database/database.js'
import { first, type Query, sql } from '../database/sql.js'
import { type AuditAction, changedBy } from '../policy/audit-actions.js'
import { readImported } from '../rules/id-ranges.js'

/** A link of the audit log, which is a position in the feed. Its hash is in hexadecimal, and empty before the first event. */
export interface Link {
  readonly id: number
  readonly hash: string
}

/** A change, at the link of its event. */
export interface FeedChange extends Link {
  /** A user whose tokens of an earlier generation are invalid. */
  readonly revocation?: { readonly userId: number; readonly minGeneration: number }
  /** A key that no longer verifies tokens. */
  readonly retiredKey?: string
  /** Users, or organizations, whose records changed: an import changes up to 1,000. */
  readonly userIds?: readonly number[]
  readonly organizationIds?: readonly number[]
}

/** The end of the feed. */
export interface FeedEnd {
  /** The newest link. */
  readonly head: Link
  /** Every change that was acknowledged before this time is sealed up to the head. */
  readonly asOf: Date
  /** The time of the database. */
  readonly now: Date
}

/** Links that follow another one. */
interface FeedTail extends FeedEnd {
  /** All links, by id, and the changes at them; undefined if the given link is none, or too many follow it. */
  readonly links?: readonly Link[]
  readonly changes: readonly FeedChange[]
}

/** Reads the feed. */
export type ChangeFeed = ReturnType<typeof createChangeFeed>

/** The generation of an erased user: no token has a greater one. */
const greatest = 2 ** 31 - 1

/** Maximum number of links in a tail. */
const maxTail = 2_000

/**
 * Seconds for which revocations are in a snapshot, in addition to the lifetime of tokens: a minute for clocks, and an hour
 * because events are sealed in the order in which their transactions end.
 */
const margin = 3_660

const marks: { readonly [action: string]: readonly string[] } = changedBy
const changing = sql.text(
  `e.outcome = 'ok' AND e.action IN (${Object.keys(changedBy)
    .map(action => `'${action}'`)
    .join(', ')})`,
)

const hex = (bytes: Query) => sql`encode(${bytes}, 'hex')`

/**
 * The end of the feed, in one snapshot. Without staged events, all that was committed before the snapshot, which is no
 * earlier than `now()`, is sealed. Otherwise, everything that isn't sealed was committed after the earliest time of a staged
 * event, since an event is written before its transaction commits. Of many staged events the first 10,000 have that time: to
 * be earlier than all of them, a later one would need as many open transactions.
 */
const end = sql`h.id::float8 AS "headId", ${hex(sql`h.hash`)} AS "headHash",
    coalesce((SELECT min(at) FROM (SELECT at FROM audit_staged ORDER BY seq LIMIT 10000) s), now()) AS "asOf", now() AS now`

const columns = sql`e.id::float8 AS id, ${hex(sql`e.hash`)} AS hash, e.action, e.subject_id AS subject, e.object,
      coalesce(u.token_generation, ${sql.text(greatest)}) AS generation`

interface EndRow {
  readonly headId: number
  readonly headHash: string
  readonly asOf: Date
  readonly now: Date
  /** Hash of the given link; null if there is no such event. */
  readonly known: string | null
}

interface EventRow {
  /** Null in the only row of a result without events. */
  readonly id: number | null
  readonly hash: string
  readonly action: AuditAction
  readonly subject: number | null
  readonly object: string | null
  readonly generation: number
}

interface PageRow extends EndRow, EventRow {
  readonly checkpointId: number
  readonly checkpointHash: string
}

/** Creates the reader of the feed in a database. */
export function createChangeFeed(database: Pick<Database, 'read'>) {
  return {
    /** Returns what follows a link, or just the end. */
    async tail(after?: Link): Promise<FeedTail> {
      const rows = await database.read<EndRow & EventRow & { changing: boolean }>(sql('feed-tail')`
        SELECT ${end}, ${hex(sql`k.hash`)} AS known, e.*
        FROM audit_head h LEFT JOIN audit_events k ON k.id = ${after?.id ?? null} LEFT JOIN LATERAL (
          SELECT ${columns}, ${changing} AS changing FROM audit_events e LEFT JOIN users u ON ${changing} AND u.id = e.subject_id
          WHERE e.id > ${after?.id ?? null} ORDER BY e.id LIMIT ${maxTail}
        ) e ON true ORDER BY e.id`)
      const [first] = rows
      const result = { ...endOf(first!), changes: eventsOf(rows.filter(row => row.changing)).map(toChange) }
      const links = eventsOf(rows).map(({ id, hash }) => ({ id, hash }))
      const follows = after?.hash === (first!.known ?? '') && links.length === result.head.id - after.id
      return follows ? { ...result, links } : result
    },
    /** Returns at most `limit` changes after a link, by index. */
    async page(after: Link, limit: number) {
      const rows = await database.read<PageRow>(sql('feed-page')`
        SELECT ${end}, c.id::float8 AS "checkpointId", ${hex(sql`c.hash`)} AS "checkpointHash", ${hex(sql`k.hash`)} AS known, e.*
        FROM audit_head h CROSS JOIN audit_checkpoint c LEFT JOIN audit_events k ON k.id = ${after.id} LEFT JOIN LATERAL (
          SELECT ${columns} FROM audit_events e LEFT JOIN users u ON u.id = e.subject_id
          WHERE ${changing} AND e.id > ${after.id} ORDER BY e.id LIMIT ${limit}
        ) e ON true ORDER BY e.id`)
      const { known, checkpointId, checkpointHash, ...first } = rows[0]!
      const hash = after.id === checkpointId ? checkpointHash : known
      const link = hash === after.hash ? 'known' : after.id < checkpointId ? 'expired' : 'lost'
      return { ...endOf({ known, ...first }), link, changes: link === 'known' ? eventsOf(rows).map(toChange) : [] }
    },
    /** Returns a link before every revocation that can concern a token that hasn't expired. */
    async start() {
      const start = sql('feed-start')`
        SELECT coalesce(e.id, c.id)::float8 AS id, ${hex(sql`coalesce(e.hash, c.hash)`)} AS hash
        FROM audit_checkpoint c LEFT JOIN LATERAL (
          SELECT id, hash FROM audit_events e WHERE ${changing}
            AND at < now() - make_interval(secs => (SELECT max(token_ttl) FROM signing_keys) + ${sql.text(margin)})
          ORDER BY id DESC LIMIT 1
        ) e ON true`
      return (await first(database.read<Link>(start)))!
    },
  }
}

function endOf({ headId, headHash, asOf, now }: EndRow): FeedEnd {
  return { head: { id: headId, hash: headHash }, asOf, now }
}

function eventsOf<Row extends EventRow>(rows: readonly Row[]): (Row & { readonly id: number })[] {
  return rows.filter((row): row is Row & { readonly id: number } => row.id !== null)
}

function toChange({ id, hash, action, subject, object, generation }: EventRow & { readonly id: number }): FeedChange {
  const has = (mark: string) => marks[action]?.includes(mark) ?? false
  const named = object?.slice(object.indexOf(':') + 1)
  const imported = action === 'user.import' || action === 'organization.import'
  const ids = imported ? readImported(object ?? '') : []
  return {
    id,
    hash,
    // A user of generation 0 has no revoked tokens.
    ...(has('tokens') &&
      subject !== null &&
      generation > 0 && { revocation: { userId: subject, minGeneration: generation } }),
    ...(has('record') && (imported ? { userIds: ids } : subject !== null && { userIds: [subject] })),
    ...(has('key') && named !== undefined && { retiredKey: named }),
    ...(has('organization') &&
      (imported ? { organizationIds: ids } : named !== undefined && { organizationIds: [Number(named)] })),
  }
}
