import { type Command, Option } from 'commander'
import type { User } from '../server/models/user.js'
import { isEmailAddress } from '../server/names.js'
import { type Role, roles } from '../server/roles.js'
import { askChoice, askText, canAsk, readNumber, readText } from './ask.js'
import { fail, misuse } from './failure.js'
import { addLockouts } from './lockouts.js'
import { findOrganization } from './organizations.js'
import { jsonOption, printFields, printJson, printTable, say } from './output.js'
import { type Session, withRegistry } from './session.js'
import { addSetPassword } from './setpassword.js'
import { changeUser, findUser, listedJson, type Named, userJson, userName, withUser } from './user.js'

/** Adds `auth-admin users`. */
export function addUsers(program: Command): void {
  const users = program
    .command('users')
    .description('Users: look-up, activation, suspension, recovery address, password, locks')
    .addHelpText('after', '\nA user is named by its username in any spelling, by #id, or by --id.')

  users
    .command('list')
    .description('List users by id. Only --json holds every field. Passwords and answers are in neither.')
    .addOption(new Option('--role <role>', 'only this role').choices(roles))
    .addOption(new Option('--active', 'only active users').conflicts('inactive'))
    .option('--inactive', 'only users not yet activated, or suspended')
    .option('--suspended', 'only suspended users')
    .addOption(new Option('--organization <organization>', 'only members of it: id or name').argParser(readText))
    .addOption(
      new Option('--search <text>', 'only with this in username, nickname or e-mail address').argParser(readText),
    )
    .addOption(new Option('--limit <number>', 'at most so many users').argParser(readNumber(1)).default(100))
    .addOption(
      new Option('--after-id <id>', 'only ids after this one, to go on from an earlier list').argParser(readNumber(0)),
    )
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
Examples:
  $ auth-admin users list --inactive --role ROLE_INSTITUTION
  $ auth-admin users list --organization 'Escola Azul' --after-id 1200 --json`,
    )
    .action(async (options: ListOptions) => {
      const { users, json } = await withRegistry(async ({ registry }) => {
        const { role, organization, search, suspended, afterId, limit } = options
        const found = organization === undefined ? undefined : await findOrganization(registry, organization)
        const users = await registry.users.list({
          ...(role && { role }),
          ...((options.active || options.inactive) && { active: options.active === true }),
          ...(suspended && { suspended }),
          ...(found && { organizationId: found.id }),
          ...(search && { search }),
          ...(afterId !== undefined && { afterId }),
          limit,
        })
        return { users, json: options.json && (await Promise.all(users.map(user => listedJson(user, registry)))) }
      })
      if (json) return printJson(json)
      const cells = users.map(({ id, username, role, email, organizationName, ...user }) => {
        return [id, username, role.slice('ROLE_'.length), state(user), email, organizationName]
      })
      printTable(['id', 'username', 'role', 'state', 'email', 'organization'], cells, 'There are no such users.')
      const last = users.at(-1)
      if (last && users.length === options.limit) say(`There may be more: go on with --after-id ${last.id}.`)
    })

  withUser(users.command('show'))
    .description('Show a user, with the activation keys of its organization and of its own.')
    .addHelpText(
      'after',
      "\nExamples:\n  $ auth-admin users show '(11)98765-4321'\n  $ auth-admin users show --id 7 --json",
    )
    .action(async (name: string | undefined, options: Named) => {
      const wanted = await userName(name, options)
      const user = await withRegistry(async ({ registry }) => userJson(await findUser(registry, wanted), registry))
      if (options.json) return printJson(user)
      const { partnerOrganization: organization, providerActivationKey: key, active, ...rest } = user
      printFields({
        ...rest,
        active: active === 1,
        partnerOrganization: organization && `${organization.name} (#${organization.id})`,
        'partnerOrganization.activationkey': organization?.activationkey,
        providerActivationKey: key?.activationkey,
      })
    })

  withUser(users.command('activate'))
    .description('Activate a user of any role, without a key.')
    .addOption(
      new Option(
        '--organization <organization>',
        'organization to belong to, id or name; without one a ROLE_INSTITUTION can activate nobody',
      ).argParser(readText),
    )
    .addHelpText('after', "\nExample:\n  $ auth-admin users activate '(11)98765-4321' --organization 3")
    .action(async (name: string | undefined, options: Named & { organization?: string }) => {
      await changeUser(name, options, async (session, user) => {
        const chosen = await chooseOrganization(session, user, options)
        return {
          event: { action: 'user.activate', ...(chosen && { object: `organization:${chosen}` }) },
          async work(t) {
            const { users, organizations } = session.registry
            const locked = (await users.lock(user.usernameKey, t))!
            if (locked.suspended) fail(`${user.username} is suspended: run \`auth-admin users resume\` first.`)
            if (locked.active && (chosen === undefined || chosen === locked.organizationId)) return false
            if (chosen !== undefined && !(await organizations.isActive(chosen, t))) {
              fail(`Organization ${chosen} is inactive: run \`auth-admin organizations activate ${chosen}\` first.`)
            }
            await users.activate(locked, chosen ?? null, t)
            return true
          },
          done: 'is active',
        }
      })
    })

  withUser(users.command('suspend'))
    .description('Shut a user out: it can’t sign in, and all its tokens are revoked at once.')
    .addHelpText('after', "\nExample:\n  $ auth-admin users suspend '(11)98765-4321'")
    .action((name: string | undefined, options: Named) =>
      changeUser(name, options, async ({ registry: { users } }, user) => ({
        event: { action: 'user.suspend' },
        async work(t) {
          if ((await users.lock(user.usernameKey, t))?.suspended) return false
          await users.suspend(user.id, t)
          return true
        },
        done: 'is suspended',
      })),
    )

  withUser(users.command('resume'))
    .description('End a suspension. Tokens from before stay revoked.')
    .addHelpText('after', "\nExample:\n  $ auth-admin users resume '(11)98765-4321'")
    .action((name: string | undefined, options: Named) =>
      changeUser(name, options, async ({ registry: { users } }, user) => ({
        event: { action: 'user.resume' },
        async work(t) {
          if (!(await users.lock(user.usernameKey, t))?.suspended) return false
          await users.resume(user.id, t)
          return true
        },
        done: 'is not suspended',
      })),
    )

  withUser(users.command('set-email'))
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
    .action(async (first: string | undefined, second: string | undefined, options: Named & { remove?: boolean }) => {
      // With --id the only argument is the address.
      const [name, address] = options.id !== undefined && second === undefined ? [undefined, first] : [first, second]
      if (options.remove && address !== undefined) misuse('Give an address or --remove, not both.')
      const wanted = await userName(name, options)
      const email = options.remove ? null : await chooseAddress(address, options)
      await changeUser(wanted, { ...options, id: undefined }, async ({ registry: { users } }, user) => ({
        event: { action: 'user.set-email', reason: email === null ? 'removed' : 'set' },
        async work(t) {
          await users.lock(user.usernameKey, t)
          if (user.email === email) return false
          await users.setEmail(user.id, email, t)
          return true
        },
        done: email === null ? 'has no e-mail address' : `has the e-mail address ${email}`,
      }))
    })

  addSetPassword(users)

  withUser(users.command('revoke-tokens'))
    .description('Log a user out everywhere: all its tokens are revoked at once.')
    .addHelpText('after', "\nExample:\n  $ auth-admin users revoke-tokens '(11)98765-4321'")
    .action((name: string | undefined, options: Named) =>
      changeUser(name, options, async ({ registry: { users } }, user) => ({
        event: { action: 'user.revoke-tokens' },
        async work(t) {
          await users.revokeTokens(user.id, t)
          return true
        },
        done: 'is logged out everywhere',
      })),
    )

  addLockouts(users)
}

interface ListOptions {
  readonly role?: Role
  readonly active?: boolean
  readonly inactive?: boolean
  readonly suspended?: boolean
  readonly organization?: string
  readonly search?: string
  readonly limit: number
  readonly afterId?: number
  readonly json?: boolean
}

async function chooseOrganization(
  { registry }: Session,
  user: User,
  options: Named & { organization?: string },
): Promise<number | undefined> {
  if (options.organization !== undefined) return (await findOrganization(registry, options.organization)).id
  if (user.organizationId !== null) return user.organizationId
  if (user.role === 'ROLE_ADMIN') return undefined
  // Without one, a user uses the service, but its provider key activates nobody.
  if (user.active || !canAsk(options)) return undefined
  const all = await registry.organizations.list({ active: true })
  if (all.length === 0) fail('There is no active organization: run `auth-admin organizations add` first.')
  return askChoice(
    'Which organization does the user belong to?',
    all.map(({ id, name }) => ({ name, value: id })).sort((a, b) => a.name.localeCompare(b.name)),
  )
}

async function chooseAddress(given: string | undefined, options: Named): Promise<string> {
  const check = (text: string) => (isEmailAddress(text) ? undefined : 'This is no valid e-mail address.')
  if (given === undefined && canAsk(options)) return askText('E-mail address:', { required: true, check })
  if (given === undefined) misuse('Give the e-mail address after the user, or --remove.')
  return check(given.trim()) ? misuse('The address given is no valid e-mail address.') : given.trim()
}

function state({ active, suspended }: Pick<User, 'active' | 'suspended'>): string {
  return suspended ? 'suspended' : active ? 'active' : 'inactive'
}
