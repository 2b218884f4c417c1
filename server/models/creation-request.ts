import { Op, type Transaction } from 'sequelize'
import { advisoryKeys } from '../database/advisory-keys.js'
import {
  attribute,
  bytes,
  defineTable,
  fromNow,
  hasDefault,
  integer,
  key,
  nullable,
  text,
  time,
} from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { sql } from '../database/sql.js'

const attributes = {
  actor: key(text),
  requestId: key(attribute<string>('UUID')),
  /** Keyed digest of the RPC and the request. */
  digest: bytes,
  answerSealed: bytes,
  userId: nullable(integer),
  createdAt: hasDefault(time),
}

/** Identifies a request of an actor. */
interface RequestId {
  readonly actor: string
  readonly requestId: string
}

/** Seconds during which a repeated request returns the stored response. */
const retention = 86_400

/** Stored responses that make the create RPCs of administrators idempotent, by request id. */
export type CreationRequests = ReturnType<typeof createCreationRequests>

/** Creates the store of responses in a database. */
export function createCreationRequests(database: Database) {
  const table = defineTable(database, 'creation_requests', attributes)
  return {
    /** Returns the response to an earlier request with this id. Parallel calls with the id wait until the transaction ends. */
    async claim({ actor, requestId }: RequestId, transaction: Transaction) {
      const lock = sql('creation-request-lock')`
        SELECT pg_advisory_xact_lock(${sql.text(advisoryKeys.creations)}, hashtext(${`${actor} ${requestId.toLowerCase()}`}))`
      await database.run(lock, transaction)
      const where = { actor, requestId, createdAt: { [Op.gt]: fromNow(-retention) } }
      return (await table.findOne({ where, transaction }))?.get()
    },
    /** Stores a response for a day, or until the created user is erased. */
    async add(
      request: RequestId & { digest: Buffer; answerSealed: Buffer; userId: number | null },
      transaction: Transaction,
    ) {
      // An expired row with the same id may still exist.
      await table.upsert({ ...request, createdAt: fromNow(0) }, { transaction })
    },
    /** Deletes expired responses. */
    async prune() {
      await database.run(sql('creation-requests-prune')`
        DELETE FROM creation_requests WHERE created_at < now() - make_interval(secs => ${retention})`)
    },
  }
}
