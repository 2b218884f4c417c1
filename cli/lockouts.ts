import { type Command, InvalidArgumentError, Option } from 'commander'
import { canonicalAddress } from '../server/clientaddress.js'
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
export function addLockouts(users: Command): void {
  withAddress(withUser(users.command('why-locked')))
    .description('Show the failed sign-ins that count against a user, and for how long.')
    .addHelpText(
      'after',
      `
An address from which the user signed in within 30 days has a count of its
own, instead of the common one.

Examples:
  $ auth-admin users why-locked '(11)98765-4321'
  $ auth-admin users why-locked '(11)98765-4321' --address 203.0.113.7`,
    )
    .action(async (name: string | undefined, options: Options) => {
      const wanted = await userName(name, options)
      const found = await withRegistry(async ({ registry, settings }) => {
        const user = await findUser(registry, wanted)
        return {
          username: user.username,
          suspended: user.suspended,
          ...(await readLocks(registry, user, { address: options.address, factor: settings.limitFactor })),
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
With --address, those from this address on any account are forgotten too.

Example:
  $ auth-admin users unlock '(11)98765-4321' --address 203.0.113.7`,
    )
    .action(async (name: string | undefined, options: Options) => {
      const wanted = await userName(name, options)
      const { user, cleared } = await withRegistry(async ({ registry, change }) => {
        const { attempts, buckets, subjects } = registry
        const user = await findUser(registry, wanted)
        const { address } = options
        const here = address ? [subjects.known(user.usernameKey, address)] : []
        const bucket = address ? [subjects.address('failures', address)] : []
        const cleared = await change(async t => {
          const counts = await attempts.clear([subjects.account(user.usernameKey), ...here], t)
          const result = counts + (await buckets.clear(bucket, t))
          const event = {
            action: 'user.unlock' as const,
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
  const address = canonicalAddress(value.trim())
  if (address === undefined) throw new InvalidArgumentError('Give an IP address.')
  return address
}

async function readLocks(
  { attempts, buckets, subjects }: Registry,
  { id, usernameKey }: User,
  { address, factor }: { address: string | undefined; factor: number },
) {
  const [{ failuresThatLock, knownAddressDays }, { addressLimits }] = await Promise.all([
    import('../server/access/lockout.js'),
    import('../server/access/admission.js'),
  ])
  const most = failuresThatLock(factor)
  const read = async (subject: Buffer): Promise<Lock> => {
    const { count, seconds } = (await attempts.read(subject)) ?? { count: 0, seconds: 0 }
    return { count, limit: most, seconds, locked: count >= most }
  }
  const account = await read(subjects.account(usernameKey))
  if (address === undefined) return { account }
  const limit = {
    capacity: addressLimits.failures.capacity * factor,
    perSecond: addressLimits.failures.perSecond * factor,
  }
  const level = await buckets.read(subjects.address('failures', address), limit)
  const locked = level + 1 > limit.capacity
  const seconds = Math.ceil((locked ? level + 1 - limit.capacity : level) / limit.perSecond)
  const fromHere: Lock = { count: Math.ceil(level), limit: limit.capacity, seconds, locked }
  if (!(await attempts.knows(id, subjects.knownAddress(address), knownAddressDays)))
    return { account, address: fromHere }
  return { account, knownAddress: await read(subjects.known(usernameKey, address)), address: fromHere }
}

function verdict({ locked, count, seconds }: Lock): string {
  const time = seconds > 90 ? `${Math.ceil(seconds / 60)} min` : `${seconds} s`
  return locked ? `locked for ${time}` : count > 0 ? `open, forgotten in ${time}` : 'open'
}
