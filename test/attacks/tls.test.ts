/** Between gateway and server: callers without a certificate, with an invalid one or another name; impersonated servers. */
import { randomUUID } from 'node:crypto'
import { create } from '@bufbuild/protobuf'
import { credentials, Server, ServerCredentials } from '@grpc/grpc-js'
import test from 'ava'
import { createRemoteTransport } from '../../gateway/remote.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { startGrpcServer } from '../../server/calls/grpc.js'
import { createLog } from '../../server/observability/log.js'
import { followCertificates } from '../../server/process/certificates.js'
import { createAuthority, writePems } from '../_helpers/certificates.js'
import { openGrpc, refusalOf } from '../_helpers/grpc.js'
import { openRaw } from '../_helpers/raw.js'
import { password, startTestService, type TestService } from '../_helpers/service.js'
import { within } from '../_helpers/wait.js'

const authority = createAuthority('Authority')
const impostor = createAuthority('Authority')
const server = authority.issue({ name: 'auth-server', dnsNames: ['localhost'], addresses: ['127.0.0.1'] })

let service: TestService
const cleanUps: (() => Promise<void>)[] = []
test.before(async () => {
  const hooks = { teardown: (work: () => Promise<void>) => void cleanUps.push(work) }
  const files = await writePems(hooks, { ...server, ca: authority.certificate })
  const env = { AUTH_TLS_CERT: files.cert, AUTH_TLS_KEY: files.key, AUTH_TLS_CA: files.ca }
  service = await startTestService(hooks, env)
})
test.after.always(async () => {
  for (const work of cleanUps.reverse()) await work()
})

/** The outcome of a wrong login, and its client address according to the server. */
async function outcome(channel = credentials.createInsecure(), at = service): Promise<string> {
  const client = openGrpc(at.grpc, channel)
  const requestId = randomUUID()
  const metadata = { 'x-forwarded-for': '10.9.9.9', 'x-request-id': requestId }
  const { username } = await at.signUp('ROLE_CLIENT')
  try {
    const options = { metadata, deadline: Date.now() + 60_000 }
    const reason = await client.call(Users.method.login, { username, password }, options).then(
      () => 'OK',
      error => refusalOf(error).info?.reason ?? 'no connection',
    )
    if (reason !== 'OK') return reason
    const [event] = await at.registry.audit.list({ limit: 1 })
    return event?.address === '10.9.9.9' && event.request_id === requestId ? 'believed' : String(event?.address)
  } finally {
    client.close()
  }
}

const presenting = ({ cert, key }: { cert: Buffer; key: Buffer }) =>
  credentials.createSsl(authority.certificate, key, cert)

test.serial('a client without a certificate from the server’s authority is refused', async t => {
  t.is(await outcome(), 'no connection')
  t.is(await outcome(credentials.createSsl(authority.certificate)), 'no connection')
  t.is(await outcome(presenting(impostor.issue({ name: 'auth-gateway', dnsNames: ['auth-gateway'] }))), 'no connection')
  t.is(
    await outcome(presenting(authority.issue({ name: 'auth-gateway', until: new Date(Date.now() - 86_400_000) }))),
    'no connection',
  )
})

test.serial('only a gateway may name its client’s address, from every network', async t => {
  t.is(await outcome(presenting(authority.issue({ name: 'auth-gateway' }))), 'believed')
  t.is(await outcome(presenting(authority.issue({ name: 'x', dnsNames: ['y', 'auth-gateway'] }))), 'believed')
  t.is(await outcome(presenting(authority.issue({ name: 'auth-gateway', uris: ['x:y'] }))), 'believed')
  // The address is one of AUTH_TRUSTED_PROXIES, which suffices without certificates.
  for (const options of [
    { name: 'some-app' },
    { name: 'auth-gateway.attacker.example' },
    { name: 'xauth-gateway' },
    { name: 'auth-gateway,' },
    { name: '', dnsNames: ['app'] },
    { name: 'auth-gateway', dnsNames: ['app'] },
    { name: 'app', dnsNames: ['*'] },
    { name: 'app', dnsNames: ['app, DNS:auth-gateway'] },
    { name: 'app', dnsNames: ['app, DNS:auth-gateway, DNS:x'] },
    { name: 'app, CN=auth-gateway' },
    { name: 'auth-gateway\0.attacker.example' },
    { name: 'app', uris: ['auth-gateway'] },
    { name: 'app', uris: ['x:y, DNS:auth-gateway'] },
  ]) {
    t.is(await outcome(presenting(authority.issue(options))), '127.0.0.1', JSON.stringify(options))
  }
})

test.serial('a gateway whose name has several labels is recognized by that name only, not by a wildcard', async t => {
  const name = 'gateway.example.org'
  const files = await writePems(t, { ...server, ca: authority.certificate })
  const tls = { AUTH_TLS_CERT: files.cert, AUTH_TLS_KEY: files.key, AUTH_TLS_CA: files.ca }
  const named = await startTestService(t, { ...tls, AUTH_GATEWAY_NAMES: name })
  t.is(await outcome(presenting(authority.issue({ name: 'x', dnsNames: [name] })), named), 'believed')
  t.is(await outcome(presenting(authority.issue({ name: 'x', dnsNames: ['*.example.org'] })), named), '127.0.0.1')
})

test.serial('a gateway sends no token to a server that it can’t authenticate', async t => {
  const given: string[] = []
  for (const [name, { cert, key }, expected] of [
    ['another authority', impostor.issue({ name: 'auth-server', addresses: ['127.0.0.1'] }), false],
    ['another name', authority.issue({ name: 'auth-server', dnsNames: ['elsewhere.example.org'] }), false],
    [
      'expired',
      authority.issue({ name: 'x', addresses: ['127.0.0.1'], until: new Date(Date.now() - 86_400_000) }),
      false,
    ],
    ['the right one', server, true],
  ] as const) {
    const fake = new Server()
    const bytes = (value: Buffer) => value
    const method = {
      path: '/auth.v1.Users/GetMe',
      requestStream: false,
      responseStream: false,
      requestSerialize: bytes,
      requestDeserialize: bytes,
      responseSerialize: bytes,
      responseDeserialize: bytes,
    } as const
    fake.addService(
      { getMe: method },
      {
        getMe: (call: { metadata: { get(name: string): unknown[] } }, answer: (error: null, value: Buffer) => void) => {
          given.push(`${name} ${call.metadata.get('authorization')[0]}`)
          answer(null, Buffer.alloc(0))
        },
      },
    )
    const port = await new Promise<number>((resolve, reject) =>
      fake.bindAsync(
        '127.0.0.1:0',
        ServerCredentials.createSsl(null, [{ cert_chain: cert, private_key: key }]),
        (error, bound) => (error ? reject(error) : resolve(bound)),
      ),
    )
    const own = authority.issue({ name: 'auth-gateway' })
    const files = await writePems(t, { ca: authority.certificate, ...own })
    const certificates = followCertificates(files, createLog('silent'))
    const transport = createRemoteTransport({ target: `127.0.0.1:${port}`, certificates })
    const call = transport.unary(
      Users.method.getMe,
      undefined,
      2000,
      { authorization: 'Bearer secret' },
      create(Users.method.getMe.input),
    )
    const answered = await call.then(
      () => true,
      () => false,
    )
    t.is(answered, expected, name)
    transport.close()
    certificates.stop()
    fake.forceShutdown()
  }
  t.deepEqual(given, ['the right one Bearer secret'])
})

test.serial('a silent connection doesn’t keep the server from closing', async t => {
  const log = createLog('silent')
  const certificates = followCertificates(await writePems(t, server), log)
  t.teardown(certificates.stop)
  const grpc = await startGrpcServer(
    { host: '127.0.0.1', port: 0 },
    {
      calls: { services: [], run: () => Promise.reject(new Error('no calls')) },
      certificates,
      trustedProxies: [],
      gatewayNames: [],
    },
  )
  const silent = await openRaw(grpc.port)
  t.teardown(silent.destroy)
  t.true(await within(10_000, grpc.close(100)))
})
