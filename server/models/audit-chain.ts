// The chain of the audit log: events are sealed into it in rounds, checked, and deleted from its beginning. Whoever can
// write the database but hasn't the key can make neither the MAC of an event nor a link.
import { createHash, randomBytes } from 'node:crypto'
import type { Transaction } from 'sequelize'
import { bigint, bytes, defineTable, flag, hasDefault, key, nullable } from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'
import type { MasterKey } from './master-key.js'

/** What `verify` found. */
export interface Verified {
  /** Events of the chain that were checked so far. */
  readonly events: number
  /** Events that wait to be sealed. */
  readonly staged: number
  /** The newest link so far, `id:hash`. */
  readonly newest: string
  /** Whether `known` names an event that was deleted since, so that nothing could be compared. */
  readonly forgotten: boolean
  /** Where to go on, when there is more to check. */
  readonly next?: VerifiedLink
  /** Where it is broken first: the id of an event, `staged:` and the number of one not sealed yet, or `checkpoint`. */
  readonly broken?: string
}

/** How far a check has come. */
export interface VerifiedLink {
  readonly id: number
  /** Of this event, in hexadecimal. */
  readonly hash: string
  /** Events that were checked until there. */
  readonly events: number
}

/** What is done with the chain. */
export interface AuditChain {
  /** Signs where the chain begins, once the data keys were made. */
  install(t: Transaction): Promise<void>
  /**
   * Moves the staged events into the chain, unless somebody else is at it: as many as one round holds. Returns whether
   * more may be left.
   */
  seal(): Promise<boolean>
  /**
   * Checks every MAC and every link. Who has the database but not the key can only cut off the chain at its end, or take
   * away what isn't sealed yet; so keep the newest link elsewhere, and give it as `known` another time. A call checks
   * 20,000 events at most; it says where the next is to go on, up to events that were written meanwhile.
   */
  verify(known?: string, from?: VerifiedLink): Promise<Verified>
  /**
   * Deletes the events older than so many seconds, behind a signed checkpoint with which the rest still verifies. What is
   * broken stays: returns where, as `verify` does.
   */
  prune(seconds: number): Promise<string | undefined>
}

/** What the MAC of an event covers, in this order; the address as its digest. The time is the database's, under the link. */
const covered = ['action', 'outcome', 'reason', 'actor', 'actor_id', 'subject_id', 'object', 'request_id'] as const

type Told = { readonly [name in (typeof covered)[number]]?: unknown }

/** An event as it is staged: with its MAC, and what is personal under a salt of its own. */
export function stampEvent(event: Told & { readonly address?: string }, masterKey: Pick<MasterKey, 'mac'>): string {
  const salt = event.address === undefined ? null : randomBytes(16)
  const digest = salt && personalDigest(salt, event.address!)
  const hex = (value: Buffer | null) => value && `\\x${value.toString('hex')}`
  const mac = masterKey.mac(eventText(event, digest))
  return JSON.stringify({ ...event, salt: hex(salt), address_digest: hex(digest), mac: hex(mac) })
}

function personalDigest(salt: Buffer, value: string): Buffer {
  return createHash('sha256').update(salt).update(value).digest()
}

function eventText(event: Told, addressDigest: Buffer | null): string {
  return JSON.stringify(['event', ...covered.map(name => event[name] ?? null), addressDigest?.toString('hex') ?? null])
}

/** `at` is in seconds since 1970, with six digits behind the point. */
function linkText(previous: Buffer, id: number, at: string, mac: Buffer): string {
  return JSON.stringify(['link', previous.toString('hex'), id, at, mac.toString('hex')])
}

function checkpointText({ id, hash, plainTo }: Checkpoint): string {
  return JSON.stringify(['checkpoint', Number(id), hash.toString('hex'), Number(plainTo)])
}

interface Link {
  readonly id: number
  readonly hash: Buffer
}

interface Checkpoint {
  readonly id: string
  readonly hash: Buffer
  readonly plainTo: string
  readonly mac: Buffer | null
}

/** What is checked of any event. */
interface Stamped extends Told {
  readonly address: string | null
  readonly salt: Buffer | null
  readonly digest: Buffer | null
  readonly mac: Buffer | null
}

/** Events of a round, and of a step of a check; steps of a call. */
const batch = 1000
const stride = 5000
const strides = 4

// A process that stands still in its transaction holds up the others no longer than this.
const limits = ['statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout']
  .map(name => `set_config('${name}', '2s', true)`)
  .join(', ')

const limit: Statement = { name: 'audit-limit', text: `SELECT ${limits}` }

// Until the end of the transaction, as poolers of transactions allow it.
const enter: Statement = {
  name: 'audit-enter',
  text: `SELECT pg_try_advisory_xact_lock(7264004) AS mine, ${limits}`,
}

const anyStaged: Statement = { name: 'audit-any-staged', text: 'SELECT FROM audit_staged ORDER BY seq LIMIT 1' }

const nextStaged: Statement = {
  name: 'audit-next-staged',
  text: `SELECT h.id AS head, h.hash, s.seq, extract(epoch FROM s.at)::text AS at, s.mac
    FROM audit_head h, LATERAL (SELECT seq, at, mac FROM audit_staged ORDER BY seq LIMIT $1) s ORDER BY s.seq`,
}

const columns = `at, action, outcome, reason, actor, actor_id, subject_id, object, address, request_id,
      salt, address_digest, mac`

const moveStaged: Statement = {
  name: 'audit-move-staged',
  text: `WITH given AS (
    SELECT * FROM unnest($1::bigint[], $2::bytea[]) WITH ORDINALITY AS each (seq, hash, place)
  ), moved AS (
    DELETE FROM audit_staged WHERE seq = ANY ($1) RETURNING *
  ), added AS (
    INSERT INTO audit_events (id, ${columns}, hash)
    SELECT $3::bigint + place, ${columns}, hash FROM moved JOIN given USING (seq) RETURNING 1
  )
  UPDATE audit_head SET id = $3 + cardinality($1), hash = $2[cardinality($2)]
  WHERE (SELECT count(*) FROM added) = cardinality($1) RETURNING 1`,
}

// All batches see the same.
const snapshot: Statement = {
  name: 'audit-snapshot',
  text: 'SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY',
}

const ends: Statement = {
  name: 'audit-ends',
  text: `SELECT c.id, c.hash, c.plain_to AS "plainTo", c.mac, h.id AS "headId", h.hash AS "headHash",
    (SELECT min(id) FROM audit_events) AS first, (SELECT count(*) FROM audit_staged) AS staged, (SELECT hash FROM audit_events WHERE id = $1) AS known
    FROM audit_checkpoint c, audit_head h`,
}

const stamped = 'action, outcome, reason, actor, actor_id, subject_id, object, address, request_id, salt, mac'

// The database computes the links from before there were MACs.
const nextEvents: Statement = {
  name: 'audit-next-events',
  text: `SELECT ${stamped}, address_digest AS digest, id, hash, extract(epoch FROM at)::text AS at,
      CASE WHEN id <= $4 THEN audit_hash(e, lag(hash, 1, $2) OVER (ORDER BY id)) END AS plain,
      coalesce(at >= now() - make_interval(secs => $5), false) AS young
    FROM audit_events e WHERE id > $1 ORDER BY id LIMIT $3`,
}

const stagedEvents: Statement = {
  name: 'audit-staged-events',
  text: `SELECT ${stamped}, address_digest AS digest, seq FROM audit_staged WHERE seq > $1 ORDER BY seq LIMIT $2`,
}

const holdCheckpoint: Statement = {
  name: 'audit-hold-checkpoint',
  text: 'SELECT id, hash, plain_to AS "plainTo", mac FROM audit_checkpoint FOR UPDATE SKIP LOCKED',
}

const setCheckpoint: Statement = {
  name: 'audit-set-checkpoint',
  text: 'UPDATE audit_checkpoint SET id = $1, hash = $2, mac = $3',
}

const forget: Statement = { name: 'audit-forget', text: 'DELETE FROM audit_events WHERE id <= $1' }

/** The chain in a database. */
export function createAuditChain(database: Database, masterKey: Pick<MasterKey, 'mac'>): AuditChain {
  // The newest link, and the one before the first event that is kept.
  defineTable(database, 'audit_head', { single: hasDefault(key(flag)), id: bigint, hash: bytes })
  const checkpoint = { single: hasDefault(key(flag)), id: bigint, hash: bytes, plainTo: bigint, mac: nullable(bytes) }
  defineTable(database, 'audit_checkpoint', checkpoint)

  /** Whether an event says what it said when its MAC was made, as far as it wasn't erased since. */
  function isGenuine(event: Stamped): boolean {
    const { address, salt, digest, mac } = event
    if (address !== null && !(salt && digest?.equals(personalDigest(salt, address)))) return false
    return mac?.equals(masterKey.mac(eventText(event, digest))) ?? false
  }

  function isSigned(checkpoint: Checkpoint): boolean {
    return checkpoint.mac?.equals(masterKey.mac(checkpointText(checkpoint))) ?? false
  }

  /** Follows the chain one step from a link: up to the first broken event, or the first younger than so many seconds. */
  async function follow(from: Link, plainTo: string, seconds: number | null, t: Transaction) {
    type Row = Stamped & { id: string; hash: Buffer; at: string; plain: Buffer | null; young: boolean }
    const rows = await database.run<Row>(nextEvents, [from.id, from.hash, stride, plainTo, seconds], t)
    let { id, hash } = from
    for (const row of rows) {
      if (row.young) return { id, hash, more: false }
      if (Number(row.id) !== id + 1) return { id, hash, more: false, broken: String(id + 1) }
      const expected = row.plain ?? (row.mac && masterKey.mac(linkText(hash, id + 1, row.at, row.mac)))
      if (!expected?.equals(row.hash) || !(row.plain || isGenuine(row)))
        return { id, hash, more: false, broken: String(id + 1) }
      id += 1
      hash = row.hash
    }
    return { id, hash, more: rows.length === stride }
  }

  /** The first staged event that isn't genuine. */
  async function followStaged(t: Transaction): Promise<string | undefined> {
    for (let seq = '0', more = true; more; ) {
      const rows = await database.run<Stamped & { seq: string }>(stagedEvents, [seq, stride], t)
      const wrong = rows.find(row => !isGenuine(row))
      if (wrong) return `staged:${wrong.seq}`
      seq = rows.at(-1)?.seq ?? seq
      more = rows.length === stride
    }
    return undefined
  }

  async function round(t: Transaction): Promise<boolean> {
    const [entered] = await database.run<{ mine: boolean }>(enter, [], t)
    if (!entered!.mine) return false
    type Row = { head: string; hash: Buffer; seq: string; at: string; mac: Buffer }
    const rows = await database.run<Row>(nextStaged, [batch], t)
    const [first] = rows
    if (!first) return false
    const head = Number(first.head)
    let { hash } = first
    const hashes = rows.map(({ at, mac }, index) => {
      hash = masterKey.mac(linkText(hash, head + index + 1, at, mac))
      return hash
    })
    const moved = await database.run(moveStaged, [rows.map(({ seq }) => seq), hashes, head], t)
    if (moved.length === 0) throw new Error('Staged events went away while they were sealed.')
    return rows.length === batch
  }

  async function pruneSome(seconds: number, t: Transaction) {
    await database.run(limit, [], t)
    const [held] = await database.run<Checkpoint>(holdCheckpoint, [], t)
    if (!held) return { more: false }
    if (!isSigned(held)) return { more: false, broken: 'checkpoint' }
    const from = { id: Number(held.id), hash: held.hash }
    const { id, hash, ...found } = await follow(from, held.plainTo, seconds, t)
    if (id > from.id) {
      const mac = masterKey.mac(checkpointText({ ...held, id: String(id), hash }))
      await database.run(setCheckpoint, [id, hash, mac], t)
      await database.run(forget, [id], t)
    }
    return found
  }

  return {
    async install(t) {
      const [held] = await database.run<Checkpoint>(holdCheckpoint, [], t)
      await database.run(setCheckpoint, [held!.id, held!.hash, masterKey.mac(checkpointText(held!))], t)
    },
    async seal() {
      if ((await database.read(anyStaged, [])).length === 0) return false
      return database.transact(round)
    },
    verify: (known = '0:', from) =>
      database.transact(async t => {
        const [knownId = '0', knownHash = ''] = known.split(':')
        await database.run(snapshot, [], t)
        type Ends = Checkpoint & { headId: string; headHash: Buffer; first: string | null; known: Buffer | null } & {
          staged: string
        }
        const [found] = await database.run<Ends>(ends, [knownId], t)
        const { headId, headHash, ...begin } = found!
        // What was deleted meanwhile is behind the checkpoint.
        const resumes = from !== undefined && from.id > Number(begin.id)
        let at: Awaited<ReturnType<typeof follow>> = resumes
          ? { id: from.id, hash: Buffer.from(from.hash, 'hex'), more: true }
          : { id: Number(begin.id), hash: begin.hash, more: true }
        let events = from?.events ?? 0
        const forgotten = Number(knownId) > 0 && Number(knownId) < Number(begin.id)
        const resultAt = () => {
          const newest = `${at.id}:${at.hash.toString('hex')}`
          return { events, staged: Number(begin.staged), newest, forgotten }
        }
        const brokenAt = (broken: string) => ({ ...resultAt(), broken })
        if (!isSigned(begin)) return brokenAt('checkpoint')
        if (begin.first !== null && Number(begin.first) <= Number(begin.id)) return brokenAt(begin.first)
        for (let step = 0; at.more && step < strides; step++) {
          const before = at.id
          at = await follow(at, begin.plainTo, null, t)
          events += at.id - before
        }
        if (at.broken !== undefined) return brokenAt(at.broken)
        if (at.more) return { ...resultAt(), next: { id: at.id, hash: at.hash.toString('hex'), events } }
        if (at.id !== Number(headId)) return brokenAt(String(Math.min(at.id, Number(headId)) + 1))
        if (!at.hash.equals(headHash)) return brokenAt(headId)
        const kept = knownId === begin.id ? begin.hash : begin.known
        if (Number(knownId) > 0 && !forgotten && kept?.toString('hex') !== knownHash) return brokenAt(knownId)
        const staged = await followStaged(t)
        return staged === undefined ? resultAt() : brokenAt(staged)
      }),
    async prune(seconds) {
      for (;;) {
        const { more, broken } = await database.transact(
          (t): Promise<{ more: boolean; broken?: string }> => pruneSome(seconds, t),
        )
        if (broken !== undefined || !more) return broken
      }
    },
  }
}
