// This folder owns authentication and authorization: sign-ins (sign-in.ts), tokens and their keys (tokens.ts, keyring.ts),
// sealed tokens (seals.ts, administrator-session.ts), callers (caller.ts, administrator.ts, service-keys.ts), what a state keeps from (gate.ts)
// and permissions (permissions.ts). limits/ counts failures, models/ stores counters and keys, passwords/ computes hashes.
import type { Limits } from '../limits/index.js'
import type { Models } from '../models/index.js'
import type { TokenIssuer } from '../models/token-issuer.js'
import type { Log } from '../observability/log.js'
import type { Hashing } from '../passwords/index.js'
import type { Settings } from '../process/settings.js'
import { createAdministrators } from './administrator.js'
import { createAdministratorSessions } from './administrator-session.js'
import { createCallers } from './caller.js'
import { createKeyring } from './keyring.js'
import { createSeals } from './seals.js'
import { createServiceKeys } from './service-keys.js'
import { createSignIns } from './sign-in.js'
import { createTokens } from './tokens.js'
import { createOneTimeCodes } from './totp.js'

/** What a process identifies callers and sign-ins by. */
export type Access = ReturnType<typeof createAccess>

/** What access is made from, in addition to the parts of other folders. */
interface AccessDeps {
  readonly settings: Settings
  /** Issuer and audience of tokens. */
  readonly tokenIssuer: TokenIssuer
  readonly log: Log
  /** The clock of the database, in ms since 1970. */
  readonly now: () => number
  /** The clock of what a process keeps in memory, in ms, which can't be set. */
  readonly processNow: () => number
}

/** Makes what identifies callers and sign-ins. */
export function createAccess(registry: Models, limits: Limits, hashing: Hashing, deps: AccessDeps) {
  const { settings, tokenIssuer, log, now, processNow } = deps
  const keyring = createKeyring(registry.signingKeys, now, processNow)
  const tokens = createTokens({ ...tokenIssuer, keyring, ttl: settings.tokenTtl, now })
  const seals = createSeals(registry.sealingKeys)
  const administratorSessions = createAdministratorSessions({ seals, now })
  return {
    tokenIssuer,
    keyring,
    tokens,
    seals,
    callers: createCallers(tokens, registry.users),
    administratorSessions,
    administrators: createAdministrators(registry, administratorSessions, now),
    serviceKeys: createServiceKeys(registry, limits, settings, log, processNow),
    signIns: createSignIns(registry, limits, hashing, settings),
    oneTimeCodes: createOneTimeCodes(registry, settings, now),
    /** The clock by which sessions are judged, in ms since 1970. */
    now,
  }
}
