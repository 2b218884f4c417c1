import type { Transaction } from 'sequelize'
import { DataTypes, fn, Op } from 'sequelize'
import { attribute, bytes, defineTable, fromNow, key, preset, text, time } from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'

const attributes = {
  actor: key(text),
  requestId: key(attribute<string>(DataTypes.UUID)),
  /** Keyed, of RPC and request. */
  digest: bytes,
  answerSealed: bytes,
  createdAt: preset(time),
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
  /** The creation of an earlier request with this id. Nobody else gets on with the same id before the transaction ends. */
  claim(id: RequestId, t: Transaction): Promise<{ digest: Buffer; answerSealed: Buffer } | undefined>
  /** Keeps a creation for a day. */
  add(request: RequestId & { digest: Buffer; answerSealed: Buffer }, t: Transaction): Promise<void>
  /** Deletes those that are older. */
  prune(): Promise<void>
}

const lock: Statement = {
  name: 'creation-request-lock',
  text: 'SELECT pg_advisory_xact_lock(7264004, hashtext($1))',
}

/** The creations in a database. */
export function createCreationRequests(database: Database): CreationRequests {
  const table = defineTable(database, 'creation_requests', attributes)
  return {
    async claim({ actor, requestId }, transaction) {
      await database.run(lock, [`${actor} ${requestId.toLowerCase()}`], transaction)
      const where = { actor, requestId, createdAt: { [Op.gt]: fromNow(-kept) } }
      return (await table.findOne({ where, transaction }))?.get()
    },
    async add(request, transaction) {
      // One that is too old to be repeated may still be there.
      await table.upsert({ ...request, createdAt: fn('now') as unknown as Date }, { transaction })
    },
    async prune() {
      await table.destroy({ where: { createdAt: { [Op.lt]: fromNow(-kept) } } })
    },
  }
}
