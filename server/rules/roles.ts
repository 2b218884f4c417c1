/** The roles of users. */
export const roles = ['ROLE_ADMIN', 'ROLE_INSTITUTION', 'ROLE_CLIENT'] as const

/** The role of a user. */
export type Role = (typeof roles)[number]

/** The command that adds an active administrator on the database itself, for a registry without one. */
export const makeAdministrator =
  "auth-admin users create --local --reason 'no administrator' --username NAME --confirm NAME --role ROLE_ADMIN --active " +
  '--state DF --city Brasília --password-file FILE'
