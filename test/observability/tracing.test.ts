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

for (const [where, separate] of [
  ['through a separate gateway', true],
  ['in one process', false],
] as const) {
  test(`a login ${where} is one trace from the caller’s span to the SQL statements, without secrets`, async t => {
    const { spans, received, env, flags } = await openReceiver(t)
    const service = await spawnService(t, env, { flags })
    const { http } = separate ? await launchGateway(t, service.grpc, { env, flags }) : service
    const request = createRequest(http)
    const form = signUpForm()
    t.is((await request('POST', '/users/signup', { body: form })).status, 200)
    const query = { username: form.username, password }
    const { text: token } = await request('POST', '/users/login', { query, headers })

    const named = (name: RegExp, kind?: number) =>
      spans.find(span => span.traceId === traceId && name.test(span.name) && (kind ?? span.kind) === span.kind)
    // The first span to start is the last to end.
    const gateway = await waitFor(() => named(/^POST \/users\/login$/, 2), received)
    const client = separate ? await waitFor(() => named(/^auth.v1.Users\/Login$/, 3), received) : gateway
    const call = await waitFor(() => named(/^auth.v1.Users\/Login$/, 2), received)
    t.is(gateway.parentSpanId, callerSpan)
    if (separate) t.is(client.parentSpanId, gateway.spanId)
    t.is(call.parentSpanId, client.spanId)
    for (const name of [/^hash wait$/, /^hash$/, /^SQL attempt-begin$/, /^SQL attempt-succeed$/]) {
      const span = await waitFor(() => named(name), received)
      t.is(span.parentSpanId, call.spanId, String(name))
    }
    t.like((await accessOf(service, 'traced'))[0], { rpc: 'Login', traceId })

    // All spans of both requests, including the statements of transactions.
    t.true(spans.some(({ name }) => name === 'SQL transaction'))
    for (const secret of [form.username, form.nickname, password, token, 'hmac1:', '$2b$', 'VALUES']) {
      t.false(received().includes(String(secret)), String(secret))
    }
  })
}

test('a call over Connect is a span of the gateway that lasts until the answer', async t => {
  const { spans, received, env, flags } = await openReceiver(t)
  const service = await spawnService(t, env, { flags })
  const { status } = await createRequest(service.http)('POST', '/auth.v1.Users/GetMe', { body: {}, headers })
  t.is(status, 403)
  const call = await waitFor(() => spans.find(({ name }) => name === 'auth.v1.Users/GetMe'), received)
  const gateway = await waitFor(() => spans.find(({ spanId }) => spanId === call.parentSpanId), received)
  t.is(gateway.traceId, traceId)
  t.is(gateway.parentSpanId, callerSpan)
})

test('a hash that waited for others belongs to the trace of its call', async t => {
  const { spans, received, env, flags } = await openReceiver(t)
  // Long enough for concurrent ones to wait for each other.
  const service = await spawnService(t, { ...env, AUTH_BCRYPT_COST: '9' }, { flags })
  const request = createRequest(service.http)
  const auditContext = Array.from({ length: 8 }, (_, index) => `${index + 10}`.padStart(32, 'a'))
  await Promise.all(
    auditContext.map(id => {
      const query = { username: 'admin', password }
      const headers = { traceparent: `00-${id}-${callerSpan}-01` }
      return request('POST', '/users/login', { query, headers, once: true })
    }),
  )
  for (const id of auditContext) {
    const named = (name: string, kind: number) => () =>
      spans.find(span => span.traceId === id && span.name === name && span.kind === kind)
    const call = await waitFor(named('auth.v1.Users/Login', 2), received)
    for (const name of ['hash wait', 'hash']) {
      const span = await waitFor(named(name, 1), received)
      t.is(span.parentSpanId, call.spanId, name)
    }
  }
})
