/**
 * The examples in the OpenAPI documents are responses of a service: this test requests and compares them. `npm run docs` sets
 * RECORD_EXAMPLES=1, with which it writes them instead.
 */
import { readFile, writeFile } from 'node:fs/promises'
import { isDeepStrictEqual } from 'node:util'
import test from 'ava'
import { exampleOfProblem } from '../../gateway/openapi/refusals.js'
import { routes } from '../../gateway/operations.js'
import { OpenId } from '../../proto/gen/auth/v1/openid_pb.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { serviceForFile } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'

const file = new URL('../../../gateway/openapi/examples.json', import.meta.url)

/** Unlike that of other tests, it may appear in responses, because the documents have it. */
const password = 'ilha verde sobre o mar'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ SMTP_URL: mailbox.url }))

/** A request, without secrets of the service. */
interface Request {
  readonly parameters?: Record<string, string>
  readonly body?: unknown
  readonly token?: string
  /** Value of the variable in the path. */
  readonly segment?: string
}

/** Values that differ in each run, and their replacements in examples. */
const masks: readonly (readonly [RegExp, string])[] = [
  [/\beyJ[\w-]+\.[\w-]+\.[\w-]+/g, 'eyJhbGciOiJFUzI1NiIsInR5cCI6ImF0K2p3dCJ9.eyJzdWIiOiIyIn0.c2lnbmF0dXJl'],
  [/\b[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}\b/g, '0f8fad5b-d9cb-469f-a165-70867728950e'],
  [/\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)/g, '2026-03-02T12:34:56.789$2'],
  [/"(creation_date)":"[^"]+"/g, '"$1":"2026-03-02"'],
  [/"(exp|iat|auth_time)":\d+/g, '"$1":1772454896'],
  [/"(kid|x|y)":"[\w-]{43}"/g, '"$1":"47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"'],
  [/"(code|key)":"[2-9A-HJ-NP-Z]{8}"/g, '"$1":"ABCD2345"'],
  [/"(refreshToken)":"[^"]+"/g, '"$1":"dGhlIG5ld2VzdCB0b2tlbiBvZiB0aGUgbGluZQ"'],
  [/"(nextPageToken)":"[^"]+"/g, '"$1":"MjAyNi0wMy0wMg"'],
]

function masked(text: string, type: string | null): unknown {
  const isJson = /json/.test(type ?? '')
  const all = masks.reduce((text, [pattern, instead]) => text.replace(pattern, instead), text)
  return isJson ? JSON.parse(all) : all
}

/** The code in the next e-mail with one to an address. */
async function mailedCode(to: string): Promise<string> {
  for (;;) {
    const { text = '' } = await mailbox.nextEmail(to)
    const code = /: ([2-9A-HJ-NP-Z]{8})$/m.exec(text)?.[1]
    if (code) return code
  }
}

test('every example equals a response of the service', async t => {
  const operations: Record<string, unknown> = {}
  const problems: Record<string, unknown> = {}

  /** Sends the request of an operation; a success is the example of the operation, a refusal that of the reason. */
  async function ask(name: string, { parameters, body, token, segment }: Request = {}): Promise<string> {
    const { method, path, revisions = [] } = routes.find(({ rpc }) => rpc?.localName === name)!
    const target = `${revisions[0] ? `/${revisions[0]}` : ''}${path.replace(/\{\w+\}/, encodeURIComponent(segment ?? ''))}`
    const { status, text, headers } = await service.request(method, target, {
      ...(parameters && { query: parameters }),
      ...(body !== undefined && { body }),
      ...(token && { token }),
    })
    const result = masked(text, headers.get('content-type'))
    if (status !== 200) {
      const { reason } = result as { reason: string }
      // Others are made from the reason alone.
      if (!isDeepStrictEqual(result, exampleOfProblem(status, reason, new Map()))) problems[reason] = result
    } else
      operations[name] ??= {
        ...((parameters || segment) && {
          parameters: masked(JSON.stringify(parameters ?? { username: segment }), 'json'),
        }),
        ...(body !== undefined && { body: masked(JSON.stringify(body), 'json') }),
        ...(text !== '' && { result }),
      }
    return text
  }

  const person = (nickname: string, number: string, role: string) => ({
    username: `(11)98765-${number}`,
    nickname,
    password,
    state: 'SP',
    city: 'São Paulo',
    termsofusage: true,
    roles: [role],
  })
  const questions = JSON.parse(await ask('findAllForgotPasswordQuestions'))
  const ana = {
    ...person('Ana', '4321', 'ROLE_CLIENT'),
    dateofborn: '15/03/1990',
    gender: 'F',
    email: 'ana@example.org',
  }
  const { username } = ana
  const token = await ask('signUp', { body: ana })
  await ask('signUp', { body: { ...person('Bia', '0000', 'ROLE_CLIENT'), state: 'São Paulo', city: '' } })
  await ask('existsByUsername', { parameters: { username } })
  await ask('existsByNickname', { parameters: { nickname: 'Ana' } })
  await ask('login', { parameters: { username, password } })
  await ask('login', { parameters: { username, password: 'another password' } })
  await ask('login', { parameters: { username } })
  await ask('getMe')
  await ask('getMe', { token: 'invalid' })

  const school = await service.organization({ name: 'Escola Municipal', email: 'escola@example.org' })
  const teacher = person('Professora', '1111', 'ROLE_INSTITUTION')
  const institution = await service.request('POST', '/users/signup', { body: teacher })
  await ask('sendAdminKeyByEmailPartner', {
    token: institution.text,
    parameters: { username: teacher.username, emailpartner: school.email },
  })
  const key = { activationkey: school.activationkey, username: teacher.username }
  await service.request('POST', '/users/activate', { token: institution.text, query: key })
  const provider = await service.request('GET', '/users/me', { token: institution.text })
  const { activationkey } = provider.json.providerActivationKey
  await ask('activate', { token, parameters: { activationkey, username } })
  await ask('activate', { token, parameters: { activationkey, username } })

  await ask('getMe', { token })
  await ask('getUser', { token: institution.text, segment: username })
  await ask('getUser', { token: institution.text, segment: 'unknown' })
  await ask('updateMe', { token, body: { record: { city: 'Recife', state: 'PE' }, updateMask: 'city,state' } })
  await ask('refresh', { token })
  const { text: stays } = await service.request('POST', '/users/login', { body: { username, password, stay: 'true' } })
  await ask('createRefreshToken', { token: stays })
  for (const { id } of questions.slice(0, 2))
    await ask('saveForgotPasswordQuestionsUsersAnswers', {
      token,
      body: { forgotpasswordquestionsid: id, answer: 'azul' },
    })
  const answers = (answer: string) =>
    questions.slice(0, 2).map(({ id }: { id: number }) => ({ forgotpasswordquestionsid: id, answer }))
  await ask('loginByUsernameAndAnswers', { parameters: { username }, body: answers('azul') })
  await ask('loginByUsernameAndAnswers', { parameters: { username }, body: answers('verde') })
  // Proved by the code: otherwise the first key would end the token.
  const email = 'ana@example.com'
  await ask('setEmail', { token, body: { email, password } })
  await ask('confirmEmail', { token, body: { code: await mailedCode(email) } })
  await ask('sendKeyByEmail', { parameters: { username, email } })
  await ask('sendKeyByEmail', { parameters: { username, email: 'ana' } })
  const recoveryKey = await mailedCode(email)
  await ask('loginByUsernameAndKey', { parameters: { username, key: recoveryKey } })
  await ask('loginByUsernameAndKey', { parameters: { username, key: recoveryKey } })
  await ask('setUsername', { token, body: { username: 'ana.silva', password } })
  await ask('listMyEvents', { token, parameters: { pageSize: '2' } })
  await ask('listMyEvents', { token, parameters: { pageSize: '-1' } })

  await ask('listMembers', { token: institution.text, parameters: { text: 'ana' } })
  const caio = person('Caio', '3333', 'ROLE_CLIENT')
  const { text: pupil } = await service.request('POST', '/users/signup', { body: caio })
  const join = { activationkey, username: caio.username }
  await service.request('POST', '/users/activate', { token: pupil, query: join })
  await service.registry.organizations.edit(school.id, { mayIssueKeys: true })
  await ask('issueMemberKey', { token: institution.text, body: { username: caio.username, password } })
  await ask('rotateProviderKey', { token: institution.text })
  await ask('introspect', { token: await serviceKey(service, ['tokens.verify'], 'portal'), parameters: { token } })
  await ask('deactivateMember', { token: institution.text, parameters: { username: 'ana.silva' } })
  await ask('getServerMetadata')
  await ask('getKeys')

  const again = await service.login('ana.silva', password)
  await ask('passwordUpdateByUsername', { token: again, parameters: { newPassword: 'tartaruga de couro 7' } })
  const last = await service.login('ana.silva', 'tartaruga de couro 7')
  await ask('deleteMe', { token: last, body: { password: 'tartaruga de couro 7' } })
  await ask('revokeMyTokens', { token: last })
  const other = person('Bia', '2222', 'ROLE_CLIENT')
  const { text } = await service.request('POST', '/users/signup', { body: other })
  await ask('exportMe', { token: text })
  await ask('deleteMyAnswers', { token: text, body: { password } })
  await ask('deleteMyAnswers', { token: text, body: { password: 'errada' } })
  await ask('deleteMe', { token: text, body: { password } })

  // The standards have examples of the others.
  const own = routes.filter(({ rpc }) => rpc?.parent !== OpenId)
  const documented = own.flatMap(({ rpc, text }) => (rpc && text === undefined ? [rpc.localName] : []))
  t.deepEqual(Object.keys(operations).sort(), documented.sort())
  const found = { operations, problems }
  if (process.env.RECORD_EXAMPLES) await writeFile(file, `${JSON.stringify(found, undefined, 2)}\n`)
  else t.deepEqual(found, JSON.parse(await readFile(file, 'utf8')), 'run `npm run docs`')
})
