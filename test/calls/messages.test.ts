/** Bytes that are no message, compressed ones, and timeouts of any length, over every protocol. */
import { randomUUID } from 'node:crypto'
import { connect } from 'node:http2'
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib'
import { create, fromBinary, toBinary } from '@bufbuild/protobuf'
import { Code } from '@connectrpc/connect'
import test from 'ava'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { ErrorInfoSchema } from '../../proto/gen/google/rpc/error_details_pb.js'
import { StatusSchema } from '../../proto/gen/google/rpc/status_pb.js'
import { password, serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()

/** A message as a protocol frames it. */
function frame(message: Buffer, flags = 0): Buffer {
  const head = Buffer.alloc(5)
  head.writeUInt8(flags)
  head.writeUInt32BE(message.length, 1)
  return Buffer.concat([head, message])
}

interface Outcome {
  /** Name of the gRPC code; `OK`. */
  readonly code: string
  readonly message: string
  readonly reason?: string | undefined
}

type Headers = Record<string, string>

const codeName = (code: number) => (code === 0 ? 'OK' : Code[code]!)

/** The reason in the details of a status. */
function reasonOf(bytes: Uint8Array): string | undefined {
  const info = fromBinary(StatusSchema, bytes).details.find(({ typeUrl }) => typeUrl.endsWith(ErrorInfoSchema.typeName))
  return info && fromBinary(ErrorInfoSchema, info.value).reason
}

async function post(path: string, type: string, headers: Headers, body: Buffer) {
  const answer = await fetch(`${service.http}${path}`, {
    method: 'POST',
    headers: { 'content-type': type, ...headers },
    body: new Uint8Array(body),
  })
  return { answer, bytes: Buffer.from(await answer.arrayBuffer()) }
}

async function connectCall(path: string, type: string, headers: Headers, body: Buffer): Promise<Outcome> {
  const { answer, bytes } = await post(path, type, headers, body)
  if (answer.status === 200) return { code: 'OK', message: '' }
  const { code, message, details } = JSON.parse(String(bytes))
  const [info] = details ?? []
  const name = (code as string).replace(/(?:^|_)(.)/g, (_, letter) => letter.toUpperCase())
  return { code: name, message, reason: info && fromBinary(ErrorInfoSchema, Buffer.from(info.value, 'base64')).reason }
}

async function webCall(path: string, type: string, headers: Headers, body: Buffer): Promise<Outcome> {
  const { answer, bytes } = await post(path, type, headers, body)
  const trailers = new Map(answer.headers)
  for (let at = 0; at < bytes.length; at += 5 + bytes.readUInt32BE(at + 1)) {
    if (bytes[at] !== 0x80) continue
    for (const line of String(bytes.subarray(at + 5)).split('\r\n')) {
      const [name = '', value = ''] = line.split(/: ?(.*)/)
      trailers.set(name, value)
    }
  }
  return outcomeOf(trailers)
}

function grpcCall(path: string, type: string, headers: Headers, body: Buffer): Promise<Outcome> {
  const session = connect(`http://${service.grpc}`)
  return new Promise<Outcome>((resolve, reject) => {
    session.on('error', reject)
    const head = { ':method': 'POST', ':path': path, 'content-type': type, te: 'trailers' }
    const stream = session.request({ ...head, ...headers })
    const trailers = new Map<string, string>()
    const add = (more: object) => {
      for (const [name, value] of Object.entries(more)) trailers.set(name, String(value))
    }
    stream
      .on('response', add)
      .on('trailers', add)
      .on('error', reject)
      .on('close', () => resolve(outcomeOf(trailers)))
    stream.resume().end(body)
  }).finally(() => session.destroy())
}

function outcomeOf(trailers: Map<string, string>): Outcome {
  const details = trailers.get('grpc-status-details-bin')
  return {
    code: codeName(Number(trailers.get('grpc-status'))),
    message: decodeURIComponent(trailers.get('grpc-message') ?? ''),
    reason: details === undefined ? undefined : reasonOf(Buffer.from(details, 'base64')),
  }
}

interface Protocol {
  readonly type: string
  readonly framed: boolean
  readonly call: typeof webCall
  readonly encoding: string
}

const protocols: Record<string, Protocol> = {
  'Connect (binary)': { type: 'application/proto', framed: false, call: connectCall, encoding: 'content-encoding' },
  'Connect (JSON)': { type: 'application/json', framed: false, call: connectCall, encoding: 'content-encoding' },
  'gRPC-Web': { type: 'application/grpc-web+proto', framed: true, call: webCall, encoding: 'grpc-encoding' },
  'gRPC-Web (JSON)': { type: 'application/grpc-web+json', framed: true, call: webCall, encoding: 'grpc-encoding' },
  gRPC: { type: 'application/grpc', framed: true, call: grpcCall, encoding: 'grpc-encoding' },
}

/** Bytes that are no message of `Users.Login`, `Users.GetMe` and `Users.SignUp`. */
const garbage: Record<'binary' | 'JSON', Record<string, Buffer>> = {
  binary: {
    text: Buffer.from('this is no message'),
    'the field number 0': Buffer.of(0),
    'a field that ends early': Buffer.of(0x0a, 9, 0x61),
    'an unknown wire type': Buffer.of(0x0f),
    'a number without end': Buffer.alloc(40, 0xff),
    JSON: Buffer.from('{"username":"a"}'),
    'compressed bytes': gzipSync('{}'),
  },
  JSON: {
    text: Buffer.from('this is no message'),
    'an unfinished object': Buffer.from('{"username":'),
    'a list': Buffer.from('[]'),
    null: Buffer.from('null'),
    'no UTF-8': Buffer.from('{"username":"\xff"}', 'latin1'),
    'deep JSON': Buffer.from('['.repeat(10_000)),
    'compressed bytes': gzipSync('{}'),
  },
}

const garbageOf = ({ type }: Protocol) => garbage[type.endsWith('json') ? 'JSON' : 'binary']

for (const [name, protocol] of Object.entries(protocols)) {
  const { type, framed, call, encoding } = protocol
  const send = (rpc: string, headers: Headers, message: Buffer, flags?: number) =>
    call(`/auth.v1.${rpc}`, type, headers, framed ? frame(message, flags) : message)
  const encode = (fields: { username: string; password: string }) =>
    type.endsWith('json')
      ? Buffer.from(JSON.stringify(fields))
      : Buffer.from(toBinary(Users.method.login.input, create(Users.method.login.input, fields)))

  test(`${name}: bytes that are no message are INVALID_ARGUMENT, after the checks of the caller`, async t => {
    const { token } = await service.signUp('ROLE_CLIENT')
    const bearer = { authorization: `Bearer ${token}` }
    for (const [what, bytes] of Object.entries(garbageOf(protocol))) {
      for (const rpc of ['Users/Login', 'Users/SignUp', 'ForgotPasswords/SendKeyByEmail']) {
        const { code, reason, message } = await send(rpc, {}, bytes)
        t.deepEqual([code, reason], ['InvalidArgument', 'MALFORMED_REQUEST'], `${rpc}: ${what}`)
        t.true(message.length > 0)
      }
      for (const rpc of ['Users/GetMe', 'Users/GetUser', 'ForgotPasswords/SaveForgotPasswordQuestionsUsersAnswers']) {
        t.is((await send(rpc, {}, bytes)).reason, 'ACCESS_DENIED', `${rpc} without a token: ${what}`)
        t.is((await send(rpc, { authorization: 'Bearer x' }, bytes)).reason, 'INVALID_TOKEN', `${rpc}: ${what}`)
        const { code, reason } = await send(rpc, bearer, bytes)
        t.deepEqual([code, reason], ['InvalidArgument', 'MALFORMED_REQUEST'], `${rpc}: ${what}`)
      }
      // A ROLE_CLIENT has no members: that comes first, too.
      t.is((await send('Users/ListMembers', bearer, bytes)).reason, 'ACCESS_DENIED', what)
      t.is((await send('Users/BatchGetUsers', bearer, bytes)).reason, 'ACCESS_DENIED', what)
    }
  })

  test(`${name}: a message compressed with gzip is read up to the limit of size`, async t => {
    const { username } = await service.signUp('ROLE_CLIENT')
    const login = (message: Buffer, coding = 'gzip') => send('Users/Login', { [encoding]: coding }, message, 1)
    const right = await login(gzipSync(encode({ username, password })))
    t.is(right.code, 'OK', right.message)
    for (const bytes of [
      Buffer.from('no gzip'),
      gzipSync('x').subarray(0, -9),
      Buffer.of(0x1f, 0x8b),
      gzipSync('\0'),
    ]) {
      const { code, reason } = await login(bytes)
      t.deepEqual([code, reason], ['InvalidArgument', 'MALFORMED_REQUEST'], bytes.toString('hex'))
    }
    t.is((await send('Users/GetMe', { [encoding]: 'gzip' }, Buffer.from('no gzip'), 1)).reason, 'ACCESS_DENIED')
    // Frames of a compressed call needn't be compressed.
    if (framed) t.is((await send('Users/Login', { [encoding]: 'gzip' }, encode({ username, password }))).code, 'OK')
    const other = await login(brotliCompressSync(encode({ username, password })), 'br')
    t.is(other.code, 'Unimplemented')
    if (name !== 'gRPC') t.is(other.message, 'unknown compression "br": supported encodings are gzip')
    if (name !== 'gRPC') t.is((await login(deflateSync('x'), 'deflate')).code, 'Unimplemented')
  })

  test(`${name}: a timeout of any length is cut to that of the service, and a malformed one refused`, async t => {
    const { username } = await service.signUp('ROLE_CLIENT')
    const message = encode({ username, password })
    const isConnect = name.startsWith('Connect')
    const header = isConnect ? 'connect-timeout-ms' : 'grpc-timeout'
    const long = isConnect
      ? ['15000', '2147483647', '2147483648', '4294967296', '9999999999']
      : '15S 596H 597H 1194H 99999999H 35792M 71583M 99999999M 2147484S 99999999S 99999999m'.split(' ')
    for (const timeout of long) {
      const { code, message: why } = await send('Users/Login', { [header]: timeout }, message)
      t.is(code, 'OK', `${timeout}: ${why}`)
    }
    const malformed = isConnect
      ? ['', 'x', '-1', '1.5', '1e3', '15s', '12345678901']
      : ['x', '15', 'S', '-1S', '1.5S', '123456789S', '15 S', '15s', '15SS', 'x15S']
    for (const timeout of malformed) {
      const { code, message: why } = await send('Users/Login', { [header]: timeout }, message)
      t.is(code, 'InvalidArgument', timeout)
      t.regex(why, /timeout/)
    }
  })
}

test('no protocol decompresses a message beyond the limit of size', async t => {
  const json = gzipSync(JSON.stringify({ username: 'a'.repeat(8_000_000) }))
  const { input } = Users.method.login
  const binary = gzipSync(toBinary(input, create(input, { username: 'a'.repeat(8_000_000) })))
  for (const { type, framed, call, encoding } of Object.values(protocols)) {
    const bomb = type.endsWith('json') ? json : binary
    t.true(bomb.length < 16_000)
    for (const rpc of ['Login', 'GetMe']) {
      const body = framed ? frame(bomb, 1) : bomb
      t.is((await call(`/auth.v1.Users/${rpc}`, type, { [encoding]: 'gzip' }, body)).code, 'ResourceExhausted', type)
    }
  }
})

test('gRPC-Web: frames that are none are INVALID_ARGUMENT, and another number of messages than one UNIMPLEMENTED', async t => {
  const message = frame(Buffer.from(JSON.stringify({ username: randomUUID(), password })))
  const call = (body: Buffer) => webCall('/auth.v1.Users/Login', 'application/grpc-web+json', {}, body)
  for (const body of ['garbage', '\0', '\0\0\0\0\x09{}', `\x02${message.subarray(1)}`, `${message}\0`]) {
    const { code, reason } = await call(Buffer.from(body, 'latin1'))
    t.deepEqual([code, reason], ['InvalidArgument', 'MALFORMED_REQUEST'], JSON.stringify(body))
  }
  for (const body of [Buffer.alloc(0), Buffer.concat([message, message])])
    t.is((await call(body)).code, 'Unimplemented')
  t.is((await call(Buffer.concat([message, frame(Buffer.from('x: y\r\n'), 0x80)]))).reason, 'INVALID_CREDENTIALS')
})

test('gRPC: streams and health checks refuse bytes that are no message', async t => {
  const reflection = 'reflection.v1.ServerReflection/ServerReflectionInfo'
  for (const rpc of ['health.v1.Health/Check', 'health.v1.Health/Watch', reflection]) {
    const { code } = await grpcCall(`/grpc.${rpc}`, 'application/grpc', {}, frame(Buffer.of(0)))
    t.is(code, 'InvalidArgument', rpc)
  }
})

test('wrong types in JSON over Connect are named, after the checks of the caller', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const body = { record: { city: 5, state: 'SP' }, updateMask: 7 }
  const call = (more: object) => service.request('POST', '/auth.v1.Users/UpdateMe', { body, ...more })
  t.is((await call({})).status, 403)
  const { status, json } = await call({ token })
  t.is(status, 400)
  const [first, second] = json.details[1].debug.fieldViolations
  t.deepEqual([first.field, second.field], ['record.city', 'updateMask'])
})
