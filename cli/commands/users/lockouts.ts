// Why a user can't sign in, and how to unlock it.
import { type Timestamp, timestampDate } from '@bufbuild/protobuf/wkt'
import { InvalidArgumentError } from 'commander'
import {
  type AdministeredUser,
  EmailState,
  type FailureCount,
  type Lockout,
  type Obstacle,
  type QueuedEmail,
  type SessionEnd,
} from '../../../proto/gen/auth/v1/administration_pb.js'
import { canonicalAddress } from '../../../server/requests/client-address.js'
import type { Command } from '../../command.js'
import { commandHere, type ServerOptions } from '../../contexts.js'
import { inTerminalLanguage } from '../../terminal/language.js'
import { printFields, printJson, printTable, say, timeText } from '../../terminal/output.js'
import { type List, type ListOptions, printPages } from '../../terminal/pages.js'
import { emailOutput } from '../mail.js'
import { referenceTo, withRecord } from '../nouns.js'
import { type Named, readUser } from './named-user.js'
import { userOutput } from './output.js'

type Options = Named & ServerOptions & { readonly address?: string }

/** Adds `auth-admin users why`, `locked` and `unlock`. */
export function addLockouts(users: Command): void {
  withAddress(withRecord(users.command('why'), 'user'))
    .description('Show what keeps a user from signing in, activating or recovering, and which command fixes it.')
    .remarks(`
It also shows when and why an app, or a tool, of the user lost its refresh
tokens, and the failures that count against the user, and for how long.
Passwords, answers to security questions, passwords at Administration,
activation keys and one-time codes are counted separately. An address from
which the user signed in within 30 days has its own counts. The other addresses
of its network (/24, or /48 for IPv6) share counts. A device that sends an
earlier token has its own counts. One-time codes and activation keys have one
count for all addresses. A mailed key may be tried five times from an address.`)
    .examples("users why '(11)98765-4321'", 'users why 7 --address 203.0.113.7 --json')
    .administers(async (api, name: string | undefined, { address, ...options }: Options) => {
      const user = await referenceTo('user', name, options)
      const { user: found, obstacles, failures, lastEmail, sessionEnd } = await api.explainUser({ user, address })
      if (options.json) {
        return printJson({
          ...{ user: userOutput(found!), obstacles: obstacles.map(plain), failures: failures.map(plain) },
          lastEmail: lastEmail && emailOutput(lastEmail),
          sessionEnd: sessionEnd && { ...plain(sessionEnd), time: timestampDate(sessionEnd.time!) },
        })
      }
      const { id, username } = found!.record!
      const cells = [...grouped(obstacles)].map(([{ reason, command, seconds }, prevents]) => [
        prevents.map(inTerminalLanguage).join(', '),
        seconds === undefined
          ? inTerminalLanguage(reason)
          : `${inTerminalLanguage(reason).replace(/\.$/, '')} (${inTerminalLanguage(`${duration(seconds)} left`)}).`,
        commandHere(command, options),
      ])
      const who = `user ${id} (${username})`
      const nothing = `Nothing keeps ${who} from signing in, activating or recovering.`
      printTable({ titles: ['prevents', 'why', 'fix'], whole: ['fix'] }, cells, nothing)
      say('')
      printFields(toldOf(found!, lastEmail, sessionEnd))
      const counted = failures.filter(({ count }) => count > 0)
      if (counted.length === 0) return
      say('')
      const counts = counted.map(count => [
        inTerminalLanguage(labels[count.proof] ?? 'anything'),
        inTerminalLanguage(wheres[count.scope] ?? count.scope),
        `${count.count}/${count.limit}`,
        inTerminalLanguage(verdict(count)),
      ])
      printTable({ titles: ['wrong', 'counted for', 'count', 'state'] }, counts, '')
    })

  users
    .command('locked')
    .pages()
    .description('List the users that are locked now. `users why` shows more about one.')
    .examples('users locked')
    .administers(async (api, options: ListOptions) => {
      await printPages(lockoutList, options, page => api.listLockouts(page))
    })

  withAddress(withRecord(users.command('unlock').signIn('unlockUser'), 'user'))
    .description('Clear the failures that count against a user, and end the limits that hold it.')
    .remarks(`
It also clears the counts of networks and devices that the user knows, and ends
the quotas that \`users why\` shows. With --address, it also clears the counts of
this address on all accounts.

To unlock your own one-time codes, ask another administrator or use --local.`)
    .examples("users unlock '(11)98765-4321' --address 203.0.113.7")
    .administers(async (api, name: string | undefined, { address, ...options }: Options) => {
      const { reference, user } = await readUser(api, name, options)
      const { id, username } = user.record!
      const { cleared } = await api.unlockUser({ user: reference, address })
      if (options.json) return printJson({ id, username, cleared })
      const what = cleared > 0 ? 'Failures and limits are cleared' : 'There were no failures or limits to clear'
      say(`${what} for user ${id} (${username}).`)
    })
}

/** What a help desk is asked about, whether or not it prevents anything. */
function toldOf({ email, emailProved }: AdministeredUser, last?: QueuedEmail, end?: SessionEnd) {
  const time = (of: Timestamp | undefined) => (of ? timeText(timestampDate(of)) : '')
  const said = (...texts: string[]) => texts.map(inTerminalLanguage).filter(Boolean).join(' ')
  const state = last && EmailState[last.state].toLowerCase()
  return {
    'e-mail address': email && said(email, emailProved ? '(proved)' : '(not proved)'),
    'last e-mail':
      last && said(`${last.kind}:`, state!, time(last.sendTime ?? last.createTime), last.answer ?? last.error ?? ''),
    'last end of sessions': end && said(time(end.time), end.reason),
  }
}

/** Users that are locked, with the counts that lock them. */
const lockoutList: List<Lockout, 'lockouts'> = {
  name: 'lockouts',
  toOutput: ({ user, username, failures }) => ({ user, username, failures: failures.map(plain) }),
  head: { titles: ['id', 'username', 'wrong', 'state'], whole: ['username'] },
  toCells({ user, username, failures }) {
    const wrong = failures.map(({ proof }) => inTerminalLanguage(labels[proof] ?? 'anything'))
    const last = failures.reduce((a, b) => (b.seconds === 0 || (a.seconds > 0 && b.seconds > a.seconds) ? b : a))
    return [user, username, [...new Set(wrong)].join(', '), inTerminalLanguage(verdict(last))]
  },
  empty: 'No user is locked.',
}

/** What was wrong, by proof. */
const labels: Record<string, string> = {
  password: 'passwords',
  answers: 'answers',
  administration: 'passwords at Administration',
  'one-time code': 'one-time codes',
  'activation key': 'activation keys',
  'mailed key': 'mailed keys',
  'mailed code': 'mailed codes',
  'recovery request': 'requests for recovery keys',
}

/** Where it is counted, by scope. */
const wheres: Record<string, string> = {
  account: 'this account',
  'account, in a day': 'this account, in a day',
  'known address': 'this account, from this known address',
  'known network': 'this account, from new addresses of this known network',
  'other known': 'this account, from a known network or device',
  'one address': 'this account, from one address',
  address: 'any account, from this address',
}

/** A message as JSON shows it. */
function plain({ $typeName: _, $unknown: __, ...rest }: { $typeName?: string; $unknown?: unknown }): object {
  return rest
}

/** What is prevented, by each thing that does. */
function grouped(obstacles: readonly Obstacle[]): Map<Obstacle, string[]> {
  const groups = new Map<string, Obstacle>()
  const prevented = new Map<Obstacle, string[]>()
  for (const obstacle of obstacles) {
    const key = `${obstacle.reason}\0${obstacle.command}`
    const first = groups.get(key) ?? obstacle
    groups.set(key, first)
    prevented.set(first, [...(prevented.get(first) ?? []), obstacle.prevents])
  }
  return prevented
}

function withAddress(command: Command): Command {
  return command.option('--address <ip>', 'client address, IPv4 or IPv6', readAddress)
}

/** An IP address in canonical text, as the service counts it. */
function readAddress(value: string): string {
  const address = canonicalAddress(value.trim())
  if (address === undefined) throw new InvalidArgumentError('Use an IP address.')
  return address
}

function verdict({ locked, seconds }: Pick<FailureCount, 'locked' | 'seconds'>): string {
  if (locked && seconds === 0) return 'locked until unlocked'
  if (locked) return `locked for ${duration(seconds)}`
  return `not locked, expires in ${duration(seconds)}`
}

function duration(seconds: number): string {
  return seconds > 90 ? `${Math.ceil(seconds / 60)} min` : `${seconds} s`
}
