// This folder owns the RPCs of the service `auth.v1.Administration`: an object of RPCs for each noun. administration.proto
// describes what each RPC does and refuses, policy/administration.ts says who may call it, and calls/ applies that policy. The
// folder models/ stores the data. service.ts serves the RPCs on a separate listener. The command line also runs them through
// local-application.ts.
import type { Parts } from '../calls/parts.js'
import type { UndeclaredProxies } from '../observability/undeclared-proxy.js'
import { createPaging } from '../requests/paging.js'
import { auditLogRpcs } from './audit-log.js'
import { deploymentRpcs } from './deployment.js'
import { diagnose } from './doctor.js'
import { emailRpcs } from './emails.js'
import { finishImport, importBatch } from './imports/batch.js'
import { importRpcs } from './imports/imports.js'
import { createOrganizationRows } from './imports/organizations.js'
import { createUserRows } from './imports/users.js'
import { organizationRpcs } from './organizations.js'
import { questionRpcs } from './questions.js'
import { createReferences } from './references.js'
import { secretRpcs } from './secrets.js'
import { createNotifyAdministrators, createNotifyConcerned } from './security-notices.js'
import { serviceRpcs } from './services.js'
import { sessionRpcs } from './session.js'
import { signingKeyRpcs } from './signing-keys.js'
import { userCreateUpdateRpcs } from './users/create-update.js'
import { userDataRpcs } from './users/data.js'
import { explainUser } from './users/explain.js'
import { issuedKeyRpcs } from './users/issued-keys.js'
import { userReadRpcs } from './users/list.js'
import { listLockouts } from './users/lockouts.js'
import { ofOrganizationRpcs } from './users/of-organization.js'
import { userSupportRpcs } from './users/recovery.js'
import { createChangeUser, userStateRpcs } from './users/state.js'
import { eraseUnactivatedUsers } from './users/unactivated.js'

/**
 * Makes the RPCs, and what the steps of their policies need: the records that requests refer to, and the notices of changes of
 * administrators. `undeclaredProxies` is absent where the process serves no clients.
 */
export function createAdministration(parts: Parts, undeclaredProxies?: UndeclaredProxies['found']) {
  const { registry, limits, hashing, access, outbox, registration, settings } = parts
  const { imports, dataKeys } = registry
  const openPage = createPaging(dataKeys)
  const references = createReferences(registry)
  const notifyAdministrators = createNotifyAdministrators(registry, settings)
  const change = createChangeUser(registry, references, notifyAdministrators)
  const rowsOf = {
    organizations: createOrganizationRows(registry, registration, settings),
    users: createUserRows(registry, hashing, registration),
  }
  const importing = { imports, dataKeys, pool: hashing.pool, settings, rowsOf }
  const rpcs = {
    ...sessionRpcs(registry, access, notifyAdministrators),
    ...userReadRpcs(registry, limits, references, openPage),
    ...userCreateUpdateRpcs(registry, hashing, registration, references, notifyAdministrators, change, settings),
    ...userStateRpcs(registry, registration, references, change, settings),
    ...userSupportRpcs(registry, hashing, outbox, registration, change, settings),
    ...issuedKeyRpcs(registry, access, references, change, openPage, settings),
    ...ofOrganizationRpcs(registry, references, openPage),
    ...userDataRpcs(registry, notifyAdministrators, openPage),
    explainUser: explainUser(registry, access, outbox, settings),
    listLockouts: listLockouts(registry, access, settings, openPage),
    eraseUnactivatedUsers: eraseUnactivatedUsers(registry, openPage),
    ...organizationRpcs(registry, registration, references, openPage, settings),
    ...questionRpcs(registry, references, openPage),
    ...serviceRpcs(registry, access, openPage),
    ...signingKeyRpcs(registry, settings),
    ...emailRpcs(registry, references, openPage, settings),
    ...importRpcs(registry, hashing, openPage),
    importBatch: importBatch(importing),
    finishImport: finishImport(importing),
    ...secretRpcs(registry, hashing),
    ...auditLogRpcs(registry, references, openPage),
    ...deploymentRpcs(registry, settings),
    diagnose: diagnose({ ...registry, settings, undeclaredProxies }),
  }
  return { rpcs, references, notifyConcerned: createNotifyConcerned(registry, settings) }
}
