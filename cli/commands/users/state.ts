// Commands that change the state and the permissions of a user.
import { Option } from 'commander'
import type { AdministeredUser } from '../../../proto/gen/auth/v1/administration_pb.js'
import { type Role, roles } from '../../../server/rules/roles.js'
import type { Api } from '../../administration.js'
import type { Command } from '../../command.js'
import { misuse } from '../../exit-codes.js'
import { askChoice, askOrganization, canAsk, confirm, confirmName, readText } from '../../terminal/ask.js'
import { printJson, say } from '../../terminal/output.js'
import { addDelete } from './delete.js'
import { changeConfirmed, type Named, printUser, readUser, userAnd, userName, withUser } from './name.js'

type Confirmed = Named & { readonly confirm?: string }
type Asked = Named & { readonly yes?: boolean }

const confirmOption = () =>
  new Option('--confirm <username>', 'the username again; required to add or remove an administrator')

/** Adds the commands that change the state and the permissions of a user. */
export function addUserState(users: Command): void {
  withUser(users.command('activate').signIn('activateUser'))
    .description('Activate a user of any role, without a key.')
    .option(
      '--organization <organization>',
      'organization of the user: id, INEP code or name; without one, a ROLE_INSTITUTION can’t activate other users',
      readText,
    )
    .addOption(confirmOption())
    .remarks('Without --organization, the user stays in its organization, or in none.')
    .examples("users activate '(11)98765-4321' --organization 3")
    .administers(async (api, name: string | undefined, options: Confirmed & { organization?: string }) => {
      const { reference, user: found } = await readUser(api, name, options)
      const { username = '', role, active } = found.record!
      const organization = await chooseOrganization(api, found, options)
      const makes = role === 'ROLE_ADMIN' && (active !== 1 || organization !== undefined)
      const request = { user: reference, organization, etag: found.etag }
      const sentence = `${username} becomes an administrator.`
      const validate = (confirm: string) => api.activateUser({ ...request, confirm, validateOnly: true })
      const confirmed = makes && (await confirmName(sentence, username, options, validate))
      const { user, changed } = await api.activateUser({ ...request, ...(confirmed && { confirm: confirmed }) })
      printUser(
        user!,
        options,
        changed ? 'is active. Its tokens say so from the next sign-in or refresh on.' : 'is active already.',
      )
    })

  withUser(users.command('suspend').signIn('suspendUser'))
    .description('Suspend a user: it can’t sign in, and all its tokens are revoked at once.')
    .yes()
    .examples("users suspend '(11)98765-4321'")
    .administers(async (api, name: string | undefined, options: Asked) => {
      const { user, changed } = await changeConfirmed(
        api,
        name,
        options,
        who => `${who} can no longer sign in, and its tokens are revoked at once. Suspend it?`,
        api.suspendUser,
      )
      printUser(user!, options, `is suspended${changed ? '' : ' already'}.`)
    })

  withUser(users.command('resume').signIn('resumeUser'))
    .description('End a suspension. Earlier tokens stay revoked.')
    .examples("users resume '(11)98765-4321'")
    .administers(async (api, name: string | undefined, options: Named) => {
      const { user, changed } = await api.resumeUser({ user: await userName(name, options) })
      printUser(user!, options, changed ? 'is no longer suspended.' : 'is not suspended.')
    })

  withUser(users.command('set-role').signIn('setRole'))
    .description('Change the role of a user. It signs the user out everywhere.')
    .argument('[role]', roles.join(', '))
    .addOption(confirmOption())
    .yes()
    .examples("users set-role '(11)98765-4321' ROLE_INSTITUTION", 'users set-role ana ROLE_ADMIN --confirm ana')
    .administers(async (api, first: string | undefined, second: string | undefined, options: Confirmed & Asked) => {
      const [name, given] = userAnd(first, second, options)
      const { reference, user: found } = await readUser(api, name, options)
      const { username = '', role: before } = found.record!
      const role = given ?? (await askRole(options))
      const final = role !== before && [role, before].includes('ROLE_ADMIN')
      const sentence = `${username} becomes a ${role} instead of a ${before}, and is signed out everywhere.`
      const request = { user: reference, role, etag: found.etag }
      const validate = (confirm: string) => api.setRole({ ...request, confirm, validateOnly: true })
      const confirmed = final && (await confirmName(sentence, username, options, validate))
      if (!final && role !== before)
        await confirm(`${sentence} Continue?`, options, () => api.setRole({ ...request, validateOnly: true }))
      const { user, changed } = await api.setRole({ ...request, ...(confirmed && { confirm: confirmed }) })
      printUser(user!, options, `is a ${role}${changed ? '' : ' already'}.`)
    })

  withUser(users.command('set-organization'))
    .description('Move a user to another organization. It signs the user out everywhere.')
    .argument('[organization]', 'id, INEP code or name')
    .option('--none', 'leave the user without an organization')
    .yes()
    .examples("users set-organization '(11)98765-4321' 'Escola Azul'", 'users set-organization 7 --none')
    .administers(
      async (api, first: string | undefined, second: string | undefined, options: Asked & { none?: boolean }) => {
        const [name, given] = userAnd(first, second, options)
        if (options.none && given !== undefined) misuse('Pass an organization or --none, not both.')
        if (!options.none && given === undefined && !canAsk(options)) {
          misuse('Pass the organization after the user, or --none.')
        }
        const { reference, user: found } = await readUser(api, name, options)
        const { username, partnerOrganization: before } = found.record!
        const organization = options.none ? '' : (given ?? (await askOrganization(api, 'To which organization?')))
        const from = before ? ` from ${before.name}` : ''
        const request = { user: reference, organization, etag: found.etag }
        await confirm(`${username} is moved${from}, and signed out everywhere. Continue?`, options, () =>
          api.setOrganization({ ...request, validateOnly: true }),
        )
        const { user, changed } = await api.setOrganization(request)
        const now = user!.record!.partnerOrganization
        const where = now ? `belongs to ${now.name} (#${now.id})` : 'belongs to no organization'
        printUser(user!, options, `${where}${changed ? '' : ' already'}.`)
      },
    )

  withUser(users.command('rotate-provider-key'))
    .description(
      'Replace the provider key of a user, and print the new one. The current key stops working at once. The user is notified by e-mail.',
    )
    .yes()
    .examples("users rotate-provider-key '(11)98765-4321'")
    .administers(async (api, name: string | undefined, options: Asked) => {
      const { user } = await changeConfirmed(
        api,
        name,
        options,
        who => `The provider key of ${who} stops working at once. Replace it?`,
        api.rotateProviderKey,
      )
      const { activationkey } = user!.record!.providerActivationKey!
      printUser(user!, options, `has a new provider key: ${activationkey}`)
    })

  withUser(users.command('revoke-tokens'))
    .description('Sign a user out everywhere: all its tokens are revoked at once.')
    .yes()
    .examples("users revoke-tokens '(11)98765-4321'")
    .administers(async (api, name: string | undefined, options: Asked) => {
      const { user } = await changeConfirmed(
        api,
        name,
        options,
        who => `${who} has to sign in again everywhere. Sign it out?`,
        ({ user, validateOnly }) => api.revokeTokens({ user, validateOnly }),
      )
      printUser(user!, options, 'is signed out everywhere.')
    })

  withUser(users.command('clear-answers').signIn('clearAnswers'))
    .description('Remove the answers of a user to security questions, so that no one signs in by them.')
    .yes()
    .remarks(`
It also removes answers that don't count yet and the answer to the question that
the user entered at sign-up. The user gets an e-mail about it, and can save new
answers. Open sessions stay: \`users revoke-tokens\` ends them.`)
    .examples("users clear-answers '(11)98765-4321'")
    .administers(async (api, name: string | undefined, options: Asked) => {
      const { user, cleared } = await changeConfirmed(
        api,
        name,
        options,
        who => `No one can sign in as ${who.replace(/^U/, 'u')} by answers to security questions. Remove them?`,
        ({ user, validateOnly }) => api.clearAnswers({ user, validateOnly }),
      )
      const { id, username } = user!.record!
      if (options.json) printJson({ id, username, cleared })
      else if (cleared === 0) say(`User ${id} (${username}) has no answers to security questions.`)
      else say(`The answers of user ${id} (${username}) to security questions are removed: ${cleared}.`)
    })

  withUser(users.command('send-key').signIn('sendRecoveryKey'))
    .description('Mail a recovery key to the address of a user. It is valid for 15 minutes.')
    .examples("users send-key '(11)98765-4321'")
    .administers(async (api, name: string | undefined, options: Named) => {
      const { reference, user } = await readUser(api, name, options)
      const { id, username } = user.record!
      const { email } = await api.sendRecoveryKey({ user: reference })
      if (options.json) printJson({ id, username, email })
      else say(`A recovery key for user ${id} (${username}) is queued for ${email}.`)
    })

  addDelete(users)

  withUser(users.command('undelete').signIn('undeleteUser'))
    .description('Restore a deleted user as it was. Earlier tokens stay revoked.')
    .examples("users undelete '(11)98765-4321'")
    .administers(async (api, name: string | undefined, options: Named) => {
      const { user, changed } = await api.undeleteUser({ user: await userName(name, options) })
      printUser(user!, options, changed ? 'is restored.' : 'isn’t deleted.')
    })
}

/** The role chosen at the terminal, where the one with the fewest permissions comes first. */
export function askRole(options: Named): Promise<Role> {
  if (!canAsk(options)) misuse(`Without a terminal, pass the role: ${roles.join(', ')}.`)
  return askChoice(
    'Which role?',
    roles.toReversed().map(role => ({ name: role, value: role })),
  )
}

async function chooseOrganization(
  api: Api,
  { record }: AdministeredUser,
  options: Named & { organization?: string },
): Promise<string | undefined> {
  if (options.organization !== undefined) return options.organization
  // A user needs no organization, but without one its provider key activates no users.
  if (record!.partnerOrganization || record!.role === 'ROLE_ADMIN') return undefined
  if (record!.active === 1 || !canAsk(options)) return undefined
  return askOrganization(api, 'Which organization does the user belong to?')
}
