// Processes that serve this registry. Each keeps a row while it runs, so that `migrate up --contract` knows whether one of an
// older version would break, and doctor whether one has a former issuer.
import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'
import { defineTable, key, text, time } from '../database/attributes.js'
import type { Database, Statement, Transaction } from '../database/connection.js'
import { holdSchema, newestMigration } from '../database/migrate.js'
import { version } from '../process/version.js'
import type { TokenIssuer } from './token-issuer.js'

/** Seconds after which a process that hasn't written its row counts as gone. */
const seconds = 30

/** A process that serves the registry. */
export interface Process extends TokenIssuer {
  /** Host, process id and random characters. */
  readonly id: string
  /** `server`, or `all-in-one` with a gateway. */
  readonly kind: string
  /** Version of the package. */
  readonly version: string
  /** The newest migration that the process knows. */
  readonly migration: string
}

/** The processes of a registry. */
export interface Processes {
  /**
   * Adds this process, and returns it. From then on no migration runs that it couldn't work with. Throws an Error if one
   * has run.
   */
  add(kind: string, issuer: TokenIssuer): Promise<Process>
  /** Records that a process runs. */
  renew(process: Process): Promise<void>
  /** Removes a process that stops. */
  remove(process: Process): Promise<void>
  /** Returns the processes that run, or that ended within half a minute without removing themselves. */
  running(): Promise<readonly Process[]>
  /** Describes those of them that don't know a migration. */
  without(migration: string, t: Transaction): Promise<readonly string[]>
  /** Deletes processes that ended more than an hour ago without removing themselves. */
  prune(): Promise<void>
}

/** A process in a message. */
export function describeProcess({ kind, id, version }: Process): string {
  return `${kind} ${id} (version ${version})`
}

const renew: Statement = {
  name: 'process-renew',
  text: `INSERT INTO processes (id, kind, version, migration, issuer, audience, seen_at)
    VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET seen_at = clock_timestamp()`,
}

const remove: Statement = { name: 'process-remove', text: 'DELETE FROM processes WHERE id = $1' }

const selectRunning = `SELECT id, kind, version, migration, issuer, audience FROM processes
  WHERE seen_at > clock_timestamp() - interval '${seconds} seconds'`

const running: Statement = { name: 'processes-running', text: `${selectRunning} ORDER BY id` }

// Migrations begin with a number of four digits.
const without: Statement = {
  name: 'processes-without',
  text: `${selectRunning} AND left(migration, 4) < left($1, 4) ORDER BY id`,
}

const prune: Statement = {
  name: 'processes-prune',
  slow: true,
  text: `DELETE FROM processes WHERE seen_at < clock_timestamp() - interval '1 hour'`,
}

/** Creates the processes in a database. */
export function createProcesses(database: Database): Processes {
  defineTable(database, 'processes', {
    id: key(text),
    kind: text,
    version: text,
    migration: text,
    issuer: text,
    audience: text,
    seenAt: time,
  })
  const write = async ({ id, kind, version, migration, issuer, audience }: Process, t?: Transaction) => {
    await database.run(renew, [id, kind, version, migration, issuer, audience], t)
  }
  return {
    async add(kind, { issuer, audience }) {
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
    renew: each => write(each),
    async remove({ id }) {
      await database.run(remove, [id])
    },
    running: () => database.run<Process>(running, []),
    without: async (migration, t) => (await database.run<Process>(without, [migration], t)).map(describeProcess),
    async prune() {
      await database.run(prune, [])
    },
  }
}
