import type { Transaction } from 'sequelize'
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
import { orm } from '../database/sequelize.js'

const attributes = {
  actor: key(text),
  requestId: key(attribute<string>('UUID')),
  /** Keyed, of RPC and request. */
  digest: bytes,
  answerSealed: bytes,
  userId: nullable(integer),
  createdAt: hasDefault(time),
}

/** Whose request, and which. */
interface RequestId {
  readonly actor: string
  readonly requestId: string
}

/** Seconds for which a creation may be repeated. */
const kept = 86_400

/** Creations by administrators, by the id of their request. */
export interface CreationRequests {
  /** The creation of an earlier request with this id. Other calls with the same id wait until the transaction ends. */
  claim(id: RequestId, t: Transaction): Promise<{ digest: Buffer; answerSealed: Buffer } | undefined>
  /** Keeps a creation for a day, or until the user who was created is erased. */
  add(
    request: RequestId & { digest: Buffer; answerSealed: Buffer; userId: number | null },
    t: Transaction,
  ): Promise<void>
  /** Deletes those that are older. */
  prune(): Promise<void>
}

const lock: Statement = {
  name: 'creation-request-lock',
  text: 'SELECT pg_advisory_xact_lock(7264004, hashtext($1))',
}

const prune: Statement = {
  name: 'creation-requests-prune',
  text: 'DELETE FROM creation_requests WHERE created_at < now() - make_interval(secs => $1)',
}

/** The creations in a database. */
export function createCreationRequests(database: Database): CreationRequests {
  const table = defineTable(database, 'creation_requests', attributes)
  return {
    async claim({ actor, requestId }, transaction) {
      await database.run(lock, [`${actor} ${requestId.toLowerCase()}`], transaction)
      const where = { actor, requestId, createdAt: { [orm().Op.gt]: fromNow(-kept) } }
      return (await table().findOne({ where, transaction }))?.get()
    },
    async add(request, transaction) {
      // One that is too old to be repeated may still be there.
      await table().upsert({ ...request, createdAt: fromNow(0) }, { transaction })
    },
    async prune() {
      await database.run(prune, [kept])
    },
  }
}
