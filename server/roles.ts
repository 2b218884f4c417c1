/** What a user may be. */
export const roles = ['ROLE_ADMIN', 'ROLE_INSTITUTION', 'ROLE_CLIENT'] as const

/** The three kinds of users. */
export type Role = (typeof roles)[number]
