/** When refusals leave: at once while there is room, later for whoever hammers on, and never in the way of others. */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { Code, ConnectError } from '@connectrpc/connect'
import test from 'ava'
import { ErrorInfoSchema } from '../../proto/gen/google/rpc/error_details_pb.js'
import { openGateway } from '../_helpers/gateway.js'
import { waitFor } from '../_helpers/patience.js'
import { openRaw } from '../_helpers/raw.js'

const from = (address: string) => ({ 'x-forwarded-for': address })

/** What ends the calls that wait, by the nickname that they ask for. */
const held = new Map<string, (() => void)[]>()

const users = {
  getMe(): never {
    throw new ConnectError('no', Code.Unavailable)
  },
  existsByUsername: () => ({ exists: true }),
  existsByNickname: ({ nickname = '' }: { nickname?: string }) =>
    new Promise<{ exists: boolean }>(resolve => held.get(nickname)?.push(() => resolve({ exists: true }))),
}

const info = { desc: ErrorInfoSchema, value: { reason: 'ACCESS_DENIED', domain: 'auth.v1' } }
const denied = new ConnectError('no', Code.PermissionDenied, undefined, [info])

/** A path that refuses, over JSON and over Connect. */
const refusing = '/nowhere'

const get = (path: string, address: string) => `GET ${path} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: ${address}\r\n\r\n`

/** Sends a request between two that wait until all of them have begun: so it isn't alone on its connection. */
async function sendAmid(port: number, address: string, request: string) {
  const nickname = randomUUID()
  const calls: (() => void)[] = []
  held.set(nickname, calls)
  const connection = await openRaw(port)
  const from = `Host: a\r\nX-Forwarded-For: ${address}\r\nContent-Length: 0\r\n\r\n`
  const waiting = `POST /users/existsByNickname?nickname=${nickname} HTTP/1.1\r\n${from}`
  connection.write(waiting + request + waiting)
  await waitFor(() => calls.length === 2)
  for (const end of calls) end()
  return connection
}

/** Sends requests that are refused, each on a connection of its own where it isn't alone. */
async function flood(port: number, address = '192.0.2.1', times = 20) {
  const connections = await Promise.all(
    Array.from({ length: times }, () => sendAmid(port, address, get(refusing, address))),
  )
  const answers = () => connections.filter(connection => connection.text().includes('HTTP/1.1 404')).length
  await waitFor(() => answers() > 0)
  return {
    /** How many have come. */
    answers,
    /** Waits for the last answer. */
    async end() {
      await waitFor(() => answers() === times)
      for (const connection of connections) connection.destroy()
    },
  }
}

/** A gateway that lets out ten refusals at once, and then ten a second, but none of requests that are alone. */
const slow = { limits: { singlesPerSecond: 0, refusalsAtOnce: 10, refusalsPerSecond: 10 } }

/** One that lets out ten, and then none for long. */
const stuck = { limits: { singlesPerSecond: 0, refusalsAtOnce: 10, refusalsPerSecond: 0.01 } }

test('refusals beyond so many a second leave at that rate, and none is lost', async t => {
  const { port } = await openGateway(t, users, {
    limits: { singlesPerSecond: 0, refusalsAtOnce: 2, refusalsPerSecond: 20 },
  })
  // More room than for the 2 doesn't gather meanwhile.
  await sleep(500)
  const startedAt = performance.now()
  const { end } = await flood(port)
  await end()
  // 2 at once, the other 18 within 0.9 seconds at the earliest.
  t.true(performance.now() - startedAt > 800)
})

test('a client that waits for each refusal before it sends more gets it at once', async t => {
  const limits = { singlesPerSecond: 20, refusalsAtOnce: 1, refusalsPerSecond: 0.01 }
  const { request } = await openGateway(t, users, { limits })
  for (let times = 0; times < 20; times++) t.is((await request('GET', refusing)).status, 404)
})

test('refusals of those who ask for one thing at a time leave at a rate of their own, addresses in turn', async t => {
  const { port, request } = await openGateway(t, users, { limits: { ...stuck.limits, singlesPerSecond: 10 } })
  const { answers } = await flood(port)
  const startedAt = performance.now()
  let answered = 0
  const many = Array.from({ length: 30 }, async () => {
    t.is((await request('GET', refusing, { headers: from('192.0.2.1') })).status, 404)
    answered++
  })
  await waitFor(() => answered >= 10)
  t.is((await request('GET', refusing, { headers: from('192.0.2.2') })).status, 404)
  t.true(answered < 30)
  await Promise.all(many)
  // 10 at once, the other 21 within 2.1 seconds at the earliest.
  t.true(performance.now() - startedAt > 1900)
  t.is(answers(), 10)
})

test('a factor multiplies the refusals that leave, at once and later', async t => {
  const limits = { singlesPerSecond: 0.02, refusalsAtOnce: 0.02, refusalsPerSecond: 0.001 }
  const { port, request } = await openGateway(t, users, { limits, limitFactor: 1000 })
  for (let times = 0; times < 20; times++) t.is((await request('GET', refusing)).status, 404)
  const { answers, end } = await flood(port, undefined, 21)
  t.true(answers() >= 1)
  await end()
})

test('a factor below 1 lets out no fewer refusals', async t => {
  const limits = { singlesPerSecond: 20, refusalsAtOnce: 20, refusalsPerSecond: 0.001 }
  const { port, request } = await openGateway(t, users, { limits, limitFactor: 0.01 })
  for (let times = 0; times < 20; times++) t.is((await request('GET', refusing)).status, 404)
  const { answers } = await flood(port, undefined, 21)
  await waitFor(() => answers() >= 20)
  // Answers that leave together may come in any order.
  t.true(answers() >= 18, String(answers()))
})

test('what is no refusal leaves ahead of refusals that wait', async t => {
  const { port, request } = await openGateway(t, users, stuck)
  const { answers } = await flood(port)
  for (const path of ['/users/existsByUsername', '/auth.v1.Users/ExistsByUsername']) {
    const { status } = await request('POST', path, { body: { username: 'ana' }, headers: from('192.0.2.1') })
    t.is(status, 200, path)
  }
  t.is(answers(), 10)
})

test('a fault of the service concerns everybody, and never waits', async t => {
  const { port, request, post } = await openGateway(t, users, stuck)
  const { answers } = await flood(port)
  for (let times = 0; times < 5; times++) {
    t.is((await request('GET', '/users/me')).status, 503)
    t.is((await post('GetMe')).status, 503)
  }
  t.is(answers(), 10)
})

test('client addresses whose refusals wait take turns', async t => {
  const { port } = await openGateway(t, users, slow)
  const { answers } = await flood(port, undefined, 120)
  for (const address of ['192.0.2.2', '2001:db8::1']) {
    const other = await flood(port, address, 2)
    await other.end()
  }
  t.true(answers() < 120)
})

test('all addresses of an IPv6 network are one', async t => {
  const { port } = await openGateway(t, users, slow)
  const { answers } = await flood(port, '2001:db8::1')
  const { end } = await flood(port, '2001:db8::2', 1)
  // Answers that leave together may come in any order.
  t.true(answers() >= 18, String(answers()))
  await end()
})

for (const [type, body] of [
  ['application/json', '{}'],
  ['application/grpc-web+proto', '\0\0\0\0\0'],
] as const) {
  test(`RPCs as ${type} wait like everything else`, async t => {
    const getMe = () => {
      throw denied
    }
    const { port } = await openGateway(t, { ...users, getMe }, slow)
    const { answers } = await flood(port)
    const head = `POST /auth.v1.Users/GetMe HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\nContent-Type: ${type}`
    const rpc = `${head}\r\nContent-Length: ${body.length}\r\n\r\n${body}`
    // It isn't refused at once: the one before it waits for longer than that takes.
    const connection = await sendAmid(port, '192.0.2.1', get(refusing, '192.0.2.1') + rpc)
    t.teardown(connection.destroy)
    await waitFor(() => connection.text().match(/HTTP\/1\.1 /g)?.length === 4)
    // Answers that leave together may come in any order.
    t.true(answers() >= 18, String(answers()))
  })
}

test('large requests count as several refusals, whatever is answered', async t => {
  const { request } = await openGateway(t, users, { limits: { ...stuck.limits, singlesPerSecond: 10 } })
  const startedAt = performance.now()
  const body = { username: 'a'.repeat(60_000) }
  for (const path of ['/users/existsByUsername', '/auth.v1.Users/ExistsByUsername']) {
    for (let times = 0; times < 2; times++) t.is((await request('POST', path, { body })).status, 200)
  }
  // Each counts as 8; the first leave at once.
  t.true(performance.now() - startedAt > 1000)
})

test('a large body is held before it is read, which it never is once its client has left', async t => {
  for (const path of ['/users/existsByUsername', '/auth.v1.Users/ExistsByUsername']) {
    let calls = 0
    const existsByUsername = () => {
      calls++
      return { exists: true }
    }
    const getMe = () => new Promise<never>(() => {})
    const { port, request } = await openGateway(t, { existsByUsername, getMe }, stuck)
    const leave = await sendFour(port, path, JSON.stringify({ username: 'a'.repeat(60_000) }))
    await waitFor(() => calls === 2)
    for (let times = 1; times <= 5; times++) {
      t.is((await request('POST', path, { body: { username: 'ana' } })).status, 200)
      t.is(calls, 2 + times)
    }
    leave()
    await sleep(1500)
    t.is(calls, 7, path)
  }
})

/** Sends a body 4 times at once, without its length. Each counts as 8. */
async function sendFour(port: number, path: string, body: string) {
  const connection = await openRaw(port)
  const head = `POST ${path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n`
  // None of them is alone: the first request is never answered.
  connection.write('GET /users/me HTTP/1.1\r\nHost: a\r\n\r\n')
  connection.write(`${head}${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n`.repeat(4))
  return connection.destroy
}

test('a small body never waits, whether it tells its length or not', async t => {
  const { port } = await openGateway(t, users, stuck)
  const connection = await openRaw(port)
  t.teardown(connection.destroy)
  const head = 'POST /users/existsByUsername?username=ana HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n'
  connection.write(`${head}0\r\n\r\n`.repeat(12))
  await waitFor(() => connection.text().match(/200 OK/g)?.length === 12)
  t.pass()
})

test('a body that claims to be endless counts as the longest there is', async t => {
  const { port, request } = await openGateway(t, users, {
    limits: { ...stuck.limits, singlesPerSecond: 20 },
  })
  const startedAt = performance.now()
  const connection = await openRaw(port)
  t.teardown(connection.destroy)
  connection.write(
    'POST /users/existsByUsername HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n',
  )
  await connection.until(/413 /)
  for (let times = 0; times < 25; times++) t.is((await request('GET', refusing)).status, 404)
  // It counted as 9: together 34, of which 20 leave at once.
  t.true(performance.now() - startedAt > 600)
})

test('when too many wait, whoever would add to them is cut off, and others are answered at once', async t => {
  const getMe = () => {
    throw denied
  }
  const { port, request } = await openGateway(
    t,
    { getMe },
    { limits: { singlesPerSecond: 0, refusalsAtOnce: 1, refusalsPerSecond: 0.01, mostHeld: 5 } },
  )
  const ask = `GET /users/me HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n`
  const many = await openRaw(port)
  many.write(ask.repeat(6))
  await many.until(/403 /)
  const alone = await openRaw(port)
  alone.write(ask)
  await alone.end()
  t.is(alone.text(), '')
  many.write(ask)
  await many.end()
  t.is((await request('GET', refusing, { headers: from('192.0.2.2') })).status, 404)
})

test('a gateway that closes lets out what waits, and what is refused meanwhile', async t => {
  const underWay: (() => void)[] = []
  const getMe = async () => {
    await new Promise<void>(resolve => underWay.push(resolve))
    throw denied
  }
  const limits = { singlesPerSecond: 0, refusalsAtOnce: 1, refusalsPerSecond: 0.01 }
  const { port, request, gateway } = await openGateway(t, { ...users, getMe }, { limits })
  const { answers, end } = await flood(port)
  t.is(answers(), 1)
  let late: number | undefined
  const slow = request('GET', '/users/me').then(({ status }) => {
    late = status
  })
  await waitFor(() => underWay.length > 0)
  const closed = gateway.close(60_000)
  await end()
  t.is(late, undefined)
  underWay[0]!()
  await Promise.all([slow, closed])
  t.is(late, 403)
})
