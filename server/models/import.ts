import {
  attribute,
  bytes,
  defineTable,
  flag,
  hasDefault,
  integer,
  key,
  nullable,
  type Row,
  selectList,
  text,
  time,
} from '../database/attributes.js'
import type { Database, Transaction } from '../database/connection.js'
import { type Query, sql } from '../database/sql.js'
import type { MasterKey } from './master-key.js'
import { createReservedIds } from './reserved-ids.js'

/** What an import reads. */
export type ImportKind = 'organizations' | 'users' | 'predecessor'

/** What an import is: the same import of the same source runs once. */
const identity = {
  kind: attribute<ImportKind>('TEXT'),
  /** SHA-256 of the source, in hexadecimal. */
  sourceDigest: text,
  dryRun: flag,
  allOrNothing: flag,
  /** What rows may change of existing records, because it opens access to them; sorted. */
  changeAccounts: attribute<string[]>('TEXT[]'),
  /** The dry run since which no record may have changed. */
  afterDryRun: nullable(integer),
  /** Creates records with the ids of its rows, and changes none. */
  keepIds: flag,
}

/** Who started or last resumed it. */
const starter = {
  actor: text,
  actorId: nullable(integer),
  /** The token generation of the actor at that time; null on the database itself. */
  tokenGeneration: nullable(integer),
}

/** Outcomes of rows. */
const counts = {
  created: hasDefault(integer),
  updated: hasDefault(integer),
  unchanged: hasDefault(integer),
  rejected: hasDefault(integer),
}

const attributes = {
  id: hasDefault(key(integer)),
  ...identity,
  ...starter,
  state: hasDefault(attribute<'running' | 'finished' | 'aborted'>('TEXT')),
  /** Number of judged rows: the sum of the outcomes. */
  nextRow: hasDefault(integer),
  ...counts,
  createdAt: hasDefault(time),
  updatedAt: hasDefault(time),
  /** When an administrator first undid it. */
  undoneAt: hasDefault(nullable(time)),
}

const batchAttributes = {
  importId: key(integer),
  firstRow: key(integer),
  rowCount: integer,
  answer: bytes,
  /** For each row of a dry run `seenBytes` of a digest of the record that it saw. */
  seen: nullable(bytes),
  /** The rows, until an import that is all or nothing applies them. */
  stagedSealed: nullable(bytes),
}

const recordAttributes = { importId: key(integer), record: key(bytes), place: integer }

/** An import. */
export interface ImportRow extends Row<typeof attributes> {}

/** The number of rows by outcome. */
export interface Outcomes extends Row<typeof counts> {}

/** A batch of an import. */
export interface ImportBatchRow extends Row<typeof batchAttributes> {}

/** Bytes of a digest in `seen`. */
export const seenBytes = 8

/** Days after its last change after which an import is deleted. */
const retentionDays = 30

/** Imports, and the batches of rows that they have judged. */
export type Imports = ReturnType<typeof createImports>

/** Touched records that one statement deletes: an import can have a million. */
const slice = 10_000

const columns = sql.text(selectList(attributes, 'i'))

/** Creates the imports in a database. */
export function createImports(database: Database, masterKey: Pick<MasterKey, 'digest'>) {
  defineTable(database, 'imports', attributes)
  defineTable(database, 'import_batches', batchAttributes)
  defineTable(database, 'import_records', recordAttributes)
  const digest = (importId: number, name: string) =>
    masterKey.digest('import-record', `${importId}\0${name}`).subarray(0, 16)
  const one = async (query: Query, t?: Transaction) => (await database.run<ImportRow>(query, t))[0]
  return {
    /** The ids that imports reserve. */
    ids: createReservedIds(database),

    /** Starts an import; if the same one runs, resumes it for this actor. Parallel calls get the same import. */
    async start(of: Row<typeof identity> & Row<typeof starter>, t: Transaction): Promise<ImportRow> {
      const { kind, sourceDigest, dryRun, allOrNothing, changeAccounts, afterDryRun, keepIds } = of
      // On a conflict, an update returns the row and locks it.
      const start = sql('import-start')`
        INSERT INTO imports AS i (kind, source_digest, dry_run, all_or_nothing, change_accounts, after_dry_run, keep_ids,
          actor, actor_id, token_generation)
        VALUES (${kind}, ${sourceDigest}, ${dryRun}, ${allOrNothing}, ${changeAccounts}, ${afterDryRun}, ${keepIds},
          ${of.actor}, ${of.actorId}, ${of.tokenGeneration})
        ON CONFLICT (kind, source_digest, dry_run, all_or_nothing, change_accounts, keep_ids, (coalesce(after_dry_run, 0)))
          WHERE state = 'running'
        DO UPDATE SET actor = excluded.actor, actor_id = excluded.actor_id, token_generation = excluded.token_generation,
          updated_at = now()
        RETURNING ${columns}`
      return (await one(start, t))!
    },

    find: (id: number) => one(sql('import-find')`SELECT ${columns} FROM imports i WHERE id = ${id}`),

    /** Locks an import until the end of the transaction: its batches are judged one after the other. */
    lock: (id: number, t: Transaction) =>
      one(sql('import-lock')`SELECT ${columns} FROM imports i WHERE id = ${id} FOR NO KEY UPDATE`, t),

    /** Returns at most `limit` imports with lower ids, the newest first. */
    list: ({ beforeId = 2 ** 31 - 1, limit }: { beforeId?: number; limit: number }) =>
      database.run<ImportRow>(
        sql('imports-list')`SELECT ${columns} FROM imports i WHERE id < ${beforeId} ORDER BY id DESC LIMIT ${limit}`,
      ),

    /** Adds the outcomes of the next rows, in the transaction that applies them, and returns the import. */
    async advance(id: number, { created, updated, unchanged, rejected }: Outcomes, t: Transaction): Promise<ImportRow> {
      const rows = created + updated + unchanged + rejected
      const advance = sql('import-advance')`
        UPDATE imports i SET created = created + ${created}, updated = updated + ${updated},
          unchanged = unchanged + ${unchanged}, rejected = rejected + ${rejected}, next_row = next_row + ${rows}, updated_at = now()
        WHERE id = ${id} RETURNING ${columns}`
      return (await one(advance, t))!
    },

    /** Ends an import, with its outcomes if they have changed. */
    async end(id: number, state: 'finished' | 'aborted', t: Transaction, outcomes?: Outcomes): Promise<ImportRow> {
      const end = sql('import-end')`
        UPDATE imports i SET state = ${state}, created = coalesce(${outcomes?.created}, created),
          updated = coalesce(${outcomes?.updated}, updated), unchanged = coalesce(${outcomes?.unchanged}, unchanged),
          rejected = coalesce(${outcomes?.rejected}, rejected), updated_at = now()
        WHERE id = ${id} RETURNING ${columns}`
      return (await one(end, t))!
    },

    /** Notes that an import is undone, and returns it. */
    async undo(id: number, t: Transaction): Promise<ImportRow> {
      const undo = sql('import-undo')`UPDATE imports i SET undone_at = coalesce(undone_at, now()), updated_at = now()
        WHERE id = ${id} RETURNING ${columns}`
      return (await one(undo, t))!
    },

    async addBatch({ importId, firstRow, rowCount, answer, seen, stagedSealed }: ImportBatchRow, t: Transaction) {
      const add = sql('import-batch-add')`
        INSERT INTO import_batches (import_id, first_row, row_count, answer, seen, staged_sealed)
        VALUES (${importId}, ${firstRow}, ${rowCount}, ${answer}, ${seen}, ${stagedSealed})`
      await database.run(add, t)
    },

    async findBatch(importId: number, firstRow: number, t: Transaction): Promise<ImportBatchRow | undefined> {
      const find = sql('import-batch-find')`SELECT ${sql.text(selectList(batchAttributes, 'b'))} FROM import_batches b
        WHERE import_id = ${importId} AND first_row = ${firstRow}`
      return (await database.run<ImportBatchRow>(find, t))[0]
    },

    /** Returns what a dry run saw for each of these rows, in order; undefined unless it saw all of them. */
    async seen(dryRunId: number, firstRow: number, rowCount: number, t: Transaction): Promise<Buffer[] | undefined> {
      const end = firstRow + rowCount
      const rows = await database.run<{ firstRow: number; seen: Buffer }>(
        sql('import-seen')`SELECT first_row AS "firstRow", seen FROM import_batches
          WHERE import_id = ${dryRunId} AND first_row < ${end} AND first_row + row_count > ${firstRow} AND seen IS NOT NULL
          ORDER BY first_row`,
        t,
      )
      const all = Buffer.concat(rows.map(row => row.seen))
      const offset = (firstRow - (rows[0]?.firstRow ?? firstRow)) * seenBytes
      if (all.length < offset + rowCount * seenBytes) return undefined
      return Array.from({ length: rowCount }, (_, index) => {
        const at = offset + index * seenBytes
        return all.subarray(at, at + seenBytes)
      })
    },

    /** Returns the answer of the newest batch. */
    async lastAnswer(importId: number): Promise<Buffer | undefined> {
      const [last] = await database.run<{ answer: Buffer }>(
        sql(
          'import-batch-last',
        )`SELECT answer FROM import_batches WHERE import_id = ${importId} ORDER BY first_row DESC LIMIT 1`,
      )
      return last?.answer
    },

    /** Returns the first row of each staged batch, in order. */
    async stagedBatches(importId: number, t: Transaction): Promise<number[]> {
      const rows = await database.run<{ firstRow: number }>(
        sql('import-staged')`SELECT first_row AS "firstRow" FROM import_batches
          WHERE import_id = ${importId} AND staged_sealed IS NOT NULL ORDER BY first_row`,
        t,
      )
      return rows.map(({ firstRow }) => firstRow)
    },

    /** Deletes the staged rows of an import. */
    async discardStaged(importId: number, t: Transaction): Promise<void> {
      const discard = sql('import-discard-staged')`
        UPDATE import_batches SET staged_sealed = NULL WHERE import_id = ${importId} AND staged_sealed IS NOT NULL`
      await database.run(discard, t)
    },

    /**
     * Runs `work`, and takes back all that it did in the transaction unless `keeps` accepts its result, which it returns. Can't
     * be nested.
     */
    async tryOut<T>(work: () => Promise<T>, keeps: (result: T) => boolean, t: Transaction): Promise<T> {
      await database.run(sql('import-savepoint')`SAVEPOINT import_rows`, t)
      const result = await work()
      if (!keeps(result)) await database.run(sql('import-rollback')`ROLLBACK TO SAVEPOINT import_rows`, t)
      return result
    },

    /**
     * Returns those of the records, by their names, that the import has created or changed, each with the line or number of the row
     * that did.
     */
    async touched(importId: number, names: readonly string[], t: Transaction): Promise<Map<string, number>> {
      const byDigest = new Map(names.map(name => [digest(importId, name).toString('latin1'), name]))
      if (byDigest.size === 0) return new Map()
      const digests = [...byDigest.keys()].map(text => Buffer.from(text, 'latin1'))
      const rows = await database.run<{ record: Buffer; place: number }>(
        sql('import-touched')`SELECT record, place FROM import_records
          WHERE import_id = ${importId} AND record = ANY(${digests}::bytea[])`,
        t,
      )
      return new Map(rows.map(({ record, place }) => [byDigest.get(record.toString('latin1'))!, place]))
    },

    /** Adds records that the import has created or changed. */
    async touch(importId: number, places: ReadonlyMap<string, number>, t: Transaction): Promise<void> {
      if (places.size === 0) return
      const digests = [...places.keys()].map(name => digest(importId, name))
      const touch = sql('import-touch')`INSERT INTO import_records (import_id, record, place)
        SELECT ${importId}, * FROM unnest(${digests}::bytea[], ${[...places.values()]}::int[]) ON CONFLICT DO NOTHING`
      await database.run(touch, t)
    },

    /** Forgets all of them. */
    async forget(importId: number, t: Transaction): Promise<void> {
      await database.run(sql('import-forget')`DELETE FROM import_records WHERE import_id = ${importId}`, t)
    },

    /** Deletes imports, with their batches, 30 days after their last change, and the touched records of those that ended. */
    async prune(): Promise<void> {
      const isOld = sql.text(`i.updated_at < now() - interval '${retentionDays} days'`)
      const pruneRecords = sql`DELETE FROM import_records WHERE (import_id, record) IN (
          SELECT r.import_id, r.record FROM imports i JOIN import_records r ON r.import_id = i.id
          WHERE i.state <> 'running' OR ${isOld} LIMIT ${slice})
        RETURNING 1`
      while ((await database.run(pruneRecords)).length === slice);
      await database.runUnlimited(sql`DELETE FROM imports i WHERE ${isOld}`)
    },
  }
}
