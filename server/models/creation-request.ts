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
import type { Database, Statement } from '../database/connection.js'

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
export interface CreationRequests {
  /** Returns the response to an earlier request with this id. Parallel calls with the id wait until the transaction ends. */
  claim(id: RequestId, t: Transaction): Promise<{ digest: Buffer; answerSealed: Buffer } | undefined>
  /** Stores a response for a day, or until the created user is erased. */
  add(
    request: RequestId & { digest: Buffer; answerSealed: Buffer; userId: number | null },
    t: Transaction,
  ): Promise<void>
  /** Deletes expired responses. */
  prune(): Promise<void>
}

const lock: Statement = {
  name: 'creation-request-lock',
  text: `SELECT pg_advisory_xact_lock(${advisoryKeys.creations}, hashtext($1))`,
}

const prune: Statement = {
  name: 'creation-requests-prune',
  text: 'DELETE FROM creation_requests WHERE created_at < now() - make_interval(secs => $1)',
}

/** Creates the store of responses in a database. */
export function createCreationRequests(database: Database): CreationRequests {
  const table = defineTable(database, 'creation_requests', attributes)
  return {
    async claim({ actor, requestId }, transaction) {
      await database.run(lock, [`${actor} ${requestId.toLowerCase()}`], transaction)
      const where = { actor, requestId, createdAt: { [Op.gt]: fromNow(-retention) } }
      return (await table().findOne({ where, transaction }))?.get()
    },
    async add(request, transaction) {
      // An expired row with the same id may still exist.
      await table().upsert({ ...request, createdAt: fromNow(0) }, { transaction })
    },
    async prune() {
      await database.run(prune, [retention])
    },
  }
}
