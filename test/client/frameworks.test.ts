/** Middleware of the client package: responses to requests without a valid token. */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Code, ConnectError, createClient, createRouterTransport } from '@connectrpc/connect'
import test from 'ava'
import { requireToken as forConnect, verifiedKey } from '../../proto/client/connect.js'
import { requireToken as forExpress, verifiedOf } from '../../proto/client/express.js'
import { requireToken as forFastify } from '../../proto/client/fastify.js'
import { type Verified, VerifyError } from '../../proto/client/verify.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'

/** A verifier that knows three tokens. */
const verifier = {
  async verify(token: string): Promise<Verified> {
    if (token === 'broken') throw new TypeError('a fault')
    if (token === 'away') throw new VerifyError('UNAVAILABLE', 'Try again.')
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
  ['Bearer away', 503, null, '1'],
  ['Bearer broken', 500, null, null],
]

test('Express: the answer is 401 with a challenge, or 503 with Retry-After, and a problem document', async t => {
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
    const { headers } = response
    t.deepEqual(
      [response.status, headers.get('www-authenticate'), headers.get('retry-after')],
      [status, challenge, retry],
    )
    const body = await response.text()
    if (status === 200) t.is(body, '7')
    if (status === 401 || status === 503) {
      t.is(headers.get('content-type'), 'application/problem+json')
      t.is(JSON.parse(body).status, status)
      t.is(JSON.parse(body).reason, status === 401 ? 'INVALID_TOKEN' : 'UNAVAILABLE')
    }
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
    if (status === 200) t.deepEqual([answered, verifiedOf(request).claims.sub, sent], [undefined, '7', {}])
    else
      t.deepEqual(
        [sent.status, sent.headers!['www-authenticate'] ?? null, sent.headers!['retry-after'] ?? null],
        [status, challenge, retry],
      )
  }
  await t.throwsAsync(handle({ headers: { authorization: 'Bearer broken' } }, {} as never), { instanceOf: TypeError })
})

test('Connect: the refusal is UNAUTHENTICATED or UNAVAILABLE', async t => {
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
    ['Bearer away', Code.Unavailable],
  ] as const) {
    const error = await t.throwsAsync(call(authorization), { instanceOf: ConnectError })
    t.is(ConnectError.from(error).code, code)
  }
})
