import { type Command, Option } from 'commander'
import type { Registry } from '../server/models/definemodels.js'
import type { User } from '../server/models/user.js'
import { usernameKey } from '../server/names.js'
import { askText, canAsk, readId } from './ask.js'
import { fail, misuse } from './failure.js'
import { jsonOption, printJson, say } from './output.js'
import { type Change, type Session, withRegistry } from './session.js'

/** How a command names a user. */
export interface Named {
  readonly id?: number
  readonly json?: boolean
}

/** Adds what names a user to a command. */
export function withUser(command: Command): Command {
  return command
    .argument('[user]', 'username in any spelling, or #id')
    .addOption(new Option('--id <id>', 'id of the user, instead of a username').argParser(readId))
    .addOption(jsonOption())
}

/** The name on the command line, `#id` for an id, or what the user at the terminal answers. */
export async function userName(name: string | undefined, options: Named): Promise<string> {
  if (name !== undefined && options.id !== undefined) misuse('Name the user by username or --id, not both.')
  if (options.id !== undefined) return `#${options.id}`
  if (name !== undefined && name.trim() !== '') return name
  if (name !== undefined || !canAsk(options)) misuse('Say which user: give a username, #id or --id.')
  return askText('Which user (username or #id)?', { required: true })
}

/** The user with a username in any spelling, or `#id`. Fails when there is none. */
export async function findUser({ users }: Registry, wanted: string): Promise<User> {
  // Always an id, so that nobody can pass for another by a username of this form.
  const id = /^#(\d{1,9})$/.exec(wanted.trim())?.[1]
  const found = id === undefined ? await users.byUsername(usernameKey(wanted)) : await users.byId(Number(id))
  return found ?? fail(`There is no user ${wanted.trim()}: see \`auth-admin users list\`.`)
}

/** A change to a user. */
export interface UserChange {
  readonly event: Omit<Change, 'subject_id'>
  /** Makes it, and returns whether there was anything to do. */
  work(t: Parameters<Parameters<Session['change']>[0]>[0]): Promise<boolean>
  /** What is true of the user now, to follow its name. */
  readonly done: string
}

/** Finds a user, makes a change with its event in one transaction, and prints the user or a sentence. */
export async function changeUser(
  name: string | undefined,
  options: Named,
  plan: (session: Session, user: User) => Promise<UserChange>,
): Promise<void> {
  const wanted = await userName(name, options)
  const { user, changed, done } = await withRegistry(async session => {
    const user = await findUser(session.registry, wanted)
    const { event, work, done } = await plan(session, user)
    const changed = await session.change(async t => {
      const result = await work(t)
      return { result, ...(result && { event: { ...event, subject_id: user.id } }) }
    })
    return {
      user: await userJson(await findUser(session.registry, `#${user.id}`), session.registry),
      changed,
      done,
    }
  })
  if (options.json) printJson(user)
  else say(`User ${user.id} (${user.username}) ${done}${changed ? '' : ' already'}.`)
}

/** A user in the fields of the contract, with all that an administrator sees, and `email` and `suspended`. */
export async function userJson(user: User, { masterKey }: Pick<Registry, 'masterKey'>) {
  const [{ create, toJson }, { UserSchema }, { toUserRecord }] = await Promise.all([
    import('@bufbuild/protobuf'),
    import('../proto/gen/auth/v1/records_pb.js'),
    import('../server/users/userrecord.js'),
  ])
  const administrator = { user, admin: true }
  const record = toJson(
    UserSchema,
    create(UserSchema, toUserRecord(user, administrator, masterKey)),
  ) as unknown as UserJson
  return { ...record, ...(user.email !== null && { email: user.email }), suspended: user.suspended }
}

interface UserJson {
  id: number
  username: string
  active: number
  partnerOrganization?: { id: number; name: string; activationkey?: string }
  providerActivationKey?: { id: number; usersid: number; activationkey: string }
}

/** The same for a list, which shows no keys. */
export async function listedJson(user: User, registry: Registry) {
  const { providerActivationKey: _, partnerOrganization, ...rest } = await userJson(user, registry)
  if (!partnerOrganization) return rest
  const { activationkey: _key, ...organization } = partnerOrganization
  return { ...rest, partnerOrganization: organization }
}
