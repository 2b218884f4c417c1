// Registration of users and edits of their profiles, under the rules of sign-up.

import type { UserForm } from '../../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../../proto/gen/auth/v1/reason_pb.js'
import type { AdministrationRpcs, Checked } from '../../calls/context.js'
import type { References } from '../../calls/steps.js'
import type { Models } from '../../models/index.js'
import type { Hashing } from '../../passwords/index.js'
import { waiterOf } from '../../passwords/pool.js'
import type { Settings } from '../../process/settings.js'
import {
  type AccountField,
  accountFields,
  attributesOfForm,
  type CompleteTexts,
  checkForm,
  type FormTexts,
  nameOf,
} from '../../registration/form.js'
import type { Registration } from '../../registration/index.js'
import { isTaken, takenNames } from '../../registration/name-refusals.js'
import { profileChange } from '../../registration/registrar.js'
import { type FieldViolation, refuse } from '../../requests/refusal.js'
import { checkRole } from '../../requests/texts.js'
import { readMask } from '../../requests/update-mask.js'
import { wrongField } from '../../requests/wrong-fields.js'
import { usernameKey } from '../../rules/names.js'
import { profileFields } from '../../rules/profile.js'
import { requireConfirmation } from '../confirmation.js'
import { changeBy, type NotifyAdministrators } from '../security-notices.js'
import { toAdministeredUser } from './record.js'
import type { ChangeUser } from './state.js'

/** The fields that a request changes, and their new values. */
interface Update {
  readonly mask: readonly AccountField[]
  readonly texts: FormTexts
}

/** The RPCs that take the form of a user. */
export function userCreateUpdateRpcs(
  { users, administeredUsers, formerUsernames, dataKeys }: Models,
  { passwords }: Hashing,
  { registrar, rules }: Registration,
  references: References,
  notifyAdministrators: NotifyAdministrators,
  change: ChangeUser,
  settings: Pick<Settings, 'mailLocale'>,
) {
  /** Returns taken names as wrong fields, with the holder of the username: callers of Administration may look it up. */
  async function takenBy(names: FormTexts, userId?: number): Promise<FieldViolation[]> {
    const key = usernameKey(names.username ?? '')
    const wrong = await takenNames(users, names, userId)
    return Promise.all(
      wrong.map(async each => {
        if (each.field !== 'username' || each.reason !== 'TAKEN') return each
        const holder = (await administeredUsers.find({ usernameKey: key })) ?? (await formerUsernames.holder(key))
        if (!holder) return each
        const has = usernameKey(holder.username) === key ? 'has this one' : 'had this one in the last 30 days'
        return { ...each, message: `Choose another username: user ${holder.id} ${has}.` }
      }),
    )
  }

  async function checkNew(form: Partial<UserForm>): Promise<CompleteTexts> {
    const { password, role = '', nickname = form.username } = form
    const fields = [...accountFields, ...(password === undefined ? [] : ['password' as const]), 'roles' as const]
    const { wrong, texts } = checkForm({ ...form, nickname, roles: role === '' ? [] : [role] }, fields, rules)
    if (wrong.length > 0) {
      // Report taken names with all other wrong fields; otherwise they show when the user is added.
      const taken = await takenBy(texts)
      refuseForm([...wrong, ...taken.filter(({ field }) => wrong.every(other => other.field !== field))])
    }
    return texts as CompleteTexts
  }

  return {
    /** Registers a user, active at once or not. */
    async createUser(request, { call, administrator, transact }) {
      const form: Partial<UserForm> = request.form ?? {}
      const complete = await checkNew(form)
      const { username } = complete
      const role = checkRole('form.role', form.role)
      administrator.permitSignIn(role === 'ROLE_ADMIN')
      if (request.organization && !request.active) {
        wrongField('organization', 'CONFLICTING', 'Only a user that is created active can belong to one.')
      }
      const organizationId = request.organization ? (await references.organization.find(request.organization)).id : null
      const becomesAdministrator = role === 'ROLE_ADMIN'
      if (becomesAdministrator && request.active) requireConfirmation(username, request.confirm)

      const given = form.password === undefined ? [] : [{ context: 'password', text: form.password } as const]
      const waiter = waiterOf(call, usernameKey(username), 'administration')
      const [passwordHash = ''] = given.length > 0 ? await passwords.hash(given, waiter) : []
      const user = {
        ...attributesOfForm(complete),
        passwordHash,
        securityQuestion: null,
        // Only users themselves accept terms.
        termsOfUsage: false,
        role,
        active: request.active,
        activatedBy: request.active ? (administrator.user?.id ?? null) : null,
        organizationId,
      }
      return transact(async ({ t, record }) => {
        const id = await registrar.add(user, t)
        if (becomesAdministrator) await notifyAdministrators(administrator, { action: 'user.add', subjectId: id }, t)
        const added = await references.user.lock(id, t)
        await record({ action: 'user.add', subject_id: id, object: `role:${role}` }, added)
        return { user: toAdministeredUser(added, dataKeys, { keys: true }) }
      }).catch(error => refuseTaken(error, () => takenBy(complete)))
    },

    /** Changes the username, profile or e-mail address of a user. */
    updateUser: {
      check({ updateMask, form }, { administrator }) {
        const mask = readMask(updateMask, accountFields, nameOf)
        if (administrator.desk && mask.some(field => field !== 'email'))
          refuse(Reason.ACCESS_DENIED, { text: 'A holder of desk changes nothing but the e-mail address.' })
        const { wrong, texts } = checkForm(form ?? {}, mask, rules)
        refuseForm(wrong)
        return { mask, texts }
      },
      async handle(request, context, { mask, texts }) {
        const { administrator, target } = context
        return change(request, context, {}, async (user, t) => {
          const { changed, details } = profileChange(
            user,
            profileFields.filter(field => mask.includes(field)),
            texts,
          )
          const username = texts.username === user.username ? undefined : texts.username
          const email =
            mask.includes('email') && (texts.email ?? null) !== user.email ? (texts.email ?? null) : undefined
          const fields = [...(username ? ['username'] : []), ...changed, ...(email === undefined ? [] : ['email'])]
          if (fields.length === 0) return undefined
          await registrar.change({ user, username, details, email }, { notice: changeBy(administrator, settings) }, t)
          const names = mask
            .filter(field => fields.includes(field))
            .map(nameOf)
            .join(',')
          return names === 'email'
            ? { action: 'user.set-email', object: `email:${texts.email ? 'set' : 'removed'}` }
            : { action: 'user.edit', object: `fields:${names}` }
        }).catch(error => refuseTaken(error, () => takenBy(texts, target.id)))
      },
    } satisfies Checked<'updateUser', Update>,
  } satisfies Partial<AdministrationRpcs>
}

/** Refuses when a name is taken; else throws the error. */
async function refuseTaken(error: unknown, taken: () => Promise<FieldViolation[]>): Promise<never> {
  if (!isTaken(error)) throw error
  refuseForm(await taken())
  throw error
}

/** Refuses with INVALID_SIGN_UP when there are wrong fields. */
function refuseForm(wrong: readonly FieldViolation[]): void {
  if (wrong.length === 0) return
  const fields = wrong.map(each => ({ ...each, field: `form.${each.field === 'roles' ? 'role' : each.field}` }))
  refuse(Reason.INVALID_SIGN_UP, { text: fields.map(({ field, message }) => `${field}: ${message}`).join(' '), fields })
}
