import { randomInt, randomUUID } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import { createGateway } from '../../gateway/http.js'
import { isUnreachable } from '../../server/database/failures.js'
import { openRegistry, type Registry } from '../../server/models/index.js'
import { createLog, type Log } from '../../server/observability/log.js'
import type { Revision } from '../../server/policy/policy.js'
import { readSettings, type Settings } from '../../server/process/settings.js'
import { type Service, startService } from '../../server/service.js'
import { type Clock, createStoppedClock } from './clock.js'
import { clocked, freshDatabase, type Teardown } from './database.js'
import { databaseFor, ownSettings } from './installed.js'
import { keepLog, plantSecret } from './logged.js'
import { checkAnswer } from './openapi.js'
import { password } from './secrets.js'
import { patience } from './wait.js'
import './turns.js'

export { password }

/** Of the user who signed up last in this process: its username is a telephone number. */
let number = randomInt(90_000_000)

/** An answer over HTTP. */
export interface Answer {
  readonly status: number
  readonly headers: Headers
  readonly text: string
  /** The body as JSON; undefined if it isn't JSON. */
  // biome-ignore lint/suspicious/noExplicitAny: tests read arbitrary JSON
  readonly json: any
}

/** The parts of a request. */
export interface RequestOptions {
  readonly query?: Record<string, string>
  /** Sent as JSON, or unchanged if it is a string. */
  readonly body?: unknown
  readonly token?: string
  readonly headers?: Record<string, string>
  /** Returns a 503, for tests of it. Otherwise the request is retried after the time in its Retry-After. */
  readonly once?: boolean
}

/** A user who signed up. */
export interface SignedUp {
  readonly username: string
  readonly nickname: string
  readonly token: string
}

/** A complete service on a separate database. */
export interface TestService {
  readonly http: string
  /** host:port */
  readonly grpc: string
  readonly settings: Settings
  /** Environment that `auth-admin` needs to work on the same database. */
  readonly env: Record<string, string>
  /** For the preparation of tests, not for what they test. */
  readonly registry: Registry
  readonly service: Service
  request(method: string, path: string, options?: RequestOptions): Promise<Answer>
  /** Signs a user up with valid values in every required field. */
  signUp(role: string, fields?: Record<string, unknown>): Promise<SignedUp>
  login(username: string, password?: string): Promise<string>
  adminToken(): Promise<string>
  /** An organization and its activation key. */
  organization(fields?: {
    name?: string
    email?: string
  }): Promise<{ id: number; activationkey: string; email: string }>
  /** A ROLE_INSTITUTION user that is active in the organization, with a token from after that, and its provider key. */
  institution(organization: { activationkey: string }): Promise<SignedUp & { providerKey: string }>
}

/**
 * A function that sends requests to a gateway at `http`, such as `http://127.0.0.1:8080`. It throws if a response violates
 * the OpenAPI documents; `defaultRevision` is the one at the base path, `none` for a gateway before no real service.
 */
export function createRequest(http: string, defaultRevision: Revision | 'none' = '1.0.2'): TestService['request'] {
  const send: TestService['request'] = async (method, path, options = {}) => {
    const { query, body, token, headers } = options
    const search = query ? `?${new URLSearchParams(query)}` : ''
    const response = await fetch(`${http}${path}${search}`, {
      method,
      headers: {
        ...(body !== undefined && { 'content-type': 'application/json' }),
        ...(token !== undefined && { authorization: `Bearer ${token}` }),
        ...headers,
      },
      ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) }),
    })
    const text = await response.text()
    if (defaultRevision !== 'none') checkAnswer({ method, path, response, text }, defaultRevision)
    const isJson = text !== '' && /json/.test(response.headers.get('content-type') ?? '')
    return { status: response.status, headers: response.headers, text, json: isJson ? JSON.parse(text) : undefined }
  }
  return (method, path, options) =>
    options?.once ? send(method, path, options) : retryWhileBusy(() => send(method, path, options))
}

/** Retries after Retry-After while the service is busy. */
export async function retryWhileBusy(send: () => Promise<Answer>): Promise<Answer> {
  for (let times = 1; ; times++) {
    const answer = await send()
    const wait = Number(answer.headers.get('retry-after'))
    if (answer.status !== 503 || wait === 0 || times === patience) return answer
    await sleep(wait * 1000)
  }
}

/** One service for all tests of the calling file, available once the tests run. `env` is called when it starts. */
export function serviceForFile(env: () => Record<string, string> = () => ({})): TestService {
  const service = {} as TestService
  const hooks = teardownOfFile()
  // Serial, so that it runs before the hooks of the file.
  test.serial.before(async () => {
    Object.assign(service, await startTestService(hooks, env()))
  })
  return service
}

/** What is registered here runs after all tests of the calling file, the last one first. */
export function teardownOfFile(): Teardown {
  const cleanUps: (() => Promise<void>)[] = []
  test.after.always(async () => {
    for (const work of cleanUps.reverse()) await work()
  })
  return { teardown: work => void cleanUps.push(work) }
}

/** Retries the start while the database doesn't answer in time, as on a very busy machine. */
async function startWithRetries(settings: Settings, log: Log, clock?: Pick<Clock, 'now'>): Promise<Service> {
  for (let times = 1; ; times++) {
    try {
      return await startService(settings, log, createGateway, clock && { now: clock.now })
    } catch (error) {
      if (!isUnreachable(error) || times === patience) throw error
    }
  }
}

/**
 * Starts a service that stops with the test. Clients on loopback may name any address in X-Forwarded-For. `onLine` gets each
 * line of its log.
 */
export async function startTestService(
  t: Teardown,
  env: Record<string, string> = {},
  { clock, onLine }: { clock?: Pick<Clock, 'now'>; onLine?: (line: string) => void } = {},
): Promise<TestService> {
  const dataDir = await mkdtemp(join(tmpdir(), 'auth-test-'))
  const all: Record<string, string> = {
    ...ownSettings,
    DATABASE_URL: env.DATABASE_URL ?? (await databaseFor(t, env)),
    AUTH_DATA_DIR: dataDir,
    AUTH_TRUSTED_PROXIES: '127.0.0.1',
    ...env,
  }
  const settings = readSettings(all)
  const log = createLog(settings.logLevel, line => {
    keepLog(line)
    onLine?.(line)
  })
  const service = await startWithRetries(settings, log, clock)
  const registry = await openRegistry(settings, { log, connections: 2 })
  await registry.dataKeys.load()
  t.teardown(async () => {
    await service.stop()
    await registry.close()
    await rm(dataDir, { recursive: true, force: true })
  })
  const http = `http://127.0.0.1:${service.addresses.http?.port}`

  const request = createRequest(http, settings.compatibility ? 'none' : settings.defaultRevision)

  const must = async (answer: Promise<Answer>) => {
    const { status, text } = await answer
    if (status !== 200) throw new Error(`${status} ${text}`)
    return text
  }

  const login = (username: string, secret = password) =>
    must(request('POST', '/users/login', { query: { username, password: secret } }))

  async function signUp(role: string, fields: Record<string, unknown> = {}): Promise<SignedUp> {
    number = 10_000_000 + ((number + 1) % 90_000_000)
    const form = {
      username: `(11)9${String(number).slice(0, 4)}-${String(number).slice(4)}`,
      nickname: `pessoa ${number}`,
      password,
      state: 'SP',
      city: 'São Paulo',
      termsofusage: true,
      roles: [role],
      ...fields,
    }
    const token = await must(request('POST', '/users/signup', { body: form }))
    return { username: form.username, nickname: form.nickname, token }
  }

  return {
    http,
    grpc: `127.0.0.1:${service.addresses.grpc.port}`,
    settings,
    env: all,
    registry,
    service,
    request,
    signUp,
    login,
    adminToken: () => login('admin'),
    async organization(fields = {}) {
      const name = fields.name ?? `Defesa Civil ${randomInt(1e9)}`
      const email = fields.email ?? `org${randomInt(1e9)}@example.org`
      const row = await registry.database.transact(transaction =>
        registry.organizations.add({ name, email }, transaction),
      )
      return { id: row.id, activationkey: plantSecret(registry.organizations.activationKey(row)), email }
    },
    async institution({ activationkey }) {
      const user = await signUp('ROLE_INSTITUTION')
      const { token, username } = user
      await must(request('POST', '/users/activate', { token, query: { username, activationkey } }))
      const me = await request('GET', '/users/me', { token })
      const whole = await must(request('GET', '/users/refresh', { token }))
      return { ...user, token: whole, providerKey: me.json.providerActivationKey.activationkey }
    },
  }
}

/** A service that stops with the test, on a separate database, whose clock the test moves. */
export async function serviceWithClock(
  t: Teardown,
  env: Record<string, string> = {},
): Promise<TestService & { clock: Clock }> {
  const url = await freshDatabase(t, { from: clocked })
  const clock = await createStoppedClock(t, url)
  return { ...(await startTestService(t, { ...env, DATABASE_URL: url }, { clock })), clock }
}

/** A sign-up form with unique names. */
export function signUpForm(fields: Record<string, unknown> = {}) {
  return {
    username: randomUUID(),
    nickname: randomUUID(),
    password,
    state: 'TO',
    city: 'Palmas',
    termsofusage: true,
    roles: ['ROLE_CLIENT'],
    ...fields,
  }
}
