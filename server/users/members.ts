// What an active ROLE_INSTITUTION sees and changes of the members of its organization.

import { timestampFromDate, timestampFromMs } from '@bufbuild/protobuf/wkt'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { Users as UsersService } from '../../proto/gen/auth/v1/users_pb.js'
import type { Access } from '../access/index.js'
import { checkPasswordAge } from '../access/password-age.js'
import type { UsersRpcs } from '../calls/context.js'
import { tooManyAttempts } from '../limits/rate-limits.js'
import type { Models } from '../models/index.js'
import { newRecoveryKey } from '../models/mailed-key.js'
import type { User } from '../models/user.js'
import { activeUser, guardedUser } from '../models/user-state.js'
import type { Outbox } from '../outbox/index.js'
import type { OpenPage } from '../requests/paging.js'
import { refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { checkText } from '../requests/texts.js'
import { toUserRecord } from './user-record.js'

/** Default and maximum number of members of a page. */
const sizes = { usual: 50, max: 500 }

/** Seconds that a key is valid which a member of an organization issues. */
const keyLife = 86_400

/** Refuses with WRONG_STATE unless the users of an organization may issue keys. */
function checkMayIssue({ organizationMayIssueKeys }: Pick<User, 'organizationMayIssueKeys'>): void {
  if (!organizationMayIssueKeys)
    refuse(Reason.WRONG_STATE, {
      text: 'Your organization may not issue keys: ask the administrators of this registry.',
    })
}

/** Refuses with WRONG_STATE a user who can't use an issued key, or can have one mailed. */
function checkNeedsKey(user: User): void {
  if (guardedUser.of(user) || !activeUser.of(user))
    refuse(Reason.WRONG_STATE, { text: 'This user isn’t active, or only administrators issue keys to it.' })
  if (user.emailProved)
    refuse(Reason.WRONG_STATE, { text: 'This user has an e-mail address: a key is mailed there on request.' })
}

/** The RPCs of members. */
export function memberRpcs(
  { administeredUsers, users, mailedKeys, dataKeys }: Models,
  { signIns, now }: Access,
  { notifyOwner, quotas }: Outbox,
  openPage: OpenPage,
) {
  /** Usernames by id of those users that are members of the organization. */
  async function usernames(ids: readonly (number | null)[], organizationId: number) {
    const known = await users.findMany([...new Set(ids.filter(id => id !== null))], [])
    return new Map(known.filter(user => user.organizationId === organizationId).map(user => [user.id, user.username]))
  }

  return {
    /** Lists the members of the caller's organization by id. */
    async listMembers(request, { caller }) {
      // The policy admits members of an organization only.
      const organizationId = caller.user.organizationId!
      const owner = `organization:${organizationId}`
      const page = openPage<number>(UsersService.method.listMembers, request, { sizes, owner })
      const text = checkText('text', request.text)
      const rows = await administeredUsers.list({
        limit: page.limit,
        organizationId,
        afterId: page.after,
        text,
        // The record doesn't show the e-mail address.
        byEmail: false,
      })
      const { shown, ...next } = page.cut(rows, ({ id }) => id)
      const names = await usernames(
        shown.map(({ activatedBy }) => activatedBy),
        organizationId,
      )
      return {
        members: shown.map(row => {
          const { suspended, activatedAt, activatedBy } = row
          return {
            user: toUserRecord(row, caller, dataKeys),
            suspended,
            activateTime: activatedAt ? timestampFromDate(activatedAt) : undefined,
            activatedBy: activatedBy ?? undefined,
            activatedByUsername: activatedBy === null ? undefined : names.get(activatedBy),
          }
        }),
        ...next,
      }
    },

    /** Deactivates a client of the caller's organization, who is notified by e-mail. */
    deactivateMember: {
      check({ username }) {
        required({ username })
      },
      async handle(_request, { call, transact }) {
        await transact(async ({ t, record, target }) => {
          const { id, organizationId } = target
          await users.deactivate(id, t)
          // The member can export its e-mails: they omit the client address of the institution.
          const from = { address: '', acceptLanguage: call.acceptLanguage }
          await notifyOwner('member-deactivated', target, from, t)
          await record({ action: 'user.deactivate', subject_id: id, object: `organization:${organizationId}` })
        })
        return {}
      },
    },

    /** Issues a key to an active client of the caller's organization without a proved e-mail address. */
    issueMemberKey: {
      check({ username, password }) {
        required({ username, password })
      },
      async handle({ password = '' }, { call, caller: { user }, transact }) {
        checkMayIssue(user)
        checkPasswordAge(user, now(), 'A key can be issued')
        await signIns.prove('user.issue-key', password, user, call)
        const key = newRecoveryKey()
        await transact(async ({ t, record, target }) => {
          const { id, organizationId } = target
          checkMayIssue(target)
          checkNeedsKey(target)
          const wait = await quotas.issuedKeys(user.id, t)
          if (wait > 0) throw tooManyAttempts(wait, 'issuedKeys')
          await mailedKeys.issue(target, key, keyLife, t)
          await record({ action: 'user.issue-key', subject_id: id, object: `organization:${organizationId}` })
        })
        return { key, expireTime: timestampFromMs(now() + keyLife * 1000) }
      },
    },
  } satisfies Partial<UsersRpcs>
}
