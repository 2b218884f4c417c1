// Makes a backup: reads all of it in one snapshot, while the service runs.
import { randomBytes } from 'node:crypto'
import { createWriteStream, existsSync, rmSync } from 'node:fs'
import { rename } from 'node:fs/promises'
import { pipeline } from 'node:stream/promises'
import type { Database, Statement, Transaction } from '../database/connection.js'
import { checkMigrations, listMade, readMigrations } from '../database/migrate.js'
import type { Registry } from '../models/define-models.js'
import { encrypt, type Lock } from './envelope.js'
import { type TableHeader, type TableRead, writeBackup } from './format.js'

/**
 * Tables that a backup leaves out: signing keys, keys of services, responses that hold such keys, mailed keys, and queued
 * e-mails. So a stolen backup signs no token, and a restore revives no revoked token and no used or removed key.
 */
const excludedTables: readonly string[] = ['signing_keys', 'service_keys', 'creation_requests', 'mailed_keys', 'emails']

/** What a backup holds. */
export interface Made {
  /** The time of its snapshot (ISO 8601), by the database's clock. */
  readonly madeAt: string
  /** Rows of each table. */
  readonly rows: Readonly<Record<string, number>>
}

const describe: Statement = {
  name: 'backup-tables',
  text: `SELECT c.relname::text AS "table",
      array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attgenerated = '') AS columns,
      coalesce(jsonb_object_agg(a.attname, pg_sequence_last_value(
        pg_get_serial_sequence(quote_ident(c.relname), a.attname)::regclass)::text) FILTER (WHERE a.attidentity <> ''), '{}')
        AS sequences,
      ARRAY(SELECT p.relname::text FROM pg_constraint f JOIN pg_class p ON p.oid = f.confrelid
        WHERE f.conrelid = c.oid AND f.contype = 'f') AS "refersTo"
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND c.relname = ANY($1)
      AND a.attnum > 0 AND NOT a.attisdropped
    GROUP BY c.oid, c.relname ORDER BY c.relname`,
}

// Formats that a server with any settings reads.
const begin: Statement = {
  name: 'backup-begin',
  text: `SELECT now() AS at, set_config('datestyle', 'ISO', true), set_config('bytea_output', 'hex', true),
    set_config('extra_float_digits', '3', true)`,
}

/** The tables of a backup, each after those that it refers to. */
export async function describeTables(database: Database, t: Transaction): Promise<TableHeader[]> {
  type Row = TableHeader & { readonly refersTo: readonly string[] }
  const kept = (await listMade()).tables.filter(name => !excludedTables.includes(name))
  const all = await database.run<Row>(describe, [kept], t)
  const ordered: TableHeader[] = []
  const add = ({ table, columns, sequences, refersTo }: Row) => {
    if (ordered.some(each => each.table === table)) return
    for (const each of all) if (each.table !== table && refersTo.includes(each.table)) add(each)
    ordered.push({ table, columns, sequences })
  }
  for (const each of all) add(each)
  return ordered
}

/** A table and its columns in a COPY. */
export function copied({ table, columns }: Pick<TableHeader, 'table' | 'columns'>): string {
  const quote = (name: string) => `"${name.replaceAll('"', '""')}"`
  return `${quote(table)} (${columns.map(quote).join(', ')})`
}

/**
 * Writes a backup of a registry into a new file that only its owner can read. When the backup is complete, `record` leaves an
 * event, and then the file gets its name. Throws an Error when that isn't possible.
 */
export async function makeBackup(
  { database, masterKey }: Pick<Registry, 'database' | 'masterKey'>,
  file: string,
  lock: Lock,
  record: (made: Made) => Promise<void>,
): Promise<Made> {
  const partial = `${file}.${randomBytes(6).toString('hex')}.partial`
  const discard = () => rmSync(partial, { force: true })
  // However this process ends, except by SIGKILL.
  process.once('exit', discard)
  try {
    const made = await database.transact(
      async t => {
        const [begun] = await database.run<{ at: Date }>(begin, [], t)
        const status = await readMigrations(database, t)
        checkMigrations(status)
        if (status.newer.length > 0)
          throw new Error('The database is of a newer version, whose tables this one doesn’t know: use that version.')
        const key = await masterKey.reveal(t)
        const headers = await describeTables(database, t)
        async function* tables(): AsyncGenerator<TableRead> {
          for (const each of headers) yield { ...each, rows: database.copyOut(`COPY ${copied(each)} TO STDOUT`, t) }
        }
        const madeAt = begun!.at.toISOString()
        const rows: Record<string, number> = {}
        const text = writeBackup({ madeAt, migrations: status.done, masterKey: key.toString('base64') }, tables(), rows)
        await pipeline(encrypt(text, lock), createWriteStream(partial, { flags: 'wx', mode: 0o600, flush: true }))
        return { madeAt, rows }
      },
      { snapshot: true, unlimited: true },
    )
    await record(made)
    if (existsSync(file)) throw new Error('The file was created by another process meanwhile, and was left unchanged.')
    await rename(partial, file)
    return made
  } finally {
    process.off('exit', discard)
    discard()
  }
}
