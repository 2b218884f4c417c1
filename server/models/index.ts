/**
 * The models define the tables, the queries and changes of their rows, and the invariants of every change. Each file owns
 * one table, or a few that belong together, with its attribute table, its statements and the pruning of its rows. Models
 * make no authorization decisions, and record only the audit events that callers pass. The folders `users`,
 * `forgotpasswords`, `access` and `outbox`, the startup code and the command line call their methods.
 */
import { type Database, openDatabase } from '../database/database.js'
import { resolveDatabase, type Source } from '../database/database-choice.js'
import type { Log } from '../observability/log.js'
import type { Settings } from '../process/settings.js'
import { createActivationKeys } from './activation-key.js'
import { createAdministeredUsers } from './administered-user.js'
import { createAnswers } from './answer.js'
import { createAttempts, createCounterKeys } from './attempt.js'
import { createAudit } from './audit.js'
import { createBuckets } from './bucket.js'
import { createChangeFeed } from './change-feed.js'
import { createClockRecord } from './clock.js'
import { createStoredKeys, type StoredKeys } from './data-key.js'
import { createEmails } from './email.js'
import { createEmailQuotas } from './email-quota.js'
import { createErasure } from './erasure.js'
import { createFormerUsernames } from './former-username.js'
import { createIdTokenKeys } from './id-token-key.js'
import { createImports } from './import.js'
import { createMailedKeys } from './mailed-key.js'
import { createOrganizations } from './organization.js'
import { createProcesses } from './process.js'
import { createQuestions } from './question.js'
import { createRefreshedSessions } from './refreshed-session.js'
import { createSealingKeys } from './sealing-key.js'
import { createServices } from './service.js'
import { createSigningKeys } from './signing-key.js'
import { createTokenIssuers } from './token-issuer.js'
import { createTotpSecrets } from './totp-secret.js'
import { createUnmatchedAnswers } from './unmatched-answer.js'
import { createUsers } from './user.js'
import { createUserBatches } from './user-batch.js'
import { createUserData } from './user-data.js'

/** The models of a database. */
export type Models = ReturnType<typeof defineModels>

/** The models of an open database, for the service and for `auth-admin`. */
export type Registry = Awaited<ReturnType<typeof openRegistry>>

/** Defines every table of an open database. Sends no query. */
export function defineModels(database: Database, dataKeys: StoredKeys) {
  const counterKeys = createCounterKeys(dataKeys)
  const audit = createAudit(database, dataKeys)
  const attempts = createAttempts(database, audit, counterKeys)
  const activationKeys = createActivationKeys(database, dataKeys)
  const mailedKeys = createMailedKeys(database, dataKeys, counterKeys, activationKeys)
  const emails = createEmails(database)
  const formerUsernames = createFormerUsernames(database)
  const answers = createAnswers(database)
  return {
    database,
    dataKeys,
    counterKeys,
    formerUsernames,
    users: createUsers(database, dataKeys, mailedKeys, emails, attempts, counterKeys, formerUsernames, answers),
    userBatches: createUserBatches(database, dataKeys),
    administeredUsers: createAdministeredUsers(database),
    totpSecrets: createTotpSecrets(database, dataKeys),
    organizations: createOrganizations(database, dataKeys, activationKeys),
    activationKeys,
    imports: createImports(database, dataKeys),
    questions: createQuestions(database),
    answers,
    unmatchedAnswers: createUnmatchedAnswers(database),
    mailedKeys,
    emails,
    emailQuotas: createEmailQuotas(database),
    services: createServices(database, dataKeys),
    signingKeys: createSigningKeys(database, dataKeys),
    idTokenKeys: createIdTokenKeys(database, dataKeys),
    sealingKeys: createSealingKeys(database, dataKeys),
    refreshedSessions: createRefreshedSessions(database),
    tokenIssuers: createTokenIssuers(database),
    attempts,
    buckets: createBuckets(database),
    clock: createClockRecord(database),
    processes: createProcesses(database),
    erasure: createErasure(database, counterKeys),
    userData: createUserData(database, activationKeys),
    changeFeed: createChangeFeed(database),
    audit,
  }
}

/**
 * Opens the registry in the database of `DATABASE_URL`, or in the embedded one. `connections` limits the pool. It neither
 * migrates the schema nor loads the data keys: the caller installs the registry, or loads the keys.
 */
export async function openRegistry(
  settings: Settings,
  options: { log: Log; connections?: number; at?: Promise<Source> },
) {
  const source = await (options.at ?? resolveDatabase(settings, options.log))
  const database = openDatabase(() => source.url, options.connections, options.log, settings.timeZone)
  return {
    ...defineModels(database, createStoredKeys(database, source.masterKey)),
    /** Releases the database. An embedded database stops unless another process uses it. */
    release: source.stop,
    /** Closes the pool and releases the database. */
    async close() {
      await database.close()
      await source.stop()
    },
  }
}
