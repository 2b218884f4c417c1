/** Permissions: the service over gRPC and the access policy agree with every cell of permissions.matrix.ts. */
import { randomUUID } from 'node:crypto'
import type { DescMessage, DescMethodUnary, DescService, MessageInitShape } from '@bufbuild/protobuf'
import test from 'ava'
import { TOTP } from 'otpauth'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { Changes } from '../../proto/gen/auth/v1/changes_pb.js'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { OpenId } from '../../proto/gen/auth/v1/openid_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { administrationPolicies } from '../../server/policy/administration.js'
import { changesPolicies } from '../../server/policy/changes.js'
import { forgotPasswordsPolicies } from '../../server/policy/forgotpasswords.js'
import { openIdPolicies } from '../../server/policy/openid.js'
import type { Policy } from '../../server/policy/policy.js'
import { usersPolicies } from '../../server/policy/users.js'
import { formatAddress } from '../../server/process/settings.js'
import { type AdministrationClient, openAdministration, openSignedIn } from '../_helpers/administration.js'
import { type GrpcClient, openGrpc, refusalOf } from '../_helpers/grpc.js'
import { password, type SignedUp, serviceForFile } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { claimsOf, forge, forgeSession, idOf, nowInSeconds } from '../_helpers/tokens.js'
import {
  administrationColumns,
  administrationMatrix,
  type Mark,
  publicColumns,
  publicMatrix,
  readMatrix,
} from './permissions.matrix.js'

const matrices = {
  public: readMatrix(publicMatrix, publicColumns),
  administration: readMatrix(administrationMatrix, administrationColumns),
}

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', AUTH_LIMIT_FACTOR: '1000' }))
let api: AdministrationClient
const clients: Partial<Record<keyof typeof matrices, GrpcClient>> = {}
const ends: (() => Promise<void>)[] = []
test.before(async () => {
  api = await openSignedIn({ teardown: work => void ends.push(work) }, service)
  clients.public = openGrpc(service.grpc)
  clients.administration = openGrpc(formatAddress(service.service.addresses.admin!))
})
test.after.always(async () => {
  for (const client of Object.values(clients)) client.close()
  for (const end of ends) await end()
})

/** The user that a request refers to. */
interface Target {
  readonly username: string
  readonly id: number
  readonly role: string
}

/** The fields that are specific to an RPC: permitted RPCs change nothing. */
const requests: Record<string, (target: Target, column: string) => object> = {
  activate: ({ username }) => ({ username, activationkey: 'no key' }),
  getUser: ({ username }) => ({ username, user: username, omitKeys: true }),
  batchGetUsers: ({ username }) => ({ references: [{ user: { case: 'username', value: username } }] }),
  sendAdminKeyByEmailPartner: ({ username }) => ({ username, emailpartner: `${randomUUID()}@example.org` }),
  listUsers: () => ({ role: 'ROLE_ADMIN', pageSize: 1 }),
  // Where it is permitted, an unknown user: a member would be deactivated, and its tokens revoked.
  deactivateMember: ({ username }, column) => ({
    username: column === 'institution, member' ? randomUUID() : username,
  }),
  issueMemberKey: ({ username }) => ({ username, password: 'x' }),
  passwordUpdateByUsername: ({ username }) => ({ username, newPassword: 'x' }),
  saveForgotPasswordQuestionsUsersAnswers: ({ id: usersid }) => ({
    answer: { usersid, forgotpasswordquestionsid: 999_999, answer: 'azul' },
  }),
  createUser: ({ role }) => ({ form: { username: randomUUID(), role, state: 'SP', city: 'Bauru' } }),
  // A holder of desk may change nothing else.
  updateUser: () => ({ form: { email: `${randomUUID()}@example.org` }, updateMask: { paths: ['email'] } }),
  setPassword: () => ({ password }),
  setRole: ({ role }) => ({ role: role === 'ROLE_CLIENT' ? 'ROLE_INSTITUTION' : 'ROLE_CLIENT' }),
}

/** The request to an RPC on a target. */
function requestOf(
  { localName, input }: DescMethodUnary,
  target: Target,
  column: string,
): MessageInitShape<DescMessage> {
  const fields = new Set(input.fields.map(({ localName }) => localName))
  const given = { user: target.username, ...requests[localName]?.(target, column), validateOnly: true }
  return Object.fromEntries(Object.entries(given).filter(([name]) => fields.has(name)))
}

const marks: Record<string, Mark> = { ACCESS_DENIED: '-', INVALID_TOKEN: '!', SIGN_IN_AGAIN: '^' }
/** Reasons that indicate a fault of this test, not a permission. */
const faults = ['INTERNAL', 'UNAVAILABLE', 'OVERLOADED', 'TOO_MANY_ATTEMPTS', 'DEADLINE_EXCEEDED']

/** Whether a refusal is of what the request has, or of a session that every test has: its caller is let through. */
const lets = (rpc: string, message: string) =>
  rpc === 'getUserInfo' || (rpc === 'createRefreshToken' && /stay/.test(message))

/** Makes each call of a matrix, row by row; the last ones may revoke tokens that others use. */
async function run(
  kind: keyof typeof matrices,
  services: readonly DescService[],
  cells: Readonly<Record<string, readonly [token: string | undefined, target: Target]>>,
): Promise<Record<string, string>> {
  const rpcs = services.flatMap(({ methods }) => methods) as DescMethodUnary[]
  const found: Record<string, string> = {}
  for (const [name, row] of matrices[kind]) {
    const rpc = rpcs.find(({ localName }) => localName === name)!
    const call = async (column: string) => {
      const [token, target] = cells[column]!
      const options = token === undefined ? {} : { token }
      const reason = await clients[kind]!.call(rpc, requestOf(rpc, target, column), options).then(
        () => 'OK',
        error => {
          const { info, message } = refusalOf(error)
          return lets(name, message) ? 'OK' : (info?.reason ?? String(error))
        },
      )
      if (faults.includes(reason)) throw new Error(`${name}, ${column}: ${reason}`)
      found[`${name}, ${column}`] = marks[reason] ?? '+'
    }
    await Promise.all([...row.keys()].map(call))
  }
  return found
}

function expected(kind: keyof typeof matrices): Record<string, string> {
  return Object.fromEntries(
    [...matrices[kind]].flatMap(([rpc, row]) => [...row].map(([column, mark]) => [`${rpc}, ${column}`, mark])),
  )
}

const aim = (username: string, id: number, role = 'ROLE_CLIENT'): Target => ({ username, id, role })
const self = ({ username, token }: SignedUp) => aim(username, idOf(token))

/** A new active ROLE_ADMIN, without a session or with one at the public services. */
async function administrator(): Promise<SignedUp & { target: Target }> {
  const username = randomUUID()
  const form = { username, role: 'ROLE_ADMIN', state: 'SP', city: 'Bauru', password }
  const { user } = await api.createUser({ form, active: true, confirm: username })
  const target = aim(username, user!.record!.id!, 'ROLE_ADMIN')
  return { username, nickname: username, token: await service.login(username), target }
}

/** Enrols one-time codes for a user; returns a session with a code. */
async function enroll(username: string): Promise<string> {
  const t = { teardown: (work: () => Promise<void>) => void ends.push(work) }
  const open = openAdministration(t, service)
  const { token } = await open.signIn({ username, password })
  const session = openAdministration(t, service, token)
  const totp = new TOTP({ secret: (await session.enrollTotp({})).secret })
  const now = Date.now()
  await session.confirmTotp({ code: totp.generate({ timestamp: now }) })
  return (await open.signIn({ username, password, code: totp.generate({ timestamp: now + 30_000 }) })).token
}

/** The times of a token that has expired a second ago. */
function expiredNow() {
  const now = nowInSeconds()
  return { iat: now - 60, auth_time: now - 60, exp: now - 1 }
}

/** A token of the generation after a suspension: the suspension itself is the only fault of its holder. */
function asNow(token: string): Promise<string> {
  return forge(service, token, { ver: claimsOf(token).ver + 1 })
}

/** A new ROLE_CLIENT who holds desk. */
async function deskHolder(): Promise<SignedUp> {
  const user = await service.signUp('ROLE_CLIENT')
  await api.activateUser({ user: user.username })
  await api.grantDesk({ user: user.username })
  return { ...user, token: await service.login(user.username) }
}

/** One of each kind that both matrices use. */
async function callersOfBoth() {
  const [home, elsewhere] = [await service.organization(), await service.organization()]
  const institution = await service.institution(home)
  const [client, other] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  const query = { username: client.username, activationkey: institution.providerKey }
  const { status, text } = await service.request('POST', '/users/activate', { token: client.token, query })
  if (status !== 200) throw new Error(text)
  const [byPassword, byKey, byAnswers, enrolled, suspended] = [
    await administrator(),
    await administrator(),
    await administrator(),
    await administrator(),
    await administrator(),
  ]
  const inactive = await service.signUp('ROLE_INSTITUTION')
  await api.setOrganization({ user: inactive.username, organization: `#${home.id}` })
  await enroll(enrolled.username)
  const codes = await service.login(enrolled.username)
  await api.suspendUser({ user: suspended.username })
  const holder = await deskHolder()
  return {
    institution,
    outsider: await service.institution(elsewhere),
    client,
    other: self(other),
    inactive: { ...inactive, token: await service.login(inactive.username) },
    byPassword,
    byKey: { ...byKey, token: await forge(service, byKey.token, { amr: ['otp'] }) },
    byAnswers: { ...byAnswers, token: await forge(service, byAnswers.token, { amr: ['kba'] }) },
    enrolled: { ...enrolled, token: codes },
    suspended: { ...suspended, token: await asNow(suspended.token) },
    byDesk: { ...holder, token: await service.login(holder.username) },
    services: await Promise.all(publicColumns.services.map(async scope => [scope, await serviceKey(service, [scope])])),
  }
}

/** A session of Administration of a new administrator without one-time codes. */
async function session(): Promise<SignedUp> {
  const { username, nickname } = await administrator()
  const { token } = await openAdministration({ teardown: work => void ends.push(work) }, service).signIn({
    username,
    password,
  })
  return { username, nickname, token }
}

test('every user RPC permits the callers that the matrix lists, and refuses all others as listed', async t => {
  const callers = await callersOfBoth()
  const { institution, client, other, inactive, byPassword, byKey, byAnswers, enrolled, suspended, byDesk } = callers
  const coded = await deskHolder()
  await enroll(coded.username)
  const own = (user: SignedUp) => [user.token, self(user)] as const
  const on = (user: SignedUp, target: Target) => [user.token, target] as const
  const keys = callers.services.map(([scope, key]) => [scope, [key, other] as const])
  const found = await run('public', [Users, ForgotPasswords, OpenId, Changes], {
    none: [undefined, other],
    'inactive, own': own(inactive),
    'inactive, member': on(inactive, self(client)),
    'inactive ROLE_ADMIN, other': on(await service.signUp('ROLE_ADMIN'), other),
    'client, own': own(client),
    'client, other': on(client, other),
    'institution, own': own(institution),
    'institution, member': on(institution, self(client)),
    'institution, other organization': on(callers.outsider, self(client)),
    ...Object.fromEntries(keys),
    'password, own': own(byPassword),
    'password, other': on(byPassword, other),
    'password, another ROLE_ADMIN': on(byPassword, byKey.target),
    'key, own': own(byKey),
    'key, other': on(byKey, other),
    'answers, own': own(byAnswers),
    'answers, other': on(byAnswers, other),
    'enrolled, own': own(enrolled),
    'enrolled, other': on(enrolled, other),
    'suspended, own': own(suspended),
    'suspended, other': on(suspended, other),
    administration: on(await session(), other),
    'desk, own': own(byDesk),
    'desk by answers, own': own({ ...byDesk, token: await forge(service, byDesk.token, { amr: ['kba'] }) }),
    'desk enrolled, own': own({ ...coded, token: await service.login(coded.username) }),
    'password, desk': on(byPassword, self(byDesk)),
  })
  t.deepEqual(found, expected('public'))
})

test('an expired token opens nothing: each RPC that isn’t open to everyone refuses it, of any user', async t => {
  const { institution, client, byPassword, byKey, enrolled } = await callersOfBoth()
  for (const user of [institution, client, byPassword, byKey, enrolled]) {
    const token = await forge(service, user.token, expiredNow())
    const cells = Object.fromEntries(
      [...matrices.public.values()]
        .flatMap(row => [...row.keys()])
        .map(column => [column, [token, self(user)] as const]),
    )
    const found = await run('public', [Users, ForgotPasswords, OpenId, Changes], cells)
    for (const [rpc, row] of matrices.public) t.is(found[`${rpc}, none`], row.get('none') === '+' ? '+' : '!', rpc)
  }
})

test('every Administration RPC permits the callers that the matrix lists, and refuses all others as listed', async t => {
  const { institution, client, other, inactive, byPassword, byKey, byAnswers, enrolled, suspended, byDesk, services } =
    await callersOfBoth()
  const coded = await administrator()
  const recent = await enroll(coded.username)
  const then = nowInSeconds() - 15 * 60 - 5
  const old = await forgeSession(service, recent, () => ({ startedAt: then, expiresAt: then + 12 * 3600 }))
  const codeless = await forgeSession(service, recent, () => ({ withCode: false }))
  const gone = await session()
  await api.suspendUser({ user: gone.username })
  const asOfNow = await forgeSession(service, gone.token, ({ generation }) => ({ generation: generation + 1 }))
  const publicSessions = { password: byPassword, key: byKey, answers: byAnswers, enrolled, suspended }
  const tokens = { institution, client, inactive, ...publicSessions }
  const given = Object.entries(tokens).map(([column, { token }]) => [column, [token, other] as const])
  const keys = services.map(([scope, key]) => [scope, [key, other] as const])
  const sessions = Object.entries({ recent, old, codeless, 'suspended session': asOfNow }).flatMap(
    ([column, token]) => [
      [`${column}, user`, [token, other] as const] as const,
      [`${column}, ROLE_ADMIN`, [token, byPassword.target] as const] as const,
    ],
  )
  const holder = await deskHolder()
  const desk = await enroll(byDesk.username)
  const ofDesk: [string, readonly [string, Target]][] = [
    ['desk, user', [desk, other]],
    ['desk, ROLE_ADMIN', [desk, byPassword.target]],
    ['desk, desk', [desk, self(holder)]],
    ['old, desk', [old, self(holder)]],
  ]
  const cells = Object.fromEntries([...given, ...keys, ...sessions, ...ofDesk])
  const found = await run('administration', [Administration], { none: [undefined, other], ...cells })
  t.deepEqual(found, expected('administration'))
})

test('Administration refuses a token that is valid except for one property', async t => {
  const { token: genuine } = await session()
  const inactive = await service.signUp('ROLE_ADMIN')
  const holder = { userId: idOf(inactive.token), generation: 0 }
  const sessionWith = (change: Parameters<typeof forgeSession>[2]) => forgeSession(service, genuine, change)
  const sent: Record<string, string> = {
    'of an inactive ROLE_ADMIN': await sessionWith(() => holder),
    'of another generation': await sessionWith(({ generation }) => ({ generation: generation + 1 })),
    'that has expired': await sessionWith(() => ({ expiresAt: nowInSeconds() - 1 })),
    'of a public session': await service.adminToken(),
    'that is none': 'nonsense',
  }
  for (const [what, token] of Object.entries(sent)) {
    for (const rpc of Administration.methods as readonly DescMethodUnary[]) {
      const call = clients.administration!.call(rpc, {}, { token })
      const { info } = refusalOf(await t.throwsAsync(call))
      t.is(info?.reason, rpc.localName === 'signIn' ? 'MISSING_PARAMETER' : 'INVALID_TOKEN', `${rpc.localName} ${what}`)
    }
  }
})

/** The permissions in the policy of an RPC, and those in a row of the matrix. */
interface Rule {
  readonly caller: string
  readonly target?: boolean
  readonly own?: string
  readonly institution?: boolean
  readonly administrator?: string
  readonly restricted?: readonly string[]
  readonly scope?: string
  readonly scopes?: readonly string[]
  readonly signIn?: string
  readonly desk?: boolean
}

function ruleOf(policy: Policy): Rule {
  switch (policy.caller) {
    case 'anyone':
      return { caller: 'anyone' }
    case 'service':
      return { caller: 'service', scope: [policy.scope].flat().join() }
    case 'administrator':
      return {
        caller: 'administrator',
        signIn: policy.signIn,
        desk: policy.desk ?? false,
        ...(policy.scopes && { scopes: policy.scopes }),
      }
    case 'user':
    case 'user or service':
      return {
        caller: 'user',
        target: policy.target !== 'caller',
        own: policy.own ?? 'none',
        institution: policy.institution !== undefined,
        administrator: policy.administrator ?? 'none',
        restricted: policy.restricted,
        ...('scope' in policy && { scope: policy.scope }),
      }
  }
}

function publicRule(row: ReadonlyMap<string, Mark>): Rule {
  const opens = (column: string) => row.get(column) === '+'
  if (opens('none')) return { caller: 'anyone' }
  const scope = publicColumns.services.filter(opens).join()
  if (!opens('institution, own')) return { caller: 'service', scope }
  const others = [opens('password, other'), opens('password, another ROLE_ADMIN')]
  return {
    caller: 'user',
    target: row.has('client, other'),
    own: opens('client, own') ? 'every role' : opens('inactive, own') ? 'ROLE_INSTITUTION' : 'none',
    institution: row.has('institution, member')
      ? opens('institution, member')
      : opens('institution, own') && !opens('inactive, own'),
    administrator: others[0] ? (others[1] ? 'any user' : 'any user but administrators') : 'none',
    restricted: [...(opens('answers, own') ? ['answers'] : []), ...(opens('enrolled, own') ? ['one-time codes'] : [])],
    ...(scope && { scope }),
  }
}

function administrationRule(row: ReadonlyMap<string, Mark>): Rule {
  if (row.get('none') === '+') return { caller: 'anyone' }
  const [user, admin = user] = [row.get('old, user'), row.get('old, ROLE_ADMIN')]
  const signIn = user === '^' ? 'recent' : admin === '^' ? 'recent for administrators' : 'session'
  const scopes = administrationColumns.services.filter(column => row.get(column) === '+')
  const desk = row.get('desk, user') === '+'
  return { caller: 'administrator', signIn, desk, ...(scopes.length > 0 && { scopes }) }
}

test('every policy has the permissions of the matrix, and there is no other policy', t => {
  const policies = { ...usersPolicies, ...forgotPasswordsPolicies, ...openIdPolicies, ...changesPolicies }
  const rules = (rows: Record<string, Policy>) =>
    Object.fromEntries(Object.entries(rows).map(([rpc, row]) => [rpc, ruleOf(row)]))
  const wanted = (kind: keyof typeof matrices, rule: (row: ReadonlyMap<string, Mark>) => Rule) =>
    Object.fromEntries([...matrices[kind]].map(([rpc, row]) => [rpc, rule(row)]))
  t.deepEqual(rules(policies), wanted('public', publicRule))
  t.deepEqual(rules(administrationPolicies), wanted('administration', administrationRule))
  const names = (...services: DescService[]) => services.flatMap(({ methods }) => methods.map(m => m.localName)).sort()
  t.deepEqual(names(Users, ForgotPasswords, OpenId, Changes), [...matrices.public.keys()].sort())
  t.deepEqual(names(Administration), [...matrices.administration.keys()].sort())
})
