/** Generated requests, the same in every run: made from the routes and the RPCs, with rules for every response. */
import { randomInt } from 'node:crypto'
import {
  create,
  type DescField,
  type DescMessage,
  type DescMethodUnary,
  ScalarType,
  toBinary,
} from '@bufbuild/protobuf'
import { Client, credentials, Metadata, type ServiceError } from '@grpc/grpc-js'
import test from 'ava'
import fc from 'fast-check'
import { type Route, routes } from '../../gateway/operations.js'
import { Changes } from '../../proto/gen/auth/v1/changes_pb.js'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { anyCharacter } from '../_helpers/characters.js'
import { profileValues } from '../_helpers/fields.js'
import { refusalOf } from '../_helpers/grpc.js'
import { checkAnswer } from '../_helpers/openapi.js'
import { openSchool } from '../_helpers/school.js'
import { type Answer, password, serviceForFile, type TestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { claimsOf, forge } from '../_helpers/tokens.js'

const service = serviceForFile()
const seed = 20_190_417

/** The caller of a request. */
const roles = ['anonymous', 'forged', 'client', 'member', 'institution', 'admin', 'service'] as const
type Role = (typeof roles)[number]

/** A request or a call before it is sent. Values in braces are placeholders for values of the running service. */
type HttpRequest = typeof httpRequests extends fc.Arbitrary<infer T> ? T : never
type GrpcRequest = typeof grpcRequests extends fc.Arbitrary<infer T> ? T : never

const hostileTexts = [
  ...['', ' ', '\t', '\u0000', 'a\u0000b', 'null', 'true', '0', '-1', '1', '2147483648', '9'.repeat(40), 'NaN'],
  ...['1e309', "' OR 1=1 --", '\\', '"', '%', '%00', '%s%n', '$1', '{{7*7}}}', '../../etc/passwd', '{username}', 'me'],
  ...['__proto__', 'constructor', '<script>alert(1)</script>', 'a\r\nSet-Cookie: a=b', '\u202egnp.exe', '\u200b'],
  ...['\ufeff', 'ｆｕｌｌ ｗｉｄｔｈ', 'ß', 'İ', '👩‍👩‍👧', 'e\u0301'.repeat(100), 'ﷺ'.repeat(50), 'x'.repeat(256)],
  ...['x'.repeat(1025), '31/02/2001', '29/02/2000', '2001-01-01T00:00:00Z', '9999-12-31T23:59:60-23:59', 'ROLE_ADMIN'],
  ...['a@b', '"a b"@[127.0.0.1]', `${'a'.repeat(65)}@example.org`, '00000000-0000-0000-0000-000000000000', 'ABCD2345'],
  // Long: at the limits, and as long as a request may be.
  ...['é'.repeat(255), '🙂'.repeat(256), 'x'.repeat(16_000), `${'x'.repeat(1023)}😀`, `${'x'.repeat(509)}😀`],
  // Stacked marks, out of order and by themselves.
  ...['a\u0301\u0323\u0327'.repeat(60), '\u0323\u0301'.repeat(15_000), `q${'\u0315\u0300\u05ae\u0062'.repeat(2000)}`],
  // From right to left, embedded, isolated and never closed.
  ...['محمد عبد الله', 'abc \u05d0\u0661 def', '\u202eadmin\u202c', '\u2067admin', '\u2069\u200f\u061c'],
  '+55 (\u0661\u0661) \u0669\u0668\u0667\u0666\u0665-\u0664\u0663\u0662\u0661',
  // Halves of surrogate pairs.
  ...['\udc00', 'a\ud83db', '\ude00\ud83d', '\ud83d'.repeat(200), 'ana\udfff@example.org'],
  // Punycode, valid and invalid, and what becomes ASCII or a number.
  ...['ana@xn--exmple-cua.org', 'ana@xn--aa-ea.com', 'ana@xn--.org', 'ana@xn--a.bücher.example', 'ana@xn--0.pt'],
  ...['ana@ｅｘａｍｐｌｅ．org', 'ana@１２７.０.０.１', 'ana@exa\u00admple.org', `ana@${'bü'.repeat(40)}.example`],
  // Look-alikes, and invisible characters.
  ...['joão@example.org', 'аdmin', 'ad\u2800min', '\u3164', '\ue000', '\uffff'],
]

/** Texts that need no escaping in URLs. */
const brokenEncodings = ['%', '%E0%A4%A', '%ZZ', '%C0%80', '+%']

/** Texts with a meaning for the running service. */
const meaningful = [
  ...['client', 'member', 'institution', 'admin', 'organization key', 'provider key', 'fresh', 'email', 'cursor'],
]

const text = fc.oneof(
  { weight: 4, arbitrary: fc.constantFrom(...meaningful.map(name => `{${name}}`)) },
  { weight: 3, arbitrary: fc.constantFrom(...hostileTexts, ...brokenEncodings) },
  { weight: 1, arbitrary: fc.string({ maxLength: 40 }) },
  { weight: 1, arbitrary: fc.string({ unit: anyCharacter, maxLength: 40 }) },
)

/** Valid values of fields that have some, and others. */
const good: Record<string, fc.Arbitrary<unknown>> = {
  forgotpasswordquestionsid: fc.integer({ min: 0, max: 9 }),
  usersid: fc.integer({ min: 0, max: 9 }),
}
for (const [name, values] of Object.entries<readonly unknown[]>({
  username: ['{fresh}', '{client}', '{member}', '{admin}'],
  ...Object.fromEntries(Object.entries(profileValues).map(([name, value]) => [name, [value]])),
  nickname: ['{fresh}'],
  password: ['{password}', '{password}', 'not the password'],
  newPassword: ['tartaruga de couro 7', 'tuiuiú no brejo 8'],
  dateofborn: ['29/02/2000', '2001-12-31', '31/12/1999'],
  gender: ['M', 'F', 'N'],
  state: ['SP', 'PE', 'DF'],
  institutiontype: ['E', 'D', 'N', 'O'],
  securityquestion: ['1', '2', 'Qual é a sua cor?'],
  securityanswer: ['resposta'],
  termsofusage: [true],
  roles: [['ROLE_CLIENT'], ['ROLE_INSTITUTION'], ['ROLE_ADMIN']],
  email: ['{email}', 'bia@example.org'],
  emailpartner: ['{organization email}', 'bia@example.org'],
  activationkey: ['{organization key}', '{provider key}', '00000000-0000-4000-8000-000000000000'],
  key: ['ABCD2345', 'ABCD234'],
  answer: ['azul', 'verde'],
  token: ['{token}', '{token}x'],
  cursor: ['', '0:', '{cursor}', '{cursor}', `1:${'0'.repeat(64)}`],
  kinds: [[1], [2], [1, 2], [2, 2], [0], [3], []],
}))
  good[name] = fc.constantFrom(...values)

/** One value in most cases, and else another. */
const mostly = <T>(weight: number, usual: fc.Arbitrary<T>, ...others: fc.Arbitrary<T>[]) =>
  fc.oneof({ weight, arbitrary: usual }, ...others)

/** Short ones, because the requests are sent one after another. */
const durations = fc.constantFrom<object>(
  { nanos: 100_000_000 },
  { nanos: 2 ** 31 - 1 },
  { nanos: -1 },
  { seconds: '-9223372036854775808' },
)

const anyJson = fc.oneof(
  fc.constantFrom<unknown>(null, true, false, 0, -1, 1.5, 1e21, 2 ** 31, [], {}, [[]], { a: { b: 1 } }),
  fc.jsonValue({ maxDepth: 3 }),
  text,
)

const valueFor = (name: string): fc.Arbitrary<unknown> => mostly(6, good[name] ?? text, text, text, anyJson)

/** An object with most of the fields of a message: valid, unusual or invalid. */
function objectOf(message: DescMessage): fc.Arbitrary<Record<string, unknown>> {
  const model = Object.fromEntries(
    message.fields.map(({ jsonName }) => [jsonName, mostly(12, valueFor(jsonName), fc.constant(undefined))]),
  )
  // Some of them are entirely valid, so that the code after the checks runs, too.
  const best = Object.fromEntries(message.fields.map(({ jsonName }) => [jsonName, good[jsonName] ?? text]))
  // The third kind has one unusual field and otherwise valid ones, so that no other check refuses it.
  const names = message.fields.map(({ jsonName }) => jsonName)
  const odd = fc
    .tuple(fc.record(best), fc.constantFrom(...names), fc.constantFrom(...hostileTexts))
    .map(([whole, name, value]) => ({ ...whole, [name]: value }))
  return fc.oneof(fc.record(model), fc.record(best), odd)
}

function jsonBodyOf({ rpc, body, parameters = {} }: Route): fc.Arbitrary<string | undefined> {
  const field = rpc?.input.fields.find(({ jsonName }) => jsonName === body?.field)
  const message = body?.field === '*' ? rpc?.input : field?.message
  const whole = message && objectOf(message)
  const named = Object.fromEntries(Object.keys(parameters).map(name => [name, valueFor(name)]))
  const shape: fc.Arbitrary<unknown> =
    whole === undefined ? fc.record(named) : field?.fieldKind === 'list' ? fc.array(whole, { maxLength: 12 }) : whole
  const written = shape.map(value => JSON.stringify(value))
  const broken = ['', ' ', '{', '[]', '"', '\u0000', '{"a":1}{"b":2}', '['.repeat(500), `{"a":"${'x'.repeat(66_000)}"}`]
  return mostly(
    10,
    written,
    fc.constant(undefined),
    anyJson.map(value => JSON.stringify(value)),
    written.map(json => json.slice(0, -1 - (json.length % 7))),
    fc.constantFrom(...broken),
  )
}

const types = [
  ...[undefined, 'application/json; charset=utf-8', 'application/x-www-form-urlencoded', 'text/plain', '*/*', ';'],
  ...['application/json; charset=latin1', 'application/grpc', 'application/merge-patch+json'],
]
const methods = ['GET', 'POST', 'PUT', 'DELETE', 'PATCH', 'HEAD', 'OPTIONS', 'PROPFIND']
const oddHeaders: Record<string, string>[] = [
  ...[{ accept: 'application/json' }, { accept: 'text/html;q=0' }, { 'accept-language': 'en;q=0.5, pt-BR;q=2, *;;;' }],
  ...[{ 'x-request-id': 'a b' }, { origin: 'null' }, { 'content-encoding': 'gzip' }, { authorization: 'Bearer' }],
  ...[{ authorization: 'Basic YTpi' }, { 'accept-encoding': 'br' }, { te: 'trailers' }, { range: 'bytes=0-1' }],
]

/** Requests to all operations, and to similar paths. */
const httpRequests = fc
  .record({ route: fc.constantFrom(...routes), base: fc.constantFrom('', '/1.0.0', '/1.0.2', '', '', '/1.0.1') })
  .chain(({ route, base }) => {
    const names = Object.keys(route.parameters ?? {})
    const of = (name: string) => fc.tuple(fc.constant(name), valueFor(name).map(String))
    const pair = mostly(5, fc.constantFrom(...(names.length > 0 ? names : ['x'])).chain(of), fc.tuple(text, text))
    const all = fc.tuple(...names.map(name => fc.tuple(fc.constant(name), (good[name] ?? text).map(String))))
    const exact = route.path.includes('{')
      ? text.map(segment => route.path.replace('{username}', `{segment:${segment}}`))
      : fc.constant(route.path)
    const { path } = route
    const similar = [`${path}/`, `/${path}`, path.toUpperCase(), `${path}x`, `${path}%00`, `${path};a=b`]
    const none = fc.constant(undefined)
    return fc.record({
      route: fc.constant(route),
      base: fc.constant(base),
      method: mostly(9, fc.constant<string>(route.method), fc.constantFrom(...methods)),
      path: mostly(9, exact, fc.constantFrom(...similar)),
      query: mostly<[string, string][]>(1, all, fc.array(pair, { maxLength: 4 })),
      body: route.method === 'GET' ? none : route.body ? jsonBodyOf(route) : mostly(3, none, jsonBodyOf(route)),
      type: mostly<string | undefined>(8, fc.constant('application/json'), fc.constantFrom(...types)),
      headers: mostly<Record<string, string>>(3, fc.constant({}), fc.constantFrom(...oddHeaders)),
      role: fc.constantFrom(...roles),
    })
  })

const rpcs = [...Users.methods, ...ForgotPasswords.methods, ...Changes.methods] as DescMethodUnary[]

function fieldValue(field: DescField): fc.Arbitrary<unknown> {
  if (field.fieldKind === 'message')
    return field.message.typeName === 'google.protobuf.Duration' ? durations : messageValue(field.message)
  if (field.fieldKind === 'list') {
    const item: fc.Arbitrary<unknown> = field.message
      ? messageValue(field.message)
      : field.enum
        ? fc.integer({ min: -1, max: 4 })
        : text
    const list = fc.array(item, { maxLength: 12 })
    return good[field.jsonName] ? fc.oneof(good[field.jsonName]!, list) : list
  }
  if (field.scalar === ScalarType.BOOL) return fc.boolean()
  if (field.scalar === ScalarType.INT32)
    return fc.oneof(fc.integer({ min: -2, max: 12 }), fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 }))
  return valueFor(field.jsonName).map(value => (typeof value === 'string' ? value : JSON.stringify(value)))
}

function messageValue(message: DescMessage): fc.Arbitrary<Record<string, unknown>> {
  return fc.record(
    Object.fromEntries(
      message.fields.map(field => [field.localName, fc.option(fieldValue(field), { nil: undefined, freq: 8 })]),
    ),
  )
}

/** Calls of all RPCs: well formed, and as arbitrary bytes. */
const grpcRequests = fc.constantFrom(...rpcs).chain(rpc =>
  fc.record({
    rpc: fc.constant(rpc),
    fields: messageValue(rpc.input),
    bytes: mostly<Uint8Array | undefined>(6, fc.constant(undefined), fc.uint8Array({ maxLength: 60 })),
    role: rpc.parent === Changes ? fc.constantFrom<Role>('service', 'service', 'admin') : fc.constantFrom(...roles),
  }),
)

/** The users of a fuzzed service, whose tokens are replaced when a request revoked them. */
type Cast = Awaited<ReturnType<typeof createCast>>

/** Signs users up for all roles. */
async function createCast(service: TestService) {
  const school = await openSchool(service)
  const { institution } = school
  const email = `ana${randomInt(1e9)}@example.org`
  const member = await school.member({ email })
  const client = await service.signUp('ROLE_CLIENT')
  // The administrator of the installation, whose name and password a request may have changed.
  const { id, username, tokenGeneration } = (await service.registry.users.byId(1))!
  const admin = { sub: String(id), roles: ['ROLE_ADMIN'], username, active: true, ver: tokenGeneration }
  const tokens: Partial<Record<Role, string>> = {
    forged: `${client.token.slice(0, -8)}AAAAAAAA`,
    client: client.token,
    member: member.token,
    institution: institution.token,
    admin: await forge(service, client.token, admin),
    service: await serviceKey(service, ['tokens.verify', 'tokens.watch', 'users.watch', 'users.read']),
  }
  const { head } = await service.registry.changeFeed.tail()
  const values: Record<string, string> = {
    client: client.username,
    member: member.username,
    institution: institution.username,
    admin: username,
    'organization key': school.activationkey,
    'provider key': institution.providerKey,
    'organization email': school.email,
    email,
    password,
    token: client.token,
    cursor: `${head.id}:${head.hash}`,
  }
  /** Replaces the placeholders in braces. */
  const fill = (text: string) =>
    text.replace(/\{([a-z ]+)\}/g, (whole, name: string) =>
      name === 'fresh' ? `pessoa ${randomInt(1e12)}` : (values[name] ?? whole),
    )
  return {
    token: (role: Role) => tokens[role],
    fill,
    /** Texts that no response may contain. */
    secrets: [password, ...Object.values(tokens)],
    /** Whether the role's token is valid now; if a request revoked it, the role gets a new one. */
    async isGood(role: Role): Promise<boolean> {
      const token = tokens[role]
      if (!token || role === 'forged') return false
      if (role === 'service') return true
      const { sub, ver } = claimsOf(token)
      const { database, users } = service.registry
      // A request may have deleted it.
      if (!(await users.byId(Number(sub)))) await database.transact(t => users.undelete(Number(sub), t))
      const user = (await users.byId(Number(sub)))!
      if (user.tokenGeneration === ver) return true
      tokens[role] = await forge(service, token, { ver: user.tokenGeneration })
      return false
    },
  }
}

/** Stack traces, SQL, hashes, keys and paths of this machine. */
const inside =
  /\bat .+:\d+:\d+|node_modules|\.[jt]s:\d|Sequelize|syntax error|\bSELECT .+ FROM\b|\bINSERT INTO\b|violates|\$2[aby]\$|hmac1:|PRIVATE KEY|ECONN|postgres:/

/** The fault of a response over HTTP that its documents (checkAnswer) don't show, if there is one. */
async function judgeHttp({ route, role, path, headers: given }: HttpRequest, answer: Answer, cast: Cast) {
  const { status, json, headers, text } = answer
  const isExact = path === route.path || path.includes('{segment:')
  const isOfToken = status === 500 && !(given.authorization ?? '').startsWith('Basic')
  const faults = {
    // Documents don't depend on requests.
    'it shows what is inside': !route.file && inside.test(text),
    'it shows a secret': cast.secrets.some(secret => text.includes(secret)),
    'a header is missing': headers.get('x-content-type-options') !== 'nosniff',
    'the service failed inside': json?.reason === 'INTERNAL',
    'it is denied though open to all': status === 403 && !route.protected && isExact,
    'it doesn’t say when to try again': [429, 503].includes(status) && !(Number(headers.get('retry-after')) >= 1),
    'its good token was refused': isOfToken && (await cast.isGood(role)),
  }
  return Object.entries(faults).find(([, isOne]) => isOne)?.[0]
}

/** Sends a request over HTTP from a unique address. */
async function sendHttp(service: TestService, sent: HttpRequest, cast: Cast): Promise<Answer> {
  const path = cast.fill(
    sent.path.replace(/\{segment:([\s\S]*)\}$/, (_, segment: string) => encodePart(cast.fill(segment))),
  )
  const search = sent.query
    .map(([name, value]) => `${encodePart(cast.fill(name))}=${encodePart(cast.fill(value))}`)
    .join('&')
  const token = cast.token(sent.role)
  const withBody = sent.body !== undefined && sent.method !== 'GET' && sent.method !== 'HEAD'
  const response = await fetch(`${service.http}${sent.base}${path}${search ? `?${search}` : ''}`, {
    method: sent.method,
    headers: {
      'x-forwarded-for': `10.${randomInt(256)}.${randomInt(256)}.${randomInt(256)}`,
      ...(withBody && sent.type && { 'content-type': sent.type }),
      ...(token && { authorization: `Bearer ${token}` }),
      ...sent.headers,
    },
    ...(withBody && { body: cast.fill(sent.body!) }),
    redirect: 'manual',
  })
  const text = await response.text()
  checkAnswer({ method: sent.method, path: `${sent.base}${path}`, response, text }, '1.0.2')
  const isJson = /json/.test(response.headers.get('content-type') ?? '') && text !== ''
  return { status: response.status, headers: response.headers, text, json: isJson ? JSON.parse(text) : undefined }
}

function encodePart(text: string): string {
  // Some have an invalid encoding.
  if (brokenEncodings.includes(text)) return text
  return encodeURIComponent(wellFormed(text)).replace(/^\.+$/, dots => dots.replaceAll('.', '%2E'))
}

function wellFormed(text: string): string {
  return text.replace(/\p{Surrogate}/gu, '\ufffd')
}

/** The bytes of a call's message. */
function messageBytes({ rpc, fields, bytes }: GrpcRequest, cast: Cast): Buffer {
  if (bytes) return Buffer.from(bytes)
  const filled = JSON.parse(JSON.stringify(fields), (_, value) =>
    typeof value === 'string' ? wellFormed(cast.fill(value)) : value,
  )
  return Buffer.from(toBinary(rpc.input, create(rpc.input, filled)))
}

/** Counts are deleted repeatedly, because otherwise every response would soon be 429. */
const forgetAfter = 150

test.serial('every input over HTTP gets a documented answer', async t => {
  const requests = 500
  const cast = await createCast(service)
  const counts: Record<string, number> = {}
  let sent = 0
  const property = fc.asyncProperty(httpRequests, async request => {
    if (++sent % forgetAfter === 0) await service.registry.database.sequelize.query('DELETE FROM attempts')
    const answer = await sendHttp(service, request, cast)
    counts[answer.status] = (counts[answer.status] ?? 0) + 1
    const fault = await judgeHttp(request, answer, cast)
    if (fault)
      throw new Error(
        `${fault}: ${request.method} ${request.base}${request.path} answered ${answer.status} ${answer.text.slice(0, 300)}`,
      )
  })
  await fc.assert(property, { seed, numRuns: requests, endOnFailure: true, includeErrorInReport: true })
  t.log(counts)
  // Most of them succeed.
  for (const status of [200, 400, 403, 404, 422, 500]) t.true((counts[status] ?? 0) > requests / 200, String(status))
  t.true((counts[503] ?? 0) < requests / 50)
})

test.serial('every input over gRPC gets an answer with a reason', async t => {
  const cast = await createCast(service)
  const client = new Client(service.grpc, credentials.createInsecure())
  t.teardown(() => client.close())
  const counts: Record<string, number> = {}
  let sent = 0
  const property = fc.asyncProperty(grpcRequests, async request => {
    if (++sent % forgetAfter === 0) await service.registry.database.sequelize.query('DELETE FROM attempts')
    const { rpc, role } = request
    const metadata = new Metadata()
    const token = cast.token(role)
    if (token) metadata.set('authorization', `Bearer ${token}`)
    metadata.set('x-forwarded-for', `10.3.${(sent >> 8) & 255}.${sent & 255}`)
    const bytes = messageBytes(request, cast)
    const error = await new Promise<ServiceError | null>((resolve, reject) => {
      const [path, same] = [`/${rpc.parent.typeName}/${rpc.name}`, (value: Buffer) => value]
      client.makeUnaryRequest(
        path,
        same,
        same,
        bytes,
        metadata,
        { deadline: Date.now() + 20_000 },
        (failure, answer) => {
          const shown = `${failure?.details ?? ''}${answer?.toString('latin1') ?? ''}`
          if (cast.secrets.some(secret => shown.includes(secret))) reject(new Error('it shows a secret'))
          else resolve(failure)
        },
      )
    })
    const said = error
      ? refusalOf(error.metadata ? error : Object.assign(error, { metadata: new Metadata() }))
      : undefined
    const reason = said?.info?.reason ?? (error ? `code ${error.code}` : 'OK')
    counts[reason] = (counts[reason] ?? 0) + 1
    const failed = (fault: string) => {
      throw new Error(`${fault}: ${rpc.name} as ${role} answered ${reason} ${error?.details ?? ''}`)
    }
    if (!error) return
    if (reason === 'INTERNAL') failed('the service failed inside')
    if (reason === 'INVALID_TOKEN' && (await cast.isGood(role))) failed('a good token was refused')
    // grpc-js itself answers what it can't read with INTERNAL, and what is too large with RESOURCE_EXHAUSTED, without details.
    const isUnread = (request.bytes && error.code === 13) || (bytes.length > 65_536 && error.code === 8)
    if (!said?.info && !isUnread) failed(`no reason is given for ${bytes.length} bytes`)
    if (/\.[jt]s:\d|node_modules|SELECT|violates/.test(error.details)) failed('it shows what is inside')
  })
  await fc.assert(property, { seed, numRuns: 250, endOnFailure: true })
  t.log(counts)
  for (const reason of ['OK', 'INVALID_TOKEN', 'ACCESS_DENIED', 'MISSING_PARAMETER'])
    t.true((counts[reason] ?? 0) > 0, reason)
})

test.serial('after all fuzzed requests every operation works', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  t.truthy(await service.login(username))
  t.is((await service.registry.audit.verify()).broken, undefined)
})
