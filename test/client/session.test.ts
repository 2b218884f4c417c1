/** Apps stay signed in with `auth-registry-client/session`, on a real service. */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { gzipSync } from 'node:zlib'
import test, { type ExecutionContext } from 'ava'
import { buildSync } from 'esbuild'
import { createSession, SessionError, type Store, type User } from '../../proto/client/session/index.js'
import { openSignedIn } from '../_helpers/administration.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { saveAnswer } from '../_helpers/recovery.js'
import {
  password,
  serviceWithClock,
  signUpForm,
  startTestService,
  type TestService,
  teardownOfFile,
} from '../_helpers/service.js'
import { claimsOf } from '../_helpers/tokens.js'
import { waitFor } from '../_helpers/wait.js'

const hooks = teardownOfFile()
const mailbox = mailboxForFile()
const day = 86_400
const settings = () => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url, AUTH_LIMIT_FACTOR: '1000' })

let at: Awaited<ReturnType<typeof serviceWithClock>>
// The apps of this file are processes of their own, which the locks of Node.js 24 don't know: an app that is killed would keep its
// lock. Browsers have some in session.slow.test.ts.
if (globalThis.navigator) Object.defineProperty(globalThis.navigator, 'locks', { value: undefined })

test.serial.before(async () => {
  at = await serviceWithClock(hooks, settings())
})

/** What happens to the answer of a request: it is lost on its way, or its request is. */
type Fault = 'answer' | 'request'

/** A network that counts requests by path, and loses what a test wants. */
function createNetwork() {
  const calls: string[] = []
  const faults: [path: string, fault: Fault][] = []
  const send: typeof fetch = async (input, init) => {
    const { pathname } = new URL(input instanceof Request ? input.url : String(input))
    calls.push(pathname)
    const at = faults.findIndex(([path]) => path === pathname)
    const [, fault] = at < 0 ? [] : faults.splice(at, 1)[0]!
    if (fault === 'request') throw new TypeError('fetch failed')
    const response = await fetch(input, init)
    if (fault === 'answer') throw new TypeError('fetch failed')
    return response
  }
  const lose = (path: string, fault: Fault, times = 1) => {
    for (let n = 0; n < times; n++) faults.push([path, fault])
  }
  return {
    fetch: send,
    calls,
    lose,
    count: (path: string) => calls.filter(each => each === path).length,
  }
}

/** A store like that of a phone, which takes its time. */
function createStore() {
  const items = new Map<string, string>()
  const store: Store & { broken: 'not' | 'fails' | 'hangs' | 'hung' } = {
    broken: 'not',
    async getItem(key) {
      const text = items.get(key) ?? null
      await sleep(5)
      return text
    },
    async setItem(key, text) {
      await sleep(1)
      if (store.broken === 'fails') throw new Error('The store is full.')
      if (store.broken === 'hangs') store.broken = 'hung'
      if (store.broken === 'hung') await new Promise(() => undefined)
      items.set(key, text)
    },
    async removeItem(key) {
      items.delete(key)
    },
  }
  return Object.assign(store, { items })
}

/** An app: a session, its network, its store, and the changes that were reported to it. */
function createApp({ on = at as TestService, store = createStore(), origins = [] as string[] } = {}) {
  const network = createNetwork()
  const reported: [user: User | undefined, code: string | undefined][] = []
  const session = createSession({
    url: on.http,
    store,
    fetch: network.fetch,
    origins,
    onChange: (user, cause) => reported.push([user, cause?.code]),
  })
  const me = async () => {
    const response = await session.fetch(`${on.http}/users/me`)
    return response.status === 200 ? ((await response.json()) as { username: string }).username : response.status
  }
  return { session, network, store, reported, me }
}

async function person(on: TestService = at) {
  const user = await on.signUp('ROLE_INSTITUTION', { email: `${randomUUID()}@example.org` })
  const { activationkey } = await on.organization()
  await on.request('POST', '/users/activate', { token: user.token, query: { username: user.username, activationkey } })
  return { username: user.username, password }
}

/** An app whose user is signed in. */
async function signedIn(options?: Parameters<typeof createApp>[0]) {
  const app = createApp(options)
  const credentials = await person(options?.on)
  await app.session.signIn(credentials)
  return { ...app, ...credentials }
}

/** A user with answers to questions. */
async function forgetful(fields: Record<string, unknown> = {}) {
  const { username } = await at.signUp('ROLE_CLIENT', fields)
  const token = await at.login(username)
  for (const question of [1, 2]) await saveAnswer(at, token, question, 'azul')
  return { username, answers: [1, 2].map(forgotpasswordquestionsid => ({ forgotpasswordquestionsid, answer: 'Azul' })) }
}

const codeOf = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => 'OK',
    error => (error instanceof SessionError ? error.code : String(error)),
  )

/** Why sessions of the user ended, as its audit events say. */
async function endsOf(t: ExecutionContext, username: string): Promise<string[]> {
  const { json } = await at.request('GET', '/users/me/events', { token: await at.login(username) })
  t.true(json.events.length > 0)
  return json.events
    .filter(({ action }: { action: string }) => action === 'session.end')
    .map(({ reason }: { reason: string }) => reason)
}

/** Starts the same again and again until some work is done, and returns what came of it. */
async function meanwhile<T>(work: Promise<unknown>, again: () => Promise<T>): Promise<T[]> {
  let isDone = false
  const done = work.finally(() => {
    isDone = true
  })
  const begun: Promise<T>[] = []
  for (; !isDone; await sleep(1)) begun.push(again())
  await done
  return Promise.all(begun)
}

/** A service of others, which gives the answer that was set and keeps what it gets. */
async function createOther(
  t: ExecutionContext,
  answer: (request: IncomingMessage) => [status: number, headers?: Record<string, string>],
) {
  const seen: string[] = []
  const server = createServer((request, response) => {
    seen.push(`${request.method} ${request.url} ${request.headers.authorization ? 'token' : 'none'}`)
    request.resume().on('end', () => response.writeHead(...answer(request)).end())
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.teardown(() => void server.close())
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, seen }
}

test.serial('a user signs up, activates a username of digits, and goes on with a token for services', async t => {
  const { session, reported, me, network } = createApp()
  const username = `119${Date.now() % 100_000_000}`.padEnd(11, '7')
  const form = { ...signUpForm({ username, roles: ['ROLE_INSTITUTION'] }), username, nickname: 'José 🦫', password }
  const user = await session.signUp(form)
  t.like(user, { username, roles: [], active: false })
  const { activationkey } = await at.organization()
  t.is(await codeOf(session.activate(randomUUID())), 'ACTIVATION_REFUSED')
  network.lose('/users/activate', 'answer')
  t.is(await codeOf(session.activate(activationkey)), 'OFFLINE')
  t.deepEqual(await session.activate(activationkey), { ...user, roles: ['ROLE_INSTITUTION'], active: true })
  t.like(claimsOf(await session.token()), { aud: 'work-packages', username })
  t.is(await me(), username)
  t.deepEqual(
    reported.map(([user, code]) => user?.active ?? code),
    ['SIGNED_OUT', false, true],
  )
})

test.serial('a refusal has its reason, every wrong field, and when to try again', async t => {
  const { session, reported } = createApp()
  const error = await t.throwsAsync<SessionError>(
    session.signUp({ ...signUpForm({ state: 'S', city: '' }), username: 'x', nickname: 'x', password: '1' }),
  )
  t.like(error, { code: 'INVALID_SIGN_UP', status: 422, name: 'SessionError' })
  t.deepEqual(error?.errors?.map(({ field }) => field).sort(), ['city', 'password', 'state'])
  t.is(await codeOf(session.signIn({ username: randomUUID(), password })), 'INVALID_CREDENTIALS')
  t.is(await codeOf(session.token()), 'SIGNED_OUT')
  t.deepEqual(reported, [[undefined, 'SIGNED_OUT']])
})

test.serial('20 parallel requests with an expired token refresh once, and each is sent once more', async t => {
  const { me, network, username } = await signedIn()
  t.is(await me(), username)
  await at.clock.pass(3601)
  network.calls.length = 0
  t.deepEqual(await Promise.all(Array.from({ length: 20 }, me)), Array(20).fill(username))
  t.is(network.count('/oauth/token'), 1)
  t.is(network.count('/users/me'), 40)
})

test.serial('what was read before a sign-in undoes nothing after it', async t => {
  const { session, me, reported } = createApp()
  const credentials = await person()
  await meanwhile(session.signIn(credentials), me)
  t.is(await me(), credentials.username)
  t.is(reported.length, 2)
})

test.serial('two tabs with one store refresh at once, again and again, and stay signed in', async t => {
  const { me, store, username } = await signedIn()
  const other = createApp({ store })
  for (let n = 0; n < 4; n++) {
    await at.clock.pass(3601)
    t.deepEqual(await Promise.all([me(), other.me(), me(), other.me()]), Array(4).fill(username))
  }
  t.deepEqual(await endsOf(t, username), [])
})

test.serial('a session goes on after 29 days asleep, at a new start, too, and ends after 30', async t => {
  const { me, store, username, reported } = await signedIn()
  t.is(await me(), username)
  const asleep = createApp({ store })
  await at.clock.pass(29 * day)
  t.is(await me(), username)
  t.is(await asleep.me(), username)
  t.is(asleep.session.user?.username, username)
  await at.clock.pass(day)
  t.is(await codeOf(me()), 'ENDED')
  t.deepEqual(reported.at(-1), [undefined, 'ENDED'])
  t.is(await codeOf(asleep.session.token()), 'ENDED')
  const later = createApp({ store })
  t.is(await codeOf(later.session.token()), 'ENDED')
  t.deepEqual(later.reported, [[undefined, 'ENDED']])
  t.deepEqual(await endsOf(t, username), [])
})

test.serial('lost answers to refreshes sign no user out: the refresh is repeated', async t => {
  const { me, network, username, reported, session } = await signedIn()
  network.lose('/oauth/token', 'answer')
  t.is(await me(), username)
  for (const fault of ['answer', 'request'] as const) {
    await at.clock.pass(3601)
    network.lose('/oauth/token', fault, 3)
    t.is(await codeOf(me()), 'OFFLINE')
    t.is(session.user?.username, username)
    t.is(await me(), username)
  }
  const other = createApp()
  other.network.lose('/users/me/refreshtoken', 'answer', 2)
  await other.session.signIn({ username, password })
  t.is(await other.me(), username)
  t.is(reported.length, 2)
  t.deepEqual(await endsOf(t, username), [])
})

test.serial('while the registry is away, a token goes on that is still valid', async t => {
  const short = await startTestService(
    t,
    { ...settings(), DATABASE_URL: at.env.DATABASE_URL!, AUTH_TOKEN_TTL: '100s' },
    { clock: at.clock },
  )
  const { session, network } = await signedIn({ on: short })
  const first = await session.token()
  const now = performance.now
  // The last fifth of its life.
  performance.now = () => now.call(performance) + 85_000
  t.teardown(() => {
    performance.now = now
  })
  network.lose('/oauth/token', 'request', 3)
  t.is(await session.token(), first)
  t.not(await session.token(), first)
})

for (const [when, seconds] of [
  ['at once', 0],
  ['2 minutes later', 120],
] as const)
  test.serial(`an app that is killed before it stores goes on when it is started again ${when}`, async t => {
    const { me, store, username } = await signedIn()
    t.is(await me(), username)
    await at.clock.pass(3601)
    store.broken = 'hangs'
    me().catch(() => undefined)
    await waitFor(() => store.broken === 'hung')
    store.broken = 'not'
    await at.clock.pass(seconds)
    for (let start = 0; start < 3; start++) {
      t.is(await createApp({ store }).me(), username)
      await at.clock.pass(seconds)
    }
    t.deepEqual(await endsOf(t, username), [])
  })

test.serial('a store that fails is the error of the call, and no token is used that isn’t stored', async t => {
  const { me, store, username } = await signedIn()
  t.is(await me(), username)
  for (let n = 0; n < 3; n++) {
    await at.clock.pass(3601)
    store.broken = 'fails'
    t.is(await codeOf(me()), 'Error: The store is full.')
    store.broken = 'not'
  }
  t.is(await me(), username)
  t.deepEqual(await endsOf(t, username), [])
})

test.serial('the causes that end a session are distinguished, and reported once to all who wait', async t => {
  const administration = await openSignedIn(t, at)
  const suspended = await signedIn()
  await administration.suspendUser({ user: suspended.username })
  t.deepEqual(await Promise.all([suspended.me(), suspended.me()].map(codeOf)), ['SUSPENDED', 'SUSPENDED'])
  t.is(await codeOf(suspended.session.token()), 'SUSPENDED')
  t.is(suspended.reported.length, 3)

  const elsewhere = await signedIn()
  await at.request('POST', '/users/revokemytokens', { token: await at.login(elsewhere.username) })
  t.is(await codeOf(elsewhere.me()), 'SIGNED_OUT')

  const tabs = await signedIn()
  const other = createApp({ store: tabs.store })
  t.is(await other.me(), tabs.username)
  await tabs.session.signOut()
  t.is(await codeOf(other.session.token()), 'SIGNED_OUT')
  t.is(await other.me(), 403)
  t.deepEqual(other.reported.at(-1), [undefined, 'SIGNED_OUT'])

  const copied = await signedIn()
  const copy = createStore()
  for (const [key, text] of copied.store.items) copy.items.set(key, text)
  for (let n = 0; n < 2; n++) {
    t.is(await copied.me(), copied.username)
    await at.clock.pass(3601)
  }
  t.is(await copied.me(), copied.username)
  t.is(await codeOf(createApp({ store: copy }).me()), 'ENDED')
  t.deepEqual(await endsOf(t, copied.username), ['COPIED'])
})

test.serial('signing out revokes the refresh token, offline forgets it, and everywhere ends every session', async t => {
  const { session, store, username, network, me, reported } = await signedIn()
  const other = createApp()
  await other.session.signIn({ username, password })
  t.is(await other.me(), username)
  const [kept] = [...store.items.values()]
  await session.signOut()
  t.deepEqual([...store.items], [])
  t.deepEqual(reported.at(-1), [undefined, 'SIGNED_OUT'])
  const form = { grant_type: 'refresh_token', client_id: 'registry', refresh_token: JSON.parse(kept!).refresh }
  t.is((await fetch(`${at.http}/oauth/token`, { method: 'POST', body: new URLSearchParams(form) })).status, 400)

  await session.signIn({ username, password })
  network.lose('/oauth/revoke', 'request', 3)
  await session.signOut()
  t.deepEqual([session.user, [...store.items]], [undefined, []])

  await session.signIn({ username, password })
  network.lose('/users/revokemytokens', 'request')
  t.is(await codeOf(session.signOut({ everywhere: true })), 'OFFLINE')
  t.is(await me(), username)
  await session.signOut({ everywhere: true })
  t.is(await codeOf(other.me()), 'SIGNED_OUT')
})

test.serial('administrators and AUTH_STRICT go on with the token they have, after a restart, too', async t => {
  const strict = await startTestService(
    t,
    { ...settings(), DATABASE_URL: at.env.DATABASE_URL!, AUTH_STRICT: 'on' },
    { clock: at.clock },
  )
  for (const [on, credentials] of [
    [at, { username: 'admin', password }],
    [strict, await person()],
  ] as const) {
    const { session, store, me } = createApp({ on })
    await session.signIn(credentials)
    t.is(claimsOf(await session.token()).aud, 'work-packages')
    t.is(await me(), credentials.username)
    const other = createApp({ on, store })
    t.is(await other.me(), credentials.username)
    await at.clock.pass(3000)
    await other.session.token(await other.session.token())
    const later = createApp({ on, store })
    await at.clock.pass(3000)
    t.is(await later.me(), credentials.username)
    await at.clock.pass(day)
    t.is(await codeOf(later.me()), 'ENDED')
  }
})

test.serial('who has proved who it is sets a password, which signs in and ends other sessions', async t => {
  const email = `${randomUUID()}@example.org`
  const { username, answers } = await forgetful({ email })
  const { session, me } = createApp()
  t.is(await codeOf(session.signInByKey({ username, key: 'AAAABBBB' })), 'INVALID_KEY')
  await session.signInByAnswers({ username, answers })
  t.is(session.user, undefined)
  t.is(await codeOf(session.setPassword('12345678')), 'INVALID_PASSWORD')
  t.like(await session.setPassword(`${password} 2`), { username })
  t.is(await me(), username)

  await session.fetch(`${at.http}/forgotpasswords/sendkeybyemail`, {
    method: 'POST',
    body: new URLSearchParams({ username, email }),
  })
  let key: string | undefined
  while (!key) key = /: (\w{8})$/m.exec((await mailbox.nextEmail(email)).text ?? '')?.[1]
  const other = createApp()
  await other.session.signInByKey({ username, key })
  await other.session.setPassword(`${password} 3`)
  t.is(await other.me(), username)
  t.is(await codeOf(me()), 'SIGNED_OUT')
  // Of the user who is signed in; what else the app does meanwhile signs no user out.
  const set = other.session.setPassword(`${password} 4`)
  t.deepEqual([...new Set(await meanwhile(set, other.me))], [username])
  t.true(other.reported.every(([user], n) => n === 0 || user !== undefined))
  t.is(await other.me(), username)
})

test.serial('the token goes to the registry and to named origins only, and follows no redirect', async t => {
  const stranger = await createOther(t, () => [200])
  const named = await createOther(t, ({ url }) =>
    url === '/away' ? [302, { location: `${stranger.url}/lost` }] : [200],
  )
  const { session } = await signedIn({ origins: [`${named.url}/api/`] })
  await session.fetch(`${named.url}/grades`)
  await session.fetch(new URL(`${named.url}/url`))
  await session.fetch(new Request(`${named.url}/request`, { method: 'PUT', body: 'x' }))
  await session.fetch(`${stranger.url}/x`)
  await t.throwsAsync(session.fetch(`${named.url}/away`), { instanceOf: TypeError })
  await session.fetch(`${named.url}/away`, { redirect: 'follow' })
  const port = new URL(named.url).port
  for (const url of [
    `http://127.0.0.1.nip.example:${port}`,
    `http://127.0.0.1:${port}@localhost:1/`,

    `http://127.0.0.1:${port}\t0/`,
  ])
    await session.fetch(url).catch(() => undefined)
  t.deepEqual(named.seen, [
    'GET /grades token',
    'GET /url token',
    'PUT /request token',
    'GET /away token',
    'GET /away token',
  ])
  t.deepEqual(stranger.seen, ['GET /x none', 'GET /lost none'])
  for (const url of ['', 'auth.example.org', 'https://a@b', 'ftp://a'])
    t.throws(() => createSession({ url }), { instanceOf: TypeError }, url)
})

test.serial('a refused request is sent once more, with its body; nothing else is repeated', async t => {
  const answers: number[] = []
  const other = await createOther(t, () => [answers.shift() ?? 200])
  const { session, network } = await signedIn({ origins: [other.url] })
  const post = async (init: RequestInit = {}) => {
    other.seen.length = 0
    const response = await session.fetch(new Request(other.url, { method: 'POST', body: 'x' }), init)
    return [response.status, other.seen.length]
  }
  for (const [given, expected] of [
    [[401], [200, 2]],
    [
      [401, 401],
      [401, 2],
    ],
    [[500], [500, 1]],
    [[403], [403, 1]],
    [[503], [503, 1]],
    [[404], [404, 1]],
  ] as const) {
    answers.push(...given)
    t.deepEqual(await post(), [...expected], String(given))
  }
  answers.push(401)
  t.deepEqual(await post({ headers: { authorization: 'Basic eDp5' } }), [401, 1])
  network.lose('/', 'answer')
  await t.throwsAsync(post(), { instanceOf: TypeError })
  t.is(other.seen.length, 1)
  // A body that can’t be sent twice isn’t.
  answers.push(401)
  const body = new ReadableStream({ start: stream => stream.close() })
  t.is((await session.fetch(other.url, { method: 'POST', body, duplex: 'half' } as RequestInit)).status, 401)
})

test.serial('without a user, requests go without a token; another user in another tab takes over', async t => {
  const { session, me, store } = createApp()
  t.is((await session.fetch(`${at.http}/forgotpasswords/findallforgotpasswordquestions`)).status, 200)
  t.is(await me(), 403)
  const [ana, bia] = [await person(), await person()]
  await session.signIn(ana)
  t.is(await me(), ana.username)
  await createApp({ store }).session.signIn(bia)
  t.is(await me(), bia.username)
  t.is(session.user?.username, bia.username)
})

test.serial('a proof ends with a sign-in or a sign-out, so that no password is set for another user', async t => {
  const { username, answers } = await forgetful()
  const { session } = createApp()
  await session.signInByAnswers({ username, answers })
  const bia = await person()
  await session.signIn(bia)
  t.like(await session.setPassword(`${password} 2`), { username: bia.username })
  await session.signOut()
  await session.signInByAnswers({ username, answers })
  await session.signOut()
  t.is(await codeOf(session.setPassword(`${password} 2`)), 'SIGNED_OUT')
  t.truthy(await at.login(username))
})

test.serial('what isn’t from the registry signs no user out', async t => {
  const { session, me, username, network } = await signedIn()
  const token = await session.token()
  const real = globalThis.fetch
  t.teardown(() => {
    globalThis.fetch = real
  })
  for (const [status, text] of [
    [200, '<html>Welcome to the hotel</html>'],
    [502, 'Bad Gateway'],
    [403, '{"message": "blocked"}'],
    [400, '{"reason": "TOO_EARLY"}'],
  ] as const) {
    globalThis.fetch = async input =>
      String(input).endsWith('/oauth/token') ? new Response(text, { status }) : real(input)
    t.not(await codeOf(session.token(token)), 'OK')
    globalThis.fetch = real
  }
  t.is(await me(), username)
  t.true(network.count('/oauth/token') > 4)
})

test('the session client has no import of Node.js and no dependency, and at most 5 KB, minified and gzipped', t => {
  const entry = fileURLToPath(new URL('../../proto/client/session/index.js', import.meta.url))
  const { outputFiles, metafile } = buildSync({
    entryPoints: [entry],
    bundle: true,
    minify: true,
    write: false,
    metafile: true,
    format: 'esm',
    platform: 'browser',
  })
  const { contents } = outputFiles[0]!
  t.true(gzipSync(contents).length <= 5_000)
  t.true(Object.keys(metafile.inputs).every(path => /proto\/client\/(session\/|clock\.js)/.test(path)))
  t.notRegex(Buffer.from(contents).toString(), /\b(process|Buffer|require)\b/)
})
