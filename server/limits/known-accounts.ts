// Accounts that know a network: limits of its addresses don't refuse them.
import { LRUCache } from 'lru-cache'
import type { Attempts } from '../models/attempt.js'
import { knowableNetworks } from '../models/known-network.js'

/** Maximum accounts of a network; the ones that signed in there latest. */
const maxAccounts = 5_000

/** Milliseconds for which the accounts of a network are cached. */
const ttl = 60_000

/** The accounts that know a network. */
export type KnownAccounts = ReturnType<typeof createKnownAccounts>

/** Creates an empty cache of the accounts of networks. */
export function createKnownAccounts(attempts: Pick<Attempts, 'accountsKnowing'>) {
  const accounts = new LRUCache<string, ReadonlySet<string>>({
    maxSize: 1_000_000,
    sizeCalculation: keys => keys.size + 1,
    ttl,
    fetchMethod: async network => new Set(await attempts.accountsKnowing(network, maxAccounts)),
  })
  return {
    /** Whether an active account knows the address or its outer network. */
    async knows(address: string, usernameKey: string): Promise<boolean> {
      for (const network of knowableNetworks(address)) {
        if ((await accounts.fetch(network))?.has(usernameKey)) return true
      }
      return false
    },
  }
}
