/** Texts that are expensive to normalize, and malformed ones, in every field of every endpoint. */
import type { DescMessage, DescMethodUnary, MessageInitShape } from '@bufbuild/protobuf'
import { ConnectError } from '@connectrpc/connect'
import { createConnectTransport } from '@connectrpc/connect-node'
import test, { type ExecutionContext } from 'ava'
import { routes } from '../../gateway/routes.js'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { BadRequestSchema, ErrorInfoSchema } from '../../proto/gen/google/rpc/error_details_pb.js'
import { anyAddress, from } from '../_helpers/crowd.js'
import { type GrpcClient, openGrpc, refusalOf } from '../_helpers/grpc.js'
import { password, serviceForFile } from '../_helpers/service.js'

// One account asks for all of it.
const service = serviceForFile(() => ({ AUTH_LIMIT_FACTOR: '100' }))

/** The outcome of a request: `OK`, or the reason and the invalid fields. */
interface Outcome {
  readonly reason: string
  readonly fields: readonly string[]
}

/** Sends a request over one protocol. Undefined if it can't carry the request, for example too long for a URL. */
type Endpoint = (rpc: DescMethodUnary, message: object, token?: string) => Promise<Outcome> | undefined

/** A text in one field, and the expected outcome. */
interface Case {
  readonly rpc: DescMethodUnary
  readonly field: string
  readonly message: (text: string) => object
  readonly expected: string
  readonly token?: string
  /** Whether it names the field. */
  readonly named?: boolean
}

const heading = (token?: string): Record<string, string> => ({
  ...from(anyAddress()),
  ...(token !== undefined && { authorization: `Bearer ${token}` }),
})

const overHttp: Endpoint = (rpc, message, token) => {
  const route = routes.find(each => each.rpc === rpc && each.path !== '/readyz')
  if (!route || route.method === 'GET') return undefined
  const { field } = route.body ?? {}
  const { [field ?? '']: inner, ...rest } = message as Record<string, unknown>
  const body = field === undefined || field === '*' ? message : inner
  const query = field === undefined || field === '*' ? {} : (rest as Record<string, string>)
  if (JSON.stringify(query).length > 1000) return undefined
  const path = route.revisions?.length === 1 ? `/${route.revisions[0]}${route.path}` : route.path
  return service.request(route.method, path, { query, body, headers: heading(token) }).then(({ status, json }) => ({
    reason: status === 200 ? 'OK' : json.reason,
    fields: (json?.errors ?? []).map((each: { field: string }) => each.field),
  }))
}

const overConnect: Endpoint = async (rpc, message, token) => {
  const transport = createConnectTransport({ baseUrl: service.http, httpVersion: '1.1' })
  try {
    await transport.unary(rpc, undefined, undefined, heading(token), message as MessageInitShape<DescMessage>)
    return { reason: 'OK', fields: [] }
  } catch (error) {
    const refusal = ConnectError.from(error)
    const violations = refusal.findDetails(BadRequestSchema)[0]?.fieldViolations ?? []
    return {
      reason: refusal.findDetails(ErrorInfoSchema)[0]?.reason ?? refusal.message,
      fields: violations.map(({ field }) => field),
    }
  }
}

let client: GrpcClient
const overGrpc: Endpoint = (rpc, message, token) =>
  client.call(rpc, message as MessageInitShape<DescMessage>, { metadata: heading(token) }).then(
    () => ({ reason: 'OK', fields: [] }),
    error => {
      const { info, badRequest, message } = refusalOf(error)
      return { reason: info?.reason ?? message, fields: badRequest?.fieldViolations.map(({ field }) => field) ?? [] }
    },
  )

const endpoints = { HTTP: overHttp, Connect: overConnect, gRPC: overGrpc }

/** Every text field of every RPC. */
let cases: Case[]
test.before(async () => {
  client = openGrpc(service.grpc)
  const admin = await service.adminToken()
  const email = 'dona@example.org'
  const { username, token } = await service.signUp('ROLE_CLIENT', { email })
  const member = await service.institution(await service.organization())
  const list = await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')
  const [a, b] = list.json.map(({ id }: { id: number }) => id)
  for (const forgotpasswordquestionsid of [a, b]) {
    const body = { forgotpasswordquestionsid, answer: 'azul' }
    await service.request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body })
  }
  const form = {
    nickname: 'alguém',
    username: 'alguém',
    password,
    state: 'SP',
    city: 'Assis',
    termsofusage: true,
    roles: ['ROLE_CLIENT'],
  }
  const answers = (text: string) => [
    { forgotpasswordquestionsid: a, answer: text },
    { forgotpasswordquestionsid: b, answer: 'azul' },
  ]
  const users = Users.method
  const forgot = ForgotPasswords.method
  const simple = (
    rpc: DescMethodUnary,
    field: string,
    expected: string,
    rest: object = {},
    more: Partial<Case> = {},
  ): Case => ({ rpc, field, expected, message: text => ({ ...rest, [field]: text }), ...more })
  cases = [
    simple(users.login, 'username', 'INVALID_CREDENTIALS', { password }),
    simple(users.login, 'password', 'INVALID_CREDENTIALS', { username }),
    simple(users.existsByUsername, 'username', 'OK'),
    simple(users.existsByNickname, 'nickname', 'OK'),
    simple(users.verifyToken, 'token', 'OK'),
    simple(users.getUser, 'username', 'USER_NOT_FOUND', {}, { token: admin }),
    simple(users.getUser, 'username', 'ACCESS_DENIED', {}, { token }),
    simple(users.getUser, 'username', 'ACCESS_DENIED'),
    simple(users.activate, 'username', 'ACTIVATION_REFUSED', { activationkey: 'x' }, { token: admin }),
    simple(users.activate, 'username', 'ACCESS_DENIED', { activationkey: 'x' }, { token }),
    simple(users.activate, 'activationkey', 'ACTIVATION_REFUSED', { username }, { token: admin }),
    simple(users.activate, 'activationkey', 'ACCESS_DENIED', { username }),
    simple(users.sendAdminKeyByEmailPartner, 'username', 'USER_NOT_FOUND', { emailpartner: email }, { token: admin }),
    simple(
      users.sendAdminKeyByEmailPartner,
      'emailpartner',
      'ORGANIZATION_EMAIL_NOT_FOUND',
      { username: member.username },
      { token: member.token },
    ),
    simple(users.setEmail, 'email', 'INVALID_EMAIL', { password }, { token }),
    simple(users.setEmail, 'password', 'INVALID_CREDENTIALS', { email }, { token }),
    simple(users.deleteMe, 'password', 'INVALID_CREDENTIALS', {}, { token }),
    simple(users.deactivateMember, 'username', 'USER_NOT_FOUND', {}, { token: member.token }),
    ...['text', 'pageToken'].map(field =>
      simple(users.listMembers, field, 'INVALID_ARGUMENT', {}, { token: member.token }),
    ),
    simple(users.listMyEvents, 'pageToken', 'INVALID_ARGUMENT', {}, { token }),
    simple(users.setUsername, 'username', 'INVALID_SIGN_UP', { password }, { token, named: true }),
    simple(users.setUsername, 'password', 'INVALID_CREDENTIALS', { username: 'outra' }, { token }),
    ...['nickname', 'state', 'city', 'institution', 'gender', 'institutiontype', 'dateofborn'].map(field => ({
      ...simple(users.updateMe, `record.${field}`, 'INVALID_SIGN_UP', {}, { token, named: true }),
      message: (text: string) => ({ record: { [field]: text } }),
    })),
    simple(users.confirmEmail, 'code', 'INVALID_KEY', {}, { token }),
    ...['username', 'nickname', 'password', 'email', 'state', 'city', 'institution', 'securityquestion']
      .concat(['securityanswer', 'gender', 'institutiontype', 'dateofborn'])
      .map(field => simple(users.signUp, field, 'INVALID_SIGN_UP', form, { named: true })),
    {
      ...simple(users.signUp, 'roles', 'INVALID_SIGN_UP', form, { named: true }),
      message: text => ({ ...form, roles: [text] }),
    },
    simple(forgot.loginByUsernameAndAnswers, 'username', 'USER_NOT_FOUND', { answers: answers('azul') }),
    {
      ...simple(forgot.loginByUsernameAndAnswers, 'answers', 'INVALID_ANSWERS'),
      message: text => ({ username, answers: answers(text) }),
    },
    simple(forgot.loginByUsernameAndKey, 'username', 'INVALID_KEY', { key: 'ABCD2345' }),
    simple(forgot.loginByUsernameAndKey, 'key', 'INVALID_KEY', { username }),
    simple(forgot.sendKeyByEmail, 'username', 'OK', { email }),
    simple(forgot.sendKeyByEmail, 'email', 'INVALID_EMAIL', { username }),
    simple(forgot.passwordUpdateByUsername, 'newPassword', 'INVALID_PASSWORD', {}, { token, named: true }),
    simple(forgot.passwordUpdateByUsername, 'newPassword', 'ACCESS_DENIED'),
    simple(
      forgot.passwordUpdateByUsername,
      'username',
      'USER_NOT_FOUND',
      { newPassword: 'tartaruga de couro 7' },
      { token: admin },
    ),
    {
      ...simple(forgot.saveForgotPasswordQuestionsUsersAnswers, 'answer', '', {}, { token, named: true }),
      expected: 'MALFORMED_REQUEST MISSING_PARAMETER',
      message: text => ({ answer: { forgotpasswordquestionsid: a, answer: text } }),
    },
  ]
})
test.after.always(() => client?.close())

/** Sends a text in every field over the given protocols, and calls back with each outcome. */
async function everywhere(
  text: string,
  names: readonly (keyof typeof endpoints)[],
  look: (outcome: Outcome, each: Case, where: string) => void,
): Promise<void> {
  for (const each of cases) {
    for (const name of names) {
      const where = `${name} ${each.rpc.name} ${each.field}`
      const outcome = await endpoints[name](each.rpc, each.message(text), each.token)
      if (outcome) look(outcome, each, where)
      await service.registry.database.sequelize.query('UPDATE attempts SET count = 0, window_ends = now()')
    }
  }
}

/** Marks above and below in turn, which normalizing sorts: a third of a second for 14,500 pairs. */
const stacked = (pairs: number) => `e${'\u0301\u0323'.repeat(pairs)}`

const asExpected = (t: ExecutionContext) => (outcome: Outcome, each: Case, where: string) => {
  t.true(each.expected.split(' ').includes(outcome.reason), `${where}: ${outcome.reason}`)
  if (each.named) t.deepEqual(outcome.fields, [each.field], where)
}

// Serial: it wraps a function that all tests use.
test.serial('an overlong text is refused in every field, and never normalized', async t => {
  const own = String.prototype.normalize
  let longest = 0
  String.prototype.normalize = function (form) {
    longest = Math.max(longest, this.length)
    return own.call(this, form)
  }
  try {
    await everywhere(stacked(14_500), ['HTTP', 'Connect', 'gRPC'], asExpected(t))
  } finally {
    String.prototype.normalize = own
  }
  t.true(longest > 0 && longest <= 1024, `${longest}`)
})

test.serial('long texts don’t block the event loop', async t => {
  /** The least CPU time of three, in µs: of client and server, as they are one process. */
  const cost = async (each: Case, text: string) => {
    const all: number[] = []
    for (let index = 0; index < 3; index++) {
      const before = process.cpuUsage()
      await overGrpc(each.rpc, each.message(text), each.token)
      const { user, system } = process.cpuUsage(before)
      all.push(user + system)
      await service.registry.database.sequelize.query('UPDATE attempts SET count = 0, window_ends = now()')
    }
    return Math.min(...all)
  }
  let [long, short] = [0, 0]
  for (const each of cases) {
    short += await cost(each, stacked(150))
    long += await cost(each, stacked(14_500))
  }
  // The normalization of one text takes a hundred times as long as a whole call with a short one.
  t.true(long < 5 * short, `${long} µs, ${short} µs`)
})

test.serial('a lone surrogate, sent or made by truncation, causes no internal error', async t => {
  for (const text of [`${'x'.repeat(1023)}😀@example.org`, `${'x'.repeat(256)}😀`]) {
    await everywhere(text, ['HTTP', 'Connect', 'gRPC'], asExpected(t))
  }
  // UTF-8 can't encode it: only JSON can escape it, and it is refused or read like any other invalid value.
  for (const text of ['ana\ud83d@example.org', `\ud83d${'x'.repeat(300)}\ude00`]) {
    await everywhere(text, ['HTTP'], ({ reason }, each, where) => {
      t.true([...each.expected.split(' '), 'MALFORMED_REQUEST'].includes(reason), `${where}: ${reason}`)
    })
  }
})
