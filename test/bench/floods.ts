/** The floods: the worst known ones, by the resource that they use up. */
import { head } from './clients.js'
import { formOf, usernameOf } from './operations.js'

/**
 * The origin of a flood: `one` address, the peer itself, which pipelines and holds connections without limits; or `48`: each request
 * from another /64 of one /48, which a trusted proxy forwards in `X-Forwarded-For`. A proxy doesn't pipeline, so each request in
 * flight has a separate connection.
 */
export type Origin = 'one' | '48'

/** The accounts and knowledge of an attacker. */
export interface Attacker {
  /** Tokens of its accounts, which are inactive. */
  readonly tokens: readonly string[]
  /** Numbers of other users. */
  readonly victims: readonly number[]
  /** A unique number of a request. */
  serial(): number
}

/** A flood: over connections that are kept full and reopened if they are closed, or `perSecond`. */
export interface Flood {
  /** A description of its requests, for the table. */
  readonly about: string
  readonly origins: readonly Origin[]
  /** Whether attackers sign up for accounts in advance. */
  readonly accounts?: true
  /** The requests of connection number `line` of an attacker. */
  readonly source: (attacker: Attacker, line: number) => () => Buffer
  /** Connections that are kept full. */
  readonly connections?: number
  /** Requests in flight on each. */
  readonly depth?: number
  /** Milliseconds between batches of `depth` requests, on all connections at once; otherwise without pause. */
  readonly every?: number
  /** Whether answers are left unread. */
  readonly unread?: true
  /** Whether connections are idle after their first requests. */
  readonly once?: true
  /** So many requests a second, each on a separate connection, independent of earlier responses. */
  readonly perSecond?: number
}

const both = ['one', '48'] as const
/** Only peers: a proxy doesn't pipeline, reads its responses, and keeps its connections. */
const peers = ['one'] as const

/** Small requests that cost the main thread as much as their responses: 64 connections, 32 requests ahead on each. */
const pipelined = { origins: peers, connections: 64, depth: 32 } as const
/** Requests that are eventually refused or limited. */
const limited = { origins: both, connections: 40, depth: 50 } as const
const ownMe = ({ tokens }: Attacker, line: number) => always(get('/users/me', tokens[line % tokens.length]))

/** The floods by name. */
export const floods = {
  signups: {
    ...limited,
    about: 'sign-ups',
    source: signUps,
  },
  logins: { ...limited, about: 'wrong logins to many accounts, a third of them invented', source: wrongLogins },
  healthz: { ...pipelined, about: 'GET /healthz', source: () => always(get('/healthz')) },
  options: {
    ...pipelined,
    about: 'OPTIONS *',
    source: () => always(Buffer.from('OPTIONS * HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n')),
  },
  me: { ...pipelined, about: 'its own me', accounts: true, source: ownMe },
  verify: {
    ...pipelined,
    about: 'VerifyToken',
    accounts: true,
    source: ({ tokens }, line) => always(post('/auth.v1.Users/VerifyToken', { token: tokens[line % tokens.length] })),
  },
  notfound: { ...pipelined, about: 'paths that do not exist', source: () => always(get('/nada')) },
  /** The shortest valid request: 150,000 of them are 5 MB. */
  burst: {
    about: '500 requests on each of 300 connections at once, each 10 s',
    origins: peers,
    connections: 300,
    depth: 500,
    every: 10_000,
    source: () => always(Buffer.from('GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n')),
  },
  /** A connection for each, as of a proxy for many clients. */
  'logins-48': { about: '60 wrong logins a second', origins: ['48'], perSecond: 60, source: wrongLogins },
  /** The connections of a trusted proxy count separately, and are never closed for a limit. */
  idle: {
    about: '10,000 connections that are idle after one request',
    origins: peers,
    connections: 10_000,
    depth: 1,
    once: true,
    source: () => always(get('/healthz')),
  },
  unread: {
    about: '3,000 requests on each of 40 connections, no answer read',
    origins: peers,
    connections: 40,
    depth: 3_000,
    unread: true,
    accounts: true,
    source: ownMe,
  },
  connects: {
    about: '200 new connections a second, one request on each',
    origins: peers,
    perSecond: 200,
    source: () => always(get('/healthz')),
  },
} as const satisfies Readonly<Record<string, Flood>>

export type FloodName = keyof typeof floods

function signUps({ serial }: Attacker): () => Buffer {
  return () => {
    const name = `enxurrada ${serial()}`
    return post('/users/signup', formOf(name, name))
  }
}

function wrongLogins({ victims, serial }: Attacker): () => Buffer {
  return () => {
    const number = serial()
    const username = number % 3 === 0 ? `ninguém ${number}` : usernameOf(victims[number % victims.length]!)
    return post('/users/login', { username, password: `palpite ${number}` })
  }
}

const always = (request: Buffer) => () => request

function get(path: string, token?: string): Buffer {
  return Buffer.from(head({ path, ...(token && { token }) }))
}

function post(path: string, content: object): Buffer {
  const body = Buffer.from(JSON.stringify(content))
  return Buffer.concat([Buffer.from(head({ path, contentType: 'application/json', body })), body])
}
