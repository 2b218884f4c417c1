// This folder owns the RPCs of the service `auth.v1.Users`: an object of RPCs for each noun, and a file for each long rule.
// users.proto documents their meaning and refusals. access/ identifies callers and limits attempts, models/ stores, calls/
// applies the rows.

import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { SignIns } from '../access/sign-in.js'
import type { Tokens } from '../access/tokens.js'
import type { UsersRpcs } from '../calls/context.js'
import type { Renewals } from '../passwords/renewal.js'
import { refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { usernameKey } from '../rules/names.js'
import { tooLong } from '../rules/sizes.js'

/** Signs in with username and password; returns a token of a session of `pwd`. */
export function login(deps: { signIns: SignIns; renewals: Renewals; tokens: Tokens }): UsersRpcs['login'] {
  const { signIns, renewals, tokens } = deps
  return async (request, { call, device }) => {
    const { username, password } = required({ username: request.username, password: request.password })
    const key = usernameKey(username)
    if (key === '' || tooLong(password, 'password')) refuse(Reason.INVALID_CREDENTIALS)

    await using attempt = await signIns.begin('session.login', key, call, device)
    const { account } = attempt
    const { correct, renew } = await attempt.comparePassword(password)
    if (!account || !correct || account.suspended) return attempt.fail(Reason.INVALID_CREDENTIALS)
    await attempt.succeed()
    if (renew) renewals.add(account, password)
    return { token: await tokens.issue(account, 'pwd') }
  }
}
