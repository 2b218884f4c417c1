import { createHash } from 'node:crypto'
import type { ExchangeTokenRequest } from '../../proto/gen/auth/v1/openid_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { auditContext } from '../access/caller.js'
import type { Access } from '../access/index.js'
import { ownClient } from '../access/tokens.js'
import type { OpenIdRpcs } from '../calls/context.js'
import type { Models } from '../models/index.js'
import type { ServiceRow } from '../models/service.js'
import type { Settings } from '../process/settings.js'
import type { Call } from '../requests/call.js'
import { refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { wrongField } from '../requests/wrong-fields.js'
import { claimsOf, type Grant, type Grants, type OfClient } from './grants.js'
import type { IdTokens } from './id-tokens.js'
import { findClient } from './requests.js'

const invalid = (): never => refuse(Reason.INVALID_GRANT)

/** Whether a text has the length and the characters of a verifier (RFC 7636, 4.1): a shorter one can be guessed. */
const isVerifier = (text: string) => /^[\w.~-]{43,128}$/.test(text)

const isOfClient = (grant: Grant): grant is OfClient => grant.client !== undefined

/** A client that has authenticated itself, and the id of its key; none for a client without a secret. */
interface Authenticated {
  readonly service: ServiceRow
  readonly key?: number
}

/** The RPCs of what clients and apps get. */
export function tokenRpcs(
  { audit, services, refreshedSessions }: Models,
  { serviceKeys, tokens }: Access,
  grants: Grants,
  idTokens: IdTokens,
  { tokenTtl }: Pick<Settings, 'tokenTtl'>,
) {
  /** The client of a request; undefined for an app of the registry, which has no secret. */
  async function authenticate(
    { clientId, clientSecret }: Pick<ExchangeTokenRequest, 'clientId' | 'clientSecret'>,
    call: Call,
  ): Promise<Authenticated | undefined> {
    if (clientId === ownClient && !clientSecret) return undefined
    const service = await findClient(services, clientId)
    call.client = service?.name
    const holder = clientSecret ? await serviceKeys.holderOf(clientSecret, call.address) : undefined
    if (service && holder?.name === service.name) return { service, key: holder.keyId }
    return service?.public && !clientSecret ? { service } : refuse(Reason.INVALID_CLIENT)
  }

  /** The grant of a code that this client may exchange. */
  async function codeOf(
    { code: text, redirectUri, codeVerifier }: ExchangeTokenRequest,
    by: Authenticated | undefined,
  ) {
    const code = await grants.open('code', required({ code: text }).code)
    if (!code || !by || code.client.service !== by.service.id || code.client.uri !== redirectUri) return undefined
    if (!codeVerifier) return code.client.challenge ? undefined : code
    const hash = createHash('sha256').update(codeVerifier).digest('base64url')
    return isVerifier(codeVerifier) && hash === code.client.challenge ? code : undefined
  }

  /** The grant of a refresh token that this client, or app, may exchange. */
  async function refreshTokenOf({ refreshToken }: ExchangeTokenRequest, by: Authenticated | undefined) {
    const grant = await grants.open('refresh', required({ refreshToken }).refreshToken)
    return grant?.client?.service === by?.service.id ? grant : undefined
  }

  const grantTypes: Readonly<Record<string, typeof codeOf | typeof refreshTokenOf>> = {
    authorization_code: codeOf,
    refresh_token: refreshTokenOf,
  }

  /** Whether a grant is the first one of its session at its client, however often the client asks without a prompt. */
  const isFirst = async ({ number, userId, sid, client }: Grant) =>
    number === 0 && client !== undefined && !(await refreshedSessions.hasLine(userId, client.service, sid))

  async function recordSignIn({ userId }: Grant, { name }: ServiceRow, call: Call): Promise<void> {
    const event = { ...auditContext(call), action: 'session.authorize', outcome: 'ok' } as const
    await audit.append({ ...event, subject_id: userId, object: `service:${name}` })
  }

  return {
    async exchangeToken(request, { call }) {
      const { grantType } = required({ grantType: request.grantType })
      const by = await authenticate(request, call)
      const read =
        grantTypes[grantType] ?? wrongField('grant_type', 'UNKNOWN_VALUE', 'Use authorization_code or refresh_token.')
      const presented = (await read(request, by)) ?? invalid()
      const user = (await grants.holderOf(presented)) ?? invalid()
      const first = await isFirst(presented)
      const bearer = by ? (by.key === undefined ? 'public' : 'confidential') : 'app'
      const exchanged = await grants.exchange(presented, bearer, call, by?.service.name)
      const common = { tokenType: 'Bearer', expiresIn: tokenTtl }
      if (!by || !isOfClient(exchanged)) {
        const grant = exchanged
        const session = { id: grant.sid, method: 'pwd', startedAt: grant.authTime, endsAt: grant.ends } as const
        const accessToken = await tokens.issue(user, session)
        return { ...common, accessToken, refreshToken: await grants.seal('refresh', grant) }
      }
      if (first) await recordSignIn(exchanged, by.service, call)
      const { scope, nonce } = exchanged.client
      // A client that changes its secret goes on with the new one.
      const grant: OfClient = { ...exchanged, client: { ...exchanged.client, key: by.key } }
      const accessToken = await grants.seal('access', grant, tokenTtl)
      const idToken = await idTokens.sign({
        ...claimsOf(user, scope),
        aud: by.service.name,
        auth_time: grant.authTime,
        amr: grant.amr,
        sid: grant.sid,
        nonce: presented.number === 0 ? nonce : undefined,
        at_hash: createHash('sha256').update(accessToken).digest().subarray(0, 16).toString('base64url'),
      })
      const refreshToken = scope.includes('offline_access') ? await grants.seal('refresh', grant) : undefined
      return { ...common, accessToken, scope: scope.join(' '), idToken, refreshToken }
    },

    async revokeToken(request, { call }) {
      const by = await authenticate(request, call)
      const { token } = required({ token: request.token })
      const grant = (await grants.open('refresh', token)) ?? (await grants.open('access', token))
      // What belongs to another client stays, without an error (RFC 7009, 2.2).
      if (grant && grant.client?.service === by?.service.id) await grants.revoke(grant, call, by?.service.name)
      return {}
    },

    async getUserInfo({ accessToken }) {
      const grant = await grants.open('access', required({ accessToken }).accessToken)
      const user = grant && (await grants.holderOf(grant))
      if (!user) return refuse(Reason.INVALID_TOKEN)
      return { json: JSON.stringify(claimsOf(user, grant.client.scope)) }
    },
  } satisfies Partial<OpenIdRpcs>
}
