// What a flood of sign-ups leaves: accounts that were never activated, all those of a network at once.
import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import { type Command, Option } from 'commander'
import type { Api } from '../../administration.js'
import { misuse } from '../../exit-codes.js'
import { confirmName, readText, readTime } from '../../terminal/ask.js'
import { printJson, say, warn } from '../../terminal/output.js'
import { withProgress } from '../../terminal/progress.js'
import type { Named } from './name.js'

/** Which accounts that were never activated a command is about. */
export interface Unactivated extends Named {
  readonly unactivated?: boolean
  readonly from?: string
  readonly since?: Date
  readonly until?: Date
  readonly confirm?: string
}

/** Adds what names them to the command that deletes a user. */
export function withUnactivated(command: Command): Command {
  return command
    .addOption(
      new Option(
        '--unactivated',
        'instead of a user, erase for good all accounts of a network that were never activated',
      ).conflicts(['id', 'yes']),
    )
    .addOption(
      new Option('--from <network>', 'where those were signed up from: IP address or CIDR block').argParser(readText),
    )
    .addOption(new Option('--since <time>', 'only those signed up at this time or later').argParser(readTime))
    .addOption(new Option('--until <time>', 'only those signed up before this time').argParser(readTime))
    .addOption(new Option('--confirm <network>', 'the network, once more; asked for at a terminal'))
    .addHelpText(
      'after',
      `
With --unactivated it tells how many accounts there are before it asks, or asks
for --confirm. They are erased at once, one by one, and their names are free
again: stopped, it goes on when it is run again. Accounts that administrators
made, suspended or deleted stay, and those of whose sign-up the audit log no
longer tells. At a server that needs a sign-in of the last 15 minutes.
Times are in ISO 8601, or ago: 15m, 2h, 7d.`,
    )
}

/** Whether a command is about them. */
export function areUnactivated(name: string | undefined, options: Unactivated): boolean {
  const { unactivated, from, since, until, confirm } = options
  if (!unactivated && [from, since, until, confirm].every(each => each === undefined)) return false
  if (!unactivated) misuse('--from, --since, --until and --confirm go with --unactivated.')
  if (name !== undefined) misuse('Name a user, or give --unactivated, not both.')
  if (!from) misuse('Say where they were signed up from: --from NETWORK.')
  return true
}

/** Tells how many there are, has it confirmed, and erases them. */
export async function eraseUnactivated(api: Api, options: Unactivated): Promise<void> {
  const { from: network = '', since, until, json } = options
  const filter = {
    network,
    ...(since && { createTimeFrom: timestampFromDate(since) }),
    ...(until && { createTimeTo: timestampFromDate(until) }),
  }
  /** Goes through all pages; whenever something is done it is told how many there were so far. */
  async function all(request: object, tell: (users: number) => void): Promise<number> {
    let users = 0
    let pageToken = ''
    do {
      const page = await api.eraseUnactivatedUsers({ ...filter, ...request, pageToken })
      users += page.users
      pageToken = page.nextPageToken
      tell(users)
    } while (pageToken !== '')
    return users
  }

  const found = await withProgress('Counting', tell => all({ validateOnly: true }, users => tell(`${users} so far`)))
  const these = `accounts that were signed up from ${network} and never activated`
  if (found === 0) {
    if (json) printJson({ network, erased: 0 })
    else say(`There are no ${these}.`)
    return
  }
  const sentence = `Of ${these} there are ${found}. They will be gone for good, and their names free.`
  const confirm = await confirmName(sentence, network, options)
  let erased = 0
  const erase = (tell: (done: string) => void) =>
    all({ confirm }, users => {
      erased = users
      tell(`${users} of ${found}`)
    })
  await withProgress('Erasing', erase).catch(error => {
    if (erased > 0) warn(`${erased} of ${found} accounts are erased. To erase the rest, run the command again.`)
    throw error
  })
  if (json) printJson({ network, erased })
  else say(`Accounts erased: ${erased}.`)
}
