// Erases all accounts of a network that were never activated, as a wave of sign-ups leaves them.
import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import { Option } from 'commander'
import type { Api } from '../../administration.js'
import type { Command } from '../../command.js'
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

/** Adds the options that select them to the command that deletes a user. */
export function withUnactivated(command: Command): Command {
  return command
    .addOption(
      new Option(
        '--unactivated',
        'instead of a user, permanently erase all accounts of a network that were never activated',
      ).conflicts('yes'),
    )
    .option('--from <network>', 'network they signed up from: IP address or CIDR block', readText)
    .option('--since <time>', 'only those that signed up at this time or later', readTime)
    .option('--until <time>', 'only those that signed up before this time', readTime)
    .option('--confirm <network>', 'the network again; a terminal prompts for it')
    .addHelpText(
      'after',
      `
With --unactivated it counts the accounts before it asks for confirmation. It
erases them one by one and frees their names; if it is stopped, run it again. It
keeps accounts that administrators created, suspended or deleted, and those
whose sign-up is no longer in the audit log. On a server --unactivated requires
a sign-in within the last 15 minutes. Times are in ISO 8601, or how long ago:
15m, 2h, 7d.`,
    )
}

/** Whether the command is about them, and not about one user. */
export function areUnactivated(name: string | undefined, options: Unactivated): boolean {
  const { unactivated, from, since, until, confirm } = options
  if (!unactivated && [from, since, until, confirm].every(each => each === undefined)) return false
  if (!unactivated) misuse('--from, --since, --until and --confirm go with --unactivated.')
  if (name !== undefined) misuse('Pass a user or --unactivated, not both.')
  if (!from) misuse('Pass the network they signed up from: --from NETWORK.')
  return true
}

/** Counts them, asks for confirmation, and erases them. */
export async function eraseUnactivated(api: Api, options: Unactivated): Promise<void> {
  const { from: network = '', since, until, json } = options
  const filter = {
    network,
    createTimeFrom: since && timestampFromDate(since),
    createTimeTo: until && timestampFromDate(until),
  }
  /** Goes through all pages, and reports after each how many there were so far. */
  async function all(request: object, report: (users: number) => void): Promise<number> {
    let users = 0
    let pageToken = ''
    do {
      const page = await api.eraseUnactivatedUsers({ ...filter, ...request, pageToken })
      users += page.users
      pageToken = page.nextPageToken
      report(users)
    } while (pageToken !== '')
    return users
  }

  const found = await withProgress('Counting', report =>
    all({ validateOnly: true }, users => report(`${users} so far`)),
  )
  const these = `accounts that signed up from ${network} and were never activated`
  if (found === 0) {
    if (json) printJson({ network, erased: 0 })
    else say(`There are no ${these}.`)
    return
  }
  const sentence = `This permanently erases all ${these} (${found}), and frees their names.`
  const confirm = await confirmName(sentence, network, options)
  let erased = 0
  const erase = (report: (done: string) => void) =>
    all({ confirm }, users => {
      erased = users
      report(`${users} of ${found}`)
    })
  await withProgress('Erasing', erase).catch(error => {
    if (erased > 0) warn(`${erased} of ${found} accounts are erased. Run the command again to erase the rest.`)
    throw error
  })
  if (json) printJson({ network, erased })
  else say(`Accounts erased: ${erased}.`)
}
