// Commands that change the state and the permissions of a user.
import { Option } from 'commander'
import type { AdministeredUser } from '../../../proto/gen/auth/v1/administration_pb.js'
import { type Role, roles } from '../../../server/rules/roles.js'
import type { Api } from '../../administration.js'
import type { Command } from '../../command.js'
import { misuse } from '../../exit-codes.js'
import { askChoice, askOrganization, canAsk, confirm, confirmName, readText } from '../../terminal/ask.js'
import { withRecord } from '../nouns.js'
import { type Named, printUser, readUser } from './named-user.js'

type Confirmed = Named & { readonly confirm?: string }
type Asked = Named & { readonly yes?: boolean }

const confirmOption = () =>
  new Option('--confirm <username>', 'the username again; required to add or remove an administrator')

/** Adds the commands that change the state and the permissions of a user. */
export function addUserState(users: Command): void {
  withRecord(users.command('activate').signIn('activateUser'), 'user')
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

  withRecord(users.command('set-role').signIn('setRole'), 'user')
    .description('Change the role of a user. It signs the user out everywhere.')
    .argument('[role]', roles.join(', '))
    .addOption(confirmOption())
    .yes()
    .examples("users set-role '(11)98765-4321' ROLE_INSTITUTION", 'users set-role ana ROLE_ADMIN --confirm ana')
    .administers(async (api, name: string | undefined, given: string | undefined, options: Confirmed & Asked) => {
      const { reference, user: found } = await readUser(api, name, options)
      const { username = '', role: before } = found.record!
      const role = given ?? (await askRole(options))
      const final = role !== before && [role, before].includes('ROLE_ADMIN')
      const opens =
        role === 'ROLE_INSTITUTION'
          ? ' Once active, it sees the key of its organization, and its own key activates users.'
          : ''
      const sentence = `${username} becomes a ${role} instead of a ${before}, and is signed out everywhere.${opens}`
      const request = { user: reference, role, etag: found.etag }
      const validate = (confirm: string) => api.setRole({ ...request, confirm, validateOnly: true })
      const confirmed = final && (await confirmName(sentence, username, options, validate))
      if (!final && role !== before)
        await confirm(`${sentence} Continue?`, options, () => api.setRole({ ...request, validateOnly: true }))
      const { user, changed } = await api.setRole({ ...request, ...(confirmed && { confirm: confirmed }) })
      printUser(user!, options, `is a ${role}${changed ? `.${opens}` : ' already.'}`)
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
