// What clients and apps hold: sealed, so that it shows its holder nothing, and the database has no copy. Their tokens form lines
// (models/refreshed-session.ts).
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { auditContext } from '../access/caller.js'
import { type Passed, pass } from '../access/gate.js'
import type { Access } from '../access/index.js'
import type { Models } from '../models/index.js'
import type { Bearer } from '../models/refreshed-session.js'
import type { User } from '../models/user.js'
import { guardedUser } from '../models/user-state.js'
import type { Outbox } from '../outbox/index.js'
import type { Settings } from '../process/settings.js'
import type { Call } from '../requests/call.js'
import { refuse } from '../requests/refusal.js'
import { isRegistered } from '../rules/return-uri.js'
import { tooLong } from '../rules/sizes.js'
import type { ClientScope } from './requests.js'

/** What a user lets a client know, or an app do. Times are in seconds since 1970. */
export interface Grant {
  readonly userId: number
  /** Token generation of the user: the grant ends with it. */
  readonly generation: number
  /** Id of the line of its tokens, and the number of this one; a code has the number 0. */
  readonly line: string
  readonly number: number
  /** The session in which the user signed in: its id, methods (RFC 8176) and beginning. */
  readonly sid: string
  readonly amr: readonly string[]
  readonly authTime: number
  /** When the line ends. */
  readonly ends: number
  /** What the user lets a client know; absent for an app, whose access tokens are of the registry. */
  readonly client?: ClientGrant
}

interface ClientGrant {
  /** Id of the service. */
  readonly service: number
  /** Id of the key with which the service got the token; absent for a code, and for a client without a secret. */
  readonly key?: number | undefined
  /** The redirect URI to which the code went. */
  readonly uri: string
  readonly scope: readonly ClientScope[]
  readonly nonce?: string | undefined
  /** The hash of the verifier that the exchange of the code needs (RFC 7636). */
  readonly challenge?: string | undefined
}

/** The grant of a client. */
export type OfClient = Grant & { readonly client: ClientGrant }

interface Kinds {
  readonly code: OfClient
  readonly access: OfClient
  readonly refresh: Grant
}

/** A grant as it was opened. */
type Opened<G extends Grant> = G & {
  /** Id of the sealing key of its token. */
  readonly sealedBy: string
}

/** A line as its model stores it. */
const lineOf = ({ userId, line: id, ends, client }: Grant) => ({
  userId,
  id,
  endsAt: new Date(ends * 1000),
  serviceId: client?.service,
})

/** Seals, opens, exchanges and ends grants. */
export type Grants = ReturnType<typeof createGrants>

/** Creates the grants of a registry. */
export function createGrants(
  { database, audit, users, services, refreshedSessions }: Models,
  { seals, now }: Access,
  { notifyOwner }: Outbox,
  settings: Pick<Settings, 'strict'>,
) {
  const seconds = () => Math.floor(now() / 1000)

  /** Whether apps of a user may stay signed in. */
  const mayStay = (user: Pick<User, 'role' | 'desk'>) => !guardedUser.of(user) && settings.strict !== 'on'

  /** Ends a line, if it goes on, and records why. The active owner of an app is notified of a copy. */
  async function end(grant: Grant, reason: 'COPIED' | 'REVOKED', call: Call, service?: string): Promise<void> {
    const { userId, client } = grant
    const owner = reason === 'COPIED' && !client ? await users.byId(userId) : undefined
    // The app of a user revokes its token for it; who presents a copy is unknown.
    const context = auditContext(call, reason === 'REVOKED' && !client ? { id: userId } : undefined)
    const event = { ...context, action: 'session.end', outcome: 'ok', reason, subject_id: userId } as const
    await database.transact(async t => {
      if (!(await refreshedSessions.end(lineOf(grant), t))) return
      if (owner?.active) await notifyOwner('session-ended', owner, call, t)
      await audit.append({ ...event, object: service && `service:${service}` }, t)
    })
  }

  return {
    mayStay,
    /** Seals a grant as a token of a kind, good for `life` seconds, and no longer than the line. */
    seal<K extends keyof Kinds>(kind: K, grant: Kinds[K], life = Number.POSITIVE_INFINITY): Promise<string> {
      const { sealedBy: _, ...kept } = grant as Opened<Kinds[K]>
      return seals.seal(`openid ${kind}`, JSON.stringify({ ...kept, exp: Math.min(seconds() + life, grant.ends) }))
    },
    /** Opens a token of a kind that hasn't expired. */
    async open<K extends keyof Kinds>(kind: K, token: string | undefined): Promise<Opened<Kinds[K]> | undefined> {
      const opened = token && !tooLong(token, 'token') ? await seals.open(`openid ${kind}`, token) : undefined
      if (!opened) return undefined
      const { exp, ...grant } = JSON.parse(opened.payload)
      return exp > seconds() ? { ...grant, sealedBy: opened.keyId } : undefined
    },
    /**
     * Returns the user of a grant. Undefined where the grant has ended: the tokens of the user were revoked, or its state closes
     * this way; the line was ended; the sealing key was retired; or the service, its key or its redirect URI is gone. An app
     * learns why its user is signed out: refuses with SUSPENDED or SIGNED_OUT.
     */
    async holderOf(grant: Opened<Grant>): Promise<Passed<User> | undefined> {
      const { userId, generation, line, number, client } = grant
      const [found, standing, registered] = await Promise.all([
        users.findSessionHolder(userId, grant.sealedBy),
        // The exchange of a code finds out whether its line exists.
        number === 0 ? { ended: false } : refreshedSessions.find(userId, line),
        client && services.clientOf(client.service, client.key),
      ])
      if (!client && found?.suspended && !found.deletedAt) refuse(Reason.SUSPENDED)
      const user = pass(found, 'use a token')
      if (!client && user && user.tokenGeneration !== generation) refuse(Reason.SIGNED_OUT)
      if (!user || user.tokenGeneration !== generation || !standing || standing.ended) return undefined
      if (!client) return mayStay(user) ? user : undefined
      return user.active && registered && isRegistered(registered.redirectUris, client.uri) ? user : undefined
    },
    /**
     * Exchanges a token of a line, of the named service if it is a client’s. Returns the grant of the token that its bearer gets.
     * Refuses with INVALID_GRANT a token that was exchanged before, unless its answer can have been lost: the line ends, because
     * someone has a copy.
     */
    async exchange<G extends Grant>(grant: G, bearer: Bearer, call: Call, service?: string): Promise<G> {
      const number = await refreshedSessions.exchange(lineOf(grant), grant.number, bearer)
      if (typeof number === 'number') return { ...grant, number }
      if (number === 'copied') await end(grant, 'COPIED', call, service)
      return refuse(Reason.INVALID_GRANT)
    },
    /** Ends the line of a grant that its holder revokes. */
    revoke: (grant: Grant, call: Call, service?: string): Promise<void> => end(grant, 'REVOKED', call, service),
  }
}

/** The claims of a user in these scopes (OpenID Connect Core, 5.4). */
export function claimsOf(
  { id, username, nickname, role, organizationId, email, emailProved }: User,
  scope: readonly ClientScope[],
) {
  const groups = [role, ...(organizationId === null ? [] : [`org:${organizationId}`])]
  return {
    sub: String(id),
    ...(scope.includes('profile') && { preferred_username: username, name: nickname }),
    // Tools take users with one address for one user: an address that isn't proved may be another's.
    ...(scope.includes('email') && email !== null && emailProved && { email, email_verified: true }),
    ...((scope.includes('roles') || scope.includes('groups')) && { roles: [role], groups }),
  }
}
