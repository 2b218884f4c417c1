// Creates a backup: reads the database in one snapshot, while the service runs.
import { dirname } from 'node:path'
import { pipeline } from 'node:stream/promises'
import type { Database, Transaction } from '../database/database.js'
import { checkMigrations, listMade, readMigrations } from '../database/migrate.js'
import { sql } from '../database/sql.js'
import type { Registry } from '../models/index.js'
import { hasCode } from '../process/errno.js'
import { openPrivateFile } from '../process/private-file.js'
import { encrypt, type Lock } from './envelope.js'
import { keepCurrent, partialPath, removeAbandoned } from './folder.js'
import { type TableHeader, type TableRead, writeBackup } from './format.js'

/**
 * Tables that a backup excludes: signing and sealing keys, sessions by their tokens, keys of services, mailed keys, e-mails, and running
 * processes with their clock. So a stolen backup can't sign tokens, and a restore doesn't revive revoked tokens or used or
 * removed keys.
 */
const excludedTables: readonly string[] = [
  'signing_keys',
  'id_token_keys',
  'sealing_keys',
  'refreshed_sessions',
  'service_keys',
  'mailed_keys',
  'emails',
  'sent_emails',
  'processes',
  'clock',
]

/** The content of a backup. */
export interface Made {
  /** Time of the snapshot (ISO 8601), by the clock of the database. */
  readonly madeAt: string
  /** Number of rows of each table. */
  readonly rows: Readonly<Record<string, number>>
  /**
   * Migrations of a newer version that this one found done. The backup has the columns that they added to the tables of this version,
   * but no tables of theirs, and only a version that knows them restores it.
   */
  readonly newer?: readonly string[]
}

/** Returns the tables of a backup, in the order of foreign keys: referenced tables come first. */
export async function describeTables(database: Database, t: Transaction): Promise<TableHeader[]> {
  type Row = TableHeader & { readonly refersTo: readonly string[] }
  const included = (await listMade()).tables.filter(name => !excludedTables.includes(name))
  const all = await database.run<Row>(
    sql`SELECT c.relname::text AS "table",
      array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attgenerated = '') AS columns,
      coalesce(jsonb_object_agg(a.attname, pg_sequence_last_value(
        pg_get_serial_sequence(quote_ident(c.relname), a.attname)::regclass)::text) FILTER (WHERE a.attidentity <> ''), '{}')
        AS sequences,
      ARRAY(SELECT p.relname::text FROM pg_constraint f JOIN pg_class p ON p.oid = f.confrelid
        WHERE f.conrelid = c.oid AND f.contype = 'f') AS "refersTo"
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND c.relname = ANY(${included})
      AND a.attnum > 0 AND NOT a.attisdropped
    GROUP BY c.oid, c.relname ORDER BY c.relname`,
    t,
  )
  const ordered: TableHeader[] = []
  const add = ({ table, columns, sequences, refersTo }: Row) => {
    if (ordered.some(each => each.table === table)) return
    for (const each of all) if (each.table !== table && refersTo.includes(each.table)) add(each)
    ordered.push({ table, columns, sequences })
  }
  for (const each of all) add(each)
  return ordered
}

/** Returns a table and its columns for COPY. */
export function copied({ table, columns }: Pick<TableHeader, 'table' | 'columns'>): string {
  const quote = (name: string) => `"${name.replaceAll('"', '""')}"`
  return `${quote(table)} (${columns.map(quote).join(', ')})`
}

/**
 * Writes a backup of a registry to a new file that only its owner can read. When the backup is complete, calls `record`, which
 * records an event, and then renames the temporary file. First deletes temporary files of crashed backups from the folder.
 * Throws an Error on failure.
 */
export async function makeBackup(
  { database, dataKeys }: Pick<Registry, 'database' | 'dataKeys'>,
  file: string,
  lock: Lock,
  record: (made: Made) => Promise<void>,
): Promise<Made> {
  await removeAbandoned(dirname(file))
  const partial = partialPath(file)
  const out = await openPrivateFile(file, { isNew: true, draft: partial })
  const release = keepCurrent(partial)
  try {
    const made = await database.transact(
      async t => {
        // Sets formats that a server reads regardless of its settings.
        const [begun] = await database.run<{ at: Date }>(
          sql`SELECT now() AS at, set_config('datestyle', 'ISO', true), set_config('bytea_output', 'hex', true),
          set_config('extra_float_digits', '3', true)`,
          t,
        )
        const status = await readMigrations(database, t)
        checkMigrations(status)
        const key = await dataKeys.reveal(t)
        const headers = await describeTables(database, t)
        async function* tables(): AsyncGenerator<TableRead> {
          for (const each of headers) yield { ...each, rows: database.copyOut(`COPY ${copied(each)} TO STDOUT`, t) }
        }
        const madeAt = begun!.at.toISOString()
        const rows: Record<string, number> = {}
        const newer = status.newer.map(({ name }) => name)
        const header = {
          madeAt,
          migrations: [...status.done, ...status.newer],
          masterKey: key.toString('base64'),
          ...(newer.length > 0 && { partly: newer }),
        }
        await pipeline(encrypt(writeBackup(header, tables(), rows), lock), out.stream)
        return { madeAt, rows, newer }
      },
      { snapshot: true, unlimited: true },
    )
    await record(made)
    await out.commit().catch(error => {
      if (!hasCode(error, 'EEXIST')) throw error
      throw new Error('The file was created by another process meanwhile, and was left unchanged.')
    })
    return made
  } finally {
    release()
    await out.discard()
  }
}
