// Renews password hashes that have another cost or scheme than new ones, after a sign-in with the right password.
import type { Log } from '../observability/log.js'
import type { Passwords } from './hash.js'

/** Renews hashes in the background. */
export interface Renewals {
  /** Renews the hash of an account when a thread is idle, unless its password has changed by then. */
  add(account: { readonly id: number; readonly passwordHash: string }, password: string): void
}

/** Creates the renewals. A failure is a line in `log`. */
export function createRenewals(deps: {
  passwords: Pick<Passwords, 'renew'>
  users: { renewPassword(id: number, before: string, after: string): Promise<void> }
  log: Pick<Log, 'warn'>
}): Renewals {
  const { passwords, users, log } = deps
  async function renew(id: number, before: string, password: string): Promise<void> {
    const after = await passwords.renew({ context: 'password', text: password })
    // Undefined when too many renewals wait; the next sign-in tries again.
    if (after !== undefined) await users.renewPassword(id, before, after)
  }
  return {
    add({ id, passwordHash }, password) {
      // After the response is written.
      setImmediate(() => {
        renew(id, passwordHash, password).catch(error => log.warn({ err: error }, 'a hash was not renewed'))
      })
    },
  }
}
