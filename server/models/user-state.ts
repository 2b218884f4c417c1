// The states of users that several rules ask for, each once: as SQL of a user `u`, and as a function of a row. A user is
// suspended by `suspended` alone, and deleted by `deleted_at` alone; a deleted one is suspended.
import { sql } from '../database/sql.js'
import type { Role } from '../rules/roles.js'

/** What says whether a user is active. */
interface State {
  readonly active: boolean
  readonly suspended: boolean
}

/** A user that was activated, and isn't suspended. */
export const active = sql`u.active AND NOT u.suspended`
export const isActive = ({ active, suspended }: State) => active && !suspended

/** A user that waits for its activation. */
export const inactive = sql`NOT u.active AND NOT u.suspended`
export const isInactive = ({ active, suspended }: State) => !active && !suspended

/** A user that administers the registry. */
export const administers = sql`u.role = 'ROLE_ADMIN' AND ${active}`
export const isAdministrator = (user: State & { readonly role: Role }) => user.role === 'ROLE_ADMIN' && isActive(user)

/** A user whose provider key works as long as the keys of its organization do. */
export const provides = sql`u.role = 'ROLE_INSTITUTION' AND ${active}`

/** A user that isn't deleted. */
export const present = sql`u.deleted_at IS NULL`
