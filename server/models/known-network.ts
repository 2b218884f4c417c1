// The networks that an account knows after a sign-in: what a network is, and for how long the account knows it.
import { type Query, sql } from '../database/sql.js'
import { networksOf } from '../requests/client-address.js'

/** Days after a sign-in for which the account knows the networks of its client address. */
const days = 30

/**
 * Returns the networks of a client address that an account knows after a sign-in, innermost first: the address or its /64,
 * and its /24 or /48.
 */
export function knowableNetworks(address: string): readonly [inner: string, outer: string] {
  const networks = networksOf(address)
  return [networks[0]!, networks.at(-1)!]
}

/** A condition: whether the row `k` of known_addresses still counts. */
export const stillKnown = sql`k.seen_at > clock_timestamp() - make_interval(days => ${days})`

/** A condition: whether the user with an id knows a network. */
export const knows = (id: Query, network: Buffer) =>
  sql`EXISTS (SELECT FROM known_addresses k WHERE k.user_id = ${id} AND k.address = ${network} AND ${stillKnown})`

/** Deletes the rows that no longer count. now() permits the use of an index; clock_timestamp() doesn't. */
export const pruneKnown = sql('known-addresses-prune')`
  DELETE FROM known_addresses WHERE seen_at < now() - make_interval(days => ${days})`
