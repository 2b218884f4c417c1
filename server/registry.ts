import type { Log } from './log.js'
import { createAttempts, createSubjects } from './models/attempt.js'
import { createAudit } from './models/audit.js'
import { openDatabase } from './models/database.js'
import { createLetters } from './models/letter.js'
import { type Located, locateDatabase } from './models/located.js'
import { createMailedKeys } from './models/mailedkey.js'
import { createOrganizations } from './models/organization.js'
import { createQuestions } from './models/question.js'
import { createSignIns } from './models/signin.js'
import { createSigningKeys } from './models/signingkey.js'
import { createUsers } from './models/user.js'
import type { Settings } from './settings.js'
import { createVault } from './vault.js'

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
  const { url, masterKey, release } = await (options.at ?? locateDatabase(settings, options.log))
  const database = openDatabase(url, options.connections)
  const vault = createVault(masterKey)
  const subjects = createSubjects(vault)
  const audit = createAudit(database)
  return {
    database,
    vault,
    subjects,
    users: createUsers(database, vault),
    organizations: createOrganizations(database, vault),
    questions: createQuestions(database),
    mailedKeys: createMailedKeys(database, vault),
    letters: createLetters(database, subjects, audit),
    signIns: createSignIns(database, subjects),
    signingKeys: createSigningKeys(database, vault),
    attempts: createAttempts(database),
    audit,
    /** Closes the pool, and stops the embedded database unless somebody else uses it. */
    async close() {
      await database.close()
      await release()
    },
  }
}
