import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Database } from '../database/connection.js'
import { describeDifference, type Migration, readMigrations } from '../database/migrate.js'
import { refuse } from '../requests/refusal.js'
import type { Handler } from './context.js'

/** Tells which migrations the database has, and which the program would run. */
export function getMigrations(deps: { database: Database }): Handler<'getMigrations'> {
  const { database } = deps
  return async _request => {
    const status = await readMigrations(database)
    const difference = describeDifference(status)
    if (difference !== undefined) refuse(Reason.WRONG_STATE, { text: difference })
    const { done, pending, newer } = status
    const told = (known: boolean) => (migration: Migration) => toMigration(migration, known)
    return { migrations: [...[...done, ...pending].map(told(true)), ...newer.map(told(false))] }
  }
}

function toMigration({ name, kind, runAt }: Migration, known: boolean) {
  return { name, kind, known, ...(runAt && { runTime: timestampFromDate(runAt) }) }
}
