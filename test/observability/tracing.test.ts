/** Spans, by a real SDK that sends them to a receiver of OTLP over HTTP in JSON. */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import test, { type ExecutionContext } from 'ava'
import { accessOf, launchGateway } from '../_helpers/access-lines.js'
import { createRequest, password, signUpForm } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { waitFor } from '../_helpers/wait.js'

interface Span {
  readonly name: string
  readonly traceId: string
  readonly spanId: string
  readonly parentSpanId?: string
  /** 1 internal, 2 server, 3 client. */
  readonly kind: number
}

/** Receives spans. */
async function openReceiver(t: ExecutionContext) {
  const spans: Span[] = []
  let received = ''
  const server = createServer(async (request, response) => {
    let body = ''
    for await (const chunk of request.setEncoding('utf8')) body += chunk
    received += body
    for (const { scopeSpans } of JSON.parse(body).resourceSpans)
      for (const { spans: some } of scopeSpans) spans.push(...some)
    response.writeHead(200, { 'content-type': 'application/json' }).end('{}')
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(async () => void server.close().closeAllConnections())
  const { port } = server.address() as AddressInfo
  return {
    spans,
    received: () => received,
    env: { OTEL_EXPORTER_OTLP_ENDPOINT: `http://127.0.0.1:${port}` },
    flags: ['--import', new URL('../_helpers/tracer.js', import.meta.url).href],
  }
}

const traceId = '0af7651916cd43dd8448eb211c80319c'
const callerSpan = 'b7ad6b7169203331'
const headers = { 'x-request-id': 'traced', traceparent: `00-${traceId}-${callerSpan}-01` }

for (const where of ['through a separate gateway', 'in one process']) {
  test(`a login ${where} is one trace from the caller’s span to the SQL statements, without secrets`, async t => {
    const { spans, received, env, flags } = await openReceiver(t)
    const separate = where !== 'in one process'
    const service = await spawnService(t, env, { flags })
    const { http } = separate ? await launchGateway(t, service.grpc, { env, flags }) : service
    const request = createRequest(http)
    const form = signUpForm()
    t.is((await request('POST', '/users/signup', { body: form })).status, 200)
    const query = { username: form.username, password }
    const { text: token } = await request('POST', '/users/login', { query, headers })

    const found = (name: RegExp, kind?: number) =>
      waitFor(
        () => spans.find(span => span.traceId === traceId && name.test(span.name) && (kind ?? span.kind) === span.kind),
        received,
      )
    // The first span to start is the last to end.
    const gateway = await found(/^POST \/users\/login$/, 2)
    const client = separate ? await found(/^auth.v1.Users\/Login$/, 3) : gateway
    const call = await found(/^auth.v1.Users\/Login$/, 2)
    t.is(gateway.parentSpanId, callerSpan)
    if (separate) t.is(client.parentSpanId, gateway.spanId)
    t.is(call.parentSpanId, client.spanId)
    for (const name of [/^hash wait$/, /^hash$/, /^SQL attempt-begin$/, /^SQL attempt-succeed$/])
      t.is((await found(name)).parentSpanId, call.spanId, String(name))
    t.like((await accessOf(service, 'traced'))[0], { rpc: 'Login', traceId })

    // All spans of both requests, including the statements of transactions.
    t.true(spans.some(({ name }) => name === 'SQL transaction'))
    for (const secret of [form.username, form.nickname, password, token, 'hmac1:', '$2b$', 'VALUES'])
      t.false(received().includes(secret), secret)
    if (separate) return

    // A call over Connect is a span of the gateway that lasts until the answer.
    t.is((await request('POST', '/auth.v1.Users/GetMe', { body: {}, headers })).status, 403)
    const getMe = await found(/^auth.v1.Users\/GetMe$/, 2)
    const around = await waitFor(() => spans.find(({ spanId }) => spanId === getMe.parentSpanId), received)
    t.is(around.parentSpanId, callerSpan)
  })
}

test('a hash that waited for others belongs to the trace of its call', async t => {
  const { spans, received, env, flags } = await openReceiver(t)
  // Long enough for concurrent ones to wait for each other.
  const service = await spawnService(t, { ...env, AUTH_BCRYPT_COST: '9' }, { flags })
  const request = createRequest(service.http)
  const traces = Array.from({ length: 8 }, (_, index) => `${index + 10}`.padStart(32, 'a'))
  const query = { username: 'admin', password }
  await Promise.all(
    traces.map(id => request('POST', '/users/login', { query, headers: { traceparent: `00-${id}-${callerSpan}-01` } })),
  )
  for (const id of traces) {
    for (const name of ['hash wait', 'hash']) {
      const span = await waitFor(() => spans.find(each => each.traceId === id && each.name === name), received)
      const call = await waitFor(() => spans.find(({ spanId }) => spanId === span.parentSpanId), received)
      t.deepEqual([call.name, call.traceId], ['auth.v1.Users/Login', id], name)
    }
  }
})
