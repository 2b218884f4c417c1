import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Caller } from '../access/caller.js'
import type { Access } from '../access/index.js'
import { nameOf } from '../access/provider.js'
import { passwordSessionLength } from '../access/tokens.js'
import type { OpenIdRpcs } from '../calls/context.js'
import type { Models } from '../models/index.js'
import { clientLine, ownLine } from '../models/refreshed-session.js'
import type { Settings } from '../process/settings.js'
import type { Call } from '../requests/call.js'
import { refuse } from '../requests/refusal.js'
import type { Grants } from './grants.js'
import type { IdTokens } from './id-tokens.js'
import { readRequest } from './requests.js'

/** Seconds for which a code is good. */
const codeLife = 60

const notActivated = 'Your account isn’t activated yet. Ask your organization for an activation key.'

/** The RPCs of what a client asks for. */
export function authorizeRpcs(
  { services, refreshedSessions }: Models,
  { signIns, oneTimeCodes, tokens, tokenIssuer: { issuer }, now }: Access,
  grants: Grants,
  idTokens: IdTokens,
  settings: Pick<Settings, 'name' | 'sessionDays'>,
) {
  /** Checks the one-time code of an administrator who has enrolled, as an attempt. Returns whether the session has one now. */
  async function proveSecond(
    { user, session, enrolled }: Caller,
    code: string | undefined,
    call: Call,
  ): Promise<boolean> {
    if (!enrolled || session.second) return false
    await using attempt = await signIns.begin('session.authorize', user.usernameKey, call)
    const account = await attempt.pass(attempt.account?.id === user.id)
    await oneTimeCodes.check(attempt, account, code, call)
    await attempt.succeed()
    return true
  }

  return {
    async checkAuthorization({ authorization }) {
      const { client, locationOf, errorLocation } = await readRequest(services, issuer, authorization)
      const called = { registry: nameOf(issuer, settings.name), client: client.title || client.name }
      return { issuer, ...called, errorLocation, loginRequiredLocation: locationOf({ error: 'login_required' }) }
    },

    async authorize({ authorization, oneTimeCode }, { caller, call }) {
      const { request, client, uri, scope, locationOf, errorLocation } = await readRequest(
        services,
        issuer,
        authorization,
      )
      const { nonce, codeChallenge: challenge, maxAge, idTokenHint } = request
      if (errorLocation) return { location: errorLocation }
      const { user, session } = caller
      if ((await refreshedSessions.find(user.id, ownLine(session)))?.ended) refuse(Reason.INVALID_TOKEN)
      if (!user.active) refuse(Reason.WRONG_STATE, { text: notActivated })
      // A recovery ends in a new password before others learn of it.
      if (session.method !== 'pwd') refuse(Reason.ACCESS_DENIED)
      const hint = idTokenHint ? await idTokens.read(idTokenHint) : undefined
      if (hint && hint.sub !== String(user.id)) refuse(Reason.SIGN_IN_AGAIN)
      const length = scope.includes('offline_access') ? settings.sessionDays * 86_400 : passwordSessionLength
      // With AUTH_TOKEN_TTL, the token of a sign-in can outlast what clients get of it.
      if (now() / 1000 - session.startedAt >= Math.min(length, Number(maxAge || length))) refuse(Reason.SIGN_IN_AGAIN)
      const proved = await proveSecond(caller, oneTimeCode, call)
      const second = proved || session.second ? ['otp'] : []
      const code = await grants.seal(
        'code',
        {
          userId: user.id,
          generation: user.tokenGeneration,
          line: clientLine(session),
          number: 0,
          sid: session.id,
          amr: [session.method, ...second],
          authTime: session.startedAt,
          ends: session.startedAt + length,
          client: { service: client.id, uri, scope, nonce, challenge },
        },
        codeLife,
      )
      const token = proved ? await tokens.issue(user, { ...session, second: 'otp' }, { stay: true }) : undefined
      return { location: locationOf({ code }), token }
    },
  } satisfies Partial<OpenIdRpcs>
}
