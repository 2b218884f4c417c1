import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import type { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import type { Administrators } from '../access/administrator.js'
import type { Unary } from '../call.js'
import type { Database } from '../database/connection.js'
import { type Migration, readMigrations } from '../database/migrate.js'

/** Tells which migrations the database has, and which the program would run. */
export function getMigrations(deps: {
  administrators: Administrators
  database: Database
}): Unary<(typeof Administration.method)['getMigrations']> {
  const { administrators, database } = deps
  return async (_request, call) => {
    await administrators.identify('getMigrations', call)
    const { done, pending, newer } = await readMigrations(database)
    const told = (known: boolean) => (migration: Migration) => toMigration(migration, known)
    return { migrations: [...[...done, ...pending].map(told(true)), ...newer.map(told(false))] }
  }
}

function toMigration({ name, kind, runAt }: Migration, known: boolean) {
  return { name, kind, known, ...(runAt && { runTime: timestampFromDate(runAt) }) }
}
