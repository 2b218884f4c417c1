// Restores a backup: one transaction replaces the registry in the database with the registry of the backup.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Database, Transaction } from '../database/database.js'
import { SchemaError } from '../database/failures.js'
import {
  checkMigrations,
  compareLedger,
  dropSchema,
  listMade,
  migrateWithin,
  readMigrations,
} from '../database/migrate.js'
import { first, sql } from '../database/sql.js'
import type { AuditEvent } from '../models/audit.js'
import type { Receipt } from '../models/erasure.js'
import type { Registry } from '../models/index.js'
import { copied, describeTables, type Made } from './dump.js'
import { decrypt, type Unlocked } from './envelope.js'
import {
  type BackupRead,
  checkBackup,
  damaged,
  type Header,
  readBackup,
  type TableHeader,
  type TableRead,
} from './format.js'

/** The fields of an erasure receipt that a restore needs. */
export type Erased = Pick<Receipt, 'user' | 'eraseTime'>

/** The result of a restore. */
interface Restored extends Made {
  /** Receipts of users that were erased after the backup and that the restore has erased again. */
  readonly erased: readonly Receipt[]
  /** Kid of the new signing key. */
  readonly signingKey: string
}

/**
 * Number of ids of users and of organizations that a restore skips. Other services identify them by id, so the id of a user who
 * signed up after the backup must not be reused. The gap must exceed the number of sign-ups between two backups.
 */
const gap = 100_000

/** The tables whose ids are given once. */
const givenOnce = ['organizations', 'users']

/** Maximum milliseconds to wait until the connections of a stopped process are closed. */
const timeout = 2_000

/** Reads a whole backup and returns its content. Throws an Error when the backup can't be restored. */
export async function inspectBackup(backup: Unlocked): Promise<Made> {
  const { header, rows } = await decrypt(backup, checkBackup)
  await checkHeader(header)
  return { madeAt: header.madeAt, rows }
}

/** Returns the number of users that a restore would replace. */
export async function countUsers({ database }: Pick<Registry, 'database'>): Promise<number> {
  return database.transact(t => countWithin(database, t), { unlimited: true })
}

/**
 * Replaces the registry in the database with the registry of a backup, or throws an Error and changes nothing. `replace`
 * permits the removal of users. The restore creates the tables at the version of the backup, fills them, and then migrates
 * them. The master key of this installation wraps the data keys. No other process may use the database during the restore.
 *
 * A restore revokes all tokens of any generation, because a backup contains no signing key and the new key has another id. It
 * ends the answers that waited when the backup was made: whatever ended them since isn't in the backup.
 * Receipts in `erasures` erase users again that were erased after the backup.
 */
export async function restoreBackup(
  registry: Registry,
  backup: Unlocked,
  options: { replace: boolean; erasures: readonly Erased[]; tokenTtl: number; actor: string },
): Promise<Restored> {
  const { database, dataKeys, audit, signingKeys, answers } = registry
  const { replace, erasures, tokenTtl, actor } = options
  const work = async (t: Transaction, { header, tables: given }: BackupRead): Promise<Restored> => {
    await checkHeader(header)
    const status = await readMigrations(database, t)
    checkMigrations(status)
    if (status.done.length === 0 && (await describeTables(database, t)).length > 0)
      throw new Error('The database holds tables of another program: use an empty database.')
    if (status.newer.length > 0)
      throw new SchemaError(
        `The database is of a newer version (${status.newer[0]!.name}): restore the backup with that version.`,
      )
    await refuseOthers(database, t)
    const users = await countWithin(database, t)
    if (users > 0 && !replace)
      throw new Error(`The registry there holds ${users} users: only --replace does away with them.`)
    await dropSchema(database, t)
    // A process that connected earlier may have read the former keys. From here on, the lock excludes other processes.
    await refuseOthers(database, t)
    const names = header.migrations.map(({ name }) => name)
    await migrateWithin(database, t, names)
    const rows = await fill(database, given, t, header.partly !== undefined)
    await migrateWithin(database, t)
    await dataKeys.adopt(Buffer.from(header.masterKey, 'base64'), t)

    const append = (event: Pick<AuditEvent, 'action' | 'object' | 'subject_id' | 'reason'>) =>
      audit.append({ ...event, outcome: 'ok', actor }, t)
    await append({ action: 'registry.restore', object: `backup:${header.madeAt}` })
    const signingKey = (await signingKeys.rotate({ force: true, lead: 0, tokenTtl }, t))!
    await append({ action: 'signing-key.add', object: `signing-key:${signingKey}` })
    await answers.endWaiting(t, new Date(header.madeAt))
    const erased: Receipt[] = []
    for (const each of erasures) {
      const receipt = await eraseAgain(registry, each, t)
      if (!receipt) continue
      erased.push(receipt)
      await append({ action: 'user.erase', reason: 'restore', subject_id: each.user })
    }
    // Without statistics, PostgreSQL plans the first calls for empty tables. Migrations may have renamed tables.
    const tables = (await describeTables(database, t)).map(({ table }) => `"${table}"`)
    await database.run(sql`ANALYZE ${sql.text(tables.join(', '))}`, t)
    return { madeAt: header.madeAt, rows, erased, signingKey }
  }
  return decrypt(backup, async pieces => {
    const content = await readBackup(pieces)
    return database.transact(t => work(t, content), { unlimited: true })
  })
}

/** Events of the audit log by which users leave the registry, at their own wish or for good. */
const departures: readonly unknown[] = ['user.erase', 'user.delete-own']

/**
 * Parses erasure receipts or events of the audit log, of which other actions don't matter: a sequence of JSON documents. Throws an
 * Error that names the first invalid document.
 */
export function readErasures(text: string): Erased[] {
  let all: { user?: unknown; eraseTime?: unknown; action?: unknown; subjectId?: unknown; time?: unknown }[]
  try {
    all = JSON.parse(`[${text.trim().replace(/\}\s*\{/g, '},{')}]`)
  } catch {
    throw new Error('The file of erasures is not a list of JSON documents, one on a line.')
  }
  return all.flatMap((each, index) => {
    const { action, subjectId, time, user = subjectId, eraseTime = time } = each ?? {}
    if (action !== undefined && !departures.includes(action)) return []
    if (!(Number(user) > 0 && Number.isInteger(user) && !Number.isNaN(Date.parse(String(eraseTime)))))
      throw new Error(
        `The file of erasures: document ${index + 1} is neither a receipt with "user" and "eraseTime" nor an event of the audit log.`,
      )
    return { user: Number(user), eraseTime: String(eraseTime) }
  })
}

/**
 * Fills the tables, at the schema version of the backup, and returns the number of rows of each table. Unless the backup is `partial`,
 * it must have all of them.
 */
async function fill(
  database: Database,
  tables: AsyncIterable<TableRead>,
  t: Transaction,
  partial: boolean,
): Promise<Record<string, number>> {
  const there = await describeTables(database, t)
  const names = there.map(({ table }) => `"${table}"`).join(', ')
  // Removes rows that migrations have inserted.
  await database.run(sql`TRUNCATE ${sql.text(names)} CASCADE`, t)
  const keys = await database.run<{ drop: string; make: string }>(keysOf((await listMade()).tables), t)
  for (const { drop } of keys.toReversed()) await database.run(sql.text(drop), t)
  const counts: Record<string, number> = {}
  for await (const { rows, ...table } of tables) {
    // A registry of that version has no other tables. The check also prevents SQL injection by names from the file.
    if (!there.some(each => isSame(each, table)) || table.table in counts) throw damaged()
    counts[table.table] = await database.copyIn(`COPY ${copied(table)} FROM STDIN`, rows, t)
    for (const [column, last] of Object.entries(table.sequences)) {
      const next = Number(last ?? 0) + (givenOnce.includes(table.table) ? gap : 0)
      if (next > 0)
        await database.run(
          sql`SELECT setval(pg_get_serial_sequence(quote_ident(${table.table}), ${column}), ${next}::bigint)`,
          t,
        )
    }
  }
  if (!partial && Object.keys(counts).length !== there.length) throw damaged()
  for (const { make } of keys) await database.run(sql.text(make), t)
  return counts
}

/**
 * Reads the statements that drop and make the indexes and keys of tables, in the order in which they are made. The manual of
 * PostgreSQL recommends to make them after a table is loaded (14.4, Populating a Database).
 */
export const keysOf = (tables: readonly string[]) => sql`
  SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname) AS drop,
    format('ALTER TABLE %s ADD CONSTRAINT %I %s', conrelid::regclass, conname, pg_get_constraintdef(oid)) AS make,
    contype = 'f' AS refers
  FROM pg_constraint WHERE contype IN ('p', 'u') AND conrelid::regclass::text = ANY(${tables})
    OR contype = 'f' AND ARRAY[conrelid, confrelid]::regclass[]::text[] && ${tables}
  UNION ALL
  SELECT format('DROP INDEX %s', indexrelid::regclass), pg_get_indexdef(indexrelid), false
  FROM pg_index WHERE indrelid::regclass::text = ANY(${tables})
    AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
  ORDER BY refers`

function isSame(one: TableHeader, other: TableHeader): boolean {
  const shape = ({ table, columns, sequences }: TableHeader) => JSON.stringify([table, columns, Object.keys(sequences)])
  return shape(one) === shape(other)
}

/**
 * Erases a user of the backup that was erased after the backup, but not another user with the same id. An id that isn't in the
 * backup was given after it, and stays spent.
 */
async function eraseAgain({ database, erasure }: Registry, { user, eraseTime }: Erased, t: Transaction) {
  const isOlder = sql`SELECT FROM users WHERE id = ${user} AND created_at <= ${eraseTime}::timestamptz`
  if ((await database.run(isOlder, t)).length > 0) return erasure.erase(user, t)
  await database.run(
    sql`INSERT INTO spent_ids SELECT 'users', ${user} WHERE NOT EXISTS (SELECT FROM users WHERE id = ${user})
      ON CONFLICT DO NOTHING`,
    t,
  )
  return undefined
}

async function countWithin(database: Database, t: Transaction): Promise<number> {
  const found = await first(database.run<{ there: boolean }>(sql`SELECT to_regclass('users') IS NOT NULL AS there`, t))
  if (!found!.there) return 0
  return (await first(database.run<{ count: number }>(sql`SELECT count(*)::int AS count FROM users`, t)))!.count
}

/** Throws an Error when this version can't restore the backup. */
async function checkHeader({ migrations }: Header): Promise<void> {
  const { newer, different } = await compareLedger(migrations)
  const names = (list: readonly { name: string }[]) => list.map(({ name }) => name).join(', ')
  if (different.length > 0)
    throw new Error(
      `The backup has another baseline than this version (${names(different)}): restore it with the version that made it.`,
    )
  if (newer.length > 0)
    throw new Error(`The backup is of a newer version (${names(newer)}): restore it with that version.`)
}

/** Throws an Error that names the other clients of the database when one remains connected. */
async function refuseOthers(database: Database, t: Transaction): Promise<void> {
  // Each process that uses an embedded database, including this process, holds another connection with this name.
  const others = () => sql`SELECT DISTINCT coalesce(nullif(application_name, ''), usename) AS name,
      coalesce(host(client_addr), 'this machine') AS address, pg_stat_clear_snapshot()::text
    FROM pg_stat_activity
    WHERE datname = current_database() AND usesysid IS NOT NULL AND pid <> ALL(${database.backends()})
      AND leader_pid IS DISTINCT FROM pg_backend_pid() AND application_name <> 'auth: uses this database'
    ORDER BY name, address`
  for (const end = performance.now() + timeout; ; await sleep(100)) {
    const all = await database.run<{ name: string; address: string }>(others(), t)
    if (all.length === 0) return
    if (performance.now() > end) {
      const named = all.slice(0, 5).map(({ name, address }) => `${name} at ${address}`)
      throw new Error(
        `The database is in use by ${named.join(', ')}: stop the service and disconnect all other clients first.`,
      )
    }
  }
}
