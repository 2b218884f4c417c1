import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { AdministrationRpcs } from '../calls/context.js'
import { describeDifference, type Migration, readMigrations } from '../database/migrate.js'
import type { Models } from '../models/index.js'
import type { Settings } from '../process/settings.js'
import { refuse } from '../requests/refusal.js'

/** The RPCs of what is deployed: the migrations of the database, and the settings of this process. */
export function deploymentRpcs({ database }: Models, settings: Pick<Settings, 'origins'>) {
  return {
    /** Lists the migrations that the database has, and those that are pending. */
    async getMigrations() {
      const status = await readMigrations(database)
      const difference = describeDifference(status)
      if (difference !== undefined) refuse(Reason.WRONG_STATE, { text: difference })
      const { done, pending, newer } = status
      const known = [...done, ...pending].map(migration => toMigration(migration, true))
      return { migrations: [...known, ...newer.map(migration => toMigration(migration, false))] }
    },

    /** Returns the settings of this process, with secrets masked. */
    async getConfiguration() {
      const { origins } = settings
      return { settings: [...origins.settings], unknown: [...origins.unknown] }
    },
  } satisfies Partial<AdministrationRpcs>
}

function toMigration({ name, kind, runAt }: Migration, known: boolean) {
  return { name, kind, known, runTime: runAt ? timestampFromDate(runAt) : undefined }
}
