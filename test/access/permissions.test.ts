/** Who may use which protected RPC on whom. */
import { randomUUID } from 'node:crypto'
import type { DescMessage, DescMethodUnary, MessageInitShape } from '@bufbuild/protobuf'
import test from 'ava'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { type GrpcClient, openGrpc, refusalOf } from '../_helpers/grpc.js'
import { type SignedUp, serviceForFile } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/servicekey.js'
import { idOf } from '../_helpers/tokens.js'

const service = serviceForFile()
let client: GrpcClient
test.before(() => {
  client = openGrpc(service.grpc)
})
test.after.always(() => client?.close())

/** Calls an RPC on a target; none of these requests changes anything when it is let through. */
const operations: Record<string, (target: SignedUp) => [DescMethodUnary, object]> = {
  getMe: () => [Users.method.getMe, {}],
  refresh: () => [Users.method.refresh, {}],
  activate: ({ username }) => [Users.method.activate, { username, activationkey: 'no key' }],
  saveForgotPasswordQuestionsUsersAnswers: ({ token }) => [
    ForgotPasswords.method.saveForgotPasswordQuestionsUsersAnswers,
    { answer: { usersid: idOf(token), forgotpasswordquestionsid: 999_999, answer: 'azul' } },
  ],
  passwordUpdateByUsername: ({ username }) => [
    ForgotPasswords.method.passwordUpdateByUsername,
    { username, newPassword: 'x' },
  ],
  setEmail: () => [Users.method.setEmail, {}],
  confirmEmail: () => [Users.method.confirmEmail, {}],
  // It revokes tokens: each call of it has one of its own.
  revokeMyTokens: () => [Users.method.revokeMyTokens, {}],
  getUser: ({ username }) => [Users.method.getUser, { username }],
  batchGetUsers: ({ username }) => [
    Users.method.batchGetUsers,
    { references: [{ user: { case: 'username', value: username } }] },
  ],
  sendAdminKeyByEmailPartner: ({ username }) => [
    Users.method.sendAdminKeyByEmailPartner,
    { username, emailpartner: `${randomUUID()}@example.org` },
  ],
}

type Column =
  | 'no token'
  | 'inactive, own'
  | 'client, own'
  | 'client, other'
  | 'institution, own'
  | 'institution, same organization'
  | 'institution, other organization'
  | 'admin, own'
  | 'admin, other'
  | 'admin by answers, own'
  | 'admin by answers, other'
  | 'service for users.read'
  | 'service for other things'

/** Whether each operation is open: `+`, or `-` for ACCESS_DENIED. */
const expected: Record<string, Record<Column, '+' | '-'>> = {
  getMe: row('- + + + + + + + + + + - -'),
  refresh: row('- + + + + + + + + - - - -'),
  activate: row('- + + - + - - + + - - - -'),
  saveForgotPasswordQuestionsUsersAnswers: row('- + + - + - - + + - - - -'),
  passwordUpdateByUsername: row('- + + - + - - + + - - - -'),
  // These have no other target than whoever calls.
  setEmail: row('- + + + + + + + + - - - -'),
  confirmEmail: row('- + + + + + + + + - - - -'),
  revokeMyTokens: row('- + + + + + + + + - - - -'),
  getUser: row('- + + - + + - + + + - + -'),
  batchGetUsers: row('- - - - - - - - - - - + -'),
  sendAdminKeyByEmailPartner: row('- - - - + - - + + - - - -'),
}

function row(text: string): Record<Column, '+' | '-'> {
  const columns: Column[] = [
    'no token',
    'inactive, own',
    'client, own',
    'client, other',
    'institution, own',
    'institution, same organization',
    'institution, other organization',
    'admin, own',
    'admin, other',
    'admin by answers, own',
    'admin by answers, other',
    'service for users.read',
    'service for other things',
  ]
  const marks = text.split(' ') as ('+' | '-')[]
  return Object.fromEntries(columns.map((column, index) => [column, marks[index]])) as Record<Column, '+' | '-'>
}

/** Signs up somebody who becomes active with a key. */
async function member(role: string, activationkey: string): Promise<SignedUp> {
  const user = await service.signUp(role)
  const body = { username: user.username, activationkey }
  const { status, text } = await service.request('POST', '/users/activate', { token: user.token, body })
  if (status !== 200) throw new Error(text)
  return user
}

/** An administrator's session by answers. */
async function adminByAnswers(signedIn: Promise<string>): Promise<string> {
  const token = await signedIn
  const list = await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')
  const body = list.json
    .slice(0, 2)
    .map(({ id }: { id: number }) => ({ forgotpasswordquestionsid: id, answer: 'azul' }))
  for (const each of body) {
    await service.request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body: each })
  }
  const path = '/forgotpasswords/loginbyusernameandanswers'
  return (await service.request('POST', path, { query: { username: 'admin' }, body })).text
}

test('every protected RPC opens what the table says, and answers ACCESS_DENIED else', async t => {
  const organization = await service.organization()
  const institution = await service.institution(organization)
  const [one, two] = [await member('ROLE_CLIENT', institution.providerKey), await service.signUp('ROLE_CLIENT')]
  const stranger = await service.institution(await service.organization())
  const token = await service.adminToken()
  const admin: SignedUp = { username: 'admin', nickname: 'admin', token }
  const byAnswers = await adminByAnswers(service.adminToken())
  const columns: Record<Column, [token: string | undefined, target: SignedUp]> = {
    'no token': [undefined, one],
    'inactive, own': [two.token, two],
    'client, own': [one.token, one],
    'client, other': [one.token, two],
    'institution, own': [institution.token, institution],
    'institution, same organization': [institution.token, one],
    'institution, other organization': [stranger.token, one],
    'admin, own': [token, admin],
    'admin, other': [token, one],
    'admin by answers, own': [byAnswers, admin],
    'admin by answers, other': [byAnswers, one],
    'service for users.read': [await serviceKey(service, ['users.read']), one],
    'service for other things': [await serviceKey(service, ['tokens.verify', 'clients.forward']), one],
  }
  const signIn: Partial<Record<Column, () => Promise<string>>> = {
    'inactive, own': () => service.login(two.username),
    'client, own': () => service.login(one.username),
    'client, other': () => service.login(one.username),
    'institution, own': () => service.login(institution.username),
    'institution, same organization': () => service.login(institution.username),
    'institution, other organization': () => service.login(stranger.username),
    'admin, own': () => service.adminToken(),
    'admin, other': () => service.adminToken(),
    'admin by answers, own': () => adminByAnswers(service.adminToken()),
    'admin by answers, other': () => adminByAnswers(service.adminToken()),
  }
  const found: Record<string, Record<string, string>> = {}
  // Whatever the others hold is void after `revokeMyTokens`.
  const { revokeMyTokens, ...before } = operations
  for (const [name, operation] of Object.entries({ ...before, revokeMyTokens: revokeMyTokens! })) {
    found[name] = {}
    for (const [column, [bearer, target]] of Object.entries(columns)) {
      const [rpc, request] = operation(target)
      const own = name === 'revokeMyTokens' ? await signIn[column as Column]?.() : undefined
      const options = bearer === undefined ? {} : { token: own ?? bearer }
      const reason = await client.call(rpc, request as MessageInitShape<DescMessage>, options).then(
        () => 'OK',
        error => refusalOf(error).info?.reason,
      )
      t.true(
        reason !== undefined && !['INTERNAL', 'INVALID_TOKEN', 'TOO_MANY_ATTEMPTS'].includes(reason),
        `${name} ${column}: ${reason}`,
      )
      found[name]![column] = reason === 'ACCESS_DENIED' ? '-' : '+'
    }
  }
  t.deepEqual(found, expected)
})
