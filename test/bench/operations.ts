/** What the load sends: each operation of the service as bytes for each door, and what the answer must hold. */
import { create, type DescMethodUnary, toBinary, toJson } from '@bufbuild/protobuf'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { password, usernameOf } from './users.js'

/** The ways into the service. */
export type Door = 'http' | 'connect' | 'grpc'

/** Operations that are measured. */
export type Operation = 'me' | 'refresh' | 'look-up' | 'exists' | 'questions' | 'verify' | 'login' | 'sign-up'

/** Who is in the service that the load goes to. */
export interface World {
  /** How many users are in the table. */
  readonly population: number
  readonly holders: readonly { readonly username: string; readonly token: string }[]
  readonly adminToken: string
  /** Usernames for logins. */
  readonly accounts: readonly string[]
  /** Sets the sign-ups of one run apart from those of every other. */
  readonly series: number
}

/** A request as it goes out. */
export interface Wire {
  readonly method: 'GET' | 'POST'
  readonly path: string
  readonly token?: string
  /** For `x-forwarded-for`. */
  readonly address?: string
  readonly contentType?: string
  readonly body?: Buffer
  /** What a right answer holds. */
  readonly expected: string
}

interface Rule {
  readonly rpc: DescMethodUnary
  readonly fields?: Record<string, unknown>
  readonly http?: { readonly method: 'GET' | 'POST'; readonly path: string; readonly form?: Record<string, string> }
  readonly token?: string
  readonly address?: string
  /** By door where they differ. */
  readonly expected: string | Record<Door, string>
}

const isTrue = { http: 'true', connect: '"exists":true', grpc: '\x08\x01' }

/** The request number `index` of an operation. Consecutive requests concern different users all over the table. */
export function wireOf(operation: Operation, door: Door, index: number, world: World): Wire {
  const rule = rules[operation](index, world)
  const expected = typeof rule.expected === 'string' ? rule.expected : rule.expected[door]
  const who = { ...(rule.token && { token: rule.token }), ...(rule.address && { address: rule.address }), expected }
  if (door === 'http') {
    if (!rule.http) throw new Error(`${operation} isn’t served over HTTP`)
    const { method, path, form } = rule.http
    if (operation === 'sign-up') {
      return { ...who, method, path, contentType: 'application/json', body: Buffer.from(JSON.stringify(rule.fields)) }
    }
    if (!form) return { ...who, method, path }
    const body = Buffer.from(new URLSearchParams(form).toString())
    return { ...who, method, path, contentType: 'application/x-www-form-urlencoded', body }
  }
  const path = `/${rule.rpc.parent.typeName}/${rule.rpc.name}`
  const message = create(rule.rpc.input, rule.fields)
  if (door === 'connect') {
    const body = Buffer.from(JSON.stringify(toJson(rule.rpc.input, message)))
    return { ...who, method: 'POST', path, contentType: 'application/json', body }
  }
  const bytes = toBinary(rule.rpc.input, message)
  const frame = Buffer.alloc(5 + bytes.length)
  frame.writeUInt32BE(bytes.length, 1)
  frame.set(bytes, 5)
  return { ...who, method: 'POST', path, contentType: 'application/grpc', body: frame }
}

const rules: Record<Operation, (index: number, world: World) => Rule> = {
  me(index, { holders }) {
    const { username, token } = holders[index % holders.length]!
    return { rpc: Users.method.getMe, http: { method: 'GET', path: '/users/me' }, token, expected: username }
  },
  refresh(index, { holders }) {
    const { token } = holders[index % holders.length]!
    return { rpc: Users.method.refresh, http: { method: 'GET', path: '/users/refresh' }, token, expected: 'eyJ' }
  },
  'look-up'(index, { population, adminToken }) {
    const username = usernameOf(spread(index, population))
    const http = { method: 'GET', path: `/users/${encodeURIComponent(username)}` } as const
    return { rpc: Users.method.getUser, fields: { username }, http, token: adminToken, expected: username }
  },
  exists(index, { population }) {
    const username = usernameOf(spread(index, population))
    const path = `/users/existsByUsername?username=${encodeURIComponent(username)}`
    const rpc = Users.method.existsByUsername
    return { rpc, fields: { username }, http: { method: 'POST', path }, expected: isTrue }
  },
  questions: () => ({
    rpc: ForgotPasswords.method.findAllForgotPasswordQuestions,
    http: { method: 'GET', path: '/forgotpasswords/findallforgotpasswordquestions' },
    expected: 'Em que cidade',
  }),
  verify(index, { holders }) {
    const { username, token } = holders[index % holders.length]!
    return { rpc: Users.method.verifyToken, fields: { token }, expected: username }
  },
  login(index, { accounts }) {
    const place = index % accounts.length
    const form = { username: accounts[place]!, password }
    const http = { method: 'POST', path: '/users/login', form } as const
    return { rpc: Users.method.login, fields: form, http, address: addressOf(place), expected: 'eyJ' }
  },
  'sign-up'(index, { series }) {
    const number = series * 10_000 + index
    const digits = String(900_000_000 + number)
    const fields = {
      username: `(21)${digits.slice(0, 5)}-${digits.slice(5)}`,
      nickname: `Novata ${number}`,
      password,
      state: 'SP',
      city: 'Campinas',
      termsofusage: true,
      roles: ['ROLE_CLIENT'],
    }
    const http = { method: 'POST', path: '/users/signup' } as const
    return { rpc: Users.method.signUp, fields, http, address: addressOf(number), expected: 'eyJ' }
  },
}

/** A user's number; neighbours in `index` are far apart. */
function spread(index: number, population: number): number {
  return ((index * 7_919) % population) + 1
}

function addressOf(number: number): string {
  return `10.${(number >> 16) & 255}.${(number >> 8) & 255}.${number & 255}`
}
