// What administrators change of a user's state: each locks the user, looks whether there is anything to do, does it with
// its event, and answers with the user as it is then.
import type { MessageInitShape } from '@bufbuild/protobuf'
import type { AdministeredUserSchema } from '../../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../../proto/gen/auth/v1/reason_pb.js'
import type { Transaction } from '../../database/connection.js'
import type { AdministeredUserRow, AdministeredUsers } from '../../models/administered-user.js'
import type { Administered } from '../../models/email.js'
import type { MasterKey } from '../../models/master-key.js'
import type { Organizations } from '../../models/organization.js'
import type { Users } from '../../models/user.js'
import { refuse } from '../../requests/refusal.js'
import type { Role } from '../../rules/roles.js'
import type { AdministrationContext, Checked, Handler } from '../context.js'
import { checkEtag } from '../etag.js'
import type { References } from '../references.js'
import type { TellAdministrators } from '../security-notices.js'
import { checkRole } from './list.js'
import { toAdministeredUser } from './record.js'

/** What changes of users are made of. */
export interface UserChangeDeps {
  references: References
  users: Users
  administeredUsers: AdministeredUsers
  organizations: Organizations
  tellAdministrators: TellAdministrators
  masterKey: MasterKey
}

/** A change that was made, for the audit log. */
export interface Done {
  readonly action: Administered
  /** What it was changed to, or what of it. */
  readonly object?: string
}

/** Makes a user active without a key, and a member of an organization. */
export function activateUser(deps: UserChangeDeps): Handler<'activateUser'> {
  const { references, users, organizations } = deps
  return async (request, context) => {
    const { administrator } = context
    const id = request.organization ? (await references.organization(request.organization)).id : undefined
    return changeUser(deps, context, request, { keys: true }, async (row, t) => {
      checkPresent(row)
      const moved = id !== undefined && id !== row.organizationId
      if (row.active && !moved) return undefined
      if (row.role === 'ROLE_ADMIN') administrator.confirm(row.username, request.confirm)
      if (row.suspended) refuse(Reason.WRONG_STATE, { text: `${row.username} is suspended: resume it first.` })
      if (moved) await checkOrganization(organizations, id, t)
      // Whoever was elsewhere before loses that.
      if (moved && (row.active || row.organizationId !== null)) await users.setOrganization(row.id, id, t)
      await users.activate(row, id ?? null, t)
      const organization = id ?? row.organizationId
      return { action: 'user.activate', ...(organization !== null && { object: `organization:${organization}` }) }
    })
  }
}

/** Shuts a user out and revokes its tokens. */
export function suspendUser(deps: UserChangeDeps): Handler<'suspendUser'> {
  return async (request, context) => {
    return changeUser(deps, context, request, {}, async (row, t) => {
      checkPresent(row)
      if (row.suspended) return undefined
      await keepAnAdministrator(deps.administeredUsers, row, t)
      await deps.users.suspend(row.id, t)
      return { action: 'user.suspend' }
    })
  }
}

/** Ends a suspension. */
export function resumeUser(deps: UserChangeDeps): Handler<'resumeUser'> {
  return async (request, context) => {
    return changeUser(deps, context, request, {}, async (row, t) => {
      checkPresent(row)
      if (!row.suspended) return undefined
      await deps.users.resume(row.id, t)
      return { action: 'user.resume' }
    })
  }
}

/** Gives a user another role and revokes its tokens. */
export function setRole(deps: UserChangeDeps): Checked<'setRole', Role> {
  return {
    check(request, { administrator }) {
      const role = checkRole('role', request.role)
      administrator.permitSignIn([role])
      return role
    },
    handle(request, context, role) {
      return changeUser(deps, context, request, { keys: true }, async (row, t) => {
        checkPresent(row)
        if (row.role === role) return undefined
        if ([row.role, role].includes('ROLE_ADMIN')) context.administrator.confirm(row.username, request.confirm)
        await keepAnAdministrator(deps.administeredUsers, row, t)
        await deps.users.setRole(row, role, t)
        return { action: 'user.set-role', object: `role:${role}` }
      })
    },
  }
}

/** Moves a user to another organization, or out of any, and revokes its tokens. */
export function setOrganization(deps: UserChangeDeps): Handler<'setOrganization'> {
  const { references, users, organizations } = deps
  return async (request, context) => {
    const id = request.organization ? (await references.organization(request.organization)).id : null
    return changeUser(deps, context, request, {}, async (row, t) => {
      checkPresent(row)
      if (row.organizationId === id) return undefined
      if (id !== null) await checkOrganization(organizations, id, t)
      await users.setOrganization(row.id, id, t)
      return { action: 'user.set-organization', object: `organization:${id ?? 'none'}` }
    })
  }
}

/** Logs a user out everywhere. */
export function revokeTokens(deps: UserChangeDeps): Handler<'revokeTokens'> {
  return async (request, context) => {
    const { user } = await changeUser(deps, context, { etag: '', ...request }, {}, async (row, t) => {
      checkPresent(row)
      await deps.users.revokeTokens(row.id, t)
      return { action: 'user.revoke-tokens' }
    })
    return { user }
  }
}

/** Shuts a user out and hides it. */
export function deleteUser(deps: UserChangeDeps): Handler<'deleteUser'> {
  return async (request, context) => {
    return changeUser(deps, context, request, {}, async (row, t) => {
      if (row.deletedAt) return undefined
      await keepAnAdministrator(deps.administeredUsers, row, t)
      await deps.users.delete(row.id, t)
      return { action: 'user.delete' }
    })
  }
}

/** Brings a deleted user back as it was. */
export function undeleteUser(deps: UserChangeDeps): Handler<'undeleteUser'> {
  return async (request, context) => {
    return changeUser(deps, context, request, {}, async (row, t) => {
      if (!row.deletedAt) return undefined
      await deps.users.undelete(row.id, t)
      return { action: 'user.undelete' }
    })
  }
}

/**
 * Locks the user that a request refers to, checks the etag, makes a change with its event, and answers with what the user is now. What
 * concerns an administrator or a password needs a reason on the database itself, and others are told of it.
 */
export async function changeUser(
  deps: Pick<UserChangeDeps, 'administeredUsers' | 'tellAdministrators' | 'masterKey'>,
  { administrator, change, target: { id } }: AdministrationContext<AdministeredUserRow>,
  request: { readonly etag: string; readonly validateOnly: boolean },
  { keys = false }: { readonly keys?: boolean },
  work: (row: AdministeredUserRow, t: Transaction) => Promise<Done | undefined>,
): Promise<{ user: MessageInitShape<typeof AdministeredUserSchema>; changed: boolean }> {
  const { administeredUsers, tellAdministrators, masterKey } = deps
  return change(request, async ({ t, record }) => {
    const before = await lockUser(administeredUsers, id, t)
    checkEtag(request.etag, toAdministeredUser(before, masterKey))
    const done = await work(before, t)
    const after = await lockUser(administeredUsers, id, t)
    if (done) {
      const { action } = done
      const role = action === 'user.set-role' && { role: after.role }
      if ([before.role, after.role].includes('ROLE_ADMIN') || action === 'user.set-password') {
        await tellAdministrators(administrator, { action, subjectId: id, ...role }, t)
      }
      await record({ ...done, subject_id: id })
    }
    return { user: toAdministeredUser(after, masterKey, { keys }), changed: done !== undefined }
  })
}

/** A user's row, which nobody else changes before the transaction ends. */
export async function lockUser(
  administeredUsers: Pick<AdministeredUsers, 'lock'>,
  id: number,
  t: Transaction,
): Promise<AdministeredUserRow> {
  return (await administeredUsers.lock(id, t)) ?? refuse(Reason.USER_NOT_FOUND, { text: `User #${id} is gone.` })
}

/** Refuses with LAST_ADMINISTRATOR when this is the last active one. Nobody else goes before the transaction ends. */
export async function keepAnAdministrator(
  administeredUsers: Pick<AdministeredUsers, 'anotherAdministrator'>,
  row: AdministeredUserRow,
  t: Transaction,
): Promise<void> {
  const administers = row.role === 'ROLE_ADMIN' && row.active && !row.suspended
  if (administers && !(await administeredUsers.anotherAdministrator(row.id, t))) refuse(Reason.LAST_ADMINISTRATOR)
}

/** Refuses with WRONG_STATE to change a deleted user. */
export function checkPresent(row: Pick<AdministeredUserRow, 'username' | 'deletedAt'>): void {
  if (row.deletedAt) refuse(Reason.WRONG_STATE, { text: `${row.username} is deleted: undelete it first.` })
}

/** Refuses with WRONG_STATE unless the organization is active; it stays so until the transaction ends. */
export async function checkOrganization(
  organizations: Pick<Organizations, 'isActive'>,
  id: number,
  t: Transaction,
): Promise<void> {
  if (await organizations.isActive(id, t)) return
  refuse(Reason.WRONG_STATE, { text: `Organization #${id} is inactive: activate it first.` })
}
