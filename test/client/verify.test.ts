/** The client package verifies tokens without a call, on a real service. */
import { generateKeyPairSync, randomBytes } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { fromBinary, toBinary } from '@bufbuild/protobuf'
import { timestampFromMs, timestampMs } from '@bufbuild/protobuf/wkt'
import { Code, ConnectError, createClient, createRouterTransport } from '@connectrpc/connect'
import test from 'ava'
import jwt from 'jsonwebtoken'
import { createCache } from '../../proto/client/cache.js'
import { requireToken as forConnect, verifiedKey } from '../../proto/client/connect.js'
import { requireToken as forExpress, verifiedOf } from '../../proto/client/express.js'
import { requireToken as forFastify } from '../../proto/client/fastify.js'
import type { UsersChange } from '../../proto/client/index.js'
import { createVerifier, type Verified, VerifyError } from '../../proto/client/verify.js'
import { notActivated } from '../../proto/client/verify-error.js'
import { PollRequestSchema, PollResponseSchema, Restart } from '../../proto/gen/auth/v1/changes_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { openLocal } from '../_helpers/administration.js'
import { type SignedUp, serviceForFile, serviceWithClock, startTestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { claimsOf, createForger, forge, headerOf, idOf, nowInSeconds } from '../_helpers/tokens.js'
import { createNetwork, move, outcome, paths, registryOf, revoke, verifierOf } from '../_helpers/verifiers.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

const service = serviceForFile(() => ({ AUTH_LIMIT_FACTOR: '1000' }))

test('a valid token is accepted with its claims, and costs no call', async t => {
  const { fetch, calls } = createNetwork()
  const verifier = await verifierOf(t, service, { fetch })
  const { token, username } = await service.institution(await service.organization())
  const first = await verifier.verify(token)
  t.deepEqual(first.claims, claimsOf(token))
  t.is(first.claims.username, username)
  t.is(first.source, 'signature')
  const again = await verifier.verify(token)
  t.deepEqual([again.source, again.claims], ['cache', first.claims])
  t.true(again.ageMs >= 0 && again.ageMs < 20_000)
  t.true(Math.abs(again.asOf.getTime() + again.ageMs - Date.now()) < 2_000)
  t.deepEqual(verifier.counts, { cache: 1, signature: 1, registry: 0, invalid: 0, unavailable: 0 })
  t.is(calls.filter(path => path === paths.keys).length, 1)
  t.false(calls.includes(paths.verify))
})

test('what isn’t a token of this registry is refused with 401, without a call of VerifyToken', async t => {
  const { fetch, calls } = createNetwork()
  const verifier = await verifierOf(t, service, { fetch })
  const { token } = await service.institution(await service.organization())
  const { kid } = headerOf(token)
  const [head, body, signature] = token.split('.') as [string, string, string]
  const foreign = generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey
  const encode = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url')
  const forged = await createForger(service, token)
  const wrong: Record<string, string> = {
    empty: '',
    'no token': 'x',
    'another body': `${head}.${encode({ ...claimsOf(token), sub: '1' })}.${signature}`,
    'no signature': `${encode({ alg: 'none', typ: 'at+jwt', kid })}.${body}.`,
    'a foreign key': jwt.sign(claimsOf(token), foreign, { header: { alg: 'ES256', typ: 'at+jwt', kid } }),
    'an HMAC': jwt.sign(claimsOf(token), 'secret', { header: { alg: 'HS256', typ: 'at+jwt', kid } }),
    'another type': forged({}, { typ: 'JWT' }),
    'no type': forged({}, { typ: undefined }),
    'a critical header': forged({}, { crit: ['more'], more: 1 }),
    'another issuer': forged({ iss: 'http://other.test' }),
    'another audience': forged({ aud: 'auth-admin' }),
    'no expiry': forged({ exp: undefined }),
    expired: forged({ exp: nowInSeconds() - 2 }),
    'no generation': forged({ ver: undefined }),
    'no user': forged({ sub: 'ana' }),
    'an unknown key': forged({}, { kid: 'unknown' }),
    'no key': forged({}, { kid: undefined }),
    'too long': forged({ more: 'x'.repeat(5_000) }),
  }
  for (const [what, text] of Object.entries(wrong)) t.is(await outcome(verifier, text), 'INVALID_TOKEN', what)
  const error = await t.throwsAsync(verifier.verify(wrong.expired!))
  t.is((error as unknown as { status: number }).status, 401)
  t.is(verifier.counts.invalid, Object.keys(wrong).length + 1)
  t.false(calls.includes(paths.verify))
  t.is(await outcome(verifier, forged({})), 'signature')
})

test('a cached token expires by the clock of the registry', async t => {
  const verifier = await verifierOf(t, service)
  const { token } = await service.institution(await service.organization())
  const short = await forge(service, token, { exp: nowInSeconds() + 10 })
  t.is(await outcome(verifier, short), 'signature')
  t.is(await outcome(verifier, short), 'cache')
  await waitForValue(() => outcome(verifier, short), 'INVALID_TOKEN')
})

test('a revoked token is refused before a poll would end, even if it was accepted before', async t => {
  const verifier = await verifierOf(t, service)
  const users = [
    await service.institution(await service.organization()),
    await service.institution(await service.organization()),
  ]
  const [revoked, other] = users as [(typeof users)[0], (typeof users)[0]]
  const unseen = await forge(service, revoked.token, {})
  for (const { token } of users) t.is(await outcome(verifier, token), 'signature')
  await revoke(service.http, revoked.token)
  const startedAt = performance.now()
  await waitForValue(() => outcome(verifier, revoked.token), 'INVALID_TOKEN')
  t.true(performance.now() - startedAt < 5_000)
  t.is(await outcome(verifier, unseen), 'INVALID_TOKEN')
  t.is(await outcome(verifier, other.token), 'cache')
  t.is(await outcome(verifier, await service.login(revoked.username)), 'signature')
})

test('a verifier knows the revocations from before its start', async t => {
  const { token } = await service.institution(await service.organization())
  await revoke(service.http, token)
  const sealed = await verifierOf(t, service)
  await waitForValue(() => outcome(sealed, token), 'INVALID_TOKEN')
  t.is(await outcome(await verifierOf(t, service), token), 'INVALID_TOKEN')
})

test('a token of a retired key is refused once the feed says so, without a call, while the keys can’t be read', async t => {
  const own = await startTestService(t)
  const network = createNetwork()
  const verifier = await verifierOf(t, own, { fetch: network.fetch })
  const { token } = await own.institution(await own.organization())
  const { kid } = headerOf(token)
  const unseen = await forge(own, token, {})
  t.is(await outcome(verifier, token), 'signature')
  network.broken.add(paths.keys)
  await (await openLocal(t, own, { reason: 'a test' })).retireSigningKey({ kid, confirm: kid })
  await waitForValue(() => outcome(verifier, token), 'INVALID_TOKEN')
  t.is(await outcome(verifier, unseen), 'INVALID_TOKEN')
  t.false(network.calls.includes(paths.verify))
})

test('a page of the feed from a server that is behind takes back no revocation, and nothing looks older', async t => {
  const { token } = await service.institution(await service.organization())
  const other = await service.institution(await service.organization())
  const { sub, ver } = claimsOf(token)
  let behind: Response | undefined
  let applied = false
  const verifier = await verifierOf(t, service, {
    async fetch(input, init) {
      if (!String(input).endsWith(paths.poll)) return fetch(input, init)
      applied = fromBinary(PollRequestSchema, init!.body as Buffer).cursor === 'behind'
      // No later page corrects it.
      if (applied) return new Promise((_, reject) => init!.signal!.addEventListener('abort', reject))
      if (behind) return behind
      const response = await fetch(input, init)
      const page = fromBinary(PollResponseSchema, new Uint8Array(await response.clone().arrayBuffer()))
      const ours = page.revocations.find(each => each.sub === sub && each.minGeneration > ver)
      if (ours) {
        ours.minGeneration = ver
        page.asOf = timestampFromMs(timestampMs(page.asOf!) - 90_000)
        page.cursor = 'behind'
        behind = new Response(toBinary(PollResponseSchema, page), { headers: { 'content-type': 'application/proto' } })
      }
      return response
    },
  })
  await revoke(service.http, token)
  await waitFor(() => applied)
  t.is(await outcome(verifier, token), 'INVALID_TOKEN')
  t.is(await outcome(verifier, other.token), 'signature')
})

test('after a restore the age counts by the restored database, even if its clock is behind', async t => {
  const { token } = await service.institution(await service.organization())
  let restart: Restart | undefined
  const verifier = await verifierOf(t, service, {
    async fetch(input, init) {
      const response = await fetch(input, init)
      if (restart === undefined || !String(input).endsWith(paths.poll)) return response
      const page = fromBinary(PollResponseSchema, new Uint8Array(await response.arrayBuffer()))
      for (const name of ['asOf', 'now'] as const) page[name] = timestampFromMs(timestampMs(page[name]!) - 90_000)
      const body = toBinary(PollResponseSchema, { ...page, restart })
      restart = Restart.UNSPECIFIED
      return new Response(body, { headers: { 'content-type': 'application/proto' } })
    },
  })
  const { asOf } = await verifier.verify(token)
  restart = Restart.CURSOR_LOST
  const isBehind = async () => (await verifier.verify(token)).asOf < asOf
  await waitFor(isBehind)
  t.true(verifier.ageMs! < 20_000)
})

test('a key that the registry doesn’t know, or without the scope, is refused with a reason', async t => {
  const unknown = `authsvc_${'x'.repeat(43)}`
  await t.throwsAsync(verifierOf(t, service, { key: unknown }), { message: /unauthenticated/ })
  const without = await serviceKey(service, ['tokens.verify'])
  await t.throwsAsync(verifierOf(t, service, { key: without }), { message: /permission_denied/ })
  const options = { url: service.http, key: unknown, issuer: 'i', audience: 'a' }
  t.throws(() => createVerifier({ ...options, url: 'auth.example.org' }), { message: /`url`/ })
  t.throws(() => createVerifier({ ...options, key: 'eyJ' }), { message: /`key`/ })
  t.throws(() => createVerifier({ ...options, audience: '' }), { message: /`audience`/ })
})

test('unknown key ids cause at most one request for keys per second, which valid tokens don’t wait for', async t => {
  const { fetch, calls } = createNetwork()
  const verifier = await verifierOf(t, service, { fetch })
  const { token } = await service.institution(await service.organization())
  t.is(await outcome(verifier, token), 'signature')
  const forged = await createForger(service, token)
  const before = calls.filter(path => path === paths.keys).length
  const startedAt = performance.now()
  let most = 0
  for (let round = 0; round < 3; round++) {
    const flood = Array.from({ length: 50 }, (_, index) => forged({}, { kid: `unknown ${round} ${index}` }))
    const refused = Promise.all(flood.map(each => outcome(verifier, each)))
    const from = performance.now()
    t.is(await outcome(verifier, token), 'cache')
    most = Math.max(most, performance.now() - from)
    t.deepEqual(new Set(await refused), new Set(['INVALID_TOKEN']))
  }
  const asked = calls.filter(path => path === paths.keys).length - before
  t.true(asked >= 1 && asked <= Math.ceil((performance.now() - startedAt) / 1000) + 1, String(asked))
  t.true(most < 500, String(most))
})

test('at most 32 calls of VerifyToken are in progress, and at most one in 10 s for each token', async t => {
  let [asked, inProgress, most] = [0, 0, 0]
  let answer: ArrayBuffer | undefined
  let release = () => {}
  const held = new Promise<void>(resolve => {
    release = resolve
  })
  const verifier = await verifierOf(t, service, {
    // The known state is always older.
    maxStaleMs: 0,
    /** The first answer of the registry is that of all later calls, which wait until they are released. */
    async fetch(input, init) {
      if (!String(input).endsWith(paths.verify)) return fetch(input, init)
      asked++
      most = Math.max(most, ++inProgress)
      if (answer) await held
      answer ??= await (await fetch(input, init)).arrayBuffer()
      inProgress--
      return new Response(answer, { headers: { 'content-type': 'application/proto' } })
    },
  })
  const { token } = await service.institution(await service.organization())
  t.is(await outcome(verifier, token), 'registry')
  const forged = await createForger(service, token)
  const tokens = Array.from({ length: 40 }, () => forged({}))
  const twice = [...tokens, ...tokens].map(each => outcome(verifier, each))
  await waitForValue(() => inProgress, 32)
  await sleep(100)
  release()
  t.deepEqual(new Set(await Promise.all(twice)), new Set(['registry']))
  t.deepEqual([asked, most], [41, 32])
  t.is(await outcome(verifier, tokens[0]!), 'registry')
  t.is(asked, 41)
  t.is(verifier.counts.registry, 82)
})

test('when VerifyToken fails the answer is 503, never 401', async t => {
  const network = createNetwork()
  const verifier = await verifierOf(t, service, { fetch: network.fetch, maxStaleMs: 0 })
  const { token } = await service.institution(await service.organization())
  network.broken.add(paths.verify)
  const error = await t.throwsAsync(verifier.verify(token))
  t.is((error as unknown as { status: number }).status, 503)
  t.is(await outcome(verifier, 'x'), 'INVALID_TOKEN')
  const before = await forge(service, token, { aud: claimsOf(token).iss, roles: [], active: false })
  t.is(await outcome(verifier, before), 'NOT_ACTIVATED')
  network.broken.clear()
  t.is(await outcome(verifier, before), 'NOT_ACTIVATED')
  t.is(await outcome(verifier, token), 'registry')
  await revoke(service.http, token)
  const other = await forge(service, token, {})
  t.is(await outcome(verifier, other), 'INVALID_TOKEN')
})

test('a token for another audience or of another issuer is refused, also when only the registry can say whether it is genuine', async t => {
  const { token } = await service.institution(await service.organization())
  for (const [options, expected] of [
    [{}, 'registry'],
    [{ audience: 'another' }, 'INVALID_TOKEN'],
    [{ issuer: 'http://other.test' }, 'INVALID_TOKEN'],
  ] as const) {
    const network = createNetwork()
    network.broken.add(paths.keys)
    const verifier = await verifierOf(t, service, { fetch: network.fetch, ...options })
    t.is(await outcome(verifier, token), expected)
    t.true(network.calls.includes(paths.verify))
  }
})

test('the cache keeps the newest tokens, up to its maximum', t => {
  const cache = createCache<number>(1_000)
  const tokens = Array.from({ length: 20_000 }, () => randomBytes(64).toString('base64url'))
  for (const [number, token] of tokens.entries()) {
    cache.set(token, number)
    t.is(cache.get(token), number)
  }
  const remembered = tokens.map(token => cache.get(token)).filter(number => number !== undefined)
  t.true(remembered.length <= 1_000)
  // The cache keeps the last 300 of them, with a maximum of 1,000.
  t.true(remembered.filter(number => number >= 19_700).length > 280)
  for (const token of tokens) cache.delete(token)
  t.true(tokens.every(token => cache.get(token) === undefined))
})

test('a closed verifier answers 503', async t => {
  const verifier = await verifierOf(t, service)
  const { token } = await service.institution(await service.organization())
  t.is(await outcome(verifier, token), 'signature')
  verifier.close()
  t.is(await outcome(verifier, token), 'UNAVAILABLE')
})

// The client package keeps copies of users up to date, on a real service.

test('the first change asks for all users, and each later one has the ids that changed', async t => {
  const registry = await registryOf(service)
  const changes: UsersChange[] = []
  const watch = registry.watchUsers(change => void changes.push(change))
  await waitFor(() => changes.length > 0)
  t.true(changes[0]!.all)
  const user = await service.institution(await service.organization())
  await waitFor(() => changes.some(({ ids }) => ids.includes(idOf(user.token))))
  t.false(changes.at(-1)!.all)
  await watch.close()
  const before = changes.length
  await move(service, user)
  await sleep(700)
  t.is(changes.length, before)
  const reference = { user: { case: 'id', value: idOf(user.token) } } as const
  const { users } = await registry.users.batchGetUsers({ references: [reference] })
  t.is(users[0]!.city, 'Palmas')
})

test('a change is delivered again until it is applied', async t => {
  const registry = await registryOf(service)
  let awaited: number | undefined
  let [times, applied] = [0, false]
  let started = false
  const watch = registry.watchUsers(({ ids }) => {
    started = true
    if (awaited === undefined || !ids.includes(awaited) || applied) return
    if (++times < 3) throw new Error('the copy is locked')
    applied = true
  })
  t.teardown(() => watch.close())
  await waitFor(() => started)
  const user = await service.institution(await service.organization())
  awaited = idOf(user.token)
  await move(service, user)
  await waitFor(() => applied)
  t.is(times, 3)
})

test('failed polls are repeated, and no change is lost', async t => {
  const network = createNetwork()
  const registry = await registryOf(service, { fetch: network.fetch })
  const ids: number[] = []
  const watch = registry.watchUsers(change => void ids.push(...change.ids))
  t.teardown(() => watch.close())
  await waitFor(() => network.calls.length > 1)
  network.away(true)
  network.broken.add(paths.poll)
  network.away(false)
  const { token } = await service.institution(await service.organization())
  await waitFor(() => network.calls.length > 4)
  t.false(ids.includes(idOf(token)))
  network.broken.clear()
  await waitFor(
    () => ids.includes(idOf(token)),
    () => ids,
  )
})

test('a watcher that was offline for a day misses no change, suspension or erasure', async t => {
  const clocked = await serviceWithClock(t, { AUTH_LIMIT_FACTOR: '1000' })
  const registry = await registryOf(clocked)
  const names = ['changed', 'suspended', 'erased', 'untouched'] as const
  const users = {} as Record<(typeof names)[number], SignedUp>
  let cursor = ''
  const seen: number[] = []
  const first = registry.watchUsers(change => {
    cursor = change.cursor
    seen.push(...change.ids)
  })
  await waitFor(() => cursor)
  for (const name of names) users[name] = await clocked.signUp('ROLE_CLIENT')
  await waitFor(() => names.every(name => seen.includes(idOf(users[name].token))))
  await first.close()

  await clocked.clock.pass(40_000)
  const administration = await openLocal(t, clocked, { reason: 'a test' })
  const late = { ...users.changed, token: await clocked.login(users.changed.username) }
  await move(clocked, late)
  await administration.suspendUser({ user: users.suspended.username })
  await administration.eraseUser({ user: users.erased.username, confirm: users.erased.username })
  await clocked.clock.pass(46_400)

  const changes: UsersChange[] = []
  const again = registry.watchUsers(change => void changes.push(change), { cursor })
  t.teardown(() => again.close())
  const missed = () => changes.flatMap(({ ids }) => ids)
  await waitFor(() =>
    ['changed', 'suspended', 'erased'].every(name => missed().includes(idOf(users[name as 'changed'].token))),
  )
  t.false(missed().includes(idOf(users.untouched.token)))
  t.false(changes.some(({ all }) => all))
})

// Middleware of the client package: responses to requests without a valid token.

/** A verifier that knows three tokens. */
const verifier = {
  async verify(token: string): Promise<Verified> {
    if (token === 'broken') throw new TypeError('a fault')
    if (token === 'away') throw new VerifyError('UNAVAILABLE', 'Try again.')
    if (token === 'new') throw notActivated()
    if (token !== 'good') throw new VerifyError('INVALID_TOKEN', 'Log in again.')
    return { claims: { sub: '7' }, asOf: new Date(), ageMs: 0, source: 'cache' } as unknown as Verified
  },
}

/** The response to each value of `Authorization`: status, `WWW-Authenticate`, `Retry-After`. */
const answers: [authorization: string | undefined, status: number, challenge: string | null, retry: string | null][] = [
  ['Bearer good', 200, null, null],
  ['bearer  good ', 200, null, null],
  ['Bearer bad', 401, 'Bearer error="invalid_token"', null],
  ['Basic good', 401, 'Bearer error="invalid_token"', null],
  ['Bearer', 401, 'Bearer error="invalid_token"', null],
  [undefined, 401, 'Bearer', null],
  ['Bearer new', 403, 'Bearer error="insufficient_scope"', null],
  ['Bearer away', 503, null, '1'],
  ['Bearer broken', 500, null, null],
]

test('Express: the answer is 401 with a challenge, 403 before activation, or 503 with Retry-After, and a problem document', async t => {
  const handle = forExpress(verifier)
  const server = createServer((request, response) =>
    handle(request, response, error => {
      if (error) response.writeHead(500).end()
      else response.end(verifiedOf(request).claims.sub)
    }),
  )
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => void server.close())
  const { port } = server.address() as AddressInfo
  for (const [authorization, status, challenge, retry] of answers) {
    const response = await fetch(`http://127.0.0.1:${port}`, { headers: authorization ? { authorization } : {} })
    const given = ['www-authenticate', 'retry-after', 'content-type'].map(name => response.headers.get(name))
    const reason = { 401: 'INVALID_TOKEN', 403: 'NOT_ACTIVATED', 503: 'UNAVAILABLE' }[status]
    const isProblem = reason !== undefined
    const type = isProblem ? 'application/problem+json' : null
    t.deepEqual([response.status, ...given], [status, challenge, retry, type])
    const body = await response.text()
    if (status === 200) t.is(body, '7')
    if (isProblem) t.like(JSON.parse(body), { status, reason })
    if (status === 403) t.regex(JSON.parse(body).detail, /^Activate your account, then log in again or refresh/)
  }
  t.throws(() => verifiedOf({}), { message: /requireToken/ })
})

test('Fastify: the answer is the same', async t => {
  const handle = forFastify(verifier)
  for (const [authorization, status, challenge, retry] of answers) {
    if (status === 500) continue
    const request = { headers: { authorization } }
    const sent: { status?: number; headers?: Record<string, string>; body?: string } = {}
    const answered = await handle(request, {
      code: status => (sent.status = status),
      headers: headers => (sent.headers = headers),
      send: body => (sent.body = body),
    })
    if (status === 200) {
      t.deepEqual([answered, verifiedOf(request).claims.sub, sent], [undefined, '7', {}])
      continue
    }
    const { 'www-authenticate': given = null, 'retry-after': after = null } = sent.headers!
    t.deepEqual([sent.status, given, after], [status, challenge, retry])
  }
  await t.throwsAsync(handle({ headers: { authorization: 'Bearer broken' } }, {} as never), { instanceOf: TypeError })
})

test('Connect: the refusal is UNAUTHENTICATED, PERMISSION_DENIED or UNAVAILABLE', async t => {
  const transport = createRouterTransport(
    router => {
      router.rpc(Users.method.getMe, (_, { values }) => ({ user: { id: Number(values.get(verifiedKey)!.claims.sub) } }))
    },
    { router: { interceptors: [forConnect(verifier)] } },
  )
  const client = createClient(Users, transport)
  const call = (authorization?: string) => client.getMe({}, { headers: authorization ? { authorization } : {} })
  t.is((await call('Bearer good')).user!.id, 7)
  for (const [authorization, code] of [
    [undefined, Code.Unauthenticated],
    ['Bearer bad', Code.Unauthenticated],
    ['Bearer new', Code.PermissionDenied],
    ['Bearer away', Code.Unavailable],
  ] as const) {
    const error = await t.throwsAsync(call(authorization), { instanceOf: ConnectError })
    t.is(ConnectError.from(error).code, code)
  }
})
