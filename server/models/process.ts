// Processes that serve this registry. Each keeps a row while it runs, so that `migrate up --contract` knows whether one of an
// older version would break, and doctor whether one has a former issuer.
import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'
import type { Database, Transaction } from '../database/database.js'
import { holdSchema, newestMigration } from '../database/migrate.js'
import { sql } from '../database/sql.js'
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
export type Processes = ReturnType<typeof createProcesses>

/** A process in a message. */
export function describeProcess({ kind, id, version }: Process): string {
  return `${kind} ${id} (version ${version})`
}

const selectRunning = sql`SELECT id, kind, version, migration, issuer, audience FROM processes
  WHERE abs(extract(epoch FROM clock_timestamp() - seen_at)) < ${sql.text(seconds)}`

/** Creates the processes in a database. */
export function createProcesses(database: Database) {
  const write = async ({ id, kind, version, migration, issuer, audience }: Process, t?: Transaction) => {
    const renew = sql('process-renew')`
      INSERT INTO processes (id, kind, version, migration, issuer, audience, seen_at)
      VALUES (${id}, ${kind}, ${version}, ${migration}, ${issuer}, ${audience}, clock_timestamp())
      ON CONFLICT (id) DO UPDATE SET seen_at = clock_timestamp()`
    await database.run(renew, t)
  }
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
      await database.run(sql('process-remove')`DELETE FROM processes WHERE id = ${id}`)
    },
    /** Returns the processes that run, or that ended within half a minute without removing themselves. */
    running: () => database.run<Process>(sql('processes-running')`${selectRunning} ORDER BY id`),
    /** Describes those of them that don't know a migration. */
    async without(migration: string, t: Transaction) {
      const older = sql('processes-without')`
        ${selectRunning} AND left(migration, 4) < left(${migration}, 4) ORDER BY id`
      return (await database.run<Process>(older, t)).map(describeProcess)
    },
    /** Deletes processes that ended more than an hour ago without removing themselves. */
    async prune() {
      await database.runUnlimited(sql('processes-prune')`
        DELETE FROM processes WHERE seen_at < clock_timestamp() - interval '1 hour'`)
    },
  }
}
