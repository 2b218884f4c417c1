/**
 * The package `auth-registry-client`: what a service needs of the registry. It owns the client’s side of the feed of changes,
 * and verification without a call; it imports the generated code and its dependencies, and no code of the server.
 */
import type { Client } from '@connectrpc/connect'
import { ChangeKind, Changes } from '../gen/auth/v1/changes_pb.js'
import { Users } from '../gen/auth/v1/users_pb.js'
import { follow } from './feed.js'
import { clientOf, completed, type RegistryOptions } from './registry.js'

export { Changes } from '../gen/auth/v1/changes_pb.js'
export type { User } from '../gen/auth/v1/records_pb.js'
export { Users } from '../gen/auth/v1/users_pb.js'
export type { RegistryOptions } from './registry.js'
export * from './verify.js'

/** Changes of records, for a copy of them. */
export interface UsersChange {
  /**
   * Whether to read anew every user that the copy holds, and to look for those that it lacks: at the first start, and when the
   * registry can’t tell what changed since the cursor.
   */
  readonly all: boolean
  /** Ids of users whose record was created, changed or deleted, at most 1,000; a user that isn’t found was deleted. */
  readonly ids: readonly number[]
  /** Ids of organizations that changed; the records of their members show them. */
  readonly organizationIds: readonly number[]
  /** Where the next change begins. Store it with the copy, after the change was applied. */
  readonly cursor: string
}

/** Options of `watchUsers`. */
export interface WatchOptions {
  /** The cursor of the last change that was applied; absent: none, so that the first change has `all`. */
  readonly cursor?: string | undefined
}

/** A watch that goes on until it is closed. */
export interface Watch {
  /** Ends the watch; resolves when `onChange` isn’t running any more. */
  close(): Promise<void>
}

/** The registry, as one service sees it. */
export interface Registry {
  /** Calls of `auth.v1.Users`, with the key of this service. */
  readonly users: Client<typeof Users>
  /** Calls of `auth.v1.Changes`; `watchUsers` and a verifier call it for you. */
  readonly changes: Client<typeof Changes>
  /**
   * Calls `onChange` for each change of users, one after the other. Each change is delivered at least once: again after
   * `onChange` rejected, and after a restart with a cursor from before it. Needs a key with `users.watch`.
   */
  watchUsers(onChange: (change: UsersChange) => void | Promise<void>, options?: WatchOptions): Watch
}

/** Creates a client of the registry. It connects when it is used. */
export function createRegistry(options: RegistryOptions): Registry {
  const registry = completed(options)
  const changes = clientOf(Changes, registry)
  return {
    users: clientOf(Users, registry),
    changes,
    watchUsers(onChange, { cursor = '' } = {}) {
      const closing = new AbortController()
      const following = follow({
        changes,
        kind: ChangeKind.USERS,
        cursor,
        signal: closing.signal,
        onWarning: registry.onWarning,
        async onPage({ snapshot, userIds: ids, organizationIds, cursor }) {
          const all = snapshot !== undefined
          if (all || ids.length > 0 || organizationIds.length > 0) await onChange({ all, ids, organizationIds, cursor })
          return cursor
        },
      })
      return {
        async close() {
          closing.abort()
          await following
        },
      }
    },
  }
}
