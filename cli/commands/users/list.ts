import { timestampDate, timestampFromDate } from '@bufbuild/protobuf/wkt'
import { Option } from 'commander'
import { UserState } from '../../../proto/gen/auth/v1/administration_pb.js'
import { type Role, roles } from '../../../server/rules/roles.js'
import type { Command } from '../../command.js'
import { readText, readTime } from '../../terminal/ask.js'
import { inTerminalLanguage } from '../../terminal/language.js'
import { printFields, printJson } from '../../terminal/output.js'
import { type ListOptions, printPages } from '../../terminal/pages.js'
import { referenceTo, withRecord } from '../nouns.js'
import type { Named } from './named-user.js'
import { statusOf, userList, userOutput } from './output.js'

/** Adds `users list` and `users show`. */
export function addUserLists(users: Command): void {
  users
    .command('list')
    .pages()
    .description('List users by id. Only --json has every field. Passwords, answers and keys are never listed.')
    .addOption(new Option('--role <role>', 'only this role').choices(roles))
    .addOption(new Option('--active', 'only active users').conflicts(['inactive', 'suspended', 'deleted']))
    .addOption(new Option('--inactive', 'only users that aren’t activated yet').conflicts(['suspended', 'deleted']))
    .addOption(new Option('--suspended', 'only suspended users').conflicts('deleted'))
    .option('--deleted', 'only deleted users, which other lists leave out')
    .option('--organization <organization>', 'only members of this organization: id, INEP code or name', readText)
    .option('--created-from <time>', 'only registered at this time or later', readTime)
    .option('--created-to <time>', 'only registered before this time', readTime)
    .option(
      '--text <words>',
      'only users with words that start with these words, in username, nickname, e-mail address, institution or city; case and accents are ignored',
      readText,
    )
    .remarks('Times are in ISO 8601, or how long ago: 15m, 2h, 7d.')
    .examples(
      'users list --inactive --role ROLE_INSTITUTION',
      "users list --text 'ana sao paulo' --created-from 7d --json",
    )
    .administers(async (api, options: ListOptions & ListFilter) => {
      const { role, organization, text, createdFrom, createdTo } = options
      const filter = {
        role,
        organization,
        text,
        state: stateFilter(options),
        createTimeFrom: createdFrom && timestampFromDate(createdFrom),
        createTimeTo: createdTo && timestampFromDate(createdTo),
      }
      await printPages(userList, options, page => api.listUsers({ ...filter, ...page }))
    })

  withRecord(users.command('show'), 'user')
    .description('Show a user; an institution with the activation key of its organization and its provider key.')
    .examples("users show '(11)98765-4321'", 'users show 7 --json')
    .administers(async (api, name: string | undefined, options: Named) => {
      const user = (await api.getUser({ user: await referenceTo('user', name, options) })).user!
      if (options.json) return printJson(userOutput(user))
      const { partnerOrganization: organization, providerActivationKey: key, ...record } = user.record!
      const { $typeName: _, $unknown: __, active: ___, ...fields } = record
      printFields({
        ...fields,
        email: user.email,
        status: inTerminalLanguage(statusOf(user)),
        desk: user.desk || undefined,
        created: user.createTime && timestampDate(user.createTime),
        partnerOrganization: organization && `${organization.name} (#${organization.id})`,
        'partnerOrganization.activationkey': organization?.activationkey,
        providerActivationKey: key?.activationkey,
      })
    })
}

interface ListFilter {
  readonly role?: Role
  readonly active?: boolean
  readonly inactive?: boolean
  readonly suspended?: boolean
  readonly deleted?: boolean
  readonly organization?: string
  readonly text?: string
  readonly createdFrom?: Date
  readonly createdTo?: Date
}

function stateFilter({ active, inactive, suspended, deleted }: ListFilter): UserState {
  if (active) return UserState.ACTIVE
  if (inactive) return UserState.INACTIVE
  if (suspended) return UserState.SUSPENDED
  return deleted ? UserState.DELETED : UserState.UNSPECIFIED
}
