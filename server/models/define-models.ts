/**
 * The models: what is in each table, how rows are found and changed, and the invariants that hold for every change.
 * Each file owns one table, or a pair that can't be told apart, with its attribute table, its statements and the upkeep
 * of its rows. They decide nothing about who may do what and write no event but their own; `users`, `forgotpasswords`,
 * `access`, `outbox`, the program's wiring and the command line use them, by their verbs alone.
 */
import { type Database, openDatabase } from '../database/connection.js'
import { resolveDatabase, type Source } from '../database/database-choice.js'
import type { Log } from '../observability/log.js'
import type { Settings } from '../process/settings.js'
import { createAdministeredUsers } from './administered-user.js'
import { createAttempts, createCounterKeys } from './attempt.js'
import { createAudit } from './audit.js'
import { createBuckets } from './bucket.js'
import { createCreationRequests } from './creation-request.js'
import { createStoredKeys, type StoredKeys } from './data-key.js'
import { createEmails } from './email.js'
import { createEmailQuotas } from './email-quota.js'
import { createErasure } from './erasure.js'
import { createFormerUsernames } from './former-username.js'
import { createMailedKeys } from './mailed-key.js'
import { createOrganizations } from './organization.js'
import { createQuestions } from './question.js'
import { createServices } from './service.js'
import { createSigningKeys } from './signing-key.js'
import { createTokenIssuers } from './token-issuer.js'
import { createTotpSecrets } from './totp-secret.js'
import { createUsers } from './user.js'
import { createUserData } from './user-data.js'

/** The tables of a database and what is done with them. */
export type Models = ReturnType<typeof defineModels>

/** The models of a database that is open, for the service and for `auth-admin` alike. */
export type Registry = Awaited<ReturnType<typeof openRegistry>>

/** Defines every table of a database that is open. Nothing is asked of it yet. */
export function defineModels(database: Database, masterKey: StoredKeys) {
  const counterKeys = createCounterKeys(masterKey)
  const audit = createAudit(database, masterKey)
  const attempts = createAttempts(database, audit, counterKeys)
  const mailedKeys = createMailedKeys(database, masterKey, attempts, counterKeys)
  const emails = createEmails(database)
  const formerUsernames = createFormerUsernames(database)
  return {
    database,
    masterKey,
    counterKeys,
    formerUsernames,
    users: createUsers(database, masterKey, mailedKeys, emails, attempts, formerUsernames),
    administeredUsers: createAdministeredUsers(database),
    totpSecrets: createTotpSecrets(database, masterKey),
    creationRequests: createCreationRequests(database),
    organizations: createOrganizations(database, masterKey),
    questions: createQuestions(database),
    mailedKeys,
    emails,
    emailQuotas: createEmailQuotas(database),
    services: createServices(database, masterKey),
    signingKeys: createSigningKeys(database, masterKey),
    tokenIssuers: createTokenIssuers(database),
    attempts,
    buckets: createBuckets(database),
    erasure: createErasure(database, counterKeys),
    userData: createUserData(database),
    audit,
  }
}

/**
 * Opens the registry in the database that `DATABASE_URL` names, or in the embedded one. `connections` bounds the pool.
 * Nothing is migrated yet, and the data keys aren't loaded: install it, or load them.
 */
export async function openRegistry(
  settings: Settings,
  options: { log: Log; connections?: number; at?: Promise<Source> },
) {
  const source = await (options.at ?? resolveDatabase(settings, options.log))
  const database = openDatabase(() => source.url, options.connections, options.log)
  return {
    ...defineModels(database, createStoredKeys(database, source.masterKey)),
    /** Closes the database; an embedded one stops unless another process uses it. */
    release: source.release,
    /** Closes the pool, and leaves the database. */
    async close() {
      await database.close()
      await source.release()
    },
  }
}
