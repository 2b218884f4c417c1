/**
 * Migrates the schema by numbered SQL files, each of which runs once, in order. The first line of a file states its
 * compatibility with processes of the previous version, which may still be running:
 *
 * - `-- expand`: the previous version runs and starts on the new schema;
 * - `-- contract`: it doesn't. Such a file runs only on request, when no process of the previous version runs: the version
 *   that brings it works with and without it. In a release, `contract` files come last.
 *
 * The ledger (the table `migrations`) stores the name, kind and digest of each file that ran. The kind shows a process
 * whether it is compatible with newer files. The digest detects a schema that other files created.
 */

import { createHash } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { named } from '../rules/remedies.js'
import { advisoryKeys } from './advisory-keys.js'
import type { Database, Transaction } from './database.js'
import { meaningOf, SchemaError } from './failures.js'
import { checkRequirements, explainTaken } from './requirements.js'
import { clientOf } from './sequelize.js'
import { sql } from './sql.js'

/** The SQL files of this version. */
const ownFolder = new URL('migrations/', import.meta.url)

/**
 * Milliseconds that a statement of a migration waits for a lock, and between two attempts; how many attempts there are, in
 * about 5 minutes. Calls that need the same table queue behind the waiting statement, even if they only read: it waits less
 * than their own limit (session-settings.ts). It waits longer than `deadlock_timeout`, after which autovacuum gives way.
 */
const waits = { lock: 1_500, between: 3_500, attempts: 60 }

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
interface MigrationStatus {
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
  const [found] = await database.run<{ there: boolean }>(
    sql`SELECT to_regclass('migrations') IS NOT NULL AS there`,
    transaction,
  )
  // to_jsonb reads a column that the ledger of another baseline may lack.
  const ledger = sql`SELECT name, kind, to_jsonb(m) ->> 'digest' AS digest, run_at AS "runAt" FROM migrations m ORDER BY name`
  return compareLedger(found!.there ? await database.run<Migration>(ledger, transaction) : [], folder)
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

/** Options of `migrate`. */
export interface MigrateOptions {
  /**
   * Allows `contract` migrations, up to the newest one given, or throws. It is called while no process can begin to use the
   * database. Absent: such migrations stay pending.
   */
  readonly permit?: (contract: string, transaction: Transaction) => Promise<void>
  /** Called when another transaction holds a table, before each further attempt. */
  readonly onLocked?: () => void
  /** Called with the names of the migrations that are due, before the first one runs. */
  readonly onDue?: (names: readonly string[]) => void
  readonly folder?: URL
}

/**
 * Runs the pending migrations that are due and returns their names. Each runs in a transaction of its own, so that calls wait
 * for its tables no longer than it takes; those of an empty database run in one. A lock admits one process at a time, and the
 * others wait. While another transaction holds a table, it tries again for some minutes. Throws an Error when this version isn't
 * compatible with the schema, or a migration fails; those before it have run.
 */
export async function migrate(
  database: Database,
  { permit, onLocked, onDue, folder = ownFolder }: MigrateOptions = {},
): Promise<readonly string[]> {
  const choose = (status: MigrationStatus) => (permit ? status.pending : dueMigrations(status))
  // Checked first: without pending migrations, a role needs no more rights than to read and write rows.
  const due = choose(await readCompatible(database, undefined, folder))
  if (due.length === 0) return []
  onDue?.(due.map(({ name }) => name))
  const work = async (transaction: Transaction) => {
    await claimLedger(database, transaction)
    const status = await readCompatible(database, transaction, folder)
    const chosen = choose(status)
    const contract = chosen.filter(({ kind }) => kind === 'contract').at(-1)
    // No process uses an empty database.
    if (contract && status.done.length > 0) await permit?.(contract.name, transaction)
    await database.run(sql`SELECT set_config('lock_timeout', ${String(waits.lock)}, true)`, transaction)
    // Another process that found a part of a first schema would not know that it is one.
    return runFiles(database, transaction, status.done.length > 0 ? chosen.slice(0, 1) : chosen)
  }
  const names: string[] = []
  for (let attempt = 1; ; attempt++) {
    try {
      // Unlimited, because to rewrite a table, or to wait for another process that does, can take long.
      const ran = await database.transact(work, { unlimited: true })
      if (ran.length === 0) return names
      names.push(...ran)
      attempt = 0
    } catch (error) {
      if (meaningOf(error) !== 'locked' || attempt === waits.attempts) throw error
      onLocked?.()
      await sleep(waits.between)
    }
  }
}

/**
 * Returns the pending migrations that a start runs: those before the first `contract`, or all in an empty database. Throws
 * an Error when an `expand` waits for a `contract`.
 */
export function dueMigrations({ done, pending }: MigrationStatus): readonly MigrationFile[] {
  const first = pending.findIndex(({ kind }) => kind === 'contract')
  if (first < 0 || done.length === 0) return pending
  const behind = pending.slice(first).filter(({ kind }) => kind === 'expand')
  if (behind.length > 0)
    throw new Error(
      `${behind[0]!.name} needs ${pending[first]!.name}, a migration of an earlier version: run ${named('end upgrade')} of that version first.`,
    )
  return pending.slice(0, first)
}

/**
 * Runs pending migrations in an unlimited transaction, which holds the lock until its end. `names` limits them to these
 * migrations. No other process may use the database.
 */
export async function migrateWithin(
  database: Database,
  transaction: Transaction,
  names?: readonly string[],
): Promise<void> {
  await claimLedger(database, transaction)
  const { pending } = await readCompatible(database, transaction, ownFolder)
  await runFiles(database, transaction, names ? pending.filter(({ name }) => names.includes(name)) : pending)
}

/**
 * Keeps migrations from running until the end of an unlimited transaction; waits for one that runs. Throws an Error when
 * this version isn't compatible with the schema.
 */
export async function holdSchema(database: Database, transaction: Transaction): Promise<void> {
  await database.run(sql`SELECT pg_advisory_xact_lock_shared(${advisoryKeys.migrations})`, transaction)
  await readCompatible(database, transaction, ownFolder)
}

/** Returns the name of the newest migration of this version. */
export async function newestMigration(): Promise<string> {
  return (await readFiles(ownFolder)).at(-1)!.name
}

const claim = (database: Database, t: Transaction) =>
  database.run(sql`SELECT pg_advisory_xact_lock(${advisoryKeys.migrations})`, t)

/** Claims the lock of migrations, and creates the ledger if it is missing. */
async function claimLedger(database: Database, transaction: Transaction): Promise<void> {
  await claim(database, transaction)
  await checkRequirements(database, transaction)
  await database.run(
    sql`CREATE TABLE IF NOT EXISTS migrations (
      name text PRIMARY KEY,
      kind text NOT NULL,
      digest text NOT NULL,
      run_at timestamptz NOT NULL DEFAULT now()
    )`,
    transaction,
  )
}

/** Runs migrations, and returns their names. */
async function runFiles(
  database: Database,
  transaction: Transaction,
  files: readonly MigrationFile[],
): Promise<readonly string[]> {
  for (const { name, kind, digest, text } of files) {
    // A query without parameters can contain several statements.
    await clientOf(transaction)
      .query(text)
      .catch(error => {
        throw explainTaken(error)
      })
    await database.run(
      sql`INSERT INTO migrations (name, kind, digest) VALUES (${name}, ${kind}, ${digest})`,
      transaction,
    )
  }
  return files.map(({ name }) => name)
}

/** Drops all objects that migrations create, and the ledger. The transaction holds the lock of migrations until its end. */
export async function dropSchema(database: Database, transaction: Transaction): Promise<void> {
  await claim(database, transaction)
  const { tables, functions } = await listMade()
  for (const name of [...tables, 'migrations'])
    await database.run(sql`DROP TABLE IF EXISTS ${sql.text(name)} CASCADE`, transaction)
  for (const name of functions) await database.run(sql`DROP FUNCTION IF EXISTS ${sql.text(name)} CASCADE`, transaction)
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

async function readCompatible(database: Database, transaction: Transaction | undefined, folder: URL) {
  const status = await readMigrations(database, transaction, folder)
  checkMigrations(status)
  return status
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
