/** The requests of the load: each operation of the service as bytes for each endpoint, and its expected response. */
import { create, type DescMethodUnary, toBinary, toJson } from '@bufbuild/protobuf'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'

/** The endpoints of the service. */
export type Endpoint = 'http' | 'connect' | 'grpc'

/** Operations that are measured. A `first login` is that of the user of the `sign-up` with the same index. */
export type Operation =
  | ('me' | 'verify' | 'login' | 'sign-up' | 'first login' | 'administrator sign-in')
  | ('recent users' | 'search' | 'name search')

/** The users in the service that receives the load. */
export interface World {
  /** How many users are in the table. */
  readonly population: number
  readonly holders: readonly { readonly username: string; readonly token: string }[]
  /** Numbers of the users who log in. */
  readonly accounts: readonly number[]
  /** From how many addresses those who log in or sign up come. */
  readonly addresses: number
  /** Those are 127.`network`.0.0 and the following ones. */
  readonly network: number
  /** Makes the sign-ups of each run unique. */
  readonly series: number
  /** The client address of `me`, if not 127.0.0.1. */
  readonly meFrom?: string
  /** Whether trusted proxies forward the addresses of `forwardedOf`. */
  readonly forwarded?: boolean
  /** The token for the lists of Administration. */
  readonly adminToken?: string
  /** The first name to search for, by its place in `firstNames`. */
  readonly name?: number
}

/** A request as it is sent: a POST if it has a body, otherwise a GET. */
export interface Wire {
  readonly path: string
  readonly token?: string
  /** Its client address in 127.0.0.0/8; Linux permits any address there. */
  readonly address?: string
  /** The client address that a trusted proxy forwards. */
  readonly forwardedFor?: string
  readonly contentType?: string
  readonly body?: Buffer
  /** The content of a right answer. */
  readonly expected: string
  /** Whether it may be refused for lack of capacity. */
  readonly refusable: boolean
}

interface Rule {
  readonly rpc: DescMethodUnary
  readonly fields?: Record<string, unknown>
  /** GET without fields, otherwise POST: of a form, or of JSON. */
  readonly http?: { readonly path: string; readonly form?: true }
  readonly token?: string | undefined
  readonly address?: string
  readonly expected: string
}

/** Password of every user, the administrator included. */
export const password = 'cavalo-marinho-azul-42'

/** First names: of all users a half has the first one, a quarter the second one, and so on; number 2ⁿ is the first with each. */
export const firstNames = (
  'Maria Pedro Ana Carlos Lucas Paulo Bruna Rafael Tiago Luiza Felipe Daniel Camila Rodrigo Beatriz Eduardo Helena Vitor ' +
  'Sofia Nina Olivia Iris Yago Gilda Ubirajara Quitéria'
).split(' ')

/** Username of user number 1, 2, 3, …: a telephone number of the area. */
export function usernameOf(number: number, area = 11): string {
  const digits = String(900_000_000 + number)
  return `(${area})${digits.slice(0, 5)}-${digits.slice(5)}`
}

/** A sign-up form with good values in every required field. */
export function formOf(username: string, nickname: string, fields: Record<string, unknown> = {}) {
  const required = { username, nickname, password, state: 'SP', city: 'Campinas', termsofusage: true }
  return { ...required, roles: ['ROLE_CLIENT'], ...fields }
}

/** The address number 0, 1, 2, … of 127.`network`.0.0; the first 256 lie in as many different /24 networks. */
export function addressIn(network: number, number: number): string {
  return `127.${network}.${number & 255}.${1 + (number >> 8)}`
}

/** The forwarded form of an address in 127.0.0.0/8, all of which are then proxies. */
export function forwardedOf(address: string): string {
  return address.replace(/^127/, '10')
}

/** The address of the proxy for a client address. */
export function proxyOf(address: string): string {
  return address.replace(/^(127\.\d+)\..*/, '$1.0.1')
}

/** The request number `index` of an operation. Consecutive requests concern different users all over the table. */
export function wireOf(operation: Operation, endpoint: Endpoint, index: number, world: World): Wire {
  const { rpc, fields, http, token, address, expected } = rules[operation](index, world)
  const from = address ?? '127.0.0.1'
  const wire = {
    ...(token !== undefined && { token }),
    ...(world.forwarded ? { address: from, forwardedFor: forwardedOf(from) } : address && { address }),
    expected,
    refusable: address !== undefined,
  }
  if (endpoint === 'http') {
    if (!http) throw new Error(`${operation} isn’t served over HTTP`)
    const { path, form } = http
    if (!fields) return { ...wire, path }
    const body = Buffer.from(form ? String(new URLSearchParams(fields as never)) : JSON.stringify(fields))
    const contentType = form ? 'application/x-www-form-urlencoded' : 'application/json'
    return { ...wire, path, contentType, body }
  }
  const path = `/${rpc.parent.typeName}/${rpc.name}`
  const message = create(rpc.input, fields)
  if (endpoint === 'connect') {
    const body = Buffer.from(JSON.stringify(toJson(rpc.input, message)))
    return { ...wire, path, contentType: 'application/json', body }
  }
  return { ...wire, path, contentType: 'application/grpc', body: frame(toBinary(rpc.input, message)) }
}

/** A message as gRPC sends it. */
function frame(message: Uint8Array): Buffer {
  const bytes = Buffer.alloc(5 + message.length)
  bytes.writeUInt32BE(message.length, 1)
  bytes.set(message, 5)
  return bytes
}

const rules: Record<Operation, (index: number, world: World) => Rule> = {
  me(index, { holders, meFrom }) {
    const { username, token } = holders[index % holders.length]!
    const http = { path: '/users/me' }
    return { rpc: Users.method.getMe, http, token, expected: username, ...(meFrom && { address: meFrom }) }
  },
  verify(index, { holders }) {
    const { username, token } = holders[index % holders.length]!
    return { rpc: Users.method.verifyToken, fields: { token }, expected: username }
  },
  login(index, world) {
    const place = index % world.accounts.length
    return login(usernameOf(world.accounts[place]!), place, world)
  },
  'sign-up'(index, world) {
    const number = world.series * 10_000 + index
    const fields = formOf(usernameOf(number, 21), `Novata ${number}`)
    const http = { path: '/users/signup' }
    return { rpc: Users.method.signUp, fields, http, address: addressOf(index, world), expected: 'eyJ' }
  },
  'first login': (index, world) => login(usernameOf(world.series * 10_000 + index, 21), index, world),
  'administrator sign-in': (index, world) => ({
    rpc: Administration.method.signIn,
    fields: { username: 'admin', password },
    address: addressOf(index, world),
    // Its token is opaque.
    expected: '',
  }),
  'recent users': (_index, world) =>
    list(world, { createTimeFrom: { seconds: BigInt(Math.floor(Date.now() / 1000) - 86_400) } }, 'ROLE_CLIENT'),
  search(index, world) {
    const username = usernameOf(((index * 7_919) % world.population) + 1)
    return list(world, { text: `5511${username.replace(/\D/g, '').slice(2)}` }, username)
  },
  'name search': (_index, world) => list(world, { text: firstNames[world.name!] }, usernameOf(2 ** world.name!)),
}

function list({ adminToken: token }: World, fields: Rule['fields'], expected: string): Rule {
  return { rpc: Administration.method.listUsers, fields: fields!, token, expected }
}

function login(username: string, place: number, world: World): Rule {
  const http = { path: '/users/login', form: true } as const
  return {
    rpc: Users.method.login,
    fields: { username, password },
    http,
    address: addressOf(place, world),
    expected: 'eyJ',
  }
}

function addressOf(place: number, { addresses, network }: World): string {
  return addressIn(network, place % addresses)
}
