/** The roles of users. */
export const roles = ['ROLE_ADMIN', 'ROLE_INSTITUTION', 'ROLE_CLIENT'] as const

/** The role of a user. */
export type Role = (typeof roles)[number]
