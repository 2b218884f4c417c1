// What becomes of a backup: one transaction, in which the registry that was there goes and the one of the backup comes.
import { setTimeout as sleep } from 'node:timers/promises'
import type { Database, Statement, Transaction } from '../database/connection.js'
import { dropSchema, listMigrations, migrateWithin, readMigrations } from '../database/migrate.js'
import type { AuditEvent } from '../models/audit.js'
import type { Registry } from '../models/define-models.js'
import type { Receipt } from '../models/erasure.js'
import { copied, describeTables, type Made } from './dump.js'
import { decrypt, type Key } from './envelope.js'
import {
  type BackupRead,
  checkBackup,
  damaged,
  type Header,
  readBackup,
  type TableHeader,
  type TableRead,
} from './format.js'

/** A user who was erased, and when: what a restore needs of a receipt. */
export type Erased = Pick<Receipt, 'user' | 'erasedAt'>

/** What a restore did. */
export interface Restored extends Made {
  /** Receipts of users who were erased since the backup, and are again. */
  readonly erased: readonly Receipt[]
  /** Id of the signing key that was made. */
  readonly signingKey: string
}

/**
 * Ids of users are not given again, though nobody knows how many signed up since the backup: other services know users
 * by their ids. More than sign up in the time between two backups.
 */
const gap = 100_000

/** Milliseconds that connections of somebody who has just stopped have to be gone. */
const timeout = 2_000

const others: Statement = {
  name: 'restore-others',
  // The last one belongs to whoever uses an embedded database, this process included; others have more than that.
  text: `SELECT count(*)::int AS count, pg_stat_clear_snapshot() FROM pg_stat_activity
    WHERE datname = current_database() AND usesysid IS NOT NULL AND pid <> pg_backend_pid()
      AND leader_pid IS DISTINCT FROM pg_backend_pid() AND application_name <> 'auth: uses this database'`,
}

const isThere: Statement = { name: 'restore-is-there', text: "SELECT to_regclass('users') IS NOT NULL AS there" }

const userCount: Statement = { name: 'restore-users', text: 'SELECT count(*)::int AS count FROM users' }

const setSequence: Statement = {
  name: 'restore-sequence',
  text: 'SELECT setval(pg_get_serial_sequence(quote_ident($1), $2), $3::bigint)',
}

const isOlder: Statement = {
  name: 'restore-is-older',
  text: 'SELECT created_at <= $2::timestamptz AS older FROM users WHERE id = $1',
}

/** Reads a whole backup and says what it holds. Throws an Error that says why it can't be restored. */
export async function inspectBackup(file: string, key: Key): Promise<Made> {
  const { header, rows } = await decrypt(file, key, checkBackup)
  await refuseNewer(header)
  return { madeAt: header.madeAt, rows }
}

/** How many users a restore would replace. */
export async function countUsers({ database }: Pick<Registry, 'database'>): Promise<number> {
  return database.transact(t => countWithin(database, t), { unlimited: true })
}

/**
 * Puts the registry of a backup into the database instead of what is there, or changes nothing and throws an Error that says why.
 * `replace` lets it do away with users. The tables are made as they were, filled, and then brought up to date as any
 * others; the data keys are wrapped by the master key of this place. Nobody may use the database meanwhile.
 *
 * A token from before is good for nothing, whatever its generation: backups hold no signing key, so the key that it names
 * is gone, and the new one has another id. Users who were erased since are erased again by their receipts.
 */
export async function restoreBackup(
  registry: Registry,
  file: string,
  key: Key,
  options: { replace: boolean; erasures: readonly Erased[]; tokenTtl: number; actor: string },
): Promise<Restored> {
  const { database, masterKey, audit, signingKeys } = registry
  const { replace, erasures, tokenTtl, actor } = options
  const work = async (t: Transaction, { header, tables: given }: BackupRead): Promise<Restored> => {
    await refuseNewer(header)
    const { done, newer } = await readMigrations(database, t)
    if (done.length === 0 && (await describeTables(database, t)).length > 0)
      throw new Error('The database holds tables of something else: name an empty one.')
    if (newer.length > 0)
      throw new Error(`The database is of a newer version (${newer[0]!.name}): restore the backup with that version.`)
    await refuseOthers(database, t)
    const users = await countWithin(database, t)
    if (users > 0 && !replace)
      throw new Error(`The registry there holds ${users} users: only --replace does away with them.`)
    await dropSchema(database, t)
    // Who connected meanwhile may have read the keys of before; from now on nobody can.
    await refuseOthers(database, t)
    await migrateWithin(database, t, Math.max(...header.migrations.map(({ name }) => Number(name.slice(0, 4)))))
    const rows = await fill(database, given, t)
    await migrateWithin(database, t)
    await masterKey.adopt(Buffer.from(header.masterKey, 'base64'), t)

    const append = (event: Pick<AuditEvent, 'action' | 'object' | 'subject_id' | 'reason'>) =>
      audit.append({ ...event, outcome: 'ok', actor }, t)
    await append({ action: 'registry.restore', object: `backup:${header.madeAt}` })
    const signingKey = (await signingKeys.rotate({ force: true, lead: 0, tokenTtl }, t))!
    await append({ action: 'signing-key.add', object: `signing-key:${signingKey}` })
    const erased: Receipt[] = []
    for (const each of erasures) {
      const receipt = await eraseAgain(registry, each, t)
      if (!receipt) continue
      erased.push(receipt)
      await append({ action: 'user.erase', reason: 'restore', subject_id: each.user })
    }
    // Under their names of today. Else the first calls would be planned for empty tables.
    const tables = (await describeTables(database, t)).map(({ table }) => `"${table}"`)
    await database.run({ name: 'restore-analyze', text: `ANALYZE ${tables.join(', ')}` }, [], t)
    return { madeAt: header.madeAt, rows, erased, signingKey }
  }
  return decrypt(file, key, async pieces => {
    const backup = await readBackup(pieces)
    return database.transact(t => work(t, backup), { unlimited: true })
  })
}

/** Reads receipts of users who were erased: JSON documents one after the other. Throws an Error that says which is none. */
export function readErasures(text: string): Erased[] {
  let all: unknown[]
  try {
    all = JSON.parse(`[${text.trim().replace(/\}\s*\{/g, '},{')}]`)
  } catch {
    throw new Error('The file of erasures is no list of JSON documents, one a line.')
  }
  return all.map((each, index) => {
    const { user, erasedAt } = (each ?? {}) as Partial<Erased>
    if (!(Number.isInteger(user) && user! > 0 && typeof erasedAt === 'string' && !Number.isNaN(Date.parse(erasedAt))))
      throw new Error(`The file of erasures: document ${index + 1} is no receipt with "user" and "erasedAt".`)
    return { user: user!, erasedAt }
  })
}

/** Fills the tables, which are as they were when the backup was made, and returns how many rows each has. */
async function fill(
  database: Database,
  tables: AsyncIterable<TableRead>,
  t: Transaction,
): Promise<Record<string, number>> {
  const there = await describeTables(database, t)
  const names = there.map(({ table }) => `"${table}"`).join(', ')
  // Migrations put rows into some.
  await database.run({ name: 'restore-truncate', text: `TRUNCATE ${names} CASCADE` }, [], t)
  const counts: Record<string, number> = {}
  for await (const { rows, ...table } of tables) {
    // What isn't here can't come from a registry of that version; and names must not be taken from a file unseen.
    if (!there.some(each => isSame(each, table)) || table.table in counts) throw damaged()
    counts[table.table] = await database.copyIn(`COPY ${copied(table)} FROM STDIN`, rows, t)
    for (const [column, last] of Object.entries(table.sequences)) {
      const next = Number(last ?? 0) + (table.table === 'users' ? gap : 0)
      if (next > 0) await database.run(setSequence, [table.table, column, next], t)
    }
  }
  if (Object.keys(counts).length !== there.length) throw damaged()
  return counts
}

function isSame(one: TableHeader, other: TableHeader): boolean {
  const shape = ({ table, columns, sequences }: TableHeader) => JSON.stringify([table, columns, Object.keys(sequences)])
  return shape(one) === shape(other)
}

/** Erases a user of the backup who was erased since; nobody else who may have got the id. */
async function eraseAgain({ database, erasure }: Registry, { user, erasedAt }: Erased, t: Transaction) {
  const [found] = await database.run<{ older: boolean }>(isOlder, [user, erasedAt], t)
  return found?.older ? erasure.erase(user, t) : undefined
}

async function countWithin(database: Database, t: Transaction): Promise<number> {
  const [users] = await database.run<{ there: boolean }>(isThere, [], t)
  return users!.there ? (await database.run<{ count: number }>(userCount, [], t))[0]!.count : 0
}

async function refuseNewer({ migrations }: Header): Promise<void> {
  const ours = await listMigrations()
  const unknown = migrations.map(({ name }) => name).filter(name => !ours.some(each => each.name === name))
  if (unknown.length > 0)
    throw new Error(`The backup is of a newer version (${unknown.join(', ')}): restore it with that version.`)
}

/** Throws an Error when somebody else is connected, and stays. */
async function refuseOthers(database: Database, t: Transaction): Promise<void> {
  for (const end = performance.now() + timeout; ; await sleep(100)) {
    const [{ count }] = (await database.run<{ count: number }>(others, [], t)) as [{ count: number }]
    if (count === 0) return
    if (performance.now() > end)
      throw new Error(
        `Somebody uses the database (connections: ${count}): stop the service, and whatever else is connected to it, first.`,
      )
  }
}
