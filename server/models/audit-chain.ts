// The hash chain of the audit log: seals events in batches, verifies the chain, and deletes its oldest events. Write access to
// the database alone doesn't suffice to forge the MAC of an event or a link, which requires the key.
import { createHash, randomBytes } from 'node:crypto'
import type { Transaction } from 'sequelize'
import { advisoryKeys } from '../database/advisory-keys.js'
import { bigint, bytes, defineTable, flag, hasDefault, key, nullable, type Row } from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { first, sql } from '../database/sql.js'
import type { DataKeys } from './data-key.js'

/** The result of `verify`. */
interface Verified {
  /** Number of events of the chain verified so far. */
  readonly events: number
  /** Number of events that aren't sealed yet. */
  readonly staged: number
  /** The newest verified link, as `id:hash`. */
  readonly newest: string
  /** Whether the event of the link `known` has been deleted by retention, so that it can't be compared. */
  readonly forgotten: boolean
  /** The position at which the next call continues; absent at the end. */
  readonly next?: VerifiedLink
  /** The first break: the id of a sealed event, `staged:<number>` for an event that isn't sealed yet, or `checkpoint`. */
  readonly broken?: string
}

/** The position of a verification. */
export interface VerifiedLink {
  readonly id: number
  /** Hash of the event at this position, in hexadecimal. */
  readonly hash: string
  /** Number of events verified up to this position. */
  readonly events: number
}

/** Fields that the MAC of an event covers, in this order, followed by the digest of the address. The link covers the time. */
const covered = ['action', 'outcome', 'reason', 'actor', 'actor_id', 'subject_id', 'object', 'request_id'] as const

type Covered = { readonly [name in (typeof covered)[number]]?: unknown }

/** Returns an event as JSON to stage, with its MAC and the salt of its address. */
export function stampEvent(event: Covered & { readonly address?: string }, dataKeys: Pick<DataKeys, 'mac'>): string {
  const salt = event.address === undefined ? null : randomBytes(16)
  const digest = salt && personalDigest(salt, event.address!)
  const hex = (value: Buffer | null) => value && `\\x${value.toString('hex')}`
  const mac = dataKeys.mac(eventText(event, digest))
  return JSON.stringify({ ...event, salt: hex(salt), address_digest: hex(digest), mac: hex(mac) })
}

function personalDigest(salt: Buffer, value: string): Buffer {
  return createHash('sha256').update(salt).update(value).digest()
}

function eventText(event: Covered, addressDigest: Buffer | null): string {
  return JSON.stringify(['event', ...covered.map(name => event[name] ?? null), addressDigest?.toString('hex') ?? null])
}

/** Returns the text that the MAC of a link covers. `at` is in seconds since 1970, with six decimals. */
export function linkText(previous: Buffer, id: number, at: string, mac: Buffer): string {
  return JSON.stringify(['link', previous.toString('hex'), id, at, mac.toString('hex')])
}

function checkpointText({ id, hash }: Pick<Checkpoint, 'id' | 'hash'>): string {
  return JSON.stringify(['checkpoint', Number(id), hash.toString('hex')])
}

interface Link {
  readonly id: number
  readonly hash: Buffer
}

/** The one row, `single`. */
const checkpointAttributes = { single: hasDefault(key(flag)), id: bigint, hash: bytes, mac: nullable(bytes) }

type Checkpoint = Omit<Row<typeof checkpointAttributes>, 'single'>

/** The columns of a staged or sealed event that verification reads. */
interface Stamped extends Covered {
  readonly address: string | null
  readonly salt: Buffer | null
  readonly digest: Buffer | null
  /** Null only if the table was altered. */
  readonly mac: Buffer | null
}

/** Maximum events sealed in a transaction or verified in a step, and steps in a call. */
const batch = 1000
const steps = 20

// Time limits of a transaction: a process that hangs blocks others for at most 2 s.
const limits = sql`set_config('statement_timeout', '2s', true), set_config('lock_timeout', '2s', true),
  set_config('idle_in_transaction_session_timeout', '2s', true)`

const stamped = sql`action, outcome, reason, actor, actor_id, subject_id, object, address, request_id, salt, mac`
const columns = sql`at, ${stamped}, address_digest`

/** Creates the chain in a database. */
export function createAuditChain(database: Database, dataKeys: Pick<DataKeys, 'mac'>) {
  const checkpoints = defineTable(database, 'audit_checkpoint', checkpointAttributes)
  /** Whether the MAC of an event is valid. The address may have been erased. */
  function isGenuine(event: Stamped): boolean {
    const { address, salt, digest, mac } = event
    if (address !== null && !(salt && digest?.equals(personalDigest(salt, address)))) return false
    return mac?.equals(dataKeys.mac(eventText(event, digest))) ?? false
  }

  function isSigned(checkpoint: Checkpoint): boolean {
    return checkpoint.mac?.equals(dataKeys.mac(checkpointText(checkpoint))) ?? false
  }

  /** Verifies one step of the chain after a link, up to the first break or the first event younger than `seconds`. */
  async function follow(from: Link, seconds: number | null, t: Transaction) {
    type Row = Stamped & { id: string; hash: Buffer; at: string; young: boolean }
    const read = sql('audit-next-events')`
      SELECT ${stamped}, address_digest AS digest, id, hash, extract(epoch FROM at)::text AS at,
        coalesce(at >= now() - make_interval(secs => ${seconds}), false) AS young
      FROM audit_events WHERE id > ${from.id} ORDER BY id LIMIT ${batch}`
    const rows = await database.run<Row>(read, t)
    let { id, hash } = from
    for (const row of rows) {
      if (row.young) return { id, hash, more: false }
      if (Number(row.id) !== id + 1) return { id, hash, more: false, broken: String(id + 1) }
      const expected = row.mac && dataKeys.mac(linkText(hash, id + 1, row.at, row.mac))
      if (!expected?.equals(row.hash) || !isGenuine(row)) return { id, hash, more: false, broken: String(id + 1) }
      id += 1
      hash = row.hash
    }
    return { id, hash, more: rows.length === batch }
  }

  /** Returns the first staged event with an invalid MAC, as `staged:<number>`; undefined when there is none. */
  async function verifyStaged(t: Transaction): Promise<string | undefined> {
    for (let seq = '0', more = true; more; ) {
      const read = sql('audit-staged-events')`
        SELECT ${stamped}, address_digest AS digest, seq FROM audit_staged WHERE seq > ${seq} ORDER BY seq LIMIT ${batch}`
      const rows = await database.run<Stamped & { seq: string }>(read, t)
      const wrong = rows.find(row => !isGenuine(row))
      if (wrong) return `staged:${wrong.seq}`
      seq = rows.at(-1)?.seq ?? seq
      more = rows.length === batch
    }
    return undefined
  }

  async function sealBatch(t: Transaction): Promise<boolean> {
    const enter = sql('audit-enter')`
      SELECT pg_try_advisory_xact_lock(${sql.text(advisoryKeys.sealing)}) AS mine, ${limits}`
    if (!(await first(database.run<{ mine: boolean }>(enter, t)))!.mine) return false
    type Row = { head: string; hash: Buffer; seq: string; at: string; mac: Buffer }
    const read = sql('audit-next-staged')`
      SELECT h.id AS head, h.hash, s.seq, extract(epoch FROM s.at)::text AS at, s.mac
      FROM audit_head h, LATERAL (SELECT seq, at, mac FROM audit_staged ORDER BY seq LIMIT ${batch}) s ORDER BY s.seq`
    const rows = await database.run<Row>(read, t)
    if (rows.length === 0) return false
    const head = Number(rows[0]!.head)
    let { hash } = rows[0]!
    const hashes = rows.map(({ at, mac }, index) => {
      hash = dataKeys.mac(linkText(hash, head + index + 1, at, mac))
      return hash
    })
    const move = sql('audit-move-staged')`
      WITH given AS MATERIALIZED (
        SELECT * FROM unnest(${rows.map(({ seq }) => seq)}::bigint[], ${hashes}::bytea[])
          WITH ORDINALITY AS each (seq, hash, place)
      ), moved AS (
        DELETE FROM audit_staged WHERE seq = ANY (ARRAY(SELECT seq FROM given)) RETURNING *
      ), added AS (
        INSERT INTO audit_events (id, ${columns}, hash)
        SELECT ${head}::bigint + place, ${columns}, hash FROM moved JOIN given USING (seq) RETURNING 1
      )
      UPDATE audit_head SET id = ${head}::bigint + ${rows.length}::int, hash = ${hash}
      WHERE (SELECT count(*) FROM added) = ${rows.length} RETURNING 1`
    const moved = await database.run(move, t)
    if (moved.length === 0) throw new Error('Staged events disappeared while they were sealed.')
    return rows.length === batch
  }

  /** Reads both ends of the chain, and the hash of the event `knownId`. */
  async function readEnds(knownId: string, t: Transaction) {
    type Ends = { headId: string; headHash: Buffer; first: string | null; known: Buffer | null; staged: string }
    const read = sql('audit-ends')`
      SELECT c.id, c.hash, c.mac, h.id AS "headId", h.hash AS "headHash", (SELECT min(id) FROM audit_events) AS first,
        (SELECT count(*) FROM audit_staged) AS staged, (SELECT hash FROM audit_events WHERE id = ${knownId}) AS known
      FROM audit_checkpoint c, audit_head h`
    return (await first(database.run<Checkpoint & Ends>(read, t)))!
  }

  const holdCheckpoint = async (transaction: Transaction) =>
    (await checkpoints.findOne({ transaction, lock: transaction.LOCK.UPDATE, skipLocked: true }))?.get()

  async function setCheckpoint({ id, hash }: Pick<Checkpoint, 'id' | 'hash'>, transaction: Transaction): Promise<void> {
    const mac = dataKeys.mac(checkpointText({ id, hash }))
    await checkpoints.update({ id, hash, mac }, { where: { single: true }, transaction })
  }

  async function pruneStep(seconds: number, t: Transaction): Promise<{ more: boolean; broken?: string }> {
    await database.run(sql('audit-limit')`SELECT ${limits}`, t)
    const held = await holdCheckpoint(t)
    if (!held) return { more: false }
    if (!isSigned(held)) return { more: false, broken: 'checkpoint' }
    const from = { id: Number(held.id), hash: held.hash }
    const { id, hash, ...found } = await follow(from, seconds, t)
    if (id > from.id) {
      await setCheckpoint({ id: String(id), hash }, t)
      await database.run(sql('audit-forget')`DELETE FROM audit_events WHERE id <= ${id}`, t)
    }
    return found
  }

  return {
    /** Signs the first checkpoint of the chain, after the data keys are created. */
    async install(t: Transaction) {
      const held = await holdCheckpoint(t)
      await setCheckpoint(held!, t)
    },
    /**
     * Moves at most one batch of staged events into the chain, unless another process is sealing. Returns whether more events
     * may be staged.
     */
    async seal() {
      if ((await database.run(sql('audit-any-staged')`SELECT FROM audit_staged ORDER BY seq LIMIT 1`)).length === 0)
        return false
      return database.transact(sealBatch)
    },
    /**
     * Verifies every MAC and every link. Without the key, an attacker with access to the database can only truncate the chain, or
     * remove events that aren't sealed yet. To detect truncation, store the newest link outside the database and pass it as
     * `known`. A call verifies at most 20,000 events, and returns the position at which the next call continues.
     */
    verify: (known = '0:', from?: VerifiedLink): Promise<Verified> =>
      database.transact(
        async t => {
          const [knownId = '0', knownHash = ''] = known.split(':')
          const { headId, headHash, ...begin } = await readEnds(knownId, t)
          // The checkpoint may have moved past the position of the previous call.
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
          for (let step = 0; at.more && step < steps; step++) {
            const before = at.id
            at = await follow(at, null, t)
            events += at.id - before
          }
          if (at.broken !== undefined) return brokenAt(at.broken)
          if (at.more) return { ...resultAt(), next: { id: at.id, hash: at.hash.toString('hex'), events } }
          if (at.id !== Number(headId)) return brokenAt(String(Math.min(at.id, Number(headId)) + 1))
          if (!at.hash.equals(headHash)) return brokenAt(headId)
          const kept = knownId === begin.id ? begin.hash : begin.known
          if (Number(knownId) > 0 && !forgotten && kept?.toString('hex') !== knownHash) return brokenAt(knownId)
          const staged = await verifyStaged(t)
          return staged === undefined ? resultAt() : brokenAt(staged)
        },
        // A busy machine may need more than the limit of a transaction.
        { snapshot: true, unlimited: true },
      ),
    /**
     * Deletes events older than `seconds`, and signs a checkpoint from which the remaining events verify. Stops at a break in
     * the chain, and returns the break in the format of `Verified.broken`.
     */
    async pruneOlder(seconds: number) {
      for (;;) {
        const { more, broken } = await database.transact(t => pruneStep(seconds, t))
        if (broken !== undefined || !more) return broken
      }
    },
  }
}
