import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import type { Database } from '../database/connection.js'
import { type Migration, readMigrations } from '../database/migrate.js'
import type { Handler } from './context.js'

/** Tells which migrations the database has, and which the program would run. */
export function getMigrations(deps: { database: Database }): Handler<'getMigrations'> {
  const { database } = deps
  return async _request => {
    const { done, pending, newer } = await readMigrations(database)
    const told = (known: boolean) => (migration: Migration) => toMigration(migration, known)
    return { migrations: [...[...done, ...pending].map(told(true)), ...newer.map(told(false))] }
  }
}

function toMigration({ name, kind, runAt }: Migration, known: boolean) {
  return { name, kind, known, ...(runAt && { runTime: timestampFromDate(runAt) }) }
}
