import { openDatabase } from '../database/connection.js'
import { type Located, locateDatabase } from '../database/source.js'
import type { Log } from '../log.js'
import { createMasterKey } from '../masterkey.js'
import type { Settings } from '../settings.js'
import { createAttempts, createSubjects } from './attempt.js'
import { createAudit } from './audit.js'
import { createEmails } from './email.js'
import { createMailedKeys } from './mailedkey.js'
import { createOrganizations } from './organization.js'
import { createQuestions } from './question.js'
import { createSignIns } from './signin.js'
import { createSigningKeys } from './signingkey.js'
import { createUsers } from './user.js'

/** The tables of the registry and what is done with them, for the service and for `auth-admin` alike. */
export type Registry = Awaited<ReturnType<typeof openRegistry>>

/**
 * Opens the registry in the database that `DATABASE_URL` names, or in the embedded one. `connections` bounds the pool.
 * Nothing is migrated yet.
 */
export async function openRegistry(
  settings: Settings,
  options: { log: Log; connections?: number; at?: Promise<Located> },
) {
  const { url, masterKey: bytes, release } = await (options.at ?? locateDatabase(settings, options.log))
  const database = openDatabase(url, options.connections)
  const masterKey = createMasterKey(bytes)
  const subjects = createSubjects(masterKey)
  const audit = createAudit(database)
  return {
    database,
    masterKey,
    subjects,
    users: createUsers(database, masterKey),
    organizations: createOrganizations(database, masterKey),
    questions: createQuestions(database),
    mailedKeys: createMailedKeys(database, masterKey),
    emails: createEmails(database, subjects, audit),
    signIns: createSignIns(database, subjects),
    signingKeys: createSigningKeys(database, masterKey),
    attempts: createAttempts(database),
    audit,
    /** Closes the pool, and stops the embedded database unless somebody else uses it. */
    async close() {
      await database.close()
      await release()
    },
  }
}
