// Administration in the process of the command line, on the database itself: for installing and for emergencies. Who holds
// the database's password and the master key needs no sign-in.
import type { Transport } from '@connectrpc/connect'
import { Administration } from '../proto/gen/auth/v1/administration_pb.js'
import { createAdmission } from './access/admission.js'
import { createKeyring } from './access/keyring.js'
import { createSignIns } from './access/sign-in.js'
import { createAdministration } from './administration/administration.js'
import { bindAdministration } from './calls/administration.js'
import { createCalls } from './calls/dispatch.js'
import { createInProcessTransport } from './calls/in-process.js'
import type { Registry } from './models/define-models.js'
import type { Log } from './observability/log.js'
import { createPasswords } from './passwords/hash.js'
import { createPasswordPolicy } from './passwords/policy.js'
import { createPool } from './passwords/pool.js'
import { firstIssuer, type Settings } from './process/settings.js'
import type { LocalAdministrator } from './requests/call.js'

/** A way to Administration that ends with the process. */
interface LocalAdministration {
  readonly transport: Transport
  close(): Promise<void>
}

/** Milliseconds that a hash may wait on a command line. */
const maxWaitMs = 60_000

/** Opens Administration on a registry whose data keys are loaded. */
export async function openLocalAdministration(
  registry: Registry,
  settings: Settings,
  { local, log }: { local: LocalAdministrator; log: Log },
): Promise<LocalAdministration> {
  const { limitFactor: factor, bcryptCost: cost, passwordMinLength: minLength, passwordDenylist } = settings
  const now = Date.now
  const admission = createAdmission({ ...registry, factor, now })
  const pool = createPool({ cost, count: 1, maxWaitMs })
  const passwords = createPasswords({ pepper: registry.masterKey.pepper, cost, pool })
  // Nobody signs in here; and doctor works on a database that doesn't.
  const { issuer } = (await registry.tokenIssuers.find().catch(() => undefined)) ?? firstIssuer(settings)
  const administration = createAdministration({
    ...registry,
    settings,
    issuer,
    keyring: createKeyring(registry.signingKeys, now),
    signIns: createSignIns({ ...registry, admission, pool, passwords, factor }),
    passwords,
    policy: createPasswordPolicy({ minLength, denylistFile: passwordDenylist }),
    now,
  })
  const services = [[Administration, bindAdministration(administration, administration.rpcs)]] as const
  const calls = createCalls({ services, ready: async () => true, log, observe() {}, refused() {} })
  return {
    transport: createInProcessTransport(calls, { local }),
    close: pool.close,
  }
}
