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
}

/** Where a database stands, as this version sees it; each list in order. */
export interface MigrationStatus {
  readonly done: readonly Migration[]
  readonly pending: readonly Migration[]
  /** Those that a newer version has run, and this one doesn't have. */
  readonly newer: readonly Migration[]
}

/** Says what was run and what is pending. Changes nothing and waits for nobody. */
export async function readMigrations(database: Database): Promise<MigrationStatus> {
  return statusOf(await readLedger(database))
}

/**
 * Brings the schema to the newest version, or to the one numbered `last`, and returns the names of what was run.
 * Everything pending runs in one transaction under a lock: it is applied whole or not at all, and of several
 * processes that start at once, one does the work while the others wait. Throws an Error when the database is of a
 * version that this one can't work with.
 */
export async function migrate(database: Database, last = Number.POSITIVE_INFINITY): Promise<readonly string[]> {
  const find = async (ledger: Ledger) => {
    const status = await statusOf(ledger)
    checkNewer(status)
    return status.pending.filter(({ name }) => Number(name.slice(0, 4)) <= last)
  }
  // Who may only read and write rows starts as well, as long as there is nothing to be done.
  if ((await find(await readLedger(database))).length === 0) return []
  const bringUp = async (transaction: Transaction) => {
    const { connection } = transaction as unknown as { connection: { query(text: string): Promise<unknown> } }
    await database.run(claim, [lock], transaction)
    await connection.query(`CREATE TABLE IF NOT EXISTS migrations
      (name text PRIMARY KEY, run_at timestamptz NOT NULL DEFAULT now(), kind text NOT NULL DEFAULT 'contract')`)
    const ledger = await readLedger(database, transaction)
    const pending = await find(ledger)
    // Ledgers of earlier versions don't say of what kind their migrations are.
    if (ledger.some(({ kind }) => kind === null)) {
      await connection.query("ALTER TABLE migrations ADD COLUMN kind text NOT NULL DEFAULT 'contract'")
      const { done } = await statusOf(ledger)
      for (const { name, kind } of done) await database.run(keepKind, [name, kind], transaction)
    }
    for (const { name, kind } of pending) {
      // Without parameters, so that a file may hold several statements; its $$ are no parameters.
      await connection.query(await readFile(new URL(name, folder), 'utf8'))
      await database.run(record, [name, kind], transaction)
    }
    return pending.map(({ name }) => name)
  }
  // Rewriting a table takes as long as it takes, and so does waiting for who does it.
  return database.transact(bringUp, { unlimited: true })
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
type Ledger = readonly { readonly name: string; readonly kind: string | null }[]

async function readLedger(database: Database, transaction?: Transaction): Promise<Ledger> {
  const [found] = await database.run<{ there: boolean }>(exists, [], transaction)
  return found!.there ? database.run(readAll, [], transaction) : []
}

async function statusOf(ledger: Ledger): Promise<MigrationStatus> {
  const ours = await listMigrations()
  const isIn = (list: readonly { name: string }[], { name }: { name: string }) => list.some(each => each.name === name)
  return {
    done: ours.filter(each => isIn(ledger, each)),
    pending: ours.filter(each => !isIn(ledger, each)),
    newer: ledger.filter(each => !isIn(ours, each)).map(({ name, kind }) => ({ name, kind: kindOf(kind) })),
  }
}

async function listMigrations(): Promise<Migration[]> {
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
  text: "SELECT name, to_jsonb(m) ->> 'kind' AS kind FROM migrations m ORDER BY name",
}

const claim = { name: 'migrations-claim', text: 'SELECT pg_advisory_xact_lock($1)' }

const keepKind = { name: 'migrations-keep-kind', text: 'UPDATE migrations SET kind = $2 WHERE name = $1' }

const record = { name: 'migrations-record', text: 'INSERT INTO migrations (name, kind) VALUES ($1, $2)' }
