/**
 * The keys of all advisory locks in the database of a registry, none of which another application there may use. They last
 * for a transaction. With a hash as second key, PostgreSQL keeps a lock apart from those with a single key.
 *
 * A transaction locks users first, by id, then organizations, by id, and takes these locks last. An import that looks
 * organizations up by INEP code takes those locks earlier: if that causes a deadlock, PostgreSQL rolls one transaction back,
 * and it runs again.
 */
export const advisoryKeys = {
  /** Migrations; shared: a start, or a backup. */
  migrations: 7_264_001,
  /** Storing settings of the database role. */
  settings: 7_264_002,
  /** With a hash: a skeleton of usernames. */
  usernames: 7_264_002,
  /** With a hash: a skeleton of nicknames. */
  nicknames: 7_264_003,
  /** Sealing the audit log. */
  sealing: 7_264_004,
  /** Changes that can remove an administrator. */
  administrators: 7_264_005,
  /** With a hash: an INEP code. */
  inepCodes: 7_264_006,
  /** With a hash: a kind of records that imports create with their ids. */
  keptIds: 7_264_007,
} as const
