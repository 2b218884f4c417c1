// Changes of a user's state.

import type { Message } from '@bufbuild/protobuf'
import { Reason } from '../../../proto/gen/auth/v1/reason_pb.js'
import type { Administrator } from '../../access/administrator.js'
import { closing, isAdministrator, states, undo, type Way } from '../../access/gate.js'
import type { AdministrationContext, AdministrationRpcs, Checked } from '../../calls/context.js'
import type { References } from '../../calls/pipeline.js'
import type { Transaction } from '../../database/database.js'
import type { AdministeredUserRow, AdministeredUsers } from '../../models/administered-user.js'
import type { Models } from '../../models/define-models.js'
import type { Administered } from '../../models/email.js'
import type { Settings } from '../../process/settings.js'
import { moveObject, type Registrar } from '../../registration/registrar.js'
import { refuse } from '../../requests/refusal.js'
import { checkRole } from '../../requests/texts.js'
import type { Role } from '../../rules/roles.js'
import { changing, type Done } from '../change-record.js'
import { requireConfirmation } from '../confirmation.js'
import { changeBy, type NotifyAdministrators } from '../security-notices.js'
import { toAdministeredUser } from './record.js'

/** What changes of users are made of. */
export interface UserChangeDeps extends Pick<Models, 'users' | 'administeredUsers' | 'masterKey'> {
  references: References
  registrar: Registrar
  notifyAdministrators: NotifyAdministrators
}

type UserDone = Done & { readonly action: Administered }

/** The RPCs that change the state of a user. */
export function userStateRpcs(
  deps: UserChangeDeps & {
    settings: Pick<Settings, 'mailLocale'>
  },
) {
  const { references, users, registrar, administeredUsers, settings } = deps
  const byOf = (administrator: Administrator) => ({
    notice: changeBy(administrator, settings),
    id: administrator.user?.id,
  })
  const change = changingUser(deps)
  return {
    /** Makes a user active without a key, and a member of an organization. */
    async activateUser(request, context) {
      const { administrator } = context
      const id = request.organization ? (await references.organization.find(request.organization)).id : undefined
      return change(request, context, { keys: true }, async (row, t) => {
        const moved = id !== undefined && id !== row.organizationId
        if (row.active && !moved) return undefined
        if (row.role === 'ROLE_ADMIN') requireConfirmation(row.username, request.confirm)
        checkOpen(row, 'activate')
        await registrar.change({ user: row, organizationId: id, activate: true }, byOf(administrator), t)
        const organization = id ?? row.organizationId
        const former = moved && row.organizationId !== null ? `${row.organizationId}->` : ''
        const object = organization === null ? undefined : `organization:${former}${organization}`
        return { action: 'user.activate', object }
      })
    },

    /** Suspends a user and revokes its tokens. */
    suspendUser: (request, context) =>
      change(request, context, {}, async (row, t) => {
        if (row.suspended) return undefined
        await keepAnAdministrator(administeredUsers, row, t)
        await users.suspend(row.id, t)
        return { action: 'user.suspend' }
      }),

    /** Ends a suspension. */
    resumeUser: (request, context) =>
      change(request, context, {}, async (row, t) => {
        if (!row.suspended) return undefined
        await users.resume(row.id, t)
        return { action: 'user.resume' }
      }),

    /** Gives a user another role and revokes its tokens. */
    setRole: {
      check(request, { administrator }) {
        const role = checkRole('role', request.role)
        administrator.permitSignIn([role])
        return role
      },
      handle(request, context, role) {
        return change(request, context, { keys: true }, async (row, t) => {
          if (row.role === role) return undefined
          if ([row.role, role].includes('ROLE_ADMIN')) requireConfirmation(row.username, request.confirm)
          await keepAnAdministrator(administeredUsers, row, t)
          await users.setRole(row, role, t)
          return { action: 'user.set-role', object: `role:${row.role}->${role}` }
        })
      },
    } satisfies Checked<'setRole', Role>,

    /** Moves a user to another organization, or out of any, and revokes its tokens. */
    async setOrganization(request, context) {
      const id = request.organization ? (await references.organization.find(request.organization)).id : null
      return change(request, context, {}, async (row, t) => {
        if (row.organizationId === id) return undefined
        await registrar.change({ user: row, organizationId: id }, byOf(context.administrator), t)
        return { action: 'user.set-organization', object: moveObject(row, id) }
      })
    },

    /** Replaces the provider key of a user, who is notified by e-mail. */
    async rotateProviderKey(request, context) {
      const by = changeBy(context.administrator, settings)
      const { user } = await change(request, context, { keys: true }, async (row, t) => {
        const text = `${row.username} has no provider key: only an active ROLE_INSTITUTION has one.`
        if (!(await users.rotateProviderKey(row, by, t))) refuse(Reason.WRONG_STATE, { text })
        return { action: 'user.rotate-provider-key' }
      })
      return { user }
    },

    /** Logs a user out everywhere. */
    revokeTokens: (request, context) =>
      change(request, context, {}, async (row, t) => {
        await users.revokeTokens(row.id, t)
        return { action: 'user.revoke-tokens' }
      }),

    /** Deletes a user, who can be undeleted until it is erased. */
    deleteUser: (request, context) =>
      change(request, context, { deleted: true }, async (row, t) => {
        if (row.deletedAt) return undefined
        await keepAnAdministrator(administeredUsers, row, t)
        await users.delete(row.id, t)
        return { action: 'user.delete' }
      }),

    /** Restores a deleted user as it was. */
    undeleteUser: (request, context) =>
      change(request, context, { deleted: true }, async (row, t) => {
        if (!row.deletedAt) return undefined
        await users.undelete(row.id, t)
        return { action: 'user.undelete' }
      }),
  } satisfies Partial<AdministrationRpcs>
}

/**
 * Returns a function that changes the user that a request refers to. A change of an administrator or of a password needs a
 * reason on the database itself, and other administrators are notified. Refuses with WRONG_STATE to change a deleted user,
 * unless `deleted`; with `keys` the answer has the user's keys.
 */
export function changingUser(deps: Pick<UserChangeDeps, 'references' | 'notifyAdministrators' | 'masterKey'>) {
  const { references, notifyAdministrators, masterKey } = deps
  const kind = (keys: boolean) =>
    changing({
      lock: references.user.lock,
      show: (row: AdministeredUserRow) => toAdministeredUser(row, masterKey),
      async record({ t, record }, done: UserDone, before, after, administrator) {
        const [{ action }, { id, role }] = [done, after]
        if ([before.role, role].includes('ROLE_ADMIN') || action === 'user.set-password') {
          const given = action === 'user.set-role' ? role : undefined
          await notifyAdministrators(administrator, { action, subjectId: id, role: given }, t)
        }
        await record({ ...done, subject_id: id }, after)
      },
      answer: row => ({ user: toAdministeredUser(row, masterKey, { keys }) }),
    })
  return (
    request: Message & { readonly etag?: string },
    context: AdministrationContext<AdministeredUserRow>,
    { keys = false, deleted = false }: { readonly keys?: boolean; readonly deleted?: boolean },
    work: (row: AdministeredUserRow, t: Transaction) => Promise<UserDone | undefined>,
  ) =>
    kind(keys)(request, context, async (row, t) => {
      if (!deleted) checkPresent(row)
      return work(row, t)
    })
}

/** Refuses with LAST_ADMINISTRATOR when this is the last active one; no other one goes before the transaction ends. */
export async function keepAnAdministrator(
  administeredUsers: Pick<AdministeredUsers, 'anotherAdministrator'>,
  row: AdministeredUserRow,
  t: Transaction,
): Promise<void> {
  if (isAdministrator(row) && !(await administeredUsers.anotherAdministrator(row.id, t)))
    refuse(Reason.LAST_ADMINISTRATOR)
}

/** Refuses with WRONG_STATE to change a deleted user. */
export function checkPresent(row: AdministeredUserRow): void {
  if (row.deletedAt) refuse(Reason.WRONG_STATE, { text: undo(row, states.deleted) })
}

/** Refuses with WRONG_STATE to open a way that the state of a user closes. */
export function checkOpen(row: AdministeredUserRow, way: Way): void {
  const [closed] = closing(row, way)
  if (closed) refuse(Reason.WRONG_STATE, { text: undo(row, closed) })
}
