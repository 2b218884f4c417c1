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
import type { Database, Statement, Transaction } from '../database/connection.js'
import type { MasterKey } from './master-key.js'
import { createReservedIds, type ReservedIds } from './reserved-ids.js'

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
export interface Imports {
  /** The ids that imports reserve. */
  readonly ids: ReservedIds
  /** Starts an import; if the same one runs, resumes it for this actor. Parallel calls get the same import. */
  start(of: Row<typeof identity> & Row<typeof starter>, t: Transaction): Promise<ImportRow>
  find(id: number): Promise<ImportRow | undefined>
  /** Locks an import until the end of the transaction: its batches are judged one after the other. */
  lock(id: number, t: Transaction): Promise<ImportRow | undefined>
  /** Returns at most `limit` imports with lower ids, the newest first. */
  list(page: { readonly beforeId?: number; readonly limit: number }): Promise<ImportRow[]>
  /** Adds the outcomes of the next rows, in the transaction that applies them, and returns the import. */
  advance(id: number, outcomes: Outcomes, t: Transaction): Promise<ImportRow>
  /** Ends an import, with its outcomes if they have changed. */
  end(id: number, state: 'finished' | 'aborted', t: Transaction, outcomes?: Outcomes): Promise<ImportRow>
  /** Notes that an import is undone, and returns it. */
  undo(id: number, t: Transaction): Promise<ImportRow>
  addBatch(batch: ImportBatchRow, t: Transaction): Promise<void>
  findBatch(importId: number, firstRow: number, t: Transaction): Promise<ImportBatchRow | undefined>
  /** Returns what a dry run saw for each of these rows, in order; undefined unless it saw all of them. */
  seen(dryRunId: number, firstRow: number, rowCount: number, t: Transaction): Promise<Buffer[] | undefined>
  /** Returns the answer of the newest batch. */
  lastAnswer(importId: number): Promise<Buffer | undefined>
  /** Returns the first row of each staged batch, in order. */
  stagedBatches(importId: number, t: Transaction): Promise<number[]>
  /** Deletes the staged rows of an import. */
  discardStaged(importId: number, t: Transaction): Promise<void>
  /**
   * Runs `work`, and takes back all that it did in the transaction unless `keeps` accepts its result, which it returns. Can't
   * be nested.
   */
  tryOut<T>(work: () => Promise<T>, keeps: (result: T) => boolean, t: Transaction): Promise<T>
  /**
   * Returns those of the records, by their names, that the import has created or changed, each with the line or number of the row
   * that did.
   */
  touched(importId: number, names: readonly string[], t: Transaction): Promise<Map<string, number>>
  /** Adds records that the import has created or changed. */
  touch(importId: number, places: ReadonlyMap<string, number>, t: Transaction): Promise<void>
  /** Forgets all of them. */
  forget(importId: number, t: Transaction): Promise<void>
  /** Deletes imports, with their batches, 30 days after their last change, and the touched records of those that ended. */
  prune(): Promise<void>
}

const columns = selectList(attributes, 'i')
const batchColumns = selectList(batchAttributes, 'b')

// On a conflict, an update returns the row and locks it.
const start: Statement = {
  name: 'import-start',
  text: `INSERT INTO imports AS i (kind, source_digest, dry_run, all_or_nothing, change_accounts, after_dry_run,
      keep_ids, actor, actor_id, token_generation)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    ON CONFLICT (kind, source_digest, dry_run, all_or_nothing, change_accounts, keep_ids, (coalesce(after_dry_run, 0)))
      WHERE state = 'running'
    DO UPDATE SET actor = $8, actor_id = $9, token_generation = $10, updated_at = now()
    RETURNING ${columns}`,
}

const find: Statement = { name: 'import-find', text: `SELECT ${columns} FROM imports i WHERE id = $1` }

const lock: Statement = { name: 'import-lock', text: `${find.text} FOR NO KEY UPDATE` }

const list: Statement = {
  name: 'imports-list',
  text: `SELECT ${columns} FROM imports i WHERE id < $1 ORDER BY id DESC LIMIT $2`,
}

const advance: Statement = {
  name: 'import-advance',
  text: `UPDATE imports i SET created = created + $2, updated = updated + $3, unchanged = unchanged + $4,
      rejected = rejected + $5, next_row = next_row + $2 + $3 + $4 + $5, updated_at = now()
    WHERE id = $1 RETURNING ${columns}`,
}

const end: Statement = {
  name: 'import-end',
  text: `UPDATE imports i SET state = $2, created = coalesce($3, created), updated = coalesce($4, updated),
      unchanged = coalesce($5, unchanged), rejected = coalesce($6, rejected), updated_at = now()
    WHERE id = $1 RETURNING ${columns}`,
}

const undo: Statement = {
  name: 'import-undo',
  text: `UPDATE imports i SET undone_at = coalesce(undone_at, now()), updated_at = now() WHERE id = $1 RETURNING ${columns}`,
}

const findBatch: Statement = {
  name: 'import-batch-find',
  text: `SELECT ${batchColumns} FROM import_batches b WHERE import_id = $1 AND first_row = $2`,
}

const lastAnswer: Statement = {
  name: 'import-batch-last',
  text: 'SELECT answer FROM import_batches WHERE import_id = $1 ORDER BY first_row DESC LIMIT 1',
}

const addBatch: Statement = {
  name: 'import-batch-add',
  text: `INSERT INTO import_batches (import_id, first_row, row_count, answer, seen, staged_sealed)
    VALUES ($1, $2, $3, $4, $5, $6)`,
}

const seen: Statement = {
  name: 'import-seen',
  text: `SELECT first_row AS "firstRow", seen FROM import_batches
    WHERE import_id = $1 AND first_row < $2::int + $3::int AND first_row + row_count > $2 AND seen IS NOT NULL ORDER BY first_row`,
}

const stagedBatches: Statement = {
  name: 'import-staged',
  text: 'SELECT first_row AS "firstRow" FROM import_batches WHERE import_id = $1 AND staged_sealed IS NOT NULL ORDER BY first_row',
}

const discardStaged: Statement = {
  name: 'import-discard-staged',
  text: 'UPDATE import_batches SET staged_sealed = NULL WHERE import_id = $1 AND staged_sealed IS NOT NULL',
}

const touched: Statement = {
  name: 'import-touched',
  text: 'SELECT record, place FROM import_records WHERE import_id = $1 AND record = ANY($2::bytea[])',
}

const touch: Statement = {
  name: 'import-touch',
  text: `INSERT INTO import_records (import_id, record, place) SELECT $1, * FROM unnest($2::bytea[], $3::int[])
    ON CONFLICT DO NOTHING`,
}

const forget: Statement = { name: 'import-forget', text: 'DELETE FROM import_records WHERE import_id = $1' }

const old = `updated_at < now() - interval '${retentionDays} days'`

const prune: Statement = {
  name: 'imports-prune',
  slow: true,
  text: `DELETE FROM imports WHERE ${old}`,
}

/** Touched records that one statement deletes: an import can have a million. */
const slice = 10_000

const pruneRecords: Statement = {
  name: 'import-records-prune',
  text: `DELETE FROM import_records WHERE (import_id, record) IN (
      SELECT r.import_id, r.record FROM imports i JOIN import_records r ON r.import_id = i.id
      WHERE i.state <> 'running' OR i.${old} LIMIT ${slice})
    RETURNING 1`,
}

const savepoint: Statement = { name: 'import-savepoint', text: 'SAVEPOINT import_rows' }
const rollback: Statement = { name: 'import-rollback', text: 'ROLLBACK TO SAVEPOINT import_rows' }

/** Creates the imports in a database. */
export function createImports(database: Database, masterKey: Pick<MasterKey, 'digest'>): Imports {
  defineTable(database, 'imports', attributes)
  defineTable(database, 'import_batches', batchAttributes)
  defineTable(database, 'import_records', recordAttributes)
  const digest = (importId: number, name: string) =>
    masterKey.digest('import-record', `${importId}\0${name}`).subarray(0, 16)
  const one = async (statement: Statement, values: readonly unknown[], t?: Transaction) =>
    (await database.run<ImportRow>(statement, values, t))[0]
  return {
    ids: createReservedIds(database),
    async start({ kind, sourceDigest, dryRun, allOrNothing, changeAccounts, afterDryRun, keepIds, ...by }, t) {
      const values = [kind, sourceDigest, dryRun, allOrNothing, changeAccounts, afterDryRun, keepIds]
      return (await one(start, [...values, by.actor, by.actorId, by.tokenGeneration], t))!
    },
    find: id => one(find, [id]),
    lock: (id, t) => one(lock, [id], t),
    list: ({ beforeId = 2 ** 31 - 1, limit }) => database.run<ImportRow>(list, [beforeId, limit]),
    advance: async (id, { created, updated, unchanged, rejected }, t) =>
      (await one(advance, [id, created, updated, unchanged, rejected], t))!,
    async end(id, state, t, outcomes) {
      const { created, updated, unchanged, rejected } = outcomes ?? {}
      return (await one(end, [id, state, created, updated, unchanged, rejected], t))!
    },
    undo: async (id, t) => (await one(undo, [id], t))!,
    async addBatch({ importId, firstRow, rowCount, answer, seen, stagedSealed }, t) {
      await database.run(addBatch, [importId, firstRow, rowCount, answer, seen, stagedSealed], t)
    },
    lastAnswer: async importId => (await database.run<{ answer: Buffer }>(lastAnswer, [importId]))[0]?.answer,
    findBatch: async (importId, firstRow, t) =>
      (await database.run<ImportBatchRow>(findBatch, [importId, firstRow], t))[0],
    async seen(dryRunId, firstRow, rowCount, t) {
      const rows = await database.run<{ firstRow: number; seen: Buffer }>(seen, [dryRunId, firstRow, rowCount], t)
      const all = Buffer.concat(rows.map(row => row.seen))
      const offset = (firstRow - (rows[0]?.firstRow ?? firstRow)) * seenBytes
      if (all.length < offset + rowCount * seenBytes) return undefined
      return Array.from({ length: rowCount }, (_, index) => {
        const at = offset + index * seenBytes
        return all.subarray(at, at + seenBytes)
      })
    },
    stagedBatches: async (importId, t) =>
      (await database.run<{ firstRow: number }>(stagedBatches, [importId], t)).map(row => row.firstRow),
    async discardStaged(importId, t) {
      await database.run(discardStaged, [importId], t)
    },
    async tryOut(work, keeps, t) {
      await database.run(savepoint, [], t)
      const result = await work()
      if (!keeps(result)) await database.run(rollback, [], t)
      return result
    },
    async touched(importId, names, t) {
      const byDigest = new Map(names.map(name => [digest(importId, name).toString('latin1'), name]))
      if (byDigest.size === 0) return new Map()
      const digests = [...byDigest.keys()].map(text => Buffer.from(text, 'latin1'))
      const rows = await database.run<{ record: Buffer; place: number }>(touched, [importId, digests], t)
      return new Map(rows.map(({ record, place }) => [byDigest.get(record.toString('latin1'))!, place]))
    },
    async touch(importId, places, t) {
      if (places.size === 0) return
      const digests = [...places.keys()].map(name => digest(importId, name))
      await database.run(touch, [importId, digests, [...places.values()]], t)
    },
    async forget(importId, t) {
      await database.run(forget, [importId], t)
    },
    async prune() {
      while ((await database.run(pruneRecords, [])).length === slice);
      await database.run(prune, [])
    },
  }
}
