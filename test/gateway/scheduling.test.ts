/** When requests over HTTP start, and what happens to those that wait. */
import { setTimeout as sleep } from 'node:timers/promises'
import { createRouterTransport, type Transport } from '@connectrpc/connect'
import test, { type ExecutionContext } from 'ava'
import fc from 'fast-check'
import type { Connection } from '../../gateway/connection.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import {
  createScheduler,
  noHashing,
  type Scheduler,
  type SchedulerLimits,
  schedulerLimits,
  type TurnRequest,
} from '../../server/limits/scheduler.js'
import { createMetricsEndpoint } from '../../server/observability/metrics-endpoint.js'
import { Refusal } from '../../server/requests/refusal.js'
import { openGateway } from '../_helpers/gateway.js'
import { openRaw, type RawConnection } from '../_helpers/raw.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

/** One request at a time, in the order of networks. */
const oneByOne: SchedulerLimits = { ...schedulerLimits, burst: 0, slots: 1 }

/** A gateway whose service answers when the test releases it; `held` are the requested names. */
async function setUp(
  t: ExecutionContext,
  limits: Partial<SchedulerLimits> = {},
  options: Parameters<typeof openGateway>[2] = {},
) {
  const scheduler = createScheduler({ ...oneByOne, ...limits }, noHashing)
  const held = new Map<string, () => void>()
  const order: string[] = []
  const services = {
    existsByNickname: ({ nickname = '' }: { nickname?: string }) => {
      order.push(nickname)
      return new Promise<{ exists: boolean }>(resolve => held.set(nickname, () => resolve({ exists: true })))
    },
    existsByUsername({ username = '' }: { username?: string }) {
      order.push(username)
      return { exists: true }
    },
  }
  const gateway = await openGateway(t, services, { scheduler, ...options })
  const { port } = gateway
  t.teardown(scheduler.open)
  /** 127.0.0.1 is a trusted proxy, other addresses of this machine are not. */
  const connect = async (from = '127.0.0.2') => {
    const connection = await openRaw(port, { from })
    t.teardown(connection.destroy)
    return connection
  }
  /** Occupies the only place, until the name is released. */
  const occupy = async (name = 'busy') => {
    const connection = await connect('127.0.0.9')
    connection.write(post('/users/existsByNickname', { nickname: name }))
    await waitFor(() => held.has(name))
    return () => held.get(name)!()
  }
  const waiting = (count: number) => waitForValue(() => scheduler.stats().waiting, count)
  return { ...gateway, scheduler, held, order, connect, occupy, waiting }
}

/** Takes the only turn. */
const occupyTurn = (scheduler: Scheduler) =>
  scheduler.take(
    { networks: ['occupant'], cost: 1, deadline: Number.POSITIVE_INFINITY },
    { signal: new AbortController().signal },
  )

/** A request with a body in JSON. */
function post(path: string, body: object, headers = ''): string {
  const text = JSON.stringify(body)
  return `POST ${path} HTTP/1.1\r\nHost: a\r\n${headers}Content-Type: application/json\r\nContent-Length: ${text.length}\r\n\r\n${text}`
}

const exists = (username: string, headers = '') => post('/users/existsByUsername', { username }, headers)
const existsRpc = (username: string, headers = '') => post('/auth.v1.Users/ExistsByUsername', { username }, headers)

/** More than one chunk. */
const padding = `X-Padding: ${'x'.repeat(1_500)}\r\n`

const statusesOf = (connection: RawConnection) =>
  [...connection.text().matchAll(/HTTP\/1\.1 (\d+)/g)].map(([, status]) => Number(status))

/** Waits until at least so many values are there. */
const reached = (values: () => readonly unknown[], count: number) => waitFor(() => values().length >= count, values)

const answered = (connection: RawConnection, count: number) => reached(() => statusesOf(connection), count)

for (const [what, ask] of [
  ['JSON', exists],
  ['Connect', existsRpc],
] as const) {
  test(`${what}: a request beyond the waiting limit is answered with 503 OVERLOADED, Retry-After: 1 and a problem document, and never reaches the service`, async t => {
    const { occupy, connect, waiting, order, scheduler } = await setUp(t, {
      waiting: { innermost: 1, outermost: 9, all: 9 },
    })
    const release = await occupy()
    const first = await connect()
    first.write(ask('first'))
    await waiting(1)
    const second = await connect()
    second.write(ask('second'))
    await answered(second, 1)
    const [head = '', body = ''] = second.text().split('\r\n\r\n')
    t.regex(head, /^HTTP\/1\.1 503 /)
    t.regex(head, /\r\nretry-after: 1\r\n/i)
    t.regex(head, /\r\ncontent-type: application\/problem\+json\r\n/i)
    const requestId = /\r\nx-request-id: (\S+)/i.exec(head)?.[1]
    t.deepEqual(JSON.parse(body), {
      type: 'urn:auth:problem:overloaded',
      title: 'Overloaded',
      status: 503,
      detail: 'The service is busy. Try again later.',
      reason: 'OVERLOADED',
      requestId,
    })
    release()
    await answered(first, 1)
    t.deepEqual(statusesOf(first), [200])
    t.deepEqual(order, ['busy', 'first'])
    await waitForValue(() => scheduler.stats().running, 0)
    t.like(scheduler.stats(), { waiting: 0, running: 0, shed: 1 })
  })

  test(`${what}: a request that waits is answered at its deadline, and never reaches the service`, async t => {
    const { connect, order, scheduler } = await setUp(t, {}, { limits: { callTimeout: 300 } })
    await occupyTurn(scheduler)
    const connection = await connect()
    connection.write(ask('late'))
    await answered(connection, 1)
    t.regex(connection.text(), /^HTTP\/1\.1 503 /)
    t.regex(connection.text(), /"reason":"DEADLINE_EXCEEDED"/)
    t.regex(connection.text(), /\r\nretry-after: 1\r\n/i)
    t.deepEqual(order, [])
  })

  test(`${what}: the time that a request has waited is deducted from its call’s deadline`, async t => {
    const timeouts: (number | undefined)[] = []
    const inner = createRouterTransport(router => void router.service(Users, { existsByUsername: () => ({}) }))
    const transport: Transport = {
      ...inner,
      unary: (method, signal, timeout, ...more) => {
        timeouts.push(timeout)
        return inner.unary(method, signal, timeout, ...more)
      },
    }
    const { connect, waiting, scheduler } = await setUp(t, {}, { transport })
    const occupant = await occupyTurn(scheduler)
    const connection = await connect()
    connection.write(ask('patient'))
    await waiting(1)
    await sleep(500)
    occupant[Symbol.dispose]()
    await answered(connection, 1)
    t.deepEqual(statusesOf(connection), [200])
    t.is(timeouts.length, 1)
    t.true(timeouts[0]! <= 14_500, String(timeouts))
  })

  test(`${what}: the body of a waiting request isn’t read before the request starts, and arrives then`, async t => {
    const { occupy, connect, waiting, order } = await setUp(t)
    const release = await occupy()
    const name = 'x'.repeat(5_000)
    const [whole, rest] = [await connect(), await connect('127.0.0.3')]
    whole.write(ask(name))
    const bytes = ask(`${name}y`)
    rest.write(bytes.slice(0, 2_000))
    await waiting(2)
    release()
    await reached(() => order, 2)
    rest.write(bytes.slice(2_000))
    await Promise.all([answered(whole, 1), answered(rest, 1)])
    t.deepEqual([...statusesOf(whole), ...statusesOf(rest)], [200, 200])
    t.deepEqual(order, ['busy', name, `${name}y`])
  })

  test(`${what}: a request whose body arrives slowly doesn’t occupy a place`, async t => {
    const { connect, order } = await setUp(t)
    const slow = await connect()
    const bytes = ask('slow')
    slow.write(bytes.slice(0, -5))
    await sleep(50)
    const other = await connect('127.0.0.3')
    other.write(ask('other'))
    await answered(other, 1)
    slow.write(bytes.slice(-5))
    await answered(slow, 1)
    t.deepEqual(order, ['other', 'slow'])
  })

  for (const [how, leave] of [
    ['resets its connection', ({ destroy }: RawConnection) => destroy()],
    ['says that nothing more comes', ({ finish }: RawConnection) => finish()],
  ] as const) {
    test(`${what}: requests whose client ${how} while they wait never reach the service`, async t => {
      const { occupy, connect, waiting, order, scheduler } = await setUp(t)
      const release = await occupy()
      const [one, several, unfinished] = [await connect(), await connect(), await connect()]
      one.write(ask('one'))
      // Of the requests after the first waiting one, some are parsed with it and some are not.
      several.write(ask('several').repeat(20))
      unfinished.write(ask('unfinished').slice(0, -3))
      await waitFor(() => scheduler.stats().waiting >= 3, scheduler.stats)
      await sleep(50)
      const other = await connect()
      other.write(ask('other'))
      await sleep(50)
      for (const connection of [one, several, unfinished]) leave(connection)
      await waiting(1)
      release()
      await answered(other, 1)
      t.deepEqual(order, ['busy', 'other'])
      await waitForValue(() => scheduler.stats().running, 0)
    })
  }
}

test('Connect: a request waits no longer than its client', async t => {
  const { connect, order, scheduler } = await setUp(t, {})
  await occupyTurn(scheduler)
  const connection = await connect()
  connection.write(existsRpc('late').replace('\r\n', '\r\nconnect-timeout-ms: 300\r\n'))
  await answered(connection, 1)
  t.regex(connection.text(), /"reason":"DEADLINE_EXCEEDED"/)
  t.deepEqual(order, [])
})

test('a connection with a waiting request is not read further', async t => {
  const { occupy, connect, waiting, order } = await setUp(t)
  const release = await occupy()
  const connection = await connect()
  connection.write(exists('first') + exists('second', padding) + exists('third', padding))
  await waiting(1)
  await sleep(100)
  await waiting(1)
  const other = await connect()
  other.write(exists('other'))
  await waiting(2)
  release()
  await answered(connection, 3)
  await answered(other, 1)
  // Waiting requests take turns with later ones.
  t.deepEqual(order, ['busy', 'first', 'other', 'second', 'third'])
})

test('after a refused request its connection isn’t read for a second, and a trusted proxy’s gets the refusal two seconds later', async t => {
  const { occupy, connect, waiting } = await setUp(t, { waiting: { innermost: 1, outermost: 9, all: 99 } })
  await occupy()
  const proxy = '127.0.0.1'
  const behind = (address: string) => `X-Forwarded-For: ${address}\r\n`
  const [filler, proxied] = [await connect(), await connect(proxy)]
  filler.write(exists('filler'))
  proxied.write(exists('filler', behind('192.0.2.1')))
  await waiting(2)
  const refused = await connect()
  const startedAt = performance.now()
  refused.write(exists('refused') + exists('after', padding))
  await answered(refused, 2)
  t.deepEqual(statusesOf(refused), [503, 503])
  t.true(performance.now() - startedAt > 990)
  const connection = await connect(proxy)
  const sentAt = performance.now()
  connection.write(exists('refused', behind('192.0.2.1')) + exists('after', behind('198.51.100.1') + padding))
  await answered(connection, 1)
  t.deepEqual(statusesOf(connection), [503])
  t.true(performance.now() - sentAt > 1990)
  // Other clients of the proxy don't wait further.
  await waiting(3)
})

test('a client that doesn’t read its responses doesn’t occupy a place', async t => {
  const much = 'x'.repeat(5_000_000)
  const getMe = () => ({ user: { username: much } }) as never
  const scheduler = createScheduler(oneByOne, noHashing)
  const { port } = await openGateway(t, { getMe, existsByUsername: () => ({ exists: true }) }, { scheduler })
  const unread = [await openRaw(port, { from: '127.0.0.2' }), await openRaw(port, { from: '127.0.0.2' })]
  for (const [index, connection] of unread.entries()) {
    t.teardown(connection.destroy)
    connection.pause()
    const rpc = post('/auth.v1.Users/GetMe', {})
    connection.write(index === 0 ? rpc.repeat(4) : 'GET /users/me HTTP/1.1\r\nHost: a\r\n\r\n'.repeat(4))
  }
  await sleep(200)
  const other = await openRaw(port, { from: '127.0.0.3' })
  t.teardown(other.destroy)
  for (let times = 1; times <= 3; times++) {
    other.write(exists('other'))
    await answered(other, times)
  }
  t.deepEqual(statusesOf(other), [200, 200, 200])
  await waitForValue(scheduler.stats, ({ running, waiting }) => running === 0 && waiting === 0)
})

test('a closing gateway answers the requests that wait', async t => {
  const { occupy, connect, waiting, gateway } = await setUp(t)
  const release = await occupy()
  const connection = await connect()
  connection.write(exists('waiting'))
  await waiting(1)
  const closed = gateway.close(60_000)
  await sleep(100)
  release()
  await connection.end()
  await closed
  t.deepEqual(statusesOf(connection), [200])
})

/** A scheduler that gives every request a turn, and the requests that it received. */
function recording() {
  const works: TurnRequest[] = []
  const scheduler: Scheduler = {
    take(request) {
      works.push(request)
      return { pause: work => work(), charge() {}, [Symbol.dispose]() {} }
    },
    stats: () => ({ waiting: 0, running: 0, shed: 0, charged: 0 }),
    open() {},
  }
  return { works, scheduler }
}

test('a request counts for its network, for the network behind a trusted proxy, or for the service whose key it carries', async t => {
  const { works, scheduler } = recording()
  const serviceOf = (authorization?: string | null) => (authorization === 'Bearer key' ? 'books' : undefined)
  const { port } = await openGateway(t, {}, { scheduler, serviceOf })
  for (const [from, headers, ...networks] of [
    ['127.0.0.2', 'X-Forwarded-For: 192.0.2.1\r\n', '127.0.0.2', '127.0.0.0/24'],
    ['127.0.0.1', 'X-Forwarded-For: 192.0.2.1\r\n', '192.0.2.1', '192.0.2.0/24'],
    ['127.0.0.1', '', 'proxy 127.0.0.1'],
    ['127.0.0.2', 'Authorization: Bearer key\r\n', 'service books'],
  ] as const) {
    const connection = await openRaw(port, { from })
    connection.write(`GET /nowhere HTTP/1.1\r\nHost: a\r\n${headers}\r\n`)
    await connection.until(/ 404 /)
    connection.destroy()
    t.deepEqual(works.at(-1)!.networks, networks)
  }
})

test('a request’s cost depends on its operation, and grows with its query and the actual or possible length of its body', async t => {
  const { works, scheduler } = recording()
  const { port } = await openGateway(t, {}, { scheduler })
  const cost = async (bytes: string) => {
    const connection = await openRaw(port)
    const before = works.length
    connection.write(bytes)
    await reached(() => works, before + 1)
    connection.destroy()
    return works.at(-1)!.cost
  }
  const head = (path: string, length: string) => `POST ${path} HTTP/1.1\r\nHost: a\r\n${length}\r\n\r\n`
  for (const path of ['/users/existsByUsername', '/auth.v1.Users/ExistsByUsername', '/nowhere', '/users/signup']) {
    const own = await cost(head(path, 'Content-Length: 0'))
    t.true(own > 0)
    const more = async (length: string, query = '') =>
      Math.round(((await cost(head(path + query, length))) - own) * 10) / 10
    t.is(await more('Content-Length: 500'), 0)
    t.is(await more('Content-Length: 8192'), 0.3)
    t.is(await more('Content-Length: 60000'), 2.2)
    t.is(await more('Content-Length: 8192', `?a=${'x'.repeat(8192)}`), 0.6)
    // The rest of it is never read.
    t.is(await more('Content-Length: 99999999999'), 2.4)
    t.is(await more('Transfer-Encoding: chunked'), 2.4)
  }
  const signUp = await cost(head('/users/signup', ''))
  t.true(signUp > 5 * (await cost('GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n')))
  // As long as with the revision.
  t.is(await cost(head('/1.0.2/users/signup', '')), await cost(head('/users/signup?a=123', '')))
  // Connect's own reading costs 0.2 ms.
  t.is(Math.round(((await cost(head('/auth.v1.Users/SignUp', ''))) - signUp) * 10), 2)
})

test('waiting, running and refused requests are counted', async t => {
  const endpoint = createMetricsEndpoint()
  const { occupy, connect, waiting, scheduler } = await setUp(
    t,
    { waiting: { innermost: 1, outermost: 9, all: 9 } },
    { registry: endpoint.registry },
  )
  endpoint.watchScheduler(scheduler.stats)
  const counted = async () => {
    const text = await endpoint.registry.metrics()
    return text.match(/^auth_(requests(?!_charged)|http_requests_total).*$/gm)?.sort()
  }
  const release = await occupy()
  const [first, second] = [await connect(), await connect()]
  first.write(exists('first'))
  await waiting(1)
  second.write(exists('second'))
  await answered(second, 1)
  await waitForValue(async () => (await counted())?.length, 4)
  const refused = 'auth_http_requests_total{route="/users/existsByUsername",status="503"} 1'
  t.deepEqual(await counted(), [
    refused,
    ...['auth_requests_shed_total 1', 'auth_requests{state="running"} 1', 'auth_requests{state="waiting"} 1'],
  ])
  first.destroy()
  await waiting(0)
  release()
  await waitForValue(async () => (await counted())?.length, 6)
  t.deepEqual(await counted(), [
    'auth_http_requests_total{route="/users/existsByNickname",status="200"} 1',
    refused,
    'auth_http_requests_total{route="/users/existsByUsername",status="gone"} 1',
    ...['auth_requests_shed_total 1', 'auth_requests{state="running"} 0', 'auth_requests{state="waiting"} 0'],
  ])
})

test('pipelined requests are answered in order and leave nothing behind, however a scheduler delays or refuses them and however their client leaves', async t => {
  // A scheduler with random decisions.
  const numbers = fc.infiniteStream(fc.noBias(fc.nat({ max: 1_000 })))
  let random = fc.sample(numbers, 1)[0]!
  const chance = () => random.next().value / 1_000
  const counts = { waiting: 0, running: 0, begun: 0, shed: 0 }
  const begin = () => {
    counts.running++
    counts.begun++
    return { pause: <T>(work: () => Promise<T>) => work(), charge() {}, [Symbol.dispose]: () => void counts.running-- }
  }
  const take: Scheduler['take'] = async (_, { signal }) => {
    const fate = chance()
    if (fate < 0.5) return begin()
    counts.waiting++
    await sleep(5 * chance(), undefined, { signal })
      .catch(() => {
        throw new Refusal(Reason.DEADLINE_EXCEEDED)
      })
      .finally(() => counts.waiting--)
    // A refused connection waits for a second, which is rare here.
    if (fate < 1) return begin()
    counts.shed++
    throw new Refusal(Reason.OVERLOADED, { retryAfter: 1 })
  }
  const connections = new Set<Connection>()
  const existsByUsername = async ({ username }: { username?: string }) => {
    if (chance() < 0.3) await sleep(2 * chance())
    return { exists: Number(username?.length) % 2 === 0 }
  }
  const { port } = await openGateway(
    t,
    { existsByUsername },
    {
      scheduler: {
        take(request, caller) {
          connections.add(caller as Connection)
          return take(request, caller)
        },
        stats: () => ({ ...counts, charged: 0 }),
        open() {},
      },
    },
  )
  const message = fc.oneof(
    fc.constant({ bytes: 'GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n', ok: 'ok' }),
    fc.record({ length: fc.integer({ min: 1, max: 3_000 }), ask: fc.constantFrom(exists, existsRpc) }).map(each => ({
      bytes: each.ask('x'.repeat(each.length)),
      // protobuf omits false values.
      ok: each.length % 2 === 0 ? 'true' : 'false|{}',
    })),
  )
  const client = fc.record({
    messages: fc.array(message, { minLength: 10, maxLength: 60, size: 'max' }),
    sizes: fc.array(fc.integer({ min: 1, max: 4_000 }), { minLength: 1, maxLength: 8 }),
    end: fc.constantFrom('reads all', 'reads all', 'reads all', 'resets', 'finishes'),
  })
  type Client = typeof client extends fc.Arbitrary<infer Value> ? Value : never
  const send = async ({ messages, sizes, end }: Client) => {
    const connection = await openRaw(port, { from: '127.0.0.2' })
    const bytes = messages.map(({ bytes }) => bytes).join('')
    const until = end === 'reads all' ? bytes.length : bytes.length * chance()
    try {
      for (let from = 0, turn = 0; from < until; turn++) {
        // In at most fifty pieces.
        const end = Math.min(until, from + Math.max(sizes[turn % sizes.length]!, bytes.length / 50))
        connection.write(bytes.slice(from, end))
        from = end
        await sleep(chance() < 0.5 ? 0 : 5 * chance())
      }
      if (end === 'finishes') {
        connection.finish()
        await connection.end()
      }
      if (end !== 'reads all') return
      await waitFor(() => statusesOf(connection).length === messages.length || connection.closed())
      const answers = connection.text().split(/(?=HTTP\/1\.1 )/)
      t.is(answers.length, messages.length)
      for (const [index, { ok }] of messages.entries()) {
        const isShed = answers[index]!.startsWith('HTTP/1.1 503 ')
        t.regex(answers[index]!, isShed ? /OVERLOADED/ : new RegExp(ok), `${index} of ${messages.length}`)
      }
    } finally {
      connection.destroy()
    }
  }
  const property = fc.asyncProperty(
    numbers,
    fc.array(client, { minLength: 12, maxLength: 12 }),
    async (stream, clients) => {
      random = stream
      await Promise.all(clients.map(send))
      await waitFor(
        () => counts.waiting === 0 && counts.running === 0,
        () => counts,
      )
      for (const each of connections) {
        t.is(each.response, undefined)
        if (each.destroyed) connections.delete(each)
      }
    },
  )
  await fc.assert(property, { numRuns: 4, endOnFailure: true })
  t.true(counts.begun > 300, String(counts.begun))
})
