// Registration of users and edits of their profiles, under the rules of sign-up.
import type { UserForm } from '../../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../../proto/gen/auth/v1/reason_pb.js'
import type { AdministrationRpcs, Checked } from '../../calls/context.js'
import type { Organizations } from '../../models/organization.js'
import type { Passwords } from '../../passwords/hash.js'
import type { PasswordPolicy } from '../../passwords/policy.js'
import { waiterOf } from '../../passwords/pool.js'
import type { Settings } from '../../process/settings.js'
import { type FieldViolation, refuse } from '../../requests/refusal.js'
import { checkRole } from '../../requests/texts.js'
import { readMask } from '../../requests/update-mask.js'
import { wrongFields } from '../../requests/wrong-fields.js'
import { usernameKey } from '../../rules/names.js'
import { profileFields } from '../../rules/profile.js'
import { editProfile } from '../../users/profile.js'
import { type CompleteTexts, checkFields, profileOf } from '../../users/sign-up-form.js'
import { checkFree, isTaken, takenNames } from '../../users/taken-names.js'
import { changeBy } from '../security-notices.js'
import { changingUser, checkOrganization, type UserChangeDeps } from './changes.js'
import { toAdministeredUser } from './record.js'

interface Deps extends UserChangeDeps {
  organizations: Organizations
  passwords: Passwords
  policy: PasswordPolicy
  settings: Pick<Settings, 'timeZone' | 'mailLocale'>
  now: () => number
}

/** Fields that can be changed. */
const editable = ['username', ...profileFields, 'email'] as const

/** The fields that a request changes, and their new values. */
interface Update {
  readonly mask: readonly (typeof editable)[number][]
  readonly texts: ReturnType<typeof checkTexts>['texts']
}

/** The RPCs that take the form of a user. */
export function userFormRpcs(deps: Deps) {
  const { references, users, notifyAdministrators, organizations, passwords, masterKey } = deps
  const change = changingUser(deps)
  return {
    /** Registers a user, active at once or not. */
    async createUser(request, { call, administrator, transact }) {
      const form: Partial<UserForm> = request.form ?? {}
      const { password, nickname = form.username } = form
      const given = { ...form, ...(nickname !== undefined && { nickname }) }
      const { fields, texts } = checkTexts(deps, given)
      const needed = fields.filter(({ field }) => field !== 'password' || password !== undefined)
      if (needed.length > 0) {
        // Report taken names with all other wrong fields; otherwise they show when the user is added.
        const taken = await takenNames(users, { username: texts.username ?? '', nickname: texts.nickname ?? '' })
        refuseForm([...needed, ...taken.filter(({ field }) => needed.every(other => other.field !== field))])
      }
      const role = checkRole('form.role', form.role)
      administrator.permitSignIn([role])
      const complete = texts as CompleteTexts
      const { username } = complete
      if (request.organization && !request.active) {
        wrongFields([{ field: 'organization', message: 'Only a user that is created active can belong to one.' }])
      }
      const organization = request.organization ? (await references.organization.find(request.organization)).id : null
      const becomesAdministrator = role === 'ROLE_ADMIN'
      if (becomesAdministrator && request.active) administrator.confirm(username, request.confirm)

      const key = usernameKey(username)
      const [passwordHash = ''] =
        password === undefined
          ? []
          : await passwords.hash([{ context: 'password', text: password }], waiterOf(call, key, 'administration'))
      const row = {
        ...profileOf(complete),
        passwordHash,
        securityQuestion: null,
        // Only users themselves accept terms.
        termsOfUsage: false,
        role,
      }
      return transact(async ({ t, record }) => {
        await checkFree(users, row, t)
        const id = await users.add(row, t)
        if (request.active) {
          if (organization !== null) await checkOrganization(organizations, organization, t)
          const inactive = { ...row, id, active: false, suspended: false, organizationId: null }
          await users.activate(inactive, organization, t, administrator.user?.id)
        }
        if (becomesAdministrator) await notifyAdministrators(administrator, { action: 'user.add', subjectId: id }, t)
        await record({ action: 'user.add', subject_id: id, object: `role:${row.role}` })
        return { user: toAdministeredUser(await references.user.lock(id, t), masterKey, { keys: true }) }
      }).catch(error => refuseTaken(error, () => takenNames(users, row)))
    },

    /** Changes the username, profile or e-mail address of a user. */
    updateUser: {
      check({ updateMask, form = {} as UserForm }) {
        const mask = readMask(updateMask, editable)
        const { fields, texts } = checkTexts(deps, Object.fromEntries(mask.map(field => [field, form[field]])))
        refuseForm(fields.filter(({ field }) => (mask as string[]).includes(field)))
        return { mask, texts }
      },
      async handle(request, context, { mask, texts }) {
        const masked = Object.fromEntries(mask.map(field => [field, texts[field]])) as typeof texts
        const by = changeBy(context.administrator, deps.settings)
        return change(request, context, {}, async (row, t) => {
          const changed = new Set<string>()
          // The address comes first: the sender holds an e-mail, which this discards, while it waits for a user with another name.
          if (mask.includes('email') && (texts.email ?? null) !== row.email) {
            await users.setEmail(row, texts.email ?? null, by, t)
            changed.add('email')
          }
          if (masked.username && masked.username !== row.username) {
            await checkFree(users, { username: masked.username }, t, row.id)
            await users.rename(row.id, masked.username, by, t)
            changed.add('username')
          }
          const details = profileFields.filter(field => mask.includes(field))
          for (const field of await editProfile(users, row, details, texts, t)) changed.add(field)
          if (changed.size === 0) return undefined
          const names = mask.filter(field => changed.has(field)).join(',')
          return names === 'email'
            ? { action: 'user.set-email', object: `email:${texts.email ? 'set' : 'removed'}` }
            : { action: 'user.edit', object: `fields:${names}` }
        }).catch(error => refuseTaken(error, () => takenNames(users, masked, context.target.id)))
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

/** Checks a form by the rules of sign-up. */
function checkTexts({ policy, settings, now }: Deps, { role, ...form }: Partial<UserForm>) {
  const { timeZone } = settings
  return checkFields({ ...form, roles: role === undefined ? [] : [role] }, policy, { now: new Date(now()), timeZone })
}

/** Refuses with INVALID_SIGN_UP when there are wrong fields. */
function refuseForm(wrong: readonly FieldViolation[]): void {
  if (wrong.length === 0) return
  const fields = wrong.map(({ field, message }) => ({ field: `form.${field === 'roles' ? 'role' : field}`, message }))
  refuse(Reason.INVALID_SIGN_UP, { text: fields.map(({ field, message }) => `${field}: ${message}`).join(' '), fields })
}
