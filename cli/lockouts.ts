import { isIP, isIPv4, SocketAddress } from 'node:net'
import { type Command, InvalidArgumentError, Option } from 'commander'
import type { Count } from '../server/models/attempt.js'
import type { Registry } from '../server/models/definemodels.js'
import type { User } from '../server/models/user.js'
import { printJson, printTable, say } from './output.js'
import { withRegistry } from './session.js'
import { findUser, type Named, userName, withUser } from './user.js'

type Options = Named & { readonly address?: string }

/** A count, beside the number at which sign-ins are refused. */
interface Lock {
  readonly count: number
  readonly limit: number
  /** Seconds until the count starts anew. */
  readonly seconds: number
  readonly locked: boolean
}

/** Adds `auth-admin users why-locked` and `unlock`. */
export function addLocks(users: Command): void {
  withAddress(withUser(users.command('why-locked')))
    .description('Show the failed sign-ins that count against a user, and how long they hold it up.')
    .addHelpText(
      'after',
      `
An address from which the user signed in within 30 days has a count of its
own, in place of the common one.

Examples:
  $ auth-admin users why-locked '(11)98765-4321'
  $ auth-admin users why-locked '(11)98765-4321' --address 203.0.113.7`,
    )
    .action(async (name: string | undefined, options: Options) => {
      const wanted = await userName(name, options)
      const found = await withRegistry(async ({ registry }) => {
        const user = await findUser(registry, wanted)
        return {
          username: user.username,
          suspended: user.suspended,
          ...(await readLocks(registry, user, options)),
        }
      })
      if (options.json) return printJson(found)
      const rows = [
        ['this account, from unknown addresses', found.account],
        ['this account, from this known address', found.knownAddress],
        ['any account, from this address', found.address],
      ] as const
      const cells = rows.flatMap(([label, lock]) =>
        lock ? [[label, `${lock.count} of ${lock.limit}`, verdict(lock)]] : [],
      )
      printTable(['failed sign-ins', 'count', 'state'], cells, '')
      if (found.suspended) say(`${found.username} is also suspended: see \`auth-admin users resume\`.`)
    })

  withAddress(withUser(users.command('unlock')))
    .description('Forget the failed sign-ins that count against a user.')
    .addHelpText(
      'after',
      `
With --address it also forgets those from this address, on this account and on
any.

Example:
  $ auth-admin users unlock '(11)98765-4321' --address 203.0.113.7`,
    )
    .action(async (name: string | undefined, options: Options) => {
      const wanted = await userName(name, options)
      const { user, cleared } = await withRegistry(async ({ registry, change }) => {
        const { attempts, subjects } = registry
        const user = await findUser(registry, wanted)
        const { address } = options
        const here = address ? [subjects.known(user.usernameKey, address), subjects.address(address)] : []
        const cleared = await change(async t => {
          const result = await attempts.clear([subjects.account(user.usernameKey), ...here], t)
          const event = {
            action: 'user.unlock',
            subject_id: user.id,
            ...(address && { object: `address:${address}` }),
          }
          return { result, ...(result > 0 && { event }) }
        })
        return { user, cleared }
      })
      if (options.json) return printJson({ id: user.id, username: user.username, cleared })
      const where = options.address ? '' : ' from unknown addresses'
      const what = cleared > 0 ? 'Failed sign-ins are forgotten' : 'There were no failed sign-ins to forget'
      say(`${what} for user ${user.id} (${user.username})${where}.`)
    })
}

function withAddress(command: Command): Command {
  return command.addOption(new Option('--address <ip>', 'client address, IPv4 or IPv6').argParser(readAddress))
}

/** An IP address in canonical text, as the service counts it. */
function readAddress(value: string): string {
  const text = value.trim()
  if (isIPv4(text)) return text
  if (isIP(text) !== 6) throw new InvalidArgumentError('Give an IP address.')
  const { address } = new SocketAddress({ address: text, family: 'ipv6' })
  return /^::ffff:(\d+\.\d+\.\d+\.\d+)$/.exec(address)?.[1] ?? address
}

async function readLocks({ attempts, signIns, subjects }: Registry, { id, usernameKey }: User, { address }: Options) {
  const { limits } = await import('../server/models/attempt.js')
  // The next try counts itself, so it is one too many from the limit on.
  const lock = (found: Count | undefined, limit: number): Lock => {
    const { count, seconds } = found ?? { count: 0, seconds: 0 }
    return { count, limit, seconds, locked: count >= limit }
  }
  const account = lock(await attempts.read(subjects.account(usernameKey)), limits.account.count)
  if (address === undefined) return { account }
  const fromHere = lock(await attempts.read(subjects.address(address)), limits.address.count)
  if (!(await signIns.knows(id, address))) return { account, address: fromHere }
  const known = lock(await attempts.read(subjects.known(usernameKey, address)), limits.account.count)
  return { account, knownAddress: known, address: fromHere }
}

function verdict({ locked, count, seconds }: Lock): string {
  const time = seconds > 90 ? `${Math.ceil(seconds / 60)} min` : `${seconds} s`
  return locked ? `locked for ${time}` : count > 0 ? `open, forgotten in ${time}` : 'open'
}
