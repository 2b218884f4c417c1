/** The same services, and refusals with their details, over gRPC, and over Connect and gRPC-Web on the gateway's port. */
import { randomUUID } from 'node:crypto'
import { create, toBinary } from '@bufbuild/protobuf'
import { Code, ConnectError, createClient, type Transport } from '@connectrpc/connect'
import { createConnectTransport, createGrpcTransport, createGrpcWebTransport } from '@connectrpc/connect-node'
import test from 'ava'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from '../../proto/gen/google/rpc/error_details_pb.js'
import { refused } from '../_helpers/problem.js'
import { password, serviceForFile, signUpForm } from '../_helpers/service.js'
import { claimsOf } from '../_helpers/tokens.js'

const service = serviceForFile()

const transports: Record<string, () => Transport> = {
  'Connect (JSON)': () => createConnectTransport({ baseUrl: service.http, httpVersion: '1.1', useBinaryFormat: false }),
  'Connect (binary)': () =>
    createConnectTransport({ baseUrl: service.http, httpVersion: '1.1', useBinaryFormat: true }),
  'gRPC-Web': () => createGrpcWebTransport({ baseUrl: service.http, httpVersion: '1.1' }),
  gRPC: () => createGrpcTransport({ baseUrl: `http://${service.grpc}` }),
}

async function refusal(call: Promise<unknown>) {
  const error: unknown = await call.catch(error => error)
  if (!(error instanceof ConnectError)) throw new Error('not refused')
  const [info] = error.findDetails(ErrorInfoSchema)
  const fields = error.findDetails(BadRequestSchema).flatMap(({ fieldViolations }) => fieldViolations)
  const [retry] = error.findDetails(RetryInfoSchema)
  return { code: error.code, text: error.rawMessage, info, fields, retry }
}

for (const [name, open] of Object.entries(transports)) {
  test(`${name}: sign up, log in, read the record`, async t => {
    const users = createClient(Users, open())
    const signUp = signUpForm()
    t.is(claimsOf((await users.signUp(signUp)).token).username, signUp.username)
    const { token } = await users.login({ username: signUp.username, password })
    const headers = { authorization: `Bearer ${token}` }
    const { user } = await users.getMe({}, { headers })
    t.is(user?.username, signUp.username)
    t.is(user?.active, 0)
    t.is(user?.partnerOrganization, undefined)
    t.is((await users.getUser({ username: signUp.username }, { headers })).user?.id, user?.id)
    t.is(claimsOf((await users.refresh({}, { headers })).token).sub, String(user?.id))
    t.true((await createClient(ForgotPasswords, open()).findAllForgotPasswordQuestions({})).questions.length > 0)
  })

  test(`${name}: the language of the call chooses the texts of a refusal, and a free nickname has a place of its own`, async t => {
    const users = createClient(Users, open())
    const { nickname } = signUpForm()
    await users.signUp(signUpForm({ nickname }))
    const texts = async (language: string | undefined) => {
      const headers: HeadersInit = language === undefined ? {} : { 'accept-language': language }
      const { text, info, fields } = await refusal(users.signUp(signUpForm({ nickname }), { headers }))
      const [{ description, localizedMessage }] = fields as [(typeof fields)[0]]
      t.is(localizedMessage?.message, description)
      const free = info?.metadata.suggestedNickname
      t.truthy(free)
      t.not(free, nickname)
      return [localizedMessage?.locale, description.replace(`${free}`, '…'), text]
    }
    const portuguese = 'Escolha outro apelido: este já está em uso; … está livre.'
    t.deepEqual(await texts('pt'), ['pt-BR', portuguese, 'Alguns campos faltam ou são inválidos.'])
    const english = [
      'en',
      'Choose another nickname: this one is taken, … is free.',
      'Some fields are missing or invalid.',
    ]
    t.deepEqual(await texts('en-US, pt;q=0.5'), english)
    t.deepEqual(await texts(undefined), english)
  })

  test(`${name}: a refusal carries reason, wrong fields and the time to wait`, async t => {
    const users = createClient(Users, open())
    const signUp = await refusal(users.signUp(signUpForm({ city: '', state: 'AMZ' })))
    t.is(signUp.code, Code.InvalidArgument)
    t.is(`${signUp.info?.domain} ${signUp.info?.reason}`, 'auth.v1 INVALID_SIGN_UP')
    t.truthy(signUp.info?.metadata.requestId)
    t.deepEqual(signUp.fields.map(({ field, reason }) => `${field} ${reason}`).sort(), [
      'city MISSING',
      'state MALFORMED',
    ])

    const denied = await refusal(users.getMe({}))
    t.deepEqual([denied.code, denied.info?.reason], [Code.PermissionDenied, 'ACCESS_DENIED'])
    const bad = await refusal(users.getMe({}, { headers: { authorization: 'Bearer bad' } }))
    t.deepEqual([bad.code, bad.info?.reason], [Code.Unauthenticated, 'INVALID_TOKEN'])

    const username = randomUUID()
    for (let i = 0; i < 10; i++) {
      const wrong = await refusal(users.login({ username, password: 'wrong password' }))
      t.deepEqual([wrong.code, wrong.info?.reason], [Code.Unauthenticated, 'INVALID_CREDENTIALS'])
    }
    const held = await refusal(users.login({ username, password: 'wrong password' }))
    t.deepEqual([held.code, held.info?.reason], [Code.ResourceExhausted, 'TOO_MANY_ATTEMPTS'])
    t.true(Number(held.retry?.retryDelay?.seconds) > 840)
  })

  test(`${name}: an RPC or a service that does not exist is unimplemented`, async t => {
    const { getMe } = Users.method
    const nope = { ...getMe, name: 'Nope' }
    const elsewhere = { ...getMe, parent: { ...Users, typeName: 'unknown.Service' } }
    for (const rpc of [nope, elsewhere]) {
      const error = await t.throwsAsync(open().unary(rpc, undefined, undefined, undefined, {}))
      t.is(ConnectError.from(error).code, Code.Unimplemented, `${rpc.parent.typeName}/${rpc.name}`)
    }
  })
}

const postBytes = (path: string, type: string) =>
  fetch(`${service.http}${path}`, { method: 'POST', headers: { 'content-type': type }, body: new Uint8Array(5) })

test('an RPC that does not exist, asked for over gRPC-Web, is answered with trailers only', async t => {
  for (const type of ['application/grpc-web', 'application/grpc-web+proto']) {
    const answer = await postBytes('/auth.v1.Users/Nope', type)
    t.is(
      `${answer.status} ${answer.headers.get('content-type')} ${answer.headers.get('grpc-status')}`,
      `200 ${type} 12`,
    )
    t.is(await answer.text(), '')
  }
})

test('a Connect client that calls an RPC that does not exist gets Connect’s error, and a plain request a problem', async t => {
  const headers = { 'connect-protocol-version': '1' }
  for (const path of ['/auth.v1.Users/Nope', '/unknown.Service/X']) {
    const { status, json } = await service.request('POST', path, { body: {}, headers })
    t.is(status, 501)
    t.deepEqual(json, { code: 'unimplemented', message: 'The method does not exist.' })
    refused(t, await service.request('POST', path, { body: {} }), 404, 'NOT_FOUND')
    refused(t, await service.request('GET', path, { headers }), 404, 'NOT_FOUND')
  }
})

test('gRPC, which has a separate port, is refused by status', async t => {
  for (const type of ['application/grpc', 'application/grpc+proto']) {
    t.is((await postBytes('/auth.v1.Users/GetMe', type)).status, 415)
    const unknown = await postBytes('/auth.v1.Users/Nope', type)
    t.is(`${unknown.status} ${unknown.headers.get('content-type')}`, '404 application/problem+json')
  }
})

const post = (rpc: string, body: string, headers: Record<string, string> = {}) =>
  service.request('POST', `/auth.v1.${rpc}`, { body, headers: { 'content-type': 'application/json', ...headers } })

test('every RPC response carries Cache-Control: no-store', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const types = ['application/json', 'application/proto', 'application/grpc-web+json', 'application/grpc-web+proto']
  for (const type of types) {
    const isJson = type.endsWith('json')
    const message = isJson
      ? Buffer.from(JSON.stringify({ username, password }))
      : Buffer.from(toBinary(Users.method.login.input, create(Users.method.login.input, { username, password })))
    const head = Buffer.alloc(5)
    head.writeUInt32BE(message.length, 1)
    const answer = await fetch(`${service.http}/auth.v1.Users/Login`, {
      method: 'POST',
      headers: { 'content-type': type },
      body: new Uint8Array(type.includes('grpc') ? Buffer.concat([head, message]) : message),
    })
    t.is(answer.status, 200)
    t.regex(await answer.text(), /\beyJ/)
    t.is(answer.headers.get('cache-control'), 'no-store', type)
  }
  t.is((await post('Users/GetMe', '{}')).headers.get('cache-control'), 'no-store')
})

test('a request with gRPC’s media type to a JSON path isn’t treated as an RPC', async t => {
  const headers = { 'content-type': 'application/grpc' }
  const { status } = await service.request('POST', '/users/login', { body: 'x', headers })
  t.is(status, 415)
  t.is((await service.request('GET', '/unknown.Service/X', { headers })).status, 404)
})

test('an RPC called by another method than POST is answered with 405 and the allowed method', async t => {
  for (const method of ['GET', 'PUT', 'OPTIONS']) {
    const { status, headers } = await service.request(method, '/auth.v1.Users/Login')
    t.is(`${status} ${headers.get('allow')}`, '405 POST', method)
  }
  t.is((await post('Users/Login', '{}')).headers.get('allow'), null)
  t.is((await service.request('GET', '/auth.v1.Users/Nothing')).headers.get('allow'), null)
})

test('a refused plain POST of JSON gets Connect’s status and details', async t => {
  const { status, json } = await post('Users/SignUp', JSON.stringify(signUpForm({ city: '' })))
  t.is(`${status} ${json.code}`, '400 invalid_argument')
  t.like(json.details, { length: 2, 0: { type: 'google.rpc.ErrorInfo' }, 1: { type: 'google.rpc.BadRequest' } })
  t.is((await post('Users/GetMe', '{')).status, 403)
  t.is((await post('Users/Nothing', '{}')).status, 404)
})

test('the service itself ends a call at the deadline that Connect-Timeout-Ms sets', async t => {
  const { database } = service.registry
  await database.transact(async transaction => {
    await database.sequelize.query('LOCK TABLE questions', { transaction })
    const late = await post('ForgotPasswords/FindAllForgotPasswordQuestions', '{}', { 'connect-timeout-ms': '150' })
    t.is(late.json.code, 'deadline_exceeded')
  })
})
