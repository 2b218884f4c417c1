/** Between gateway and server: callers without a certificate, with an invalid one or another name; impersonated servers. */
import { randomUUID } from 'node:crypto'
import { promisify } from 'node:util'
import { create } from '@bufbuild/protobuf'
import { credentials, type handleUnaryCall, Server, ServerCredentials } from '@grpc/grpc-js'
import test from 'ava'
import { createRemoteTransport } from '../../gateway/remote.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { startGrpcServer } from '../../server/calls/grpc.js'
import { createLog } from '../../server/observability/log.js'
import { followCertificates } from '../../server/process/certificates.js'
import { createAuthority, writePems } from '../_helpers/certificates.js'
import type { Teardown } from '../_helpers/database.js'
import { openGrpc, refusalOf } from '../_helpers/grpc.js'
import { openRaw } from '../_helpers/raw.js'
import { password, startTestService, type TestService, teardownOfFile } from '../_helpers/service.js'
import { within } from '../_helpers/wait.js'

const authority = createAuthority('Authority')
const impostor = createAuthority('Authority')
const server = authority.issue({ name: 'auth-server', dnsNames: ['localhost'], addresses: ['127.0.0.1'] })

let service: TestService
const hooks = teardownOfFile()

/** A service that wants certificates. */
async function startWithTls(t: Teardown, env: Record<string, string> = {}): Promise<TestService> {
  const files = await writePems(t, { ...server, ca: authority.certificate })
  return startTestService(t, { AUTH_TLS_CERT: files.cert, AUTH_TLS_KEY: files.key, AUTH_TLS_CA: files.ca, ...env })
}
test.before(async () => {
  service = await startWithTls(hooks)
})

/** The outcome of a login, and its client address according to the server. */
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

const [dayAgo, gateway] = [new Date(Date.now() - 86_400_000), 'auth-gateway']
const as = (options: Parameters<typeof authority.issue>[0], at?: TestService) =>
  outcome(presenting(authority.issue(options)), at)

test.serial('a client without a certificate from the server’s authority is refused', async t => {
  t.is(await outcome(), 'no connection')
  t.is(await outcome(credentials.createSsl(authority.certificate)), 'no connection')
  t.is(await outcome(presenting(impostor.issue({ name: gateway, dnsNames: [gateway] }))), 'no connection')
  t.is(await as({ name: gateway, until: dayAgo }), 'no connection')
})

test.serial('only a gateway may name its client’s address, from every network', async t => {
  t.is(await as({ name: gateway }), 'believed')
  t.is(await as({ name: 'x', dnsNames: ['y', gateway] }), 'believed')
  t.is(await as({ name: gateway, uris: ['x:y'] }), 'believed')
  // The address is one of AUTH_TRUSTED_PROXIES, which suffices without certificates.
  const names = ['some-app', 'auth-gateway.attacker.example', 'xauth-gateway', 'auth-gateway,', 'app, CN=auth-gateway']
  for (const options of [
    ...[...names, 'auth-gateway\0.attacker.example'].map(name => ({ name })),
    ...[
      { name: '', dnsNames: ['app'] },
      { name: gateway, dnsNames: ['app'] },
    ],
    ...['*', 'app, DNS:auth-gateway', 'app, DNS:auth-gateway, DNS:x'].map(each => ({ name: 'app', dnsNames: [each] })),
    ...[gateway, 'x:y, DNS:auth-gateway'].map(each => ({ name: 'app', uris: [each] })),
  ])
    t.is(await as(options), '127.0.0.1', JSON.stringify(options))
  // A name of several labels is recognized by that name only, not by a wildcard.
  const named = await startWithTls(t, { AUTH_GATEWAY_NAMES: 'gateway.example.org' })
  t.is(await as({ name: 'x', dnsNames: ['gateway.example.org'] }, named), 'believed')
  t.is(await as({ name: 'x', dnsNames: ['*.example.org'] }, named), '127.0.0.1')
})

test.serial('a gateway sends no token to a server that it can’t authenticate', async t => {
  const given: string[] = []
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
  const files = await writePems(t, { ca: authority.certificate, ...authority.issue({ name: gateway }) })
  const certificates = followCertificates(files, createLog('silent'))
  t.teardown(certificates.stop)
  for (const [name, { cert, key }] of [
    ['another authority', impostor.issue({ name: 'auth-server', addresses: ['127.0.0.1'] })],
    ['another name', authority.issue({ name: 'auth-server', dnsNames: ['elsewhere.example.org'] })],
    ['expired', authority.issue({ name: 'x', addresses: ['127.0.0.1'], until: dayAgo })],
    ['the right one', server],
  ] as const) {
    const fake = new Server()
    const getMe: handleUnaryCall<Buffer, Buffer> = ({ metadata }, answer) => {
      given.push(`${name} ${metadata.get('authorization')[0]}`)
      answer(null, Buffer.alloc(0))
    }
    fake.addService({ getMe: method }, { getMe })
    const tls = ServerCredentials.createSsl(null, [{ cert_chain: cert, private_key: key }])
    const port = await promisify(fake.bindAsync.bind(fake))('127.0.0.1:0', tls)
    const transport = createRemoteTransport({ target: `127.0.0.1:${port}`, certificates })
    const { getMe: rpc } = Users.method
    const call = transport.unary(rpc, undefined, 30_000, { authorization: 'Bearer secret' }, create(rpc.input))
    t.is(
      await call.then(
        () => 'answered',
        () => 'refused',
      ),
      name === 'the right one' ? 'answered' : 'refused',
      name,
    )
    transport.close()
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
