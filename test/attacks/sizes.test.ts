/** Texts that are expensive to normalize, and malformed ones, in every text field of every RPC, over HTTP and gRPC. */
import type { DescMessage, DescMethodUnary, MessageInitShape } from '@bufbuild/protobuf'
import test, { type ExecutionContext } from 'ava'
import { routes } from '../../gateway/operations.js'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { anyAddress, from } from '../_helpers/crowd.js'
import { definedNames, profileNames } from '../_helpers/fields.js'
import { grpcForFile, refusalOf } from '../_helpers/grpc.js'
import { saveAnswer } from '../_helpers/recovery.js'
import { password, serviceForFile, signUpForm } from '../_helpers/service.js'

// One account asks for all of it.
const service = serviceForFile(() => ({ AUTH_LIMIT_FACTOR: '100' }))
const client = grpcForFile(service)

/** The outcome of a request: `OK`, or the reason and the invalid fields. */
interface Outcome {
  readonly reason: string
  readonly fields: readonly string[]
}

/** A text in one field, and the expected outcome; `named` if the refusal names the field. */
interface Case {
  readonly rpc: DescMethodUnary
  readonly field: string
  readonly message: (text: string) => object
  readonly expected: string
  readonly token?: string | undefined
  readonly named?: boolean
}

const heading = (token?: string): Record<string, string> => ({
  ...from(anyAddress()),
  ...(token !== undefined && { authorization: `Bearer ${token}` }),
})

/** Undefined if a URL can't carry the request. */
async function overHttp({ rpc, token }: Case, message: object): Promise<Outcome | undefined> {
  const route = routes.find(each => each.rpc === rpc && each.path !== '/readyz')
  if (!route || route.method === 'GET') return undefined
  const { field = '*' } = route.body ?? {}
  const { [field]: inner, ...rest } = message as Record<string, unknown>
  const body = field === '*' ? message : inner
  const query = field === '*' ? {} : (rest as Record<string, string>)
  if (JSON.stringify(query).length > 1000) return undefined
  const path = route.revisions?.length === 1 ? `/${route.revisions[0]}${route.path}` : route.path
  const { status, json } = await service.request(route.method, path, { query, body, headers: heading(token) })
  const fields = (json?.errors ?? []).map((each: { field: string }) => each.field)
  return { reason: status === 200 ? 'OK' : json.reason, fields }
}

const overGrpc = ({ rpc, token }: Case, message: object): Promise<Outcome> =>
  client.call(rpc, message as MessageInitShape<DescMessage>, { metadata: heading(token) }).then(
    () => ({ reason: 'OK', fields: [] }),
    error => {
      const { info, badRequest, message } = refusalOf(error)
      return { reason: info?.reason ?? message, fields: badRequest?.fieldViolations.map(({ field }) => field) ?? [] }
    },
  )

/** Every text field of every RPC. */
let cases: Case[]
test.before(async () => {
  const admin = await service.adminToken()
  const email = 'dona@example.org'
  const { username, token } = await service.signUp('ROLE_CLIENT', { email })
  const member = await service.institution(await service.organization())
  for (const question of [1, 2]) await saveAnswer(service, token, question, 'azul')
  const form = signUpForm()
  const answers = (text: string) => [text, 'azul'].map((answer, at) => ({ forgotpasswordquestionsid: at + 1, answer }))
  const partner = { username: member.username }
  const users = Users.method
  const forgot = ForgotPasswords.method
  type Row = [DescMethodUnary, field: string, expected: string, rest?: object, token?: string, named?: boolean]
  const rows: Row[] = [
    [users.login, 'username', 'INVALID_CREDENTIALS', { password }],
    [users.login, 'password', 'INVALID_CREDENTIALS', { username }],
    [users.existsByUsername, 'username', 'OK'],
    [users.existsByNickname, 'nickname', 'OK'],
    [users.verifyToken, 'token', 'OK'],
    [users.getUser, 'username', 'USER_NOT_FOUND', {}, admin],
    [users.getUser, 'username', 'ACCESS_DENIED', {}, token],
    [users.activate, 'username', 'ACTIVATION_REFUSED', { activationkey: 'x' }, admin],
    [users.activate, 'username', 'ACCESS_DENIED', { activationkey: 'x' }, token],
    [users.activate, 'activationkey', 'ACTIVATION_REFUSED', { username }, admin],
    [users.sendAdminKeyByEmailPartner, 'username', 'USER_NOT_FOUND', { emailpartner: email }, admin],
    [users.sendAdminKeyByEmailPartner, 'emailpartner', 'ORGANIZATION_EMAIL_NOT_FOUND', partner, member.token],
    [users.setEmail, 'email', 'INVALID_EMAIL', { password }, token],
    [users.setEmail, 'password', 'INVALID_CREDENTIALS', { email }, token],
    [users.deleteMyAnswers, 'password', 'INVALID_CREDENTIALS', {}, token],
    [users.deleteMe, 'password', 'INVALID_CREDENTIALS', {}, token],
    [users.deactivateMember, 'username', 'USER_NOT_FOUND', {}, member.token],
    [users.listMembers, 'text', 'INVALID_ARGUMENT', {}, member.token],
    [users.listMembers, 'pageToken', 'INVALID_ARGUMENT', {}, member.token],
    [users.listMyEvents, 'pageToken', 'INVALID_ARGUMENT', {}, token],
    [users.setUsername, 'username', 'INVALID_SIGN_UP', { password }, token, true],
    [users.setUsername, 'password', 'INVALID_CREDENTIALS', { username: 'outra' }, token],
    [users.confirmEmail, 'code', 'INVALID_KEY', {}, token],
    ...['username', 'password', 'email', 'securityquestion', 'securityanswer', ...profileNames].map(
      (field): Row => [users.signUp, field, 'INVALID_SIGN_UP', form, undefined, true],
    ),
    [forgot.loginByUsernameAndAnswers, 'username', 'USER_NOT_FOUND', { answers: answers('azul') }],
    [forgot.loginByUsernameAndKey, 'username', 'INVALID_KEY', { key: 'ABCD2345' }],
    [forgot.loginByUsernameAndKey, 'key', 'INVALID_KEY', { username }],
    [forgot.sendKeyByEmail, 'username', 'OK', { email }],
    [forgot.sendKeyByEmail, 'email', 'INVALID_EMAIL', { username }],
    [forgot.passwordUpdateByUsername, 'newPassword', 'INVALID_PASSWORD', {}, token, true],
    [forgot.passwordUpdateByUsername, 'newPassword', 'ACCESS_DENIED'],
    [forgot.passwordUpdateByUsername, 'username', 'USER_NOT_FOUND', { newPassword: 'tartaruga de couro 7' }, admin],
  ]
  const invalid = { expected: 'INVALID_SIGN_UP', named: true }
  cases = [
    ...rows.map(([rpc, field, expected, rest = {}, token, named = false]) => {
      return { rpc, field, expected, token, named, message: (text: string) => ({ ...rest, [field]: text }) }
    }),
    ...profileNames.map(field => {
      const message = (text: string) => ({ record: { [field]: text } })
      return { rpc: users.updateMe, field: `record.${field}`, message, token, ...invalid }
    }),
    { rpc: users.signUp, field: 'roles', message: text => ({ ...form, roles: [text] }), ...invalid },
    {
      rpc: forgot.loginByUsernameAndAnswers,
      field: 'answers',
      expected: 'INVALID_ANSWERS',
      message: text => ({ username, answers: answers(text) }),
    },
    {
      rpc: forgot.saveForgotPasswordQuestionsUsersAnswers,
      field: 'answer',
      expected: 'MALFORMED_REQUEST MISSING_PARAMETER',
      message: text => ({ answer: answers(text)[0] }),
      token,
      named: true,
    },
  ]
})

/** Sends a text in every field, and calls back with each outcome. */
async function everywhere(text: string, look: (outcome: Outcome, each: Case, where: string) => void, onlyHttp = false) {
  for (const each of cases) {
    for (const [name, send] of Object.entries(onlyHttp ? { overHttp } : { overHttp, overGrpc })) {
      const outcome = await send(each, each.message(text))
      if (outcome) look(outcome, each, `${name} ${each.rpc.name} ${each.field}`)
      await service.registry.database.sequelize.query('UPDATE attempts SET count = 0, window_ends = now()')
    }
  }
}

const asExpected = (t: ExecutionContext) => (outcome: Outcome, each: Case, where: string) => {
  t.true(each.expected.split(' ').includes(outcome.reason), `${where}: ${outcome.reason}`)
  // Refusals over gRPC have the names of the definitions.
  const defined = each.field.replace(/[^.]+$/, name => definedNames[name] ?? name)
  if (each.named) t.deepEqual(outcome.fields, [where.startsWith('overGrpc') ? defined : each.field], where)
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
    // Marks above and below in turn, which normalizing sorts: a third of a second.
    await everywhere(`e${'\u0301\u0323'.repeat(14_500)}`, asExpected(t))
  } finally {
    String.prototype.normalize = own
  }
  t.true(longest > 0 && longest <= 1024, `${longest}`)
})

test.serial('a lone surrogate, sent or made by truncation, causes no internal error', async t => {
  for (const text of [`${'x'.repeat(1023)}😀@example.org`, `${'x'.repeat(256)}😀`])
    await everywhere(text, asExpected(t))
  // UTF-8 can't encode it: only JSON can escape it, and it is refused or read like any other invalid value.
  for (const text of ['ana\ud83d@example.org', `\ud83d${'x'.repeat(300)}\ude00`]) {
    const look = ({ reason }: Outcome, each: Case, where: string) =>
      t.true([...each.expected.split(' '), 'MALFORMED_REQUEST'].includes(reason), `${where}: ${reason}`)
    await everywhere(text, look, true)
  }
})
