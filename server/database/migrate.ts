import { readdir, readFile } from 'node:fs/promises'
import type { Database } from './connection.js'

/** Where the numbered SQL files are. */
const folder = new URL('server/database/migrations/', import.meta.resolve('#package'))

/** Any number that nothing else in this database locks. */
const lock = 7_264_001

/**
 * Brings the schema to the newest version, or to `last`, and returns the names of what was run.
 * Everything pending runs in one transaction under a lock: it is applied whole or not at all, and of several
 * processes that start at once, one does the work while the others wait.
 */
export async function migrate(database: Database, last = Number.POSITIVE_INFINITY): Promise<string[]> {
  const names = (await readdir(folder)).filter(name => /^\d{4}-.*\.sql$/.test(name)).sort()
  const wanted = names.filter(name => Number(name.slice(0, 4)) <= last)
  return database.transact(async transaction => {
    const ask = async (text: string, bind: unknown[] = []) =>
      (await database.sequelize.query(text, { bind, transaction }))[0] as { name: string }[]
    await ask('SELECT pg_advisory_xact_lock($1)', [lock])
    await ask(
      'CREATE TABLE IF NOT EXISTS migrations (name text PRIMARY KEY, run_at timestamptz NOT NULL DEFAULT now())',
    )
    const done = new Set((await ask('SELECT name FROM migrations')).map(row => row.name))
    const ahead = [...done].filter(name => !names.includes(name))
    if (ahead.length > 0) {
      throw new Error(`The database is of a newer version (${ahead.join(', ')}). Run a newer version of the service.`)
    }
    const pending = wanted.filter(name => !done.has(name))
    for (const name of pending) {
      // Without parameters, so that a file may hold several statements; its $$ are no parameters.
      await transactionClient(transaction).query(await readFile(new URL(name, folder), 'utf8'))
      await ask('INSERT INTO migrations (name) VALUES ($1)', [name])
    }
    return pending
  })
}

function transactionClient(transaction: unknown): { query(text: string): Promise<unknown> } {
  return (transaction as { connection: { query(text: string): Promise<unknown> } }).connection
}
