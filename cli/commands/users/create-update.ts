// Commands that create users and edit their profiles.
import { create } from '@bufbuild/protobuf'
import { Option } from 'commander'
import { UserFormSchema } from '../../../proto/gen/auth/v1/administration_pb.js'
import { optionalFields, type ProfileField, profile, requiredFields } from '../../../server/rules/profile.js'
import { named } from '../../../server/rules/remedies.js'
import { roles } from '../../../server/rules/roles.js'
import type { Api } from '../../administration.js'
import type { Command } from '../../command.js'
import { misuse } from '../../exit-codes.js'
import {
  askOrganization,
  askText,
  canAsk,
  confirmName,
  emailProblem,
  readSecret,
  readText,
} from '../../terminal/ask.js'
import { askEdits, askFields, checkOf, type Field, filled, type Values } from '../../terminal/form.js'
import { referenceTo, withRecord } from '../nouns.js'
import { type Named, printUser, readUser } from './named-user.js'
import { askRole } from './state.js'

function ofProfile(key: ProfileField): Field<ProfileField> {
  const { field, about, required } = profile[key]
  // A new user without a nickname gets its username.
  const needed = required && (key === 'nickname' ? 'when edited' : 'always')
  return { field, key, about, needed, check: checkOf(profile[key]) }
}

/** The fields of a profile, and the e-mail address; those that every user has come first. */
const fields: readonly Field<ProfileField | 'email'>[] = [
  ...requiredFields.map(ofProfile),
  { field: 'email', key: 'email', about: 'e-mail address that recovery keys go to (RFC 5321)', check: emailProblem },
  ...optionalFields.map(ofProfile),
]

/** The fields of a user that can change. */
const editedFields: readonly Field<keyof UserFields>[] = [
  { field: 'username', key: 'username', about: 'sign-in name', needed: 'when edited' },
  ...fields,
]

type UserFields = Values<'username' | ProfileField | 'email'>

/** Adds `auth-admin users create` and `edit`. */
export function addUserCreateUpdate(users: Command): void {
  users
    .command('create')
    .signIn('createUser')
    .fields(fields)
    .description('Register a user under the rules of sign-up, with or without a password.')
    .argument('[username]', 'sign-in name, as --username', readText)
    .option('--username <name>', 'sign-in name', readText)
    .addOption(new Option('--role <role>', 'role, which decides what the user may do').choices(roles))
    .option('--password-file <file>', 'file with the password; - for standard input')
    .option('--active', 'activate the user at once, without a key')
    .option(
      '--organization <organization>',
      'with --active, the organization of the user: id, INEP code or name',
      readText,
    )
    .option('--confirm <username>', 'the username again; required for an active ROLE_ADMIN')
    .json()
    .remarks(`
A user without a password can't sign in until it gets one: by \`users send-key\`,
if it has an e-mail address, or by \`users set-password\`.`)
    .examples(`users create '(11)98765-4321' --role ROLE_CLIENT \\
      --state SP --city Campinas --email ana@example.org`)
    .administers(async (api, name: string | undefined, given: Creation) => {
      const options = { ...given, username: name ?? given.username }
      const { active, organization, ...form } = canAsk(options) ? await askForUser(api, options) : options
      const { username } = form
      if (!username) misuse('Name the user: pass a username.')
      if (!form.role) misuse(`Pass the role of the user with --role: ${roles.join(', ')}.`)
      const administers = form.role === 'ROLE_ADMIN' && active
      const sentence = `${username} becomes an administrator.`
      const confirm = administers && (await confirmName(sentence, username, options))
      const password = options.passwordFile && (await readSecret(options.passwordFile, '--password-file'))
      const { user } = await api.createUser({
        form: create(UserFormSchema, {
          ...filled(fields, form),
          username,
          role: form.role,
          ...(password && { password }),
        }),
        active: active === true,
        ...(organization && { organization }),
        ...(confirm && { confirm }),
      })
      const how = named(user!.email === undefined ? 'set password' : 'send key', { USER: user!.record!.id })
      printUser(user!, options, `is registered.${password ? '' : ` It has no password yet: run ${how}.`}`)
    })

  withRecord(users.command('edit').signIn('updateUser'), 'user')
    .fields(editedFields)
    .description(
      "Change the username, the profile or the e-mail address of a user. An empty value clears an optional field: --email ''.",
    )
    .remarks(`
A former username stays reserved for its user for 30 days. The user is notified
of the change by e-mail.`)
    .examples(
      "users edit '(11)98765-4321' --city Campinas --state SP",
      "users edit '(11)98765-4321' --username ana.souza",
      'users edit 7 --email ana@example.org',
    )
    .administers(async (api, name: string | undefined, options: UserFields & Named) => {
      const user = await referenceTo('user', name, options)
      const read = async () => {
        const { record, email, etag } = (await readUser(api, user, {})).user
        return { etag, now: { ...record, email } }
      }
      const { values, ...update } = await askEdits(editedFields, options, read)
      const edited = await api.updateUser({ user, form: create(UserFormSchema, values), ...update })
      printUser(edited.user!, options, edited.changed ? 'is saved.' : 'is up to date already.')
    })
}

interface Creation extends UserFields, Named {
  readonly role?: string
  readonly passwordFile?: string
  readonly active?: boolean
  readonly organization?: string
  readonly confirm?: string
}

/** Prompts for each field of a new user without a flag; if the username has one, only for what is necessary. */
async function askForUser(api: Api, options: Creation): Promise<Creation> {
  const username = options.username ?? (await askText('Username:', { required: true }))
  const role = options.role ?? (await askRole(options))
  const necessary = fields.filter(({ needed }) => needed === 'always')
  const values = await askFields<keyof UserFields>(options.username === undefined ? fields : necessary, options)
  if (options.username !== undefined || !options.active || options.organization !== undefined || role === 'ROLE_ADMIN')
    return { ...options, ...values, username, role }
  const organization = await askOrganization(api, 'Which organization does the user belong to?')
  return { ...options, ...values, username, role, organization }
}
