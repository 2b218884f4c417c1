/**
 * The schema: numbered SQL files, each run once, in order. The first line of a file says what it does to a process of
 * the version before, which may run beside:
 *
 * - `-- expand`: that version goes on with the new schema, and starts with it;
 * - `-- contract`: it doesn't; such a file waits until no process of that version is left, one release later.
 *
 * The ledger keeps that word, so that a process knows it of files that it doesn't have.
 */
import { readdir, readFile } from 'node:fs/promises'
import type { Database, Transaction } from './connection.js'

/** Where the numbered SQL files are. */
const folder = new URL('server/database/migrations/', import.meta.resolve('#package'))

/** Any number that nothing else in this database locks. */
const lock = 7_264_001

/** A migration, and what it does to a process of the version before. */
export interface Migration {
  readonly name: string
  readonly kind: 'expand' | 'contract'
  /** When it was run, of one that was. */
  readonly runAt?: Date
}

/** Where a database stands, as this version sees it; each list in order. */
export interface MigrationStatus {
  readonly done: readonly Migration[]
  readonly pending: readonly Migration[]
  /** Those that a newer version has run, and this one doesn't have. */
  readonly newer: readonly Migration[]
}

/** Says what was run and what is pending. Changes nothing and waits for nobody. */
export async function readMigrations(database: Database, transaction?: Transaction): Promise<MigrationStatus> {
  return statusOf(await readLedger(database, transaction))
}

/**
 * Brings the schema to the newest version, or to the one numbered `last`, and returns the names of what was run.
 * Everything pending runs in one transaction under a lock: it is applied whole or not at all, and of several
 * processes that start at once, one does the work while the others wait. Throws an Error when the database is of a
 * version that this one can't work with.
 */
export async function migrate(database: Database, last = Number.POSITIVE_INFINITY): Promise<readonly string[]> {
  // Who may only read and write rows starts as well, as long as there is nothing to be done.
  if ((await findPending(await readLedger(database), last)).length === 0) return []
  // Rewriting a table takes as long as it takes, and so does waiting for who does it.
  return database.transact(transaction => migrateWithin(database, transaction, last), { unlimited: true })
}

/** The same as a part of an unlimited transaction, at whose end others who migrate go on. */
export async function migrateWithin(
  database: Database,
  transaction: Transaction,
  last = Number.POSITIVE_INFINITY,
): Promise<readonly string[]> {
  await database.run(claim, [lock], transaction)
  await runText(
    transaction,
    `CREATE TABLE IF NOT EXISTS migrations
      (name text PRIMARY KEY, run_at timestamptz NOT NULL DEFAULT now(), kind text NOT NULL DEFAULT 'contract')`,
  )
  const ledger = await readLedger(database, transaction)
  const pending = await findPending(ledger, last)
  // Ledgers of earlier versions don't say of what kind their migrations are.
  if (ledger.some(({ kind }) => kind === null)) {
    await runText(transaction, "ALTER TABLE migrations ADD COLUMN kind text NOT NULL DEFAULT 'contract'")
    const { done } = await statusOf(ledger)
    for (const { name, kind } of done) await database.run(keepKind, [name, kind], transaction)
  }
  for (const { name, kind } of pending) {
    // Without parameters, so that a file may hold several statements; its $$ are no parameters.
    await runText(transaction, await readFile(new URL(name, folder), 'utf8'))
    await database.run(record, [name, kind], transaction)
  }
  return pending.map(({ name }) => name)
}

/** Drops what migrations made, and the ledger. Others who migrate go on at the end of the transaction. */
export async function dropSchema(database: Database, transaction: Transaction): Promise<void> {
  await database.run(claim, [lock], transaction)
  const { tables, functions } = await listMade()
  for (const name of [...tables, 'migrations']) await runText(transaction, `DROP TABLE IF EXISTS ${name} CASCADE`)
  for (const name of functions) await runText(transaction, `DROP FUNCTION IF EXISTS ${name} CASCADE`)
}

/** Every table and function that a migration made, also those that a later one renamed or dropped. */
export async function listMade(): Promise<{
  readonly tables: readonly string[]
  readonly functions: readonly string[]
}> {
  const files = (await listMigrations()).map(({ name }) => readFile(new URL(name, folder), 'utf8'))
  const text = (await Promise.all(files)).join('\n')
  const names = (pattern: RegExp) => [...new Set([...text.matchAll(pattern)].map(([, name]) => name!))]
  return {
    tables: names(/^(?:CREATE TABLE (?:IF NOT EXISTS )?|ALTER TABLE \w+ RENAME TO )(\w+)/gim),
    functions: names(/^CREATE (?:OR REPLACE )?FUNCTION (\w+)/gim),
  }
}

/** Runs SQL that takes no parameters. */
async function runText(transaction: Transaction, text: string): Promise<void> {
  const { connection } = transaction as unknown as { connection: { query(text: string): Promise<unknown> } }
  await connection.query(text)
}

async function findPending(ledger: Ledger, last: number): Promise<readonly Migration[]> {
  const status = await statusOf(ledger)
  checkNewer(status)
  return status.pending.filter(({ name }) => Number(name.slice(0, 4)) <= last)
}

/** Throws an Error when a newer version has run what this one can't go on with. */
export function checkNewer({ newer }: MigrationStatus): void {
  const barred = newer.filter(({ kind }) => kind === 'contract').map(({ name }) => name)
  if (barred.length > 0)
    throw new Error(
      `The database is of a newer version that this one can’t work with (${barred.join(', ')}): run that version instead.`,
    )
}

/** What was run, in order; without kinds where an earlier version wrote it. */
type Ledger = readonly { readonly name: string; readonly kind: string | null; readonly runAt: Date }[]

async function readLedger(database: Database, transaction?: Transaction): Promise<Ledger> {
  const [found] = await database.run<{ there: boolean }>(exists, [], transaction)
  return found!.there ? database.run(readAll, [], transaction) : []
}

async function statusOf(ledger: Ledger): Promise<MigrationStatus> {
  const ours = await listMigrations()
  const isIn = (list: readonly { name: string }[], { name }: { name: string }) => list.some(each => each.name === name)
  return {
    done: ours.flatMap(each => {
      const run = ledger.find(({ name }) => name === each.name)
      return run ? [{ ...each, runAt: run.runAt }] : []
    }),
    pending: ours.filter(each => !isIn(ledger, each)),
    newer: ledger
      .filter(each => !isIn(ours, each))
      .map(({ name, kind, runAt }) => ({ name, kind: kindOf(kind), runAt })),
  }
}

/** The migrations of this version, in order. */
export async function listMigrations(): Promise<Migration[]> {
  const names = (await readdir(folder)).filter(name => /^\d{4}-.*\.sql$/.test(name)).sort()
  return Promise.all(
    names.map(async name => {
      const [first] = (await readFile(new URL(name, folder), 'utf8')).split('\n', 1)
      return { name, kind: kindOf(/^-- (\w+)/.exec(first!)?.[1]) }
    }),
  )
}

/** What a migration says of itself; one that says nothing promises nothing. */
function kindOf(word: string | null | undefined): Migration['kind'] {
  return word === 'expand' ? 'expand' : 'contract'
}

const exists = { name: 'migrations-exist', text: "SELECT to_regclass('migrations') IS NOT NULL AS there" }

// By way of JSON, since ledgers of earlier versions have no kinds.
const readAll = {
  name: 'migrations-read-all',
  text: `SELECT name, to_jsonb(m) ->> 'kind' AS kind, run_at AS "runAt" FROM migrations m ORDER BY name`,
}

const claim = { name: 'migrations-claim', text: 'SELECT pg_advisory_xact_lock($1)' }

const keepKind = { name: 'migrations-keep-kind', text: 'UPDATE migrations SET kind = $2 WHERE name = $1' }

const record = { name: 'migrations-record', text: 'INSERT INTO migrations (name, kind) VALUES ($1, $2)' }
