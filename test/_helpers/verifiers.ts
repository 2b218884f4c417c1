/** Verifiers and watchers of the client package, the network between them and a service, and the clock of their machine. */
import {
  createRegistry,
  createVerifier,
  type Registry,
  type RegistryOptions,
  type Verifier,
  type VerifierOptions,
  VerifyError,
} from '../../proto/client/index.js'
import type { Teardown } from './database.js'
import { createRequest, type SignedUp, type TestService } from './service.js'
import { serviceKey } from './service-key.js'

/** The network between a client and a service. */
export interface Network {
  readonly fetch: typeof fetch
  /** Paths of all requests so far. */
  readonly calls: string[]
  /** Whether every request fails. Requests in progress end, too. */
  away(is: boolean): void
  /** Paths that fail. */
  readonly broken: Set<string>
  /** Replaces the beginning of each URL, after requests in progress have ended. */
  redirect(to: string): void
}

export const paths = {
  keys: '/.well-known/jwks.json',
  poll: '/auth.v1.Changes/Poll',
  verify: '/auth.v1.Users/VerifyToken',
} as const

export function createNetwork(): Network {
  const calls: string[] = []
  const broken = new Set<string>()
  let cut = new AbortController()
  let target: string | undefined
  return {
    calls,
    broken,
    away(is) {
      if (is) cut.abort(new Error('the network is away'))
      else cut = new AbortController()
    },
    redirect(to) {
      target = to
      cut.abort(new Error('the service is gone'))
      cut = new AbortController()
    },
    async fetch(input, init) {
      const { pathname } = new URL(String(input))
      calls.push(pathname)
      const signal = init?.signal ? AbortSignal.any([init.signal, cut.signal]) : cut.signal
      signal.throwIfAborted()
      if (broken.has(pathname)) throw new TypeError('fetch failed')
      return fetch(target ? `${target}${pathname}` : input, { ...init, signal })
    },
  }
}

/** A verifier that is ready; it is closed with the test. */
export async function verifierOf(
  t: Teardown,
  service: TestService,
  options: Partial<VerifierOptions> = {},
): Promise<Verifier> {
  const verifier = createVerifier({
    url: service.http,
    key: options.key ?? (await serviceKey(service, ['tokens.watch', 'tokens.verify'])),
    issuer: 'http://auth.test',
    audience: 'work-packages',
    onWarning() {},
    ...options,
  })
  t.teardown(async () => verifier.close())
  await verifier.ready()
  return verifier
}

/** A client of the registry with the scopes of a service that keeps a copy of users. */
export async function registryOf(service: TestService, options: Partial<RegistryOptions> = {}): Promise<Registry> {
  const key = await serviceKey(service, ['users.watch', 'users.read'])
  return createRegistry({ url: service.http, key, onWarning() {}, ...options })
}

/** The result of `verify`: its source, or the code of its refusal. */
export async function outcome(verifier: Verifier, token: string): Promise<string> {
  return verifier.verify(token).then(
    ({ source }) => source,
    error => (error instanceof VerifyError ? error.code : String(error?.stack)),
  )
}

/** Moves a user to another city. */
export async function move({ request }: TestService, { token }: SignedUp): Promise<void> {
  const { status, text } = await request('PATCH', '/users/me', { token, body: { record: { city: 'Palmas' } } })
  if (status !== 200) throw new Error(`${status} ${text}`)
}

/** Revokes all tokens of a user. */
export async function revoke(http: string, token: string): Promise<void> {
  const { status, text } = await createRequest(http)('POST', '/users/revokemytokens', { token })
  if (status !== 200) throw new Error(`${status} ${text}`)
}

const real = { wall: Date.now, monotonic: performance.now.bind(performance) }

/** Moves the wall clock and the monotonic clock of this process by so many ms until `work` has ended. */
export async function withClocks<T>(by: { wall?: number; monotonic?: number }, work: () => Promise<T>): Promise<T> {
  Date.now = () => real.wall() + (by.wall ?? 0)
  performance.now = () => real.monotonic() + (by.monotonic ?? 0)
  try {
    return await work()
  } finally {
    Date.now = real.wall
    performance.now = real.monotonic
  }
}
