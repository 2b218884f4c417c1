import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { type UserReference, Users as UsersService } from '../../proto/gen/auth/v1/users_pb.js'
import type { Caller } from '../access/caller.js'
import { restrictionsOf } from '../access/permissions.js'
import type { UsersRpcs } from '../calls/context.js'
import type { Limits } from '../limits/index.js'
import type { Models } from '../models/index.js'
import type { User } from '../models/user.js'
import { network } from '../requests/client-address.js'
import type { OpenPage } from '../requests/paging.js'
import { type FieldViolation, refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { checkRole } from '../requests/texts.js'
import { wrongField } from '../requests/wrong-fields.js'
import { usernameKey } from '../rules/names.js'
import { toUserRecord } from './user-record.js'

/** Default and maximum number of users of a page. */
const sizes = { usual: 500, max: 500 }

/** The RPCs that look up users and return their records. */
export function lookUpRpcs(
  { users, administeredUsers, userData, answers, dataKeys }: Models,
  { rateLimits }: Limits,
  openPage: OpenPage,
) {
  async function previousSignIn({ user, session }: Caller) {
    const signIn = await userData.previousSignIn(user.id, session.startedAt)
    if (!signIn) return undefined
    const { at, address } = signIn
    return { time: timestampFromDate(at), network: address === null ? undefined : network(address) }
  }

  async function waysBack({ user: { id, email, emailProved } }: Caller) {
    const since = await userData.answersSince(id)
    const saved = (await answers.of(id)).length
    return { email: email ?? undefined, emailProved, answers: saved, answersSince: since && timestampFromDate(since) }
  }

  return {
    /** Returns the record of the caller, and what else the request asks for. */
    async getMe({ withPreviousSignIn, withWaysBack }, { caller }) {
      const user = toUserRecord(caller.user, caller, dataKeys)
      // Half a credential of an administrator reads its record, and nothing beyond.
      if (!(withPreviousSignIn || withWaysBack) || restrictionsOf(caller).length > 0) return { user }
      return {
        user,
        previousSignIn: withPreviousSignIn ? await previousSignIn(caller) : undefined,
        waysBack: withWaysBack ? await waysBack(caller) : undefined,
      }
    },

    /** Returns the record of a user, for services without activation keys. Only services may use the id. */
    getUser: {
      check({ id, username }, { call }) {
        if (id !== undefined && !call.service)
          malformed([{ field: 'id', reason: 'NOT_PERMITTED', message: 'Only services may use id.' }])
        if (id !== undefined && username !== undefined)
          malformed([{ field: 'id', reason: 'CONFLICTING', message: 'Give id or username, not both.' }])
        if (id === undefined) required({ username })
      },
      handle: async (_request, { caller, target }) => ({ user: toUserRecord(target, caller, dataKeys) }),
    },

    /**
     * Returns the records of many users, for services, and the references without a user. Records follow the references.
     */
    async batchGetUsers({ references }, { service }) {
      checkReferences(references)
      rateLimits.takeServiceReads(service.name, references.length)
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
          return user ? [toUserRecord(user, undefined, dataKeys)] : []
        }),
        missing: references.filter(reference => !find(reference)),
      }
    },

    /** Lists the users of an organization, of a role, or both, by id, for services. Only the users returned count as read. */
    async listUsers(request, { service: { name } }) {
      const { organizationId } = request
      if (organizationId === undefined && !request.role)
        wrongField('organization_id', 'MISSING', 'Give an organization, a role or both.')
      const role = request.role ? checkRole('role', request.role) : undefined
      const page = openPage<number>(UsersService.method.listUsers, request, { sizes, owner: `service:${name}` })
      const counted = rateLimits.takeServiceReads(name, page.size)
      const rows = await administeredUsers.list({ limit: page.limit, afterId: page.after, organizationId, role })
      const { shown, ...next } = page.cut(rows, ({ id }) => id)
      rateLimits.refundServiceReads(name, Math.max(0, counted - shown.length))
      return { users: shown.map(user => toUserRecord(user, undefined, dataKeys)), ...next }
    },
  } satisfies Partial<UsersRpcs>
}

function checkReferences(references: readonly UserReference[]): void {
  const wrong = references.flatMap(({ user }, index): FieldViolation[] =>
    user.case === undefined
      ? [{ field: `references[${index}]`, reason: 'MISSING', message: 'Give an id or a username.' }]
      : [],
  )
  if (wrong.length > 0) malformed(wrong)
}

function malformed(fields: readonly FieldViolation[]): never {
  refuse(Reason.MALFORMED_REQUEST, { fields })
}
