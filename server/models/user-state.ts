// The states of users that several rules ask for, each once: a state is a set of values of attributes. A user is suspended by
// `suspended` alone, and deleted by `deletedAt` alone; a deleted one is suspended.
import { snakeCase } from '../database/attributes.js'
import { sql } from '../database/sql.js'

function stateOf<V extends Readonly<Record<string, string | boolean | null>>>(where: V) {
  const values = Object.entries(where)
  const conditions = values.map(([attribute, value]) => {
    const column = `u.${snakeCase(attribute)}`
    if (value === null) return `${column} IS NULL`
    return typeof value === 'boolean' ? `${value ? '' : 'NOT '}${column}` : `${column} = '${value}'`
  })
  return {
    /** For a model. */
    where,
    /** For a statement, of a user `u`. */
    sql: sql.text(conditions.join(' AND ')),
    /** Whether a row is in it. */
    of: (row: { readonly [A in keyof V]: unknown }) => values.every(([name, value]) => row[name] === value),
  }
}

/** A user that was activated, and isn't suspended. */
export const activeUser = stateOf({ active: true, suspended: false })

/** A user that waits for its activation. */
export const inactiveUser = stateOf({ active: false, suspended: false })

/** A user that administers the registry. */
export const administratorUser = stateOf({ role: 'ROLE_ADMIN', ...activeUser.where })

/**
 * A user whose credentials and sign-ins are guarded, because Administration is open to it: a ROLE_ADMIN, active or not, or a holder
 * of desk.
 */
export const guardedUser = {
  sql: sql`(u.role = 'ROLE_ADMIN' OR u.desk)`,
  of: ({ role, desk }: { readonly role: string; readonly desk: boolean }) => role === 'ROLE_ADMIN' || desk,
}

/** A user whose provider key works as long as the keys of its organization do. */
export const providerUser = stateOf({ role: 'ROLE_INSTITUTION', ...activeUser.where })

/** A user that isn't deleted. */
export const presentUser = stateOf({ deletedAt: null })
