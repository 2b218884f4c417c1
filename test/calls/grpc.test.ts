/** The gRPC server, with a bare client: RPCs, typed refusals, deadlines, health, reflection. */
import { create, createFileRegistry, fromBinary, type Message } from '@bufbuild/protobuf'
import { type FileDescriptorProto, FileDescriptorProtoSchema, FileDescriptorSetSchema } from '@bufbuild/protobuf/wkt'
import { createClient } from '@connectrpc/connect'
import { createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node'
import { Client, credentials, Metadata, type ServiceError, status } from '@grpc/grpc-js'
import test, { type ExecutionContext } from 'ava'
import pg from 'pg'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { ServerReflection, type ServerReflectionRequest } from '../../proto/gen/grpc/reflection/v1/reflection_pb.js'
import { startGrpcServer } from '../../server/calls/grpc.js'
import { formatAddress } from '../../server/process/settings.js'
import { recordStatements } from '../_helpers/database.js'
import { type GrpcClient, grpcOf, openGrpc, refusalOf } from '../_helpers/grpc.js'
import { serviceForFile, signUpForm, startTestService } from '../_helpers/service.js'
import { claimsOf, forge, nowInSeconds } from '../_helpers/tokens.js'
import { waitFor, waitForValue, within } from '../_helpers/wait.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))
const users = Users.method
const forgotPasswords = ForgotPasswords.method
let client: GrpcClient
let bare: Client
test.before(() => {
  client = openGrpc(service.grpc)
  bare = new Client(service.grpc, credentials.createInsecure())
})
test.after.always(() => {
  client.close()
  bare.close()
})

const refusal = async (call: Promise<unknown>) =>
  refusalOf(
    await call.then(
      () => Promise.reject(new Error('not refused')),
      error => error,
    ),
  )

test('the request id of a trusted gateway is in ErrorInfo; that of an untrusted peer is ignored, over gRPC and over HTTP', async t => {
  const strict = await startTestService(t, { AUTH_TRUSTED_PROXIES: '' })
  const own = grpcOf(t, strict.grpc)
  const given = 'from-a-peer'
  const idFor = async (by: GrpcClient) =>
    (await refusal(by.call(users.getMe, {}, { metadata: { 'x-request-id': given } }))).info?.metadata.requestId
  t.is(await idFor(client), given)
  t.regex((await idFor(own)) ?? '', /^[\w-]{36}$/)
  const headers = { 'x-request-id': given }
  const answer = await strict.request('POST', '/users/login', { query: { username: 'admin', password: 'x' }, headers })
  t.is(answer.json.reason, 'INVALID_CREDENTIALS')
  t.regex(answer.json.requestId, /^[\w-]{36}$/)
  t.is(answer.headers.get('x-request-id'), answer.json.requestId)
  const events = await strict.registry.audit.list({ action: 'session.login', limit: 9 })
  t.like(events, { length: 1, 0: { request_id: answer.json.requestId } })
})

test.serial('a login that can’t be hashed before its deadline runs no statement, over gRPC and Connect', async t => {
  // A hash of this cost takes about a second.
  const slow = await startTestService(t, { AUTH_BCRYPT_COST: '14' })
  const own = grpcOf(t, slow.grpc)
  using statements = recordStatements()
  const body = { username: 'nobody', password: 'x' }
  const called = own.call(users.login, body, { deadline: Date.now() + 400, once: true })
  t.is((await refusal(called)).code, status.DEADLINE_EXCEEDED)
  const headers = { 'content-type': 'application/json', 'connect-timeout-ms': '400' }
  const answer = await fetch(`${slow.http}/auth.v1.Users/Login`, {
    method: 'POST',
    headers,
    body: JSON.stringify(body),
  })
  t.regex(await answer.text(), /deadline_exceeded/i)
  const ofLogins = () => statements.names.filter(name => /^(attempt|bucket|user)(?!.*prune)/.test(name))
  t.deepEqual(ofLogins(), [])
  // One that can be hashed does, at a service whose hashes take no time.
  t.is((await refusal(client.call(users.login, body))).info?.reason, 'INVALID_CREDENTIALS')
  t.not(ofLogins().length, 0)
})

test('VerifyToken returns whether a token is valid, and its claims, as in RFC 7662', async t => {
  const organization = await service.organization()
  const { token, username } = await service.institution(organization)
  const { $typeName, ...good } = await client.call(users.verifyToken, { token })
  const claims = claimsOf(token)
  t.deepEqual(good, {
    active: true,
    sub: claims.sub,
    username,
    tokenType: 'Bearer',
    exp: BigInt(claims.exp),
    iat: BigInt(claims.iat),
    iss: claims.iss,
    aud: claims.aud,
    jti: claims.jti,
    authTime: BigInt(claims.auth_time),
    amr: ['pwd'],
    roles: ['ROLE_INSTITUTION'],
    org: organization.id,
    userActive: true,
  })
  const expired = await forge(service, token, { exp: nowInSeconds() - 1 })
  for (const bad of ['', 'bad', expired, await forge(service, token, { ver: 5 })]) {
    const { active, sub, roles } = await client.call(users.verifyToken, { token: bad })
    t.deepEqual([active, sub, roles], [false, undefined, []])
  }
})

test('GetKeys returns the keys of the HTTP key set', async t => {
  const { keys } = await client.call(users.getKeys, {})
  const { json } = await service.request('GET', '/.well-known/jwks.json')
  t.like(keys, { length: json.keys.length, ...json.keys })
})

test('a call whose deadline has passed is not started', async t => {
  const user = signUpForm()
  t.is((await refusal(client.call(users.signUp, user, { deadline: Date.now() - 1 }))).code, status.DEADLINE_EXCEEDED)
  t.false((await client.call(users.existsByUsername, { username: user.username })).exists)
})

test('a canceled call ends at once, and the server still works', async t => {
  const { database } = service.registry
  const list = forgotPasswords.findAllForgotPasswordQuestions
  await database.transact(async transaction => {
    await database.sequelize.query('LOCK TABLE questions', { transaction })
    const started = Date.now()
    const call = client.call(list, {}, { started: each => setTimeout(() => each.cancel(), 100) })
    t.is((await refusal(call)).code, status.CANCELLED)
    t.true(Date.now() - started < 5_000)
  })
  t.true((await client.call(list, {})).questions.length > 0)
})

/** Calls by path, with bytes as request and response. */
function ask(path: string, request: Buffer, client = bare): Promise<Buffer> {
  const same = (bytes: Buffer) => bytes
  return new Promise((resolve, reject) => {
    client.makeUnaryRequest(path, same, same, request, new Metadata(), (error, bytes) =>
      error ? reject(error) : resolve(bytes!),
    )
  })
}

/** A length-delimited field of a protobuf message. */
const field = (number: number, text: string) =>
  Buffer.concat([Buffer.from([(number << 3) | 2, Buffer.byteLength(text)]), Buffer.from(text)])

/** Watches the health of a service; `states` gets what is received, and `ended` the status of the end. */
async function watchHealth(probe: Client, service: string, onEnd = () => {}) {
  const states: number[] = []
  const same = (bytes: Buffer) => bytes
  const stream = probe.makeServerStreamRequest('/grpc.health.v1.Health/Watch', same, same, field(1, service))
  const ended = new Promise<string>(resolve => {
    stream.on('error', () => {}).on('data', (bytes: Buffer) => states.push(bytes[1]!))
    stream.on('status', ({ code }) => {
      onEnd()
      resolve(`${status[code]} ${states}`)
    })
  })
  await waitFor(() => states.length > 0)
  return { states, ended }
}

test('the health check reports SERVING for the server and both services, and knows no others', async t => {
  const serving = Buffer.from([0x08, 1])
  for (const name of ['', 'auth.v1.Users', 'auth.v1.ForgotPasswords']) {
    // Not immediately on a busy machine.
    t.true(await waitFor(async () => serving.equals(await ask('/grpc.health.v1.Health/Check', field(1, name)))), name)
  }
  const error = await t.throwsAsync(ask('/grpc.health.v1.Health/Check', field(1, 'other.Service')))
  t.is((error as unknown as { code: number }).code, status.NOT_FOUND)
})

test('the health check reports NOT_SERVING while the database is unavailable', async t => {
  const other = await startTestService(t)
  const name = new URL(other.env.DATABASE_URL!).pathname.slice(1)
  const database = new pg.Client({ connectionString: process.env.TEST_DATABASE_URL })
  await database.connect()
  const probe = new Client(other.grpc, credentials.createInsecure())
  t.teardown(async () => {
    probe.close()
    await database.end()
  })
  const says = async (state: number) => (await ask('/grpc.health.v1.Health/Check', field(1, ''), probe))[1] === state
  await waitFor(() => says(1))
  // Watchers are notified.
  const { states } = await watchHealth(probe, '')
  await database.query(`ALTER DATABASE ${name} ALLOW_CONNECTIONS false`)
  await database.query('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1', [name])
  await waitFor(() => says(2))
  // Watchers receive the change at the next check.
  await waitForValue(() => states, [1, 2])
  await database.query(`ALTER DATABASE ${name} ALLOW_CONNECTIONS true`)
  await waitFor(() => says(1))
  // SERVING, NOT_SERVING and SERVING.
  await waitForValue(() => states, [1, 2, 1])
  const listed = (await ask('/grpc.health.v1.Health/List', Buffer.alloc(0), probe)).toString('latin1')
  for (const service of ['auth.v1.Users', 'auth.v1.ForgotPasswords']) t.true(listed.includes(service))
})

test('a client that watches health is notified when the service stops, and doesn’t delay it', async t => {
  const other = await startTestService(t)
  const probe = new Client(other.grpc, credentials.createInsecure())
  t.teardown(() => probe.close())
  const order: string[] = []
  const watch = (service: string) => watchHealth(probe, service, () => order.push('ended'))
  const watched = [await watch(''), await watch('other.Service')]
  const hung = await other.service.stop().finally(() => order.push('stopped'))
  t.deepEqual(hung, [])
  // SERVING, then NOT_SERVING; SERVICE_UNKNOWN.
  t.deepEqual(await Promise.all(watched.map(({ ended }) => ended)), ['OK 1,2', 'OK 3'])
  t.deepEqual(order, ['ended', 'ended', 'stopped'])
})

/** A gRPC server whose calls end when the test ends them. */
async function heldServer(t: ExecutionContext) {
  const ends: (() => void)[] = []
  const run = () => new Promise<Message>(resolve => ends.push(() => resolve(create(users.getMe.output))))
  const deps = { calls: { services: [Users], run }, trustedProxies: [], gatewayNames: [] }
  const server = await startGrpcServer({ host: '127.0.0.1', port: 0 }, deps)
  const held = grpcOf(t, `127.0.0.1:${server.port}`)
  const call = held.call(users.getMe, {}).then(
    () => 'OK',
    error => status[error.code],
  )
  await waitForValue(() => ends.length, 1)
  return { server, held, call, end: ends[0]! }
}

test('a closing server lets calls in progress end, and refuses new ones', async t => {
  const { server, held, call, end } = await heldServer(t)
  const closed = server.close(60_000)
  const late = await t.throwsAsync(held.call(users.getMe, {}))
  t.is((late as unknown as { code: number }).code, status.UNAVAILABLE)
  end()
  t.is(await call, 'OK')
  t.true(await within(10_000, closed))
})

test('a closing server cuts off calls that exceed its time limit', async t => {
  const { server, call } = await heldServer(t)
  t.true(await within(10_000, server.close(100)))
  t.not(await call, 'OK')
})

// Reflection on the gRPC ports, and responses to unknown methods.

/** The public port and that of Administration, and the services of each. */
const ports = {
  public: {
    at: () => service.grpc,
    services: ['auth.v1.Changes', 'auth.v1.ForgotPasswords', 'auth.v1.OpenId', 'auth.v1.Users'],
  },
  Administration: { at: () => formatAddress(service.service.addresses.admin!), services: ['auth.v1.Administration'] },
}

/** The answer of reflection to one request. */
async function reflect(t: ExecutionContext, at: string, messageRequest: ServerReflectionRequest['messageRequest']) {
  const baseUrl = `http://${at}`
  const sessionManager = new Http2SessionManager(baseUrl)
  const client = createClient(ServerReflection, createGrpcTransport({ baseUrl, sessionManager }))
  async function* requests() {
    yield { messageRequest }
  }
  try {
    for await (const { messageResponse } of client.serverReflectionInfo(requests())) return messageResponse
    return t.fail('no answer')
  } finally {
    sessionManager.abort()
  }
}

/** Files in order of their imports; throws if one is missing. */
function inOrder(files: readonly FileDescriptorProto[]): FileDescriptorProto[] {
  const ordered = new Set<FileDescriptorProto>()
  const add = (file: FileDescriptorProto | undefined, name: string) => {
    if (!file) throw new Error(`${name} is missing`)
    for (const dependency of file.dependency)
      add(
        files.find(each => each.name === dependency),
        dependency,
      )
    ordered.add(file)
  }
  for (const file of files) add(file, file.name)
  return [...ordered]
}

for (const [port, { at, services }] of Object.entries(ports)) {
  test(`reflection at the ${port} port lists its services, health and itself`, async t => {
    const answer = await reflect(t, at(), { case: 'listServices', value: '' })
    const names = answer?.case === 'listServicesResponse' ? answer.value.service.map(({ name }) => name) : []
    t.deepEqual(names.sort(), [...services, 'grpc.health.v1.Health', 'grpc.reflection.v1.ServerReflection'])
  })

  test(`reflection at the ${port} port has services and error details, with all that they import`, async t => {
    const symbols = [...services, 'grpc.health.v1.Health', 'grpc.reflection.v1.ServerReflection']
    for (const name of ['ErrorInfo', 'BadRequest', 'RetryInfo', 'Status']) symbols.push(`google.rpc.${name}`)
    for (const symbol of symbols) {
      const answer = await reflect(t, at(), { case: 'fileContainingSymbol', value: symbol })
      if (answer?.case !== 'fileDescriptorResponse') return t.fail(symbol)
      const files = answer.value.fileDescriptorProto.map(bytes => fromBinary(FileDescriptorProtoSchema, bytes))
      const registry = createFileRegistry(create(FileDescriptorSetSchema, { file: inOrder(files) }))
      // Clients assume that the first file is the requested one.
      t.is(`${registry.get(symbol)?.file.name}.proto`, files[0]!.name, symbol)
    }
  })

  test(`a method or a service that does not exist is unimplemented at the ${port} port`, async t => {
    const client = new Client(at(), credentials.createInsecure())
    t.teardown(() => client.close())
    const same = (bytes: Buffer) => bytes
    for (const path of [`/${services[0]}/Nope`, '/unknown.Service/X', '/auth.v1.Nothing/Login']) {
      const error = await new Promise<ServiceError | null>(resolve =>
        client.makeUnaryRequest(path, same, same, Buffer.from('a message'), resolve),
      )
      t.is(error?.code, status.UNIMPLEMENTED, path)
    }
  })
}
