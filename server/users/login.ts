// This folder owns the RPCs of the service `auth.v1.Users`: an object of RPCs for each noun, and a file for each long rule.
// users.proto documents their meaning and refusals. access/ identifies callers and limits attempts, models/ stores, calls/
// applies the rows.

import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { SignIns } from '../access/sign-in.js'
import type { Tokens } from '../access/tokens.js'
import type { UsersRpcs } from '../calls/context.js'
import type { Account } from '../models/attempt.js'
import type { Users } from '../models/user.js'
import type { Log } from '../observability/log.js'
import type { Passwords } from '../passwords/hash.js'
import { refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { usernameKey } from '../rules/names.js'
import { tooLong } from '../rules/sizes.js'

/** Signs in with username and password; returns a token of a session of `pwd`. */
export function login(deps: {
  readonly signIns: SignIns
  readonly tokens: Tokens
  readonly passwords: Pick<Passwords, 'renew'>
  readonly users: Pick<Users, 'renewPassword'>
  readonly log: Pick<Log, 'warn'>
}): UsersRpcs['login'] {
  const { signIns, tokens, passwords, users, log } = deps

  /** Renews a hash of another cost or scheme when a thread is idle, unless the password has changed by then. */
  async function renewHash({ id, passwordHash }: Account, text: string): Promise<void> {
    const renewed = await passwords.renew({ context: 'password', text })
    // Undefined when too many renewals wait; the next sign-in tries again.
    if (renewed !== undefined) await users.renewPassword(id, passwordHash, renewed)
  }

  return async (request, { call, device }) => {
    const { username, password } = required({ username: request.username, password: request.password })
    const key = usernameKey(username)
    if (key === '' || tooLong(password, 'password')) refuse(Reason.INVALID_CREDENTIALS)

    await using attempt = await signIns.begin('session.login', key, call, device)
    const { correct, renew } = await attempt.comparePassword(password)
    const account = await attempt.enter(correct)
    const warn = (err: unknown) => log.warn({ err }, 'a hash was not renewed')
    // After the response is written.
    if (renew) setImmediate(() => renewHash(account, password).catch(warn))
    return { token: await tokens.issue(account, 'pwd') }
  }
}
