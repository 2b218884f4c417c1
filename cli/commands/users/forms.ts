// What is told of users: new ones, and changes.
import { create } from '@bufbuild/protobuf'
import { type Command, Option } from 'commander'
import { type AdministeredUser, type UserForm, UserFormSchema } from '../../../proto/gen/auth/v1/administration_pb.js'
import { isEmailAddress } from '../../../server/rules/names.js'
import { roles } from '../../../server/rules/roles.js'
import { type Api, administering, withSignIn } from '../../administration.js'
import { misuse } from '../../exit-codes.js'
import { flagOf } from '../../references.js'
import { askOrganization, askText, canAsk, confirmName, readSecret, readText, textProblem } from '../../terminal/ask.js'
import { jsonOption, say } from '../../terminal/output.js'
import { askRole } from './changes.js'
import { type Named, readUser, tellUser, userAnd, userName, withUser } from './name.js'

/** Flags of what may be changed of a user, by their names in the form; `form` is what any text of theirs must look like. */
const details = [
  { field: 'nickname', about: 'display name; the username when absent', needed: false },
  {
    field: 'state',
    about: 'code of the federative unit, such as SP',
    needed: true,
    form: { pattern: /^..$/u, say: 'Give 2 characters.' },
  },
  { field: 'city', about: 'city or town', needed: true },
  { field: 'email', about: 'e-mail address that recovery keys go to (RFC 5321)', needed: false },
  {
    field: 'dateofborn',
    about: 'date of birth, dd/MM/yyyy',
    needed: false,
    // The service takes dates of ISO 8601, too.
    form: { pattern: /^(?:\d\d\/\d\d\/\d{4}|\d{4}-\d\d-\d\d.*)$/, say: 'Give a day as dd/MM/yyyy.' },
  },
  {
    field: 'gender',
    about: 'M, F or N (not informed)',
    needed: false,
    form: { pattern: /^[MFN]$/, say: 'Give M, F or N.' },
  },
  {
    field: 'institutiontype',
    about: 'E school, D civil defense, N non-governmental, O others',
    needed: false,
    form: { pattern: /^[EDNO]$/, say: 'Give E, D, N or O.' },
  },
  { field: 'institution', about: 'name of the institution', needed: false },
] as const satisfies readonly Detail[]

interface Detail {
  readonly field: keyof UserForm
  readonly about: string
  readonly needed: boolean
  readonly form?: { readonly pattern: RegExp; readonly say: string }
}

type Details = Partial<Record<(typeof details)[number]['field'], string>>

/** Adds `auth-admin users create`, `edit` and `set-email`. */
export function addUserForms(users: Command): void {
  withDetails(withSignIn(users.command('create'), 'createUser'))
    .description('Register a user under the rules of sign-up, with a password or without.')
    .addOption(new Option('--username <name>', 'sign-in name; can’t be changed later').argParser(readText))
    .addOption(new Option('--role <role>', 'what it may do').choices(roles))
    .addOption(new Option('--password-file <file>', 'file that holds the password; - for standard input'))
    .option('--active', 'activate it at once, without a key')
    .addOption(
      new Option('--organization <organization>', 'with --active, where it belongs: id, INEP code or name').argParser(
        readText,
      ),
    )
    .addOption(new Option('--confirm <username>', 'the username, once more, for an active ROLE_ADMIN'))
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
Without a password nobody signs in as the user until it has one: by
\`users send-key\`, if it has an e-mail address, or \`users set-password\`.

Example:
  $ auth-admin users create --username '(11)98765-4321' --role ROLE_CLIENT \\
      --state SP --city Campinas --email ana@example.org`,
    )
    .action(
      administering(async (api, options: Creation) => {
        const asks = options.username === undefined && canAsk(options)
        const { active, organization, ...form } = asks ? await askForUser(api, options) : options
        const { username } = form
        if (!username) misuse('Give the user a name with --username.')
        if (!form.role) misuse(`Give the user a role with --role: ${roles.join(', ')}.`)
        const administers = form.role === 'ROLE_ADMIN' && active
        const sentence = `${username} will be an administrator.`
        const confirm = administers && (await confirmName(sentence, username, options))
        const password = options.passwordFile && (await readSecret(options.passwordFile, '--password-file'))
        const { user } = await api.createUser({
          form: create(UserFormSchema, { ...valuesOf(form), username, role: form.role, ...(password && { password }) }),
          active: active === true,
          ...(organization && { organization }),
          ...(confirm && { confirm }),
        })
        tellUser(user!, options, 'is registered.')
      }),
    )

  withDetails(withUser(withSignIn(users.command('edit'), 'updateUser')))
    .description("Change what is told of a user. An empty value clears it, where it may be absent: --gender ''.")
    .addHelpText('after', "\nExample:\n  $ auth-admin users edit '(11)98765-4321' --city Campinas --state SP")
    .action(
      administering(async (api, name: string | undefined, options: Details & Named) => {
        const user = await userName(name, options)
        const given = details.some(({ field }) => options[field] !== undefined)
        if (!given && !canAsk(options)) {
          misuse(`Say what to change: give one or more of ${details.map(flagOf).join(', ')}.`)
        }
        const now = given ? undefined : (await readUser(api, user, {})).user
        const values = now ? await askForDetails(options, now) : options
        const paths = details.flatMap(({ field }) => (values[field] === undefined ? [] : [field]))
        const { user: after, changed } = await api.updateUser({
          user,
          form: create(UserFormSchema, valuesOf(values)),
          updateMask: { paths },
          // Whoever answered questions saw this one.
          etag: now?.etag ?? '',
        })
        tellUser(after!, options, changed ? 'is saved.' : 'is like that already.')
      }),
    )

  withUser(withSignIn(users.command('set-email'), 'updateUser'))
    .description('Set the address that recovery keys go to, or remove it.')
    .argument('[address]', 'e-mail address (RFC 5321)')
    .option('--remove', 'leave the user without an address')
    .addHelpText(
      'after',
      `
Examples:
  $ auth-admin users set-email '(11)98765-4321' ana@example.org
  $ auth-admin users set-email --id 7 ana@example.org
  $ auth-admin users set-email '(11)98765-4321' --remove`,
    )
    .action(
      administering(
        async (api, first: string | undefined, second: string | undefined, options: Named & { remove?: boolean }) => {
          const [name, address] = userAnd(first, second, options)
          if (options.remove && address !== undefined) misuse('Give an address or --remove, not both.')
          const user = await userName(name, options)
          const email = options.remove ? undefined : await chooseAddress(address, options)
          const { user: after, changed } = await api.updateUser({
            user,
            form: create(UserFormSchema, email === undefined ? {} : { email }),
            updateMask: { paths: ['email'] },
          })
          const has = email === undefined ? 'has no e-mail address' : `has the e-mail address ${email}`
          tellUser(after!, options, `${has}${changed ? '' : ' already'}.`)
        },
      ),
    )
}

interface Creation extends Details, Named {
  readonly username?: string
  readonly role?: string
  readonly passwordFile?: string
  readonly active?: boolean
  readonly organization?: string
  readonly confirm?: string
}

function withDetails(command: Command): Command {
  for (const detail of details) {
    command.addOption(new Option(`${flagOf(detail)} <text>`, detail.about).argParser(readText))
  }
  return command
}

function valuesOf(values: Details): Details {
  return Object.fromEntries(details.flatMap(({ field }) => (values[field] ? [[field, values[field]]] : [])))
}

/** Asks for what no flag gives of a new user. */
async function askForUser(api: Api, options: Creation): Promise<Creation> {
  const username = await askText('Username:', { required: true })
  const role = options.role ?? (await askRole(options))
  const values = await askForDetails(options)
  if (!options.active || options.organization !== undefined || role === 'ROLE_ADMIN')
    return { ...options, ...values, username, role }
  const organization = await askOrganization(api, 'Which organization does the user belong to?')
  return { ...options, ...values, username, role, organization }
}

/** Asks for each detail that no flag gives, beginning with what there is now. */
async function askForDetails(options: Details, now?: AdministeredUser): Promise<Details> {
  say(now ? 'Enter keeps what there is, Tab edits it, Backspace empties it.' : 'Leave empty what there is none of.')
  const values: Details = { ...options }
  for (const detail of details) {
    const { field, about, needed } = detail
    values[field] ??= await askText(`${about[0]!.toUpperCase()}${about.slice(1)}:`, {
      required: needed || (field === 'nickname' && now !== undefined),
      check: text => detailProblem(detail, text),
      fallback: (field === 'email' ? now?.email : now?.record?.[field]) ?? '',
    })
  }
  return values
}

function detailProblem({ field, form }: Detail, text: string): string | undefined {
  if (text === '') return undefined
  if (field === 'email') return emailProblem(text)
  return textProblem(text) ?? (form && !form.pattern.test(text) ? form.say : undefined)
}

function emailProblem(text: string): string | undefined {
  return isEmailAddress(text) ? undefined : 'This is no valid e-mail address.'
}

async function chooseAddress(given: string | undefined, options: Named): Promise<string> {
  if (given === undefined && canAsk(options)) return askText('E-mail address:', { required: true, check: emailProblem })
  if (given === undefined) misuse('Give the e-mail address after the user, or --remove.')
  return emailProblem(given.trim()) ? misuse('The address given is no valid e-mail address.') : given.trim()
}
