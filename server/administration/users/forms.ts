// Registration of users and edits of their profiles, under the rules of sign-up.
import { Administration as AdministrationService, type UserForm } from '../../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../../proto/gen/auth/v1/reason_pb.js'
import { brokenConstraint } from '../../database/failures.js'
import type { UserDetails } from '../../models/user.js'
import type { Passwords } from '../../passwords/hash.js'
import type { PasswordPolicy } from '../../passwords/policy.js'
import { waiterOf } from '../../passwords/pool.js'
import type { Settings } from '../../process/settings.js'
import { type FieldViolation, refuse } from '../../requests/refusal.js'
import { checkRole } from '../../requests/texts.js'
import { wrongFields } from '../../requests/wrong-fields.js'
import { nicknameKey, usernameKey } from '../../rules/names.js'
import { takenNames } from '../../users/sign-up.js'
import { checkSignUp, formatDateOfBirth, profileOf } from '../../users/sign-up-form.js'
import type { Checked, Handler } from '../context.js'
import { readMask } from '../update-mask.js'
import { changeUser, checkOrganization, lockUser, type UserChangeDeps } from './changes.js'
import { toAdministeredUser } from './record.js'

interface Deps extends UserChangeDeps {
  passwords: Passwords
  policy: PasswordPolicy
  settings: Pick<Settings, 'timeZone' | 'mailLocale'>
  now: () => number
}

/** Fields that can be changed, each beside its attribute. */
const attributes = {
  nickname: 'nickname',
  dateofborn: 'dateOfBirth',
  gender: 'gender',
  state: 'state',
  city: 'city',
  institutiontype: 'institutionType',
  institution: 'institution',
  email: 'email',
} as const satisfies { [K in keyof UserForm]?: string }

const editable = Object.keys(attributes) as (keyof typeof attributes)[]

/** Registers a user, active at once or not. */
export function createUser(deps: Deps): Handler<'createUser'> {
  const { references, users, administeredUsers, organizations, passwords, masterKey } = deps
  return async (request, { call, administrator, create }) => {
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
    const username = texts.username!
    const shownName = texts.nickname!
    if (request.organization && !request.active) {
      wrongFields([{ field: 'organization', message: 'Only a user that is created active can belong to one.' }])
    }
    const organization = request.organization ? (await references.organization(request.organization)).id : null
    const becomesAdministrator = role === 'ROLE_ADMIN'
    if (becomesAdministrator && request.active) administrator.confirm(username, request.confirm)

    const key = usernameKey(username)
    const [passwordHash = ''] =
      password === undefined
        ? []
        : await passwords.hash([{ context: 'password', text: password }], waiterOf(call, key, 'administration'))
    const row = {
      ...profileOf({ ...texts, username, nickname: shownName, state: texts.state!, city: texts.city! }),
      passwordHash,
      securityQuestion: null,
      // Only users themselves accept terms.
      termsOfUsage: false,
      role,
    }
    return create(AdministrationService.method.createUser, request, async ({ t, record }) => {
      const alike = await users.lookalikes(row, t)
      if (alike.username || alike.nickname) throw new Taken()
      const id = await users.add(row, t)
      if (request.active) {
        if (organization !== null) await checkOrganization(organizations, organization, t)
        const inactive = { ...row, id, active: false, suspended: false, organizationId: null }
        await users.activate(inactive, organization, t, administrator.user?.id)
      }
      if (becomesAdministrator) await deps.notifyAdministrators(administrator, { action: 'user.add', subjectId: id }, t)
      await record({ action: 'user.add', subject_id: id, object: `role:${row.role}` })
      return { user: toAdministeredUser(await lockUser(administeredUsers, id, t), masterKey, { keys: true }) }
    }).catch(error => refuseTaken(error, () => takenNames(users, row)))
  }
}

/** The fields that a request changes, and their new values. */
interface Update {
  readonly mask: readonly (typeof editable)[number][]
  readonly texts: ReturnType<typeof checkTexts>['texts']
}

/** Changes the profile or e-mail address of a user. */
export function updateUser(deps: Deps): Checked<'updateUser', Update> {
  const { users } = deps
  return {
    check({ updateMask, form = {} as UserForm }) {
      const mask = readMask(updateMask, editable)
      const { fields, texts } = checkTexts(deps, Object.fromEntries(mask.map(field => [field, form[field]])))
      refuseForm(fields.filter(({ field }) => (mask as string[]).includes(field)))
      return { mask, texts }
    },
    async handle(request, context, { mask, texts }) {
      let wanted: { username: string; nickname: string } | undefined
      return changeUser(deps, context, request, {}, async (row, t) => {
        const values = { ...texts, dateofborn: texts.dateofborn && formatDateOfBirth(texts.dateofborn) }
        const changed = mask.filter(field => (values[field] ?? null) !== row[attributes[field]])
        if (changed.length === 0) return undefined
        const details = changed.flatMap(field =>
          field === 'nickname' || field === 'email' ? [] : [[attributes[field], texts[field] ?? null]],
        )
        const { nickname } = texts
        if (changed.includes('nickname') && nickname) {
          wanted = { username: row.username, nickname }
          if ((await users.lookalikes(wanted, t)).nickname) throw new Taken()
        }
        const name = wanted && { nickname: wanted.nickname, nicknameKey: nicknameKey(wanted.nickname) }
        if (changed.includes('email')) {
          const change = {
            address: context.administrator.auditContext.address ?? 'auth-admin',
            locale: deps.settings.mailLocale,
          }
          await users.setEmail(row, texts.email ?? null, change, t)
        }
        await users.edit(row.id, { ...(Object.fromEntries(details) as UserDetails), ...(name && { name }) }, t)
        return changed.join() === 'email'
          ? { action: 'user.set-email', object: `email:${texts.email ? 'set' : 'removed'}` }
          : { action: 'user.edit', object: `fields:${changed.join(',')}` }
      }).catch(error =>
        refuseTaken(error, async () =>
          (await takenNames(users, wanted ?? {})).filter(({ field }) => field === 'nickname'),
        ),
      )
    },
  }
}

/** A name is taken, as the transaction sees it; after it ends, `takenNames` says which. */
class Taken extends Error {}

/** Refuses when a name is taken; else throws the error. */
async function refuseTaken(error: unknown, taken: () => Promise<FieldViolation[]>): Promise<never> {
  if (!(error instanceof Taken) && !brokenConstraint(error)?.startsWith('users_')) throw error
  refuseForm(await taken())
  throw error
}

/** Checks a form by the rules of sign-up, with the fields that administrators don't set filled in. */
function checkTexts({ policy, settings, now }: Deps, { role, ...form }: Partial<UserForm>) {
  const absent = { securityquestion: undefined, securityanswer: undefined }
  const request = { ...absent, ...form, termsofusage: true, roles: role === undefined ? [] : [role] }
  return checkSignUp(request as Parameters<typeof checkSignUp>[0], policy, {
    now: new Date(now()),
    timeZone: settings.timeZone,
  })
}

/** Refuses with INVALID_SIGN_UP when there are wrong fields. */
function refuseForm(wrong: readonly FieldViolation[]): void {
  if (wrong.length === 0) return
  const fields = wrong.map(({ field, message }) => ({ field: `form.${field === 'roles' ? 'role' : field}`, message }))
  refuse(Reason.INVALID_SIGN_UP, { text: fields.map(({ field, message }) => `${field}: ${message}`).join(' '), fields })
}
