import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Access } from '../access/index.js'
import type { UsersRpcs } from '../calls/context.js'
import type { Account } from '../models/attempt.js'
import type { Models } from '../models/index.js'
import type { Log } from '../observability/log.js'
import type { Hashing } from '../passwords/index.js'
import { refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { usernameKey } from '../rules/names.js'
import { tooLong } from '../rules/sizes.js'

/** Signs in with username and password; returns a token of a session of `pwd`. */
export function login(
  { users }: Models,
  { passwords }: Hashing,
  { signIns, tokens }: Access,
  log: Pick<Log, 'warn'>,
): UsersRpcs['login'] {
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
    return { token: await tokens.issue(account, 'pwd', { stay: request.stay }) }
  }
}
