/** What a user may be. */
export const roles = ['ROLE_ADMIN', 'ROLE_INSTITUTION', 'ROLE_CLIENT'] as const

/** The three kinds of users. */
export type Role = (typeof roles)[number]

/** The command that makes an active administrator on the database itself, for a registry that has none. */
export const makeAdministrator =
  "auth-admin users create --local --reason 'no administrator' --username NAME --confirm NAME --role ROLE_ADMIN --active " +
  '--state DF --city Brasília --password-file FILE'
