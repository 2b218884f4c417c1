/** When refusals leave: at once while there is room, later for whoever hammers on, and never in the way of others. */
import { once } from 'node:events'
import { connect as connectHttp2 } from 'node:http2'
import { Code, ConnectError } from '@connectrpc/connect'
import test from 'ava'
import { ErrorInfoSchema } from '../../proto/gen/google/rpc/error_details_pb.js'
import { openGateway } from '../_helpers/gateway.js'
import { waitFor } from '../_helpers/patience.js'
import { openRaw } from '../_helpers/raw.js'

const from = (address: string) => ({ 'x-forwarded-for': address })

const users = {
  getMe(): never {
    throw new ConnectError('no', Code.Unavailable)
  },
  existsByUsername: () => ({ exists: true }),
}

/** A path that refuses, over JSON and over Connect. */
const refusing = '/nowhere'

/** Sends 20 requests at once that are refused. All of them are under way when the first is answered. */
async function flood(port: number, address = '192.0.2.1') {
  const connection = await openRaw(port)
  connection.write(`GET ${refusing} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: ${address}\r\n\r\n`.repeat(20))
  await connection.until(/404 Not Found/)
  const answers = () => connection.text().match(/404 Not Found/g)!.length
  return {
    /** How many have come. */
    answers,
    /** Waits for the last answer. */
    end: () => waitFor(() => answers() === 20),
  }
}

/** A gateway that lets out ten refusals at once, and then ten a second. */
const slow = { limits: { refusalsAtOnce: 10, refusalsPerSecond: 10 } }

test('refusals beyond so many a second leave at that rate, and none is lost', async t => {
  const { port } = await openGateway(t, users, slow)
  const startedAt = performance.now()
  const { end } = await flood(port)
  await end()
  // 10 at once, the other 10 within a second at the earliest.
  t.true(performance.now() - startedAt > 900)
})

test('what is no refusal leaves ahead of refusals that wait', async t => {
  const { port, request } = await openGateway(t, users, slow)
  const { answers } = await flood(port)
  for (let times = 0; times < 5; times++) {
    const { status } = await request('POST', '/users/existsByUsername?username=ana', { headers: from('192.0.2.1') })
    t.is(status, 200)
  }
  t.true(answers() < 20)
})

test('a fault of the service concerns everybody, and never waits', async t => {
  const { port, request } = await openGateway(t, users, slow)
  const { answers } = await flood(port)
  for (let times = 0; times < 15; times++) t.is((await request('GET', '/users/me')).status, 503)
  t.true(answers() < 20)
})

test('client addresses whose refusals wait take turns', async t => {
  const { port, request } = await openGateway(t, users, slow)
  const { answers } = await flood(port)
  for (const address of ['192.0.2.2', '2001:db8::1']) {
    t.is((await request('GET', refusing, { headers: from(address) })).status, 404)
  }
  t.true(answers() < 20)
})

test('all addresses of an IPv6 network are one', async t => {
  const { port, request } = await openGateway(t, users, slow)
  const { answers } = await flood(port, '2001:db8::1')
  t.is((await request('GET', refusing, { headers: from('2001:db8::2') })).status, 404)
  t.is(answers(), 20)
})

for (const type of ['application/json', 'application/grpc-web+proto', 'application/grpc']) {
  test(`RPCs as ${type} wait like everything else`, async t => {
    const info = { desc: ErrorInfoSchema, value: { reason: 'ACCESS_DENIED', domain: 'auth.v1' } }
    const getMe = () => {
      throw new ConnectError('no', Code.PermissionDenied, undefined, [info])
    }
    const { port } = await openGateway(t, { getMe }, slow)
    const { answers } = await flood(port)
    const session = connectHttp2(`http://127.0.0.1:${port}`)
    const path = { ':method': 'POST', ':path': '/auth.v1.Users/GetMe' }
    const stream = session.request({ ...path, 'content-type': type, te: 'trailers', ...from('192.0.2.1') })
    stream.resume().end(type === 'application/json' ? '{}' : Buffer.alloc(5))
    await once(stream, 'response')
    t.is(answers(), 20)
    session.destroy()
  })
}

test('large requests count as several refusals, whatever is answered', async t => {
  const { request } = await openGateway(t, users, slow)
  const startedAt = performance.now()
  const body = { username: 'a'.repeat(60_000) }
  for (const path of ['/users/existsByUsername', '/auth.v1.Users/ExistsByUsername']) {
    for (let times = 0; times < 2; times++) t.is((await request('POST', path, { body })).status, 200)
  }
  // Each counts as 8; the first leave at once.
  t.true(performance.now() - startedAt > 1000)
})

test('when too many wait, whoever would add to them is cut off, and others are answered at once', async t => {
  const { port, request } = await openGateway(t, users, {
    limits: { refusalsAtOnce: 1, refusalsPerSecond: 1, mostHeld: 5 },
  })
  const connection = await openRaw(port)
  connection.write(`GET ${refusing} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n`.repeat(7))
  await connection.end()
  t.is((await request('GET', refusing, { headers: from('192.0.2.2') })).status, 404)
})

test('a gateway that closes lets out what waits', async t => {
  const { port, gateway } = await openGateway(t, users, { limits: { refusalsAtOnce: 1, refusalsPerSecond: 1 } })
  const { answers, end } = await flood(port)
  t.is(answers(), 1)
  const closed = gateway.close(60_000)
  await end()
  await closed
})
