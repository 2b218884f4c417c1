// Changes of a user's state.

import type { Message } from '@bufbuild/protobuf'
import { Reason } from '../../../proto/gen/auth/v1/reason_pb.js'
import type { Administrator } from '../../access/administrator.js'
import { closing, isAdministrator, states, undo, type Way } from '../../access/gate.js'
import type { AdministrationContext, AdministrationRpcs, Checked } from '../../calls/context.js'
import type { References } from '../../calls/steps.js'
import type { Transaction } from '../../database/database.js'
import type { AdministeredUserRow, AdministeredUsers } from '../../models/administered-user.js'
import type { Administered } from '../../models/email.js'
import type { Models } from '../../models/index.js'
import { guardedUser } from '../../models/user-state.js'
import type { Settings } from '../../process/settings.js'
import type { Registration } from '../../registration/index.js'
import { moveObject } from '../../registration/registrar.js'
import { refuse } from '../../requests/refusal.js'
import { checkRole } from '../../requests/texts.js'
import type { Role } from '../../rules/roles.js'
import type { Done } from '../change-record.js'
import { requireConfirmation } from '../confirmation.js'
import { checkEtag } from '../etag.js'
import { changeBy, type NotifyAdministrators } from '../security-notices.js'
import { toAdministeredUser } from './record.js'

type UserDone = Done & { readonly action: Administered }

/** The RPCs that change the state of a user. */
export function userStateRpcs(
  { users, administeredUsers }: Models,
  { registrar }: Registration,
  references: References,
  change: ChangeUser,
  settings: Pick<Settings, 'mailLocale'>,
) {
  const byOf = (administrator: Administrator) => ({
    notice: changeBy(administrator, settings),
    id: administrator.user?.id,
  })
  return {
    /** Makes a user active without a key, and a member of an organization. */
    async activateUser(request, context) {
      const { administrator } = context
      const id = request.organization ? (await references.organization.find(request.organization)).id : undefined
      return change(request, context, { keys: true }, async (row, t) => {
        const moved = id !== undefined && id !== row.organizationId
        if (row.active && !moved) {
          checkOpen(row, 'sign in')
          return undefined
        }
        if (row.active && administrator.desk)
          refuse(Reason.ACCESS_DENIED, { text: 'Only an administrator moves an active user.' })
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
        administrator.permitSignIn(role === 'ROLE_ADMIN')
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

    /** Opens to a user what Administration opens to holders of desk. */
    grantDesk: (request, context) =>
      change(request, context, {}, async (row, t) => {
        if (row.desk) return undefined
        if (row.role === 'ROLE_ADMIN') refuse(Reason.WRONG_STATE, { text: `${row.username} is an administrator.` })
        checkOpen(row, 'sign in to Administration')
        await users.setDesk(row.id, true, t)
        return { action: 'user.grant-desk' }
      }),

    /** Closes it again. */
    revokeDesk: (request, context) =>
      change(request, context, {}, async (row, t) => {
        if (!row.desk) return undefined
        await users.setDesk(row.id, false, t)
        return { action: 'user.revoke-desk' }
      }),

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

/** Actions that give a way in to the account of another user. */
const opening: readonly Administered[] = ['user.set-password', 'user.issue-key']

/** Changes the user that a request refers to. */
export type ChangeUser = ReturnType<typeof createChangeUser>

/**
 * Creates the change of a user under its etag. `work` returns the event, or undefined where there is nothing to change. A change
 * of a guarded user, a new password and an issued key need a reason on the database itself, and other administrators are notified.
 * Refuses with WRONG_STATE to change a deleted user, unless `deleted`; with `keys` the answer has the user's keys, if the
 * caller sees keys.
 */
export function createChangeUser({ dataKeys }: Models, references: References, notify: NotifyAdministrators) {
  return (
    request: Message & { readonly etag?: string },
    { administrator, transact }: AdministrationContext<AdministeredUserRow>,
    { keys = false, deleted = false }: { readonly keys?: boolean; readonly deleted?: boolean },
    work: (row: AdministeredUserRow, t: Transaction) => Promise<UserDone | undefined>,
  ) =>
    transact(async ({ t, record, target: before }) => {
      checkEtag(request.etag, toAdministeredUser(before, dataKeys))
      if (!deleted) checkPresent(before)
      const done = await work(before, t)
      const shown = { keys: keys && administrator.seesKeys }
      if (!done) return { user: toAdministeredUser(before, dataKeys, shown), changed: false }
      const after = await references.user.lock(before.id, t)
      const { id, role } = after
      if ([before, after].some(guardedUser.of) || opening.includes(done.action)) {
        const given = done.action === 'user.set-role' ? role : undefined
        await notify(administrator, { action: done.action, subjectId: id, role: given }, t)
      }
      await record({ ...done, subject_id: id }, after)
      return { user: toAdministeredUser(after, dataKeys, shown), changed: true }
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
function checkPresent(row: AdministeredUserRow): void {
  if (row.deletedAt) refuse(Reason.WRONG_STATE, { text: undo(row, states.deleted) })
}

/** Refuses with WRONG_STATE to open a way that the state of a user closes. */
export function checkOpen(row: AdministeredUserRow, way: Way): void {
  const [closed] = closing(row, way)
  if (closed) refuse(Reason.WRONG_STATE, { text: undo(row, closed) })
}
