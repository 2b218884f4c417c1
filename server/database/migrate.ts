/**
 * Migrates the schema by numbered SQL files, each of which runs once, in order. The first line of a file states its
 * compatibility with processes of the previous version, which may still be running:
 *
 * - `-- expand`: the previous version runs and starts on the new schema;
 * - `-- contract`: it doesn't. Such a file is released one version later, when no process of the previous version runs.
 *
 * The ledger (the table `migrations`) stores the name, kind and digest of each file that ran. The kind shows a process
 * whether it is compatible with newer files. The digest detects a schema that other files created.
 */
import { createHash } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import type { Database, Transaction } from './connection.js'
import { SchemaError } from './failures.js'

/** The SQL files of this version. */
const ownFolder = new URL('server/database/migrations/', import.meta.resolve('#package'))

/** Key of an advisory lock, unique in this database. */
const lock = 7_264_001

/** A migration, and its compatibility with the previous version. */
export interface Migration {
  readonly name: string
  readonly kind: 'expand' | 'contract'
  /** SHA-256 of its file, in hexadecimal. */
  readonly digest: string
  /** Time at which the migration ran. */
  readonly runAt?: Date
}

/** A migration of this version. */
interface MigrationFile extends Migration {
  readonly text: string
}

/** The state of a ledger, compared with the files of this version. Each list is in order. */
export interface MigrationStatus {
  readonly done: readonly Migration[]
  readonly pending: readonly MigrationFile[]
  /** Migrations of a newer version, which this version lacks. */
  readonly newer: readonly Migration[]
  /** Migrations that differ from the files of this version: the schema has another baseline. */
  readonly different: readonly Migration[]
}

/** Reads the state of the ledger. Changes nothing and waits for no lock. */
export async function readMigrations(
  database: Database,
  transaction?: Transaction,
  folder = ownFolder,
): Promise<MigrationStatus> {
  const [found] = await database.run<{ there: boolean }>(exists, [], transaction)
  return compareLedger(found!.there ? await database.run<Migration>(readAll, [], transaction) : [], folder)
}

/** Compares a ledger, in order, with the files of this version. */
export async function compareLedger(ledger: readonly Migration[], folder = ownFolder): Promise<MigrationStatus> {
  const files = await readFiles(folder)
  const isIn = (list: readonly Migration[], { name, digest }: Migration) =>
    list.some(each => each.name === name && each.digest === digest)
  const numberOf = ({ name }: Migration) => name.slice(0, 4)
  const isNewer = (each: Migration) => numberOf(each) > numberOf(files.at(-1)!)
  const others = ledger.filter(each => !isIn(files, each))
  return {
    done: ledger.filter(each => isIn(files, each)),
    pending: files.filter(each => !isIn(ledger, each)),
    newer: others.filter(isNewer),
    different: others.filter(each => !isNewer(each)),
  }
}

/**
 * Runs all pending migrations and returns their names. They run atomically, in one transaction under a lock: of concurrent
 * processes, one migrates and the others wait. Throws an Error when this version isn't compatible with the schema.
 */
export async function migrate(database: Database, folder = ownFolder): Promise<readonly string[]> {
  // Checked first: without pending migrations, a role needs no more rights than to read and write rows.
  if ((await readPending(database, undefined, folder)).length === 0) return []
  // Unlimited, because to rewrite a table, or to wait for another process that does, can take long.
  return database.transact(transaction => migrateWithin(database, transaction, undefined, folder), { unlimited: true })
}

/**
 * Runs pending migrations in an unlimited transaction, which holds the lock until its end. `names` limits them to these
 * migrations.
 */
export async function migrateWithin(
  database: Database,
  transaction: Transaction,
  names?: readonly string[],
  folder = ownFolder,
): Promise<readonly string[]> {
  await database.run(claim, [lock], transaction)
  await runText(
    transaction,
    `CREATE TABLE IF NOT EXISTS migrations (
      name text PRIMARY KEY,
      kind text NOT NULL,
      digest text NOT NULL,
      run_at timestamptz NOT NULL DEFAULT now()
    )`,
  )
  const pending = await readPending(database, transaction, folder)
  const chosen = names ? pending.filter(({ name }) => names.includes(name)) : pending
  for (const { name, kind, digest, text } of chosen) {
    // A query without parameters can contain several statements.
    await runText(transaction, text)
    await database.run(record, [name, kind, digest], transaction)
  }
  return chosen.map(({ name }) => name)
}

/** Drops all objects that migrations create, and the ledger. The transaction holds the lock of migrations until its end. */
export async function dropSchema(database: Database, transaction: Transaction): Promise<void> {
  await database.run(claim, [lock], transaction)
  const { tables, functions } = await listMade()
  for (const name of [...tables, 'migrations']) await runText(transaction, `DROP TABLE IF EXISTS ${name} CASCADE`)
  for (const name of functions) await runText(transaction, `DROP FUNCTION IF EXISTS ${name} CASCADE`)
}

/** Returns the tables and functions that migrations create, including those that later migrations rename or drop. */
export async function listMade(): Promise<{
  readonly tables: readonly string[]
  readonly functions: readonly string[]
}> {
  const text = (await readFiles(ownFolder)).map(file => file.text).join('\n')
  const names = (pattern: RegExp) => [...new Set([...text.matchAll(pattern)].map(([, name]) => name!))]
  return {
    tables: names(/^(?:CREATE TABLE (?:IF NOT EXISTS )?|ALTER TABLE \w+ RENAME TO )(\w+)/gim),
    functions: names(/^CREATE (?:OR REPLACE )?FUNCTION (\w+)/gim),
  }
}

/** Throws a SchemaError when this version isn't compatible with the schema. */
export function checkMigrations(status: MigrationStatus): void {
  const difference = describeDifference(status)
  if (difference !== undefined) throw new SchemaError(difference)
  const contracts = status.newer.filter(({ kind }) => kind === 'contract')
  if (contracts.length > 0)
    throw new SchemaError(
      `The database is of a newer version that this one can’t work with (${namesOf(contracts)}): run that version instead.`,
    )
}

/** Returns an error message when the schema has another baseline; else undefined. */
export function describeDifference({ different }: MigrationStatus): string | undefined {
  if (different.length === 0) return undefined
  return `The database has another baseline than this version (${namesOf(different)}): run the version that made it, or use an empty database.`
}

function namesOf(migrations: readonly Migration[]): string {
  return migrations.map(({ name }) => name).join(', ')
}

async function readPending(database: Database, transaction: Transaction | undefined, folder: URL) {
  const status = await readMigrations(database, transaction, folder)
  checkMigrations(status)
  return status.pending
}

/** Runs SQL that takes no parameters. */
async function runText(transaction: Transaction, text: string): Promise<void> {
  const { connection } = transaction as unknown as { connection: { query(text: string): Promise<unknown> } }
  await connection.query(text)
}

async function readFiles(folder: URL): Promise<MigrationFile[]> {
  const names = (await readdir(folder)).filter(name => /^\d{4}-.*\.sql$/.test(name)).sort()
  return Promise.all(
    names.map(async name => {
      const text = await readFile(new URL(name, folder), 'utf8')
      // A file without a kind is assumed to be incompatible.
      const kind = text.startsWith('-- expand\n') ? 'expand' : 'contract'
      return { name, kind, digest: createHash('sha256').update(text).digest('hex'), text } as const
    }),
  )
}

const exists = { name: 'migrations-exist', text: "SELECT to_regclass('migrations') IS NOT NULL AS there" }

// to_jsonb reads a column that the ledger of another baseline may lack.
const readAll = {
  name: 'migrations-read-all',
  text: `SELECT name, kind, to_jsonb(m) ->> 'digest' AS digest, run_at AS "runAt" FROM migrations m ORDER BY name`,
}

const claim = { name: 'migrations-claim', text: 'SELECT pg_advisory_xact_lock($1)' }

const record = {
  name: 'migrations-record',
  text: 'INSERT INTO migrations (name, kind, digest) VALUES ($1, $2, $3)',
}
