import { Op, type Transaction } from 'sequelize'
import {
  attribute,
  bytes,
  defineTable,
  flag,
  fromNow,
  hasDefault,
  integer,
  key,
  nullable,
  type Row,
  selectList,
  text,
  time,
} from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { first, sql } from '../database/sql.js'
import type { DataKeys } from './data-key.js'
import { createReservedIds } from './reserved-ids.js'

/** What an import reads. */
export type ImportKind = 'organizations' | 'users'

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

/** An import. */
export interface StoredImport extends Row<typeof attributes> {}

/** The number of rows by outcome. */
export interface Outcomes extends Row<typeof counts> {}

/** A batch of an import. */
interface StoredBatch extends Row<typeof batchAttributes> {}

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
export function createImports(database: Database, dataKeys: Pick<DataKeys, 'digest'>) {
  const table = defineTable(database, 'imports', attributes)
  const batches = defineTable(database, 'import_batches', batchAttributes)
  const digest = (importId: number, name: string) =>
    dataKeys.digest('import-record', `${importId}\0${name}`).subarray(0, 16)
  async function change(id: number, changes: Partial<StoredImport>, transaction: Transaction): Promise<StoredImport> {
    const values = { ...changes, updatedAt: fromNow(0) }
    const [, rows] = await table.update(values, { where: { id }, returning: true, transaction })
    return rows[0]!.get()
  }

  return {
    /** The ids that imports reserve. */
    ids: createReservedIds(database),

    /** Starts an import; if the same one runs, resumes it for this actor. Parallel calls get the same import. */
    async start(of: Row<typeof identity> & Row<typeof starter>, t: Transaction): Promise<StoredImport> {
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
      return (await first(database.run<StoredImport>(start, t)))!
    },

    find: async (id: number) => (await table.findByPk(id))?.get(),

    /** Locks an import until the end of the transaction: its batches are judged one after the other. */
    lock: async (id: number, transaction: Transaction) =>
      (await table.findByPk(id, { transaction, lock: transaction.LOCK.NO_KEY_UPDATE }))?.get(),

    /** Returns at most `limit` imports with lower ids, the newest first. */
    async list({ beforeId = 2 ** 31 - 1, limit }: { beforeId?: number; limit: number }) {
      const rows = await table.findAll({ where: { id: { [Op.lt]: beforeId } }, order: [['id', 'DESC']], limit })
      return rows.map(row => row.get())
    },

    /** Adds the outcomes of the next rows, in the transaction that has locked the import and applies them, and returns the import. */
    advance(of: StoredImport, { created, updated, unchanged, rejected }: Outcomes, t: Transaction) {
      const sums = {
        created: of.created + created,
        updated: of.updated + updated,
        unchanged: of.unchanged + unchanged,
        rejected: of.rejected + rejected,
      }
      return change(of.id, { ...sums, nextRow: of.nextRow + created + updated + unchanged + rejected }, t)
    },

    /** Ends an import, with its outcomes if they have changed. */
    end: (id: number, state: 'finished' | 'aborted', t: Transaction, outcomes?: Outcomes) =>
      change(id, { state, ...outcomes }, t),

    async addBatch(batch: StoredBatch, transaction: Transaction) {
      await batches.create(batch, { transaction })
    },

    findBatch: async (importId: number, firstRow: number, transaction: Transaction) =>
      (await batches.findOne({ where: { importId, firstRow }, transaction }))?.get(),

    /** Returns what a dry run saw for each of these rows, in order; undefined unless it saw all of them. */
    async seen(dryRunId: number, firstRow: number, rowCount: number, t: Transaction): Promise<Buffer[] | undefined> {
      const end = firstRow + rowCount
      const query = sql('import-seen')`SELECT first_row AS "firstRow", seen FROM import_batches
        WHERE import_id = ${dryRunId} AND first_row < ${end} AND first_row + row_count > ${firstRow} AND seen IS NOT NULL
        ORDER BY first_row`
      const rows = await database.run<{ firstRow: number; seen: Buffer }>(query, t)
      const all = Buffer.concat(rows.map(row => row.seen))
      const offset = (firstRow - (rows[0]?.firstRow ?? firstRow)) * seenBytes
      if (all.length < offset + rowCount * seenBytes) return undefined
      return Array.from({ length: rowCount }, (_, index) => {
        const at = offset + index * seenBytes
        return all.subarray(at, at + seenBytes)
      })
    },

    /** Returns the first row of each staged batch, in order. */
    async stagedBatches(importId: number, transaction: Transaction) {
      const staged = { importId, stagedSealed: { [Op.not]: null } }
      const rows = await batches.findAll({ attributes: ['firstRow'], where: staged, order: ['firstRow'], transaction })
      return rows.map(row => row.get().firstRow)
    },

    /** Deletes the staged rows of an import. */
    async discardStaged(importId: number, transaction: Transaction) {
      const where = { importId, stagedSealed: { [Op.not]: null } }
      await batches.update({ stagedSealed: null }, { where, transaction })
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
      const query = sql('import-touched')`SELECT record, place FROM import_records
        WHERE import_id = ${importId} AND record = ANY(${digests}::bytea[])`
      const rows = await database.run<{ record: Buffer; place: number }>(query, t)
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
