// Makes password hashes of another cost or scheme anew, after the sign-in that proved the password.
import type { Log } from '../observability/log.js'
import type { Passwords } from './hash.js'

/** Renews hashes in the background. */
export interface Renewals {
  /** Renews the hash of an account once a thread is idle, unless its password has changed by then. */
  add(account: { readonly id: number; readonly passwordHash: string }, password: string): void
}

export function createRenewals(deps: {
  passwords: Pick<Passwords, 'renew'>
  users: { renewPassword(id: number, before: string, after: string): Promise<void> }
  log: Pick<Log, 'warn'>
}): Renewals {
  const { passwords, users, log } = deps
  async function renew(id: number, before: string, password: string): Promise<void> {
    const after = await passwords.renew({ context: 'password', text: password })
    // Too many wait for that: the next sign-in renews it.
    if (after !== undefined) await users.renewPassword(id, before, after)
  }
  return {
    add({ id, passwordHash }, password) {
      // The answer goes out first.
      setImmediate(() => {
        renew(id, passwordHash, password).catch(error => log.warn({ err: error }, 'a hash was not renewed'))
      })
    },
  }
}
