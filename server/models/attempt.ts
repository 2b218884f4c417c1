import type { Transaction } from 'sequelize'
import type { Database, Statement } from '../database/connection.js'
import type { MasterKey } from '../masterkey.js'

/** Limits on failures and requests: how many, in how many seconds. */
export const limits = {
  account: { count: 10, seconds: 900 },
  address: { count: 100, seconds: 900 },
  mailRequests: { count: 20, seconds: 3600 },
  mailsAMinute: { count: 1, seconds: 60 },
  mailsAnHour: { count: 5, seconds: 3600 },
} as const

/** Days for which an address that an account signed in from counts as known to it. */
export const knownAddressDays = 30

/** Names of what is counted, as digests: what a stranger typed is stored nowhere. */
export interface Subjects {
  /** All tries on an account from addresses it doesn't know. */
  account(usernameKey: string): Buffer
  /** Tries on an account from one address that it knows. */
  known(usernameKey: string, address: string): Buffer
  /** Failures of one client address on any account. */
  address(address: string): Buffer
  /** Requests for e-mails from one client address. */
  mailRequests(address: string): Buffer
  /** Emails that went out for a user. */
  mails(span: 'minute' | 'hour', kind: string, userId: number): Buffer
  /** A client address, for the list of those known to an account. */
  knownAddress(address: string): Buffer
}

/** Makes the names of what is counted. An IPv6 client is its /64: whoever has one address has them all. */
export function createSubjects(masterKey: MasterKey): Subjects {
  const name = (...parts: string[]) => masterKey.digest('attempts', parts.join('\0')).subarray(0, 16)
  return {
    account: usernameKey => name('account', usernameKey),
    known: (usernameKey, address) => name('known', usernameKey, network(address)),
    address: address => name('address', network(address)),
    mailRequests: address => name('mail-requests', network(address)),
    mails: (span, kind, userId) => name('mails', span, kind, String(userId)),
    knownAddress: address => name('known-address', network(address)),
  }
}

/** The /64 of an IPv6 address, and any other address as it is. */
export function network(address: string): string {
  if (!address.includes(':')) return address
  const [head = '', tail] = address.split('::')
  const left = head === '' ? [] : head.split(':')
  const right = tail ? tail.split(':') : []
  const middle = tail === undefined ? [] : Array<string>(Math.max(0, 8 - left.length - right.length)).fill('0')
  return `${[...left, ...middle, ...right].slice(0, 4).join(':')}::/64`
}

/** A count as an administrator sees it. */
export interface Count {
  readonly count: number
  /** Seconds until it starts anew. */
  readonly seconds: number
}

/** What administrators and the housekeeping do with the counts; sign-ins count in signin.ts. */
export interface Attempts {
  /** The current count of a subject. */
  read(subject: Buffer): Promise<Count | undefined>
  /** Forgets the counts of subjects and returns how many there were. */
  clear(subjects: readonly Buffer[], t?: Transaction): Promise<number>
}

const read: Statement = {
  name: 'attempts-read',
  text: `SELECT count, ceil(extract(epoch FROM window_ends - clock_timestamp()))::int AS seconds
    FROM attempts WHERE subject = $1 AND window_ends > clock_timestamp()`,
}

const clear: Statement = {
  name: 'attempts-clear',
  text: 'DELETE FROM attempts WHERE subject = ANY($1::bytea[]) RETURNING count',
}

/** The counts in a database. */
export function createAttempts(database: Database): Attempts {
  return {
    read: async subject => (await database.run<Count>(read, [subject]))[0],
    clear: async (subjects, transaction) => (await database.run(clear, [subjects], transaction)).length,
  }
}
