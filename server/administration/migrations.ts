import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import type { Database } from '../database/connection.js'
import { type Migration, readMigrations } from '../database/migrate.js'
import type { Handler } from './context.js'

/** Lists the migrations that the database has, and those that are pending. */
export function getMigrations(deps: { database: Database }): Handler<'getMigrations'> {
  const { database } = deps
  return async _request => {
    const { done, pending, newer } = await readMigrations(database)
    const known = [...done, ...pending].map(migration => toMigration(migration, true))
    return { migrations: [...known, ...newer.map(migration => toMigration(migration, false))] }
  }
}

function toMigration({ name, kind, runAt }: Migration, known: boolean) {
  return { name, kind, known, ...(runAt && { runTime: timestampFromDate(runAt) }) }
}
