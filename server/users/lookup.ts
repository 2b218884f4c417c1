import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { UserReference } from '../../proto/gen/auth/v1/users_pb.js'
import type { Admission } from '../access/admission.js'
import type { UsersRpc } from '../access/context.js'
import { restrictionsOf } from '../access/permissions.js'
import type { MasterKey } from '../models/master-key.js'
import type { User, Users } from '../models/user.js'
import type { UserData } from '../models/user-data.js'
import { network } from '../requests/client-address.js'
import { type FieldViolation, refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { usernameKey } from '../rules/names.js'
import { toUserRecord } from './user-record.js'

/** Maximum users that a service reads in one call. */
const maxReferences = 500

interface Deps {
  readonly userData: Pick<UserData, 'previousSignIn'>
  readonly users: Pick<Users, 'findMany'>
  readonly admission: Pick<Admission, 'takeServiceReads'>
  readonly masterKey: MasterKey
}

/** Returns the record of the caller, and its previous sign-in if the request asks for it. */
export function getMe({ masterKey, userData }: Pick<Deps, 'masterKey' | 'userData'>): UsersRpc<'getMe'> {
  return async ({ withPreviousSignIn }, { caller }) => {
    const user = toUserRecord(caller.user, caller, masterKey)
    // Half a credential of an administrator reads its record, and not where it signs in.
    if (!withPreviousSignIn || restrictionsOf(caller).length > 0) return { user }
    const signIn = await userData.previousSignIn(caller.user.id, caller.session.startedAt)
    if (!signIn) return { user }
    const { at, address } = signIn
    return {
      user,
      previousSignIn: { time: timestampFromDate(at), ...(address !== null && { network: network(address) }) },
    }
  }
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
export function batchGetUsers({ users, admission, masterKey }: Omit<Deps, 'userData'>): UsersRpc<'batchGetUsers'> {
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
