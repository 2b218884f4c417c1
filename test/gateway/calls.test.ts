/** Calls behind the gateway: headers, deadlines, clients that disconnect, and internal errors. */
import { once } from 'node:events'
import { create } from '@bufbuild/protobuf'
import { Code, ConnectError, createRouterTransport, type HandlerContext, type Transport } from '@connectrpc/connect'
import test from 'ava'
import { gatewayLimits } from '../../gateway/http.js'
import { GetMeResponseSchema, Users } from '../../proto/gen/auth/v1/users_pb.js'
import { ErrorInfoSchema } from '../../proto/gen/google/rpc/error_details_pb.js'
import { Health, HealthCheckResponse_ServingStatus } from '../../proto/gen/grpc/health/v1/health_pb.js'
import { createInProcessTransport } from '../../server/calls/in-process.js'
import type { IncomingCall } from '../../server/requests/call.js'
import { openGateway as open } from '../_helpers/gateway.js'
import { refused } from '../_helpers/problem.js'
import { openRaw } from '../_helpers/raw.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

/** Responds when the call is aborted, and stores its context. */
function waiting() {
  const calls: HandlerContext[] = []
  const getMe = async (_: unknown, context: HandlerContext) => {
    calls.push(context)
    await once(context.signal, 'abort')
    throw new ConnectError('aborted', Code.Aborted)
  }
  return { calls, getMe }
}

/** So that only the disconnection of the client ends its call. */
const patient = { limits: { callTimeout: 3_600_000, requestTimeout: 3_600_000 } }

test('a call is aborted when its client disconnects', async t => {
  for (const start of [
    'GET /users/me HTTP/1.1\r\nHost: a\r\n\r\n',
    'POST /auth.v1.Users/GetMe HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}',
  ]) {
    const { calls, getMe } = waiting()
    const { port, log } = await open(t, { getMe }, patient)
    const connection = await openRaw(port)
    connection.write(start)
    await waitForValue(() => calls.length, 1)
    t.false(calls[0]!.signal.aborted)
    connection.destroy()
    await waitFor(() => calls[0]!.signal.aborted)
    t.deepEqual(log, [])
  }
})

test('a call takes at most 15 s, or less if a Connect client asks for less', async t => {
  t.is(gatewayLimits.callTimeout, 15_000)
  const times: (number | undefined)[] = []
  const { post, request } = await open(t, {
    getMe: (_, context) => {
      times.push(context.timeoutMs())
      return {}
    },
  })
  await request('GET', '/users/me')
  await post('GetMe')
  await post('GetMe', { 'connect-timeout-ms': '60000' })
  await post('GetMe', { 'connect-timeout-ms': '5000' })
  const near = (time: number | undefined, most: number) => time !== undefined && time <= most && time > most - 4000
  t.is(times.length, 4)
  for (const time of times.slice(0, 3)) t.true(near(time, 15_000), String(time))
  t.true(near(times[3], 5000), String(times[3]))
})

test('a call that takes longer is answered with 503', async t => {
  const { calls, getMe } = waiting()
  const { request, post, log } = await open(t, { getMe }, { limits: { callTimeout: 100 } })
  const answer = await request('GET', '/users/me')
  refused(t, answer, 503, 'DEADLINE_EXCEEDED')
  t.is(answer.headers.get('retry-after'), '1')
  t.is((await post('GetMe')).json.code, 'deadline_exceeded')
  t.is(calls.length, 2)
  t.deepEqual(log, [])
})

test('a call whose deadline has passed on arrival is not started', async t => {
  const { calls, getMe } = waiting()
  const { post } = await open(t, { getMe })
  refused(t, await post('GetMe', { 'connect-timeout-ms': '0' }), 503, 'DEADLINE_EXCEEDED')
  t.is(calls.length, 0)
})

test('the readiness check gives the services a short deadline, and forwards their status', async t => {
  const { SERVING, NOT_SERVING } = HealthCheckResponse_ServingStatus
  const times: (number | undefined)[] = []
  const transport = createRouterTransport(router => {
    router.rpc(Health.method.check, (_, context) => {
      times.push(context.timeoutMs())
      return { status: times.length === 1 ? SERVING : NOT_SERVING }
    })
  })
  const { request } = await open(t, {}, { transport })
  t.is((await request('GET', '/readyz')).text, 'ok')
  t.true(times[0]! <= 2500, String(times[0]))
  refused(t, await request('GET', '/readyz'), 503, 'UNAVAILABLE')
})

test('only the headers that the services know and those that the gateway sets are forwarded', async t => {
  const seen: Headers[] = []
  const { request, post } = await open(t, {
    getMe: (_, context) => {
      seen.push(context.requestHeader)
      return {}
    },
  })
  const headers = {
    authorization: 'Bearer a.b.c',
    'accept-language': 'pt-BR',
    'x-request-id': 'id-1',
    'x-forwarded-for': '192.0.2.1, ::ffff:198.51.100.1',
    'x-malformed-fields': 'username=must+be+blue',
    'x-other': 'y',
    cookie: 'a=b',
  }
  await request('GET', '/users/me', { headers })
  await post('GetMe', headers)
  t.is(seen.length, 2)
  const names = ['authorization', 'accept-language', 'x-request-id', 'x-forwarded-for']
  for (const header of seen) {
    const known = names.map(name => header.get(name))
    t.deepEqual(known, ['Bearer a.b.c', 'pt-BR', 'id-1', '198.51.100.1'])
    for (const name of ['x-malformed-fields', 'x-other', 'cookie']) t.is(header.get(name), null)
  }
})

const info = { desc: ErrorInfoSchema, value: { domain: 'auth.v1', reason: 'INTERNAL' } }

for (const [what, error, reason, connectCode, reported] of [
  ['an error that is none of Connect’s', new Error('secret'), 'INTERNAL', 'internal', true],
  ['an unknown error', new ConnectError('secret', Code.Unknown), 'INTERNAL', 'unknown', true],
  ['an unknown RPC', new ConnectError('secret', Code.Unimplemented), 'INTERNAL', 'unimplemented', true],
  ['services out of reach', new ConnectError('secret', Code.Unavailable), 'UNAVAILABLE', 'unavailable', true],
  ['a late answer', new ConnectError('secret', Code.DeadlineExceeded), 'DEADLINE_EXCEEDED', 'deadline_exceeded', false],
  [
    'a fault that the service has logged',
    new ConnectError('secret', Code.Internal, undefined, [info]),
    'INTERNAL',
    'internal',
    false,
  ],
] as const) {
  test(`${what} is answered with 503 ${reason}, and ${reported ? 'logged once' : 'not logged'}`, async t => {
    const fail = () => Promise.reject(error)
    const transport: Transport = { unary: fail, stream: fail }
    const { request, post, log } = await open(t, {}, { transport })
    const answer = await request('GET', '/users/me', { headers: { 'x-request-id': 'id-1' } })
    refused(t, answer, 503, reason)
    t.is(answer.headers.get('retry-after'), reason === 'INTERNAL' ? null : '1')
    if (what !== 'a fault that the service has logged') t.notRegex(answer.text, /secret/)
    t.deepEqual(log, reported ? [{ fields: { requestId: 'id-1', err: error }, message: 'request failed' }] : [])
    log.length = 0

    t.is((await post('GetMe', { 'x-request-id': 'id-2' })).json.code, connectCode)
    const fields = { rpc: 'GetMe', requestId: 'id-2', err: error }
    t.deepEqual(log, reported ? [{ fields, message: 'call failed' }] : [])
  })
}

test('the body of a request that is refused for its size may continue briefly before the connection closes', async t => {
  const { port } = await open(t, {}, { limits: { lingerTimeout: 60_000 } })
  const connection = await openRaw(port)
  t.teardown(connection.destroy)
  const head =
    'POST /users/signup HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n'
  connection.write(head)
  await connection.until(/"PAYLOAD_TOO_LARGE"/)
  // A client that writes everything before it reads isn't reset meanwhile.
  for (let sent = 0; sent < 100_000; sent += 1000) {
    t.false(connection.closed())
    connection.write('x'.repeat(1000))
    if (sent % 10_000 === 0) await new Promise(resolve => setTimeout(resolve, 5))
  }
  await connection.end()
  t.regex(connection.text(), /connection: close/i)
})

for (const [what, head, part] of [
  ['a length', 'Content-Length: 100000', 'x'.repeat(1_000)],
  ['chunks', 'Transfer-Encoding: chunked', `3e8\r\n${'x'.repeat(1_000)}\r\n`],
] as const) {
  test(`after a body with ${what} that is refused for its size, no request behind it is served`, async t => {
    const called: string[] = []
    const existsByUsername = ({ username }: { username?: string }) => {
      called.push(username!)
      return { exists: true }
    }
    const { port } = await open(t, { existsByUsername }, { limits: { lingerTimeout: 200 } })
    const connection = await openRaw(port)
    t.teardown(connection.destroy)
    const end = head.startsWith('T') ? '0\r\n\r\n' : ''
    connection.write(
      `POST /users/signup HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n${head}\r\n\r\n${part.repeat(100)}${end}` +
        'POST /users/existsByUsername?username=behind HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n',
    )
    await connection.end()
    t.regex(connection.text(), /^HTTP\/1\.1 413 Payload Too Large\r\n/)
    t.is(connection.text().split('HTTP/1.1 ').length, 2)
    t.deepEqual(called, [])
  })
}

/** Calls GetMe through the in-process transport, and returns what the services receive. */
async function seen(headers: HeadersInit | undefined, timeoutMs?: number, signal?: AbortSignal) {
  const calls: IncomingCall[] = []
  const transport = createInProcessTransport({
    services: [],
    run: async (_, __, call) => {
      calls.push(call)
      return create(GetMeResponseSchema)
    },
  })
  const call = () => transport.unary(Users.method.getMe, signal, timeoutMs, headers, {})
  const [first, second] = [await call(), await call()]
  return { call: calls[0]!, first, second }
}

test('the in-process transport accepts headers in any form', async t => {
  const pairs: [string, string][] = [
    ['Authorization', 'Bearer x'],
    ['x-forwarded-for', '192.0.2.1'],
    ['ACCEPT-LANGUAGE', 'en'],
    ['x-request-id', 'id-1'],
    ['x-malformed-fields', 'a=b+c'],
  ]
  const given = new Headers(pairs)
  for (const headers of [Object.fromEntries(pairs), Object.fromEntries(given), pairs, given])
    t.like((await seen(headers)).call, {
      authorization: 'Bearer x',
      address: '192.0.2.1',
      acceptLanguage: 'en',
      requestId: 'id-1',
      malformedFields: [{ field: 'a', reason: 'MALFORMED', message: 'b c' }],
    })
})

test('the in-process transport passes deadline and signal on, and each response has its own headers', async t => {
  const { signal } = new AbortController()
  const { call, first, second } = await seen(undefined, 5000, signal)
  t.is(call.signal, signal)
  t.true(call.deadline > Date.now() && call.deadline <= Date.now() + 5000)
  t.is((await seen(undefined)).call.deadline, Number.POSITIVE_INFINITY)
  t.is((await seen(undefined, 0)).call.deadline, Number.POSITIVE_INFINITY)
  for (const part of ['header', 'trailer'] as const) {
    first[part].set('x', 'y')
    t.is(second[part].get('x'), null)
  }
})
