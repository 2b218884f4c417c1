import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { UserReference } from '../../proto/gen/auth/v1/users_pb.js'
import type { Admission } from '../access/admission.js'
import type { UsersRpc } from '../access/context.js'
import type { MasterKey } from '../models/master-key.js'
import type { User, Users } from '../models/user.js'
import { type FieldViolation, refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { usernameKey } from '../rules/names.js'
import { toUserRecord } from './user-record.js'

/** Maximum users that a service reads in one call. */
const maxReferences = 500

interface Deps {
  readonly users: Pick<Users, 'findMany'>
  readonly admission: Pick<Admission, 'takeServiceReads'>
  readonly masterKey: MasterKey
}

/** Returns the record of the caller. */
export function getMe({ masterKey }: Pick<Deps, 'masterKey'>): UsersRpc<'getMe'> {
  return async (_request, { caller }) => ({ user: toUserRecord(caller.user, caller, masterKey) })
}

/** Returns the record of a user, for services without activation keys. Only services may use the id. */
export function getUser({ masterKey }: Pick<Deps, 'masterKey'>): UsersRpc<'getUser'> {
  return {
    check({ id, username }, { call }) {
      if (id !== undefined && !call.service) malformed([{ field: 'id', message: 'Only services may use id.' }])
      if (id !== undefined && username !== undefined)
        malformed([{ field: 'id', message: 'Give id or username, not both.' }])
      if (id === undefined) required({ username })
    },
    handle: async (_request, { caller, target }) => ({ user: toUserRecord(target, caller, masterKey) }),
  }
}

/**
 * Returns the records of many users, for services, and the references without a user. Records follow the references.
 */
export function batchGetUsers({ users, admission, masterKey }: Deps): UsersRpc<'batchGetUsers'> {
  return async ({ references }, { service }) => {
    checkReferences(references)
    admission.takeServiceReads(service.name, references.length)
    const ids = references.flatMap(({ user }) => (user.case === 'id' ? [user.value] : []))
    const keys = references.flatMap(({ user }) => (user.case === 'username' ? [usernameKey(user.value)] : []))
    const found = await users.findMany(ids, keys)
    const byId = new Map(found.map(user => [user.id, user]))
    const byKey = new Map(found.map(user => [user.usernameKey, user]))
    const find = ({ user }: UserReference): User | undefined =>
      user.case === 'id' ? byId.get(user.value) : byKey.get(usernameKey(user.value ?? ''))
    return {
      users: references.flatMap(reference => {
        const user = find(reference)
        return user ? [toUserRecord(user, undefined, masterKey)] : []
      }),
      missing: references.filter(reference => !find(reference)),
    }
  }
}

function checkReferences(references: readonly UserReference[]): void {
  if (references.length > maxReferences) {
    malformed([{ field: 'references', message: `Give at most ${maxReferences} references.` }])
  }
  const wrong = references.flatMap(({ user }, index) =>
    user.case === undefined ? [{ field: `references[${index}]`, message: 'Give an id or a username.' }] : [],
  )
  if (wrong.length > 0) malformed(wrong)
}

function malformed(fields: readonly FieldViolation[]): never {
  refuse(Reason.MALFORMED_REQUEST, { fields })
}
