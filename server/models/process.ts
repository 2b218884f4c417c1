// Processes that serve this registry. Each keeps a row while it runs, so that `migrate up --contract` knows whether one of an
// older version would break, and doctor whether one has a former issuer.
import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'
import { literal, Op } from 'sequelize'
import { defineTable, expression, fromNow, key, type Row, text, time } from '../database/attributes.js'
import type { Database, Transaction } from '../database/database.js'
import { holdSchema, newestMigration } from '../database/migrate.js'
import { version } from '../process/version.js'
import type { TokenIssuer } from './token-issuer.js'

/** Seconds after which a process that hasn't written its row counts as gone. */
const seconds = 30

const attributes = {
  /** Host, process id and random characters. */
  id: key(text),
  /** `server`, or `all-in-one` with a gateway. */
  kind: text,
  /** Version of the package. */
  version: text,
  /** The newest migration that the process knows. */
  migration: text,
  issuer: text,
  audience: text,
  seenAt: time,
}

/** A process that serves the registry. */
export interface Process extends Omit<Row<typeof attributes>, 'seenAt'> {}

/** A process in a message. */
export function describeProcess({ kind, id, version }: Process): string {
  return `${kind} ${id} (version ${version})`
}

// Not now(): a transaction may have waited for a migration.
const present = expression<Date>('clock_timestamp()')
const isRunning = literal(`abs(extract(epoch FROM clock_timestamp() - seen_at)) < ${seconds}`)

/** Creates the processes in a database. */
export function createProcesses(database: Database) {
  const table = defineTable(database, 'processes', attributes)
  const write = async (each: Process, transaction?: Transaction) => {
    await table.upsert({ ...each, seenAt: present }, { transaction })
  }
  const running = async (transaction?: Transaction) =>
    (await table.findAll({ where: isRunning, order: ['id'], transaction })).map(row => row.get())
  return {
    /**
     * Adds this process, and returns it. From then on no migration runs that it couldn't work with. Throws an Error if one
     * has run.
     */
    async add(kind: string, { issuer, audience }: TokenIssuer) {
      const id = `${hostname()}/${process.pid}/${randomBytes(3).toString('hex')}`
      const added = { id, kind, version, migration: await newestMigration(), issuer, audience }
      // Unlimited, because it waits for a migration that runs.
      await database.transact(
        async t => {
          await holdSchema(database, t)
          await write(added, t)
        },
        { unlimited: true },
      )
      return added
    },
    /** Records that a process runs. */
    renew: (each: Process) => write(each),
    /** Removes a process that stops. */
    async remove({ id }: Process) {
      await table.destroy({ where: { id } })
    },
    /** Returns the processes that run, or that ended within half a minute without removing themselves. */
    running: () => running(),
    /** Describes those of them that don't know a migration. */
    async without(migration: string, t: Transaction) {
      const numberOf = (name: string) => name.slice(0, 4)
      return (await running(t)).filter(each => numberOf(each.migration) < numberOf(migration)).map(describeProcess)
    },
    /** Deletes processes that ended more than an hour ago without removing themselves. */
    async prune() {
      await table.destroy({ where: { seenAt: { [Op.lt]: fromNow(-3_600) } } })
    },
  }
}
