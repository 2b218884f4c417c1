/** The floods: the worst known ones, by the resource that they use up. */
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { type Answer, head } from './clients.js'
import { formOf, usernameOf } from './operations.js'

/**
 * The origin of a flood: `one` address, the peer itself, which pipelines and holds connections without limits; or `48`: each request
 * from another /64 of one /48, which a trusted proxy forwards in `X-Forwarded-For`. A proxy doesn't pipeline, so each request in
 * flight has a separate connection.
 */
export type Origin = 'one' | '48'

/** An account of an attacker. */
export interface Own {
  readonly username: string
  readonly token: string
}

/** The accounts and knowledge of an attacker. */
export interface Attacker {
  /** Its accounts: inactive. */
  readonly own: readonly Own[]
  /** Numbers of other users. */
  readonly victims: readonly number[]
  /** A unique number of a request. */
  serial(): number
}

/** The source of a connection's requests. */
export interface Source {
  /** The next request; `last` is the last response. Undefined: none until another response arrives. */
  next(last?: Answer): Buffer | undefined
}

interface Common {
  /** A description of its requests, for the table. */
  readonly about: string
  readonly origins: readonly Origin[]
  /** Whether attackers sign up for accounts in advance. */
  readonly accounts?: true
  /** The requests of connection number `line` of an attacker. */
  readonly source: (attacker: Attacker, line: number) => Source
}

/** A flood over connections that are kept full, and reopened if they are closed. */
export interface Kept extends Common {
  readonly connections: number
  /** Requests in flight on each. */
  readonly depth: number
  /** Milliseconds between batches of `depth` requests, on all connections at once; otherwise without pause. */
  readonly every?: number
  /** Whether answers are left unread. */
  readonly unread?: true
}

/** A flood of so many requests a second, each on a separate connection, independent of earlier responses. */
export interface Paced extends Common {
  readonly perSecond: number
}

export type Flood = Kept | Paced

const everywhere = ['one', '48'] as const
const peers = ['one'] as const
const json = 'application/json'

/** Small requests that cost the main thread as much as their responses: 64 connections, 32 requests ahead on each. */
const pipelined = { origins: everywhere, connections: 64, depth: 32 } as const
/** Requests that are eventually refused or limited. */
const limited = { origins: everywhere, connections: 40, depth: 50 } as const

/** The floods by name. */
export const floods = {
  signups: {
    ...limited,
    about: 'sign-ups',
    source: ({ serial }) => always(() => signUp(`enxurrada ${serial()}`)),
  },
  logins: {
    ...limited,
    about: 'wrong logins to many accounts, a third of them invented',
    source: wrongLogins,
  },
  healthz: { ...pipelined, about: 'GET /healthz', source: () => inTurn([get('/healthz')]) },
  options: {
    ...pipelined,
    about: 'OPTIONS *',
    source: () => inTurn([Buffer.from('OPTIONS * HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n')]),
  },
  me: {
    ...pipelined,
    about: 'its own me',
    accounts: true,
    source: ({ own }, line) => inTurn([get('/users/me', own[line % own.length]!.token)]),
  },
  verify: { ...pipelined, about: 'VerifyToken', accounts: true, source: verifications },
  notfound: { ...pipelined, about: 'paths that do not exist', source: () => inTurn([get('/nada')]) },
  /** Only peers: a proxy doesn't pipeline. The shortest valid request: 150,000 of them are 5 MB. */
  burst: {
    about: '500 requests on each of 300 connections at once, each 10 s',
    origins: peers,
    connections: 300,
    depth: 500,
    every: 10_000,
    source: () => inTurn([Buffer.from('GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n')]),
  },
  /** A connection for each, as of a proxy for many clients. */
  'logins-48': {
    about: '60 wrong logins a second',
    origins: ['48'],
    perSecond: 60,
    source: wrongLogins,
  },
  /** Only peers: the connections of a trusted proxy count separately, and are never closed for a limit. */
  idle: {
    about: '10,000 connections that are idle after one request',
    origins: peers,
    connections: 10_000,
    depth: 1,
    source: () => ({ next: last => (last ? undefined : get('/healthz')) }),
  },
  /** Only peers: a proxy reads its responses. */
  unread: {
    about: '3,000 requests on each of 40 connections, no answer read',
    origins: peers,
    connections: 40,
    depth: 3_000,
    unread: true,
    accounts: true,
    source: ({ own }, line) => inTurn([get('/users/me', own[line % own.length]!.token)]),
  },
  /** Only peers: a proxy keeps its connections. */
  connects: {
    about: '200 new connections a second, one request on each',
    origins: peers,
    perSecond: 200,
    source: () => inTurn([get('/healthz')]),
  },
} as const satisfies Readonly<Record<string, Flood>>

export type FloodName = keyof typeof floods

/** All names. */
export const floodNames = Object.keys(floods) as FloodName[]

/** A flood by its name. */
export function floodOf(name: FloodName): Flood {
  return floods[name]
}

function wrongLogins({ victims, serial }: Attacker): Source {
  return always(() => {
    const number = serial()
    const username = number % 3 === 0 ? `ninguém ${number}` : usernameOf(victims[number % victims.length]!)
    return post('/users/login', { username, password: `palpite ${number}` })
  })
}

function verifications({ own }: Attacker, line: number): Source {
  return inTurn([post(pathOf(Users.method.verifyToken), { token: own[line % own.length]!.token })])
}

function always(next: () => Buffer): Source {
  return { next }
}

function inTurn(requests: readonly Buffer[]): Source {
  let sent = Math.floor(Math.random() * requests.length)
  return { next: () => requests[sent++ % requests.length]! }
}

function signUp(name: string): Buffer {
  return post('/users/signup', formOf(name, name))
}

function pathOf({ parent, name }: { parent: { typeName: string }; name: string }): string {
  return `/${parent.typeName}/${name}`
}

function get(path: string, token?: string): Buffer {
  return Buffer.from(head({ method: 'GET', path, ...(token && { token }) }))
}

function post(path: string, content: object, token?: string): Buffer {
  const body = Buffer.from(JSON.stringify(content))
  const wire = { method: 'POST', path, contentType: json, body, ...(token && { token }) } as const
  return Buffer.concat([Buffer.from(head(wire)), body])
}
