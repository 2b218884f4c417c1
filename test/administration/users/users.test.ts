/** RPCs by which administrators change users: their effects, refusals, and events in the audit log. */
import { randomUUID } from 'node:crypto'
import { toBinary } from '@bufbuild/protobuf'
import test, { type ExecutionContext } from 'ava'
import {
  CreateOrganizationResponseSchema,
  CreateQuestionResponseSchema,
  CreateServiceKeyResponseSchema,
  CreateServiceResponseSchema,
  CreateUserResponseSchema,
  UserState,
} from '../../../proto/gen/auth/v1/administration_pb.js'
import { Scope } from '../../../proto/gen/auth/v1/scopes_pb.js'
import {
  type AdministrationClient,
  openAdministration,
  openLocal,
  openSignedIn,
  reasonOf,
  signedInForFile,
  wrongFieldsOf,
} from '../../_helpers/administration.js'
import { ask } from '../../_helpers/database.js'
import { mailboxForFile } from '../../_helpers/mailbox.js'
import { endsOrWaits } from '../../_helpers/models.js'
import {
  password,
  serviceForFile,
  serviceWithClock,
  startTestService,
  type TestService,
} from '../../_helpers/service.js'
import { idOf } from '../../_helpers/tokens.js'
import { waitFor } from '../../_helpers/wait.js'

const mailbox = mailboxForFile()
const settings = () => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url })
const service = serviceForFile(settings)
const admin = signedInForFile(service)
const me = async (token: string) => (await service.request('GET', '/users/me', { token })).status
const login = async (username: string, secret = password) =>
  (await service.request('POST', '/users/login', { query: { username, password: secret } })).status
const form = (fields: Record<string, unknown> = {}) => ({
  username: randomUUID(),
  role: 'ROLE_CLIENT',
  state: 'SP',
  city: 'Campinas',
  ...fields,
})
/** The newest events about a user: action, object and reason. */
const events = async ({ registry }: TestService, subjectId: number) =>
  (await registry.audit.list({ subjectId, limit: 20 })).map(({ action, object, reason }) =>
    [action, object, reason].filter(Boolean).join(' '),
  )

/** A separate service with a second active administrator, `ana`. */
async function withTwo(t: ExecutionContext, more: Record<string, string> = {}) {
  const own = await startTestService(t, { ...settings(), ...more })
  const admin = await openSignedIn(t, own)
  const { user } = await admin.createUser({
    form: form({ username: 'ana', role: 'ROLE_ADMIN', password, email: 'ana@example.org' }),
    active: true,
    confirm: 'ana',
  })
  const { token } = await openAdministration(t, own).signIn({ username: 'ana', password })
  return { own, admin, ana: openAdministration(t, own, token), id: user!.record!.id! }
}

test('a username that looks like an id is refused, and an existing one affects no other user’s session or password', async t => {
  for (const username of ['#1', '＃１']) {
    const creation = admin.createUser({ form: form({ username }) })
    t.is(await reasonOf(creation), 'INVALID_SIGN_UP')
    t.deepEqual(await wrongFieldsOf(creation), ['form.username'])
  }
  const own = await startTestService(t, settings())
  const chief = await openSignedIn(t, own)
  const { user } = await chief.getSession({})
  const id = user!.record!.id!
  const { token } = await own.signUp('ROLE_CLIENT')
  await own.registry.database.sequelize.query(
    `UPDATE users SET username = '#${id}', username_key = '#${id}' WHERE id = ${idOf(token)}`,
  )
  t.is((await chief.getSession({})).user!.record!.id, id)
  t.is(await reasonOf(chief.getUser({ user: `#${id}` })), 'INVALID_ARGUMENT')
  t.deepEqual(await wrongFieldsOf(chief.suspendUser({ user: `#${id}` })), ['user'])
  const changed = await chief.setPassword({ user: 'admin', password: 'tatu-canastra 12' })
  t.is(changed.user!.record!.id, id)
})

test('a user is created inactive under the rules of sign-up, and signs in with its password', async t => {
  const given = form({ password, dateofborn: '01/02/1990', gender: 'F', email: ' nova@example.org ', institution: 'X' })
  await admin.createUser({ form: given, validateOnly: true })
  t.is(await login(given.username), 404)
  const { user } = await admin.createUser({ form: given })
  t.like(user!.record, { ...given, email: undefined, password: undefined, nickname: given.username, active: 0 })
  t.is(user!.email, 'nova@example.org')
  t.false(user!.record!.termsofusage)
  t.is(await login(given.username), 200)
  t.deepEqual(await events(service, user!.record!.id!), ['user.add role:ROLE_CLIENT', 'session.login'])
})

test('a new user without a password can’t sign in until one is set', async t => {
  const given = form()
  await admin.createUser({ form: given })
  for (const secret of ['', ' ', password]) t.is(await login(given.username, secret), secret === password ? 404 : 400)
  await admin.setPassword({ user: given.username, password })
  t.is(await login(given.username), 200)
})

test('all invalid fields of a new user are listed together, including taken names and look-alikes', async t => {
  const taken = await service.signUp('ROLE_CLIENT', { nickname: 'Apelido já tomado' })
  const wrong = (fields: Record<string, unknown>) => wrongFieldsOf(admin.createUser({ form: form(fields) }))
  t.deepEqual(await wrong({ username: '', state: 'SPX', city: '', gender: 'X', email: 'invalid', role: 'ROLE_X' }), [
    'form.city',
    'form.email',
    'form.gender',
    'form.nickname',
    'form.role',
    'form.state',
    'form.username',
  ])
  t.deepEqual(await wrong({ password: 'curta' }), ['form.password'])
  t.deepEqual(await wrong({ username: taken.username, nickname: 'APELIDO JÁ TOMADO' }), [
    'form.nickname',
    'form.username',
  ])
  t.is(await reasonOf(admin.createUser({ form: form({ city: '' }) })), 'INVALID_SIGN_UP')
  t.deepEqual(await wrongFieldsOf(admin.createUser({ form: form(), organization: 'x' })), ['organization'])
})

test('a user created as active belongs to its organization, and an institution has a provider key', async t => {
  const organization = await service.organization()
  const { user } = await admin.createUser({
    form: form({ role: 'ROLE_INSTITUTION' }),
    active: true,
    organization: `#${organization.id}`,
  })
  t.is(user!.record!.active, 1)
  t.is(user!.record!.partnerOrganization?.id, organization.id)
  t.regex(user!.record!.providerActivationKey!.activationkey!, /^[\da-f-]{36}$/)
})

test('the key of an organization is shown with its institutions, whom it activates, and not with clients', async t => {
  const organization = await service.organization()
  const member = async (role: string) =>
    (await admin.createUser({ form: form({ role }), active: true, organization: `#${organization.id}` })).user!.record!
  const [client, institution] = [await member('ROLE_CLIENT'), await member('ROLE_INSTITUTION')]
  const shown = async (id: number) => (await admin.getUser({ user: `#${id}` })).user!.record!.partnerOrganization!
  t.is((await shown(client.id!)).activationkey, undefined)
  t.is((await shown(client.id!)).id, organization.id)
  t.is((await shown(institution.id!)).activationkey, organization.activationkey)
  t.is(client.partnerOrganization!.activationkey, undefined)
  const recorded = async (id: number) =>
    (await events(service, id)).filter(event => event.startsWith('user.show-key')).length
  t.deepEqual([await recorded(client.id!), await recorded(institution.id!)], [0, 1])
})

test('an update changes the fields of its mask, clears those without a value, and keeps all others', async t => {
  const email = 'antes@example.org'
  const { username } = await service.signUp('ROLE_CLIENT', { gender: 'M', email, dateofborn: '01/02/1990' })
  const { user: before } = await admin.getUser({ user: username })
  const { user, changed } = await admin.updateUser({
    user: username,
    form: { city: 'Santos', gender: 'F', institution: 'Ignorada', dateofborn: '2001-03-04' },
    updateMask: { paths: ['city', 'gender', 'dateofborn'] },
    etag: before!.etag,
  })
  t.true(changed)
  t.like(user!.record, { city: 'Santos', gender: 'F', dateofborn: '04/03/2001', institution: undefined, state: 'SP' })
  t.is(user!.email, email)
  t.not(user!.etag, before!.etag)
  const cleared = await admin.updateUser({ user: username, form: {}, updateMask: { paths: ['gender', 'email'] } })
  t.is(cleared.user!.record!.gender, undefined)
  t.is(cleared.user!.email, undefined)
  t.deepEqual((await events(service, user!.record!.id!)).slice(1), [
    'user.edit fields:city,gender,dateofborn',
    'user.edit fields:gender,email',
  ])
  const same = await admin.updateUser({ user: username, form: { city: 'Santos' }, updateMask: { paths: ['city'] } })
  t.false(same.changed)
})

test('the refusal of an update lists every invalid field of its mask, and no other', async t => {
  const other = await service.signUp('ROLE_CLIENT')
  const { username } = await service.signUp('ROLE_CLIENT')
  const wrong = (form: Record<string, string>, paths = Object.keys(form)) =>
    wrongFieldsOf(admin.updateUser({ user: username, form, updateMask: { paths } }))
  t.deepEqual(
    await wrong({ city: '', state: 'S', dateofborn: '31/02/2000', gender: 'X' }, ['city', 'state', 'gender']),
    ['form.city', 'form.gender', 'form.state'],
  )
  t.deepEqual(await wrong({ nickname: other.nickname.toUpperCase() }), ['form.nickname'])
  t.deepEqual(await wrong({ role: 'ROLE_ADMIN' }), ['update_mask'])
  t.deepEqual(await wrong({ password }), ['update_mask'])
  t.deepEqual(await wrong({}), ['update_mask'])
  const renamed = randomUUID()
  await admin.updateUser({ user: username, form: { nickname: renamed }, updateMask: { paths: ['nickname'] } })
  t.is(await reasonOf(admin.createUser({ form: form({ nickname: renamed }) })), 'INVALID_SIGN_UP')
})

test('each change needs the current etag, and changes nothing with validate_only', async t => {
  const { id } = await service.organization()
  const { username, token } = await service.signUp('ROLE_INSTITUTION')
  const organization = `#${id}`
  const changes: [string, (options: { etag?: string; validateOnly?: boolean }) => Promise<unknown>][] = [
    [
      'update',
      options => admin.updateUser({ user: username, form: { city: 'X' }, updateMask: { paths: ['city'] }, ...options }),
    ],
    ['activate', options => admin.activateUser({ user: username, ...options })],
    ['role', options => admin.setRole({ user: username, role: 'ROLE_CLIENT', ...options })],
    ['organization', options => admin.setOrganization({ user: username, organization, ...options })],
    ['suspend', options => admin.suspendUser({ user: username, ...options })],
    ['delete', options => admin.deleteUser({ user: username, ...options })],
  ]
  const { user: before } = await admin.getUser({ user: username })
  for (const [name, change] of changes) {
    t.is(await reasonOf(change({ etag: 'AAAAAAAAAAAAAAAAAAAAAA' })), 'STALE_ETAG', name)
    t.is(await reasonOf(change({ etag: before!.etag, validateOnly: true })), 'none', name)
    t.deepEqual((await admin.getUser({ user: username })).user, before, name)
  }
  t.is(await me(token), 200)
  t.deepEqual(await events(service, before!.record!.id!), ['user.sign-up'])
})

test('suspending twice succeeds and changes once; after resuming, sign-in works and earlier tokens stay revoked', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const first = await admin.suspendUser({ user: username })
  t.true(first.changed)
  t.true(first.user!.suspended)
  t.false((await admin.suspendUser({ user: username })).changed)
  t.is(await login(username), 404)
  t.is(await me(token), 500)
  t.is(await reasonOf(admin.activateUser({ user: username })), 'WRONG_STATE')
  t.true((await admin.resumeUser({ user: username })).changed)
  t.false((await admin.resumeUser({ user: username })).changed)
  t.is(await login(username), 200)
  t.is(await me(token), 500)
})

test('activation revokes no token, and moving an active user to another organization does', async t => {
  const [here, there] = [await service.organization(), await service.organization()]
  const { username, token } = await service.signUp('ROLE_INSTITUTION')
  const { user, changed } = await admin.activateUser({ user: username, organization: `#${here.id}` })
  t.true(changed)
  t.is(user!.record!.partnerOrganization?.id, here.id)
  t.is(await me(token), 200)
  t.false((await admin.activateUser({ user: username, organization: `#${here.id}` })).changed)
  t.true((await admin.activateUser({ user: username, organization: `#${there.id}` })).changed)
  t.is(await me(token), 500)
  await admin.deactivateOrganization({ organization: `#${here.id}` })
  for (const call of [
    admin.activateUser({ user: username, organization: `#${here.id}` }),
    admin.setOrganization({ user: username, organization: `#${here.id}` }),
  ]) {
    t.is(await reasonOf(call), 'WRONG_STATE')
  }
  const none = await admin.setOrganization({ user: username })
  t.is(none.user!.record!.partnerOrganization, undefined)
})

test('a deleted user is hidden from every public look-up, keeps its names, and can be restored unchanged', async t => {
  const { username, nickname, token } = await service.signUp('ROLE_CLIENT', {
    securityquestion: '1',
    securityanswer: 'Rex',
  })
  const id = idOf(token)
  const { user, changed } = await admin.deleteUser({ user: username })
  t.true(changed)
  t.is(Number(user!.purgeTime!.seconds) - Number(user!.deleteTime!.seconds), 30 * 86_400)
  t.false((await admin.deleteUser({ user: username })).changed)

  t.is(await me(token), 500)
  const unknown = await service.request('POST', '/users/login', { query: { username: 'ninguém', password } })
  const gone = await service.request('POST', '/users/login', { query: { username, password } })
  t.is(gone.status, unknown.status)
  t.is(gone.json.detail, unknown.json.detail)
  const adminToken = await service.adminToken()
  const show = () => service.request('GET', `/users/${encodeURIComponent(username)}`, { token: adminToken })
  t.is((await show()).json.reason, 'USER_NOT_FOUND')
  const answers = [
    { forgotpasswordquestionsid: 1, answer: 'rex' },
    { forgotpasswordquestionsid: 2, answer: 'x' },
  ]
  const byAnswers = await service.request('POST', '/forgotpasswords/loginbyusernameandanswers', {
    query: { username },
    body: answers,
  })
  t.is(byAnswers.json.reason, 'USER_NOT_FOUND')
  const answer = { forgotpasswordquestionsid: 2, answer: 'x', usersid: id }
  const save = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
  t.is((await service.request('POST', save, { token: adminToken, body: answer })).json.reason, 'USER_NOT_FOUND')

  t.deepEqual((await admin.listUsers({ text: nickname })).users, [])
  t.is((await admin.listUsers({ text: nickname, state: UserState.DELETED })).users.length, 1)
  t.is((await service.request('POST', '/users/existsByUsername', { query: { username } })).json, true)
  t.is((await service.request('POST', '/users/existsByNickname', { query: { nickname } })).json, true)
  for (const call of [
    admin.suspendUser({ user: username }),
    admin.resumeUser({ user: username }),
    admin.activateUser({ user: username }),
    admin.setRole({ user: username, role: 'ROLE_INSTITUTION' }),
    admin.setOrganization({ user: username }),
    admin.revokeTokens({ user: username }),
    admin.setPassword({ user: username, password }),
    admin.sendRecoveryKey({ user: username }),
    admin.updateUser({ user: username, form: { city: 'X' }, updateMask: { paths: ['city'] } }),
  ]) {
    t.is(await reasonOf(call), 'WRONG_STATE')
  }

  t.true((await admin.undeleteUser({ user: `#${id}` })).changed)
  t.false((await admin.undeleteUser({ user: username })).changed)
  t.is(await login(username), 200)
  t.is(await me(token), 500)
})

test('a suspended user that is deleted and restored is still suspended', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  await admin.suspendUser({ user: username })
  await admin.deleteUser({ user: username })
  const { user } = await admin.undeleteUser({ user: username })
  t.true(user!.suspended)
  t.is(user!.deleteTime, undefined)
})

test('promoting or demoting an administrator needs the username as confirmation', async t => {
  const { own, admin } = await withTwo(t)
  const { username } = await own.signUp('ROLE_ADMIN')
  const calls: [string, string, (confirm?: string) => Promise<unknown>][] = [
    ['making', username, confirm => admin.activateUser({ user: username, ...(confirm && { confirm }) })],
    ['unmaking', 'ana', confirm => admin.setRole({ user: 'ana', role: 'ROLE_CLIENT', ...(confirm && { confirm }) })],
    ['making again', 'ana', confirm => admin.setRole({ user: 'ana', role: 'ROLE_ADMIN', ...(confirm && { confirm }) })],
    [
      'creating',
      'bia',
      confirm =>
        admin.createUser({
          form: form({ username: 'bia', role: 'ROLE_ADMIN' }),
          active: true,
          ...(confirm && { confirm }),
        }),
    ],
  ]
  for (const [what, name, call] of calls) {
    t.is(await reasonOf(call()), 'CONFIRMATION_NEEDED', what)
    t.is(await reasonOf(call('somebody else')), 'CONFIRMATION_NEEDED', what)
    t.is(await reasonOf(call(name)), 'none', what)
  }
})

test('promoting or demoting an administrator needs a sign-in at most 15 minutes old; other changes don’t', async t => {
  const own = await serviceWithClock(t, settings())
  const admin = await openSignedIn(t, own)
  const { username } = await own.signUp('ROLE_CLIENT')
  const make = () => admin.setRole({ user: username, role: 'ROLE_ADMIN', confirm: username, validateOnly: true })
  const activate = () =>
    admin.createUser({ form: form({ username: 'x', role: 'ROLE_ADMIN' }), active: true, confirm: 'x' })
  await own.clock.pass(15 * 60 - 5)
  t.is(await reasonOf(make()), 'none')
  await own.clock.pass(10)
  for (const call of [make(), activate(), admin.eraseUser({ user: username, confirm: username })]) {
    t.is(await reasonOf(call), 'SIGN_IN_AGAIN')
  }
  t.is(await reasonOf(admin.suspendUser({ user: username })), 'none')
})

test('the last active administrator can’t be suspended, deleted, erased or given another role', async t => {
  const { own, admin, ana } = await withTwo(t)
  const all: [string, (client: AdministrationClient, user: string) => Promise<unknown>][] = [
    ['suspend', (client, user) => client.suspendUser({ user })],
    ['delete', (client, user) => client.deleteUser({ user })],
    ['erase', (client, user) => client.eraseUser({ user, confirm: user })],
    ['set-role', (client, user) => client.setRole({ user, role: 'ROLE_CLIENT', confirm: user })],
  ]
  await ana.suspendUser({ user: 'admin' })
  for (const [verb, call] of all) {
    t.is(await reasonOf(call(ana, 'ana')), 'LAST_ADMINISTRATOR', verb)
    t.is(await reasonOf(call(await openLocal(t, own, { reason: 'teste' }), 'ana')), 'LAST_ADMINISTRATOR', verb)
  }
  // An inactive administrator doesn't count.
  const waiting = await own.signUp('ROLE_ADMIN')
  t.is(await reasonOf(ana.suspendUser({ user: 'ana' })), 'LAST_ADMINISTRATOR')
  t.is(await reasonOf(ana.suspendUser({ user: waiting.username })), 'none')
  await ana.resumeUser({ user: 'admin' })
  t.is(await reasonOf(ana.suspendUser({ user: 'ana' })), 'none')
  t.is(await reasonOf(admin.listUsers({})), 'INVALID_TOKEN')
})

test('if two replicas suspend one each of the last two administrators, only one succeeds', async t => {
  const { own, admin } = await withTwo(t)
  const other = await startTestService(t, { ...settings(), DATABASE_URL: own.env.DATABASE_URL! })
  const { token } = await openAdministration(t, own).signIn({ username: 'ana', password })
  const there = openAdministration(t, other, token)
  const outcomes = await Promise.all([
    reasonOf(admin.suspendUser({ user: 'ana' })),
    reasonOf(there.suspendUser({ user: 'admin' })),
  ])
  // The token of the later caller may already be void.
  t.deepEqual(outcomes.map(reason => reason === 'none').sort(), [false, true], outcomes.join())
  const { users } = await (await openLocal(t, own)).listUsers({ role: 'ROLE_ADMIN', state: UserState.ACTIVE })
  t.is(users.length, 1)
})

test('suspending the second-to-last administrator makes concurrent changes of administrators wait', async t => {
  const { own, admin, id } = await withTwo(t)
  const { database, administeredUsers, users } = own.registry
  let outcome: Promise<string> | undefined
  await database.transact(async transaction => {
    t.true(await administeredUsers.anotherAdministrator(id, transaction))
    await users.suspend(id, transaction)
    await own.registry.audit.append(
      { action: 'user.suspend', outcome: 'ok', actor: 'test', subject_id: id },
      transaction,
    )
    outcome = reasonOf(admin.suspendUser({ user: 'admin' }))
    t.is(await endsOrWaits(database, outcome), 'waits')
  })
  t.is(await outcome!, 'LAST_ADMINISTRATOR')
})

test('on the database itself, only changes of administrators and of passwords need a reason', async t => {
  const { own } = await withTwo(t)
  const silent = await openLocal(t, own)
  const { username } = await own.signUp('ROLE_CLIENT')
  const fields = { form: { city: 'X' }, updateMask: { paths: ['city'] } }
  for (const [verb, call] of [
    ['suspend', silent.suspendUser({ user: 'ana' })],
    ['update', silent.updateUser({ user: 'ana', ...fields })],
    ['revoke', silent.revokeTokens({ user: 'ana' })],
    ['delete', silent.deleteUser({ user: 'ana' })],
    ['organization', silent.setOrganization({ user: 'ana', organization: `#${(await own.organization()).id}` })],
    ['role', silent.setRole({ user: username, role: 'ROLE_ADMIN', confirm: username })],
    ['create', silent.createUser({ form: form({ role: 'ROLE_ADMIN' }) })],
    ['password', silent.setPassword({ user: username, password: 'uma girafa bem alta 7' })],
  ] as const) {
    t.is(await reasonOf(call), 'JUSTIFICATION_NEEDED', verb)
  }
  t.is(await reasonOf(silent.suspendUser({ user: username })), 'none')
  t.is(await reasonOf(silent.updateUser({ user: username, ...fields })), 'none')
})

test('other active administrators are notified by e-mail of changes on the database itself, and of no others', async t => {
  const { own, admin, id } = await withTwo(t, { AUTH_MAIL_LOCALE: 'en' })
  await admin.updateUser({ user: 'admin', form: { email: 'chefe@example.org' }, updateMask: { paths: ['email'] } })
  const { username } = await own.signUp('ROLE_CLIENT', { email: 'cliente@example.org' })
  await admin.createUser({ form: form({ role: 'ROLE_ADMIN', email: 'inativo@example.org' }) })
  // Changes of their own accounts cause another notice.
  const seen = new Set<unknown>()
  const next = (address: string) =>
    waitFor(
      () => {
        const one = mailbox.emails.find(
          each => !seen.has(each) && each.to?.[0]?.address === address && /database itself/.test(each.subject ?? ''),
        )
        if (one) seen.add(one)
        return one
      },
      () => mailbox.emails.length,
    )
  const local = await openLocal(t, own, { reason: 'chamado 42: http://example.org/perdeu' })
  await local.suspendUser({ user: username })
  await local.setPassword({ user: username, password: 'uma girafa bem alta 7' })
  for (const to of ['ana@example.org', 'chefe@example.org']) {
    const { subject, text = '' } = await next(to)
    t.is(subject, 'A change made on the database itself')
    t.true(text.includes('was given a new password'), text)
    t.regex(text, /Who: tester, here/)
    t.regex(text, /When: .*\(UTC\)/)
    t.true(text.includes('Reason given: chamado 42: http:·example·org·perdeu'), text)
  }
  t.is((await mailbox.nextEmail('cliente@example.org')).subject, 'Your password was changed')

  // The changed administrator gets no such notice.
  await local.suspendUser({ user: 'ana' })
  t.true((await next('chefe@example.org')).text!.includes(`ana (id ${id}) was suspended`))
  await local.resumeUser({ user: 'ana' })
  t.true((await next('chefe@example.org')).text!.includes('is no longer suspended'))
  await admin.revokeTokens({ user: 'ana' })
  await local.setRole({ user: username, role: 'ROLE_ADMIN', confirm: username })
  t.true((await next('chefe@example.org')).text!.includes('was given another role: ROLE_ADMIN'))
  const notices = mailbox.emails.filter(({ subject }) => subject === 'A change made on the database itself')
  const recipients = new Set(notices.flatMap(({ to = [] }) => to.map(({ address }) => address)))
  t.deepEqual([...recipients].sort(), ['ana@example.org', 'chefe@example.org'])
  t.true((await events(own, id)).includes('user.suspend chamado 42: http://example.org/perdeu'))
})

// Administrators change usernames.

const rename = (user: string, username: string) =>
  admin.updateUser({ user, form: { username }, updateMask: { paths: ['username'] } })

test('when an administrator changes a username, the user is notified, tokens stay valid, and the former name stays reserved', async t => {
  const email = `${randomUUID()}@example.org`
  const { token, username } = await service.signUp('ROLE_CLIENT', { email })
  const name = `joana ${randomUUID()}`
  const { user, changed } = await rename(username, name)
  t.true(changed)
  t.is(user?.record?.username, name)
  t.is((await service.request('GET', '/users/me', { token })).json.username, name)
  t.deepEqual([await login(username), await login(name)], [404, 200])
  const notice = await mailbox.nextEmail(email)
  t.is(notice.subject, 'Seu nome de usuário foi alterado')
  const events = await service.registry.audit.list({ subjectId: idOf(token), action: 'user.edit', limit: 9 })
  t.deepEqual(
    events.map(({ object, outcome }) => [object, outcome]),
    [['fields:username', 'ok']],
  )
  const other = await service.signUp('ROLE_CLIENT')
  t.deepEqual(await wrongFieldsOf(rename(other.username, username)), ['form.username'])
  t.is(await reasonOf(rename(other.username, username)), 'INVALID_SIGN_UP')
  t.false((await rename(name, name)).changed)
  t.true((await rename(name, username)).changed)
})

test('a username that is taken or invalid is refused, together with all other invalid fields', async t => {
  const [user, other] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  for (const username of ['', '#7', 'me', 'a\u200bb', 'x'.repeat(256)]) {
    const update = admin.updateUser({
      user: user.username,
      form: { username, state: 'X' },
      updateMask: { paths: ['username', 'state'] },
    })
    t.deepEqual(await wrongFieldsOf(update), ['form.state', 'form.username'], username)
  }
  const both = admin.updateUser({
    user: user.username,
    form: { username: other.username, nickname: other.nickname },
    updateMask: { paths: ['username', 'nickname'] },
  })
  t.deepEqual(await wrongFieldsOf(both), ['form.nickname', 'form.username'])
  t.is(await login(user.username), 200)
})

// Creations that are requested more than once with one request id.

const count = async (text: string) => Number((await ask(service.env.DATABASE_URL!, text))[0]!.count)

/** A session of another administrator. */
async function another(t: ExecutionContext): Promise<AdministrationClient> {
  const username = randomUUID()
  await admin.createUser({ form: form({ username, role: 'ROLE_ADMIN', password }), active: true, confirm: username })
  const { token } = await openAdministration(t, service).signIn({ username, password })
  return openAdministration(t, service, token)
}

test('if two administrators use the same request id, each creates a separate record', async t => {
  const other = await another(t)
  const [requestId, name] = [randomUUID(), `Defesa Civil ${randomUUID()}`]
  const one = await admin.createOrganization({ form: { name }, requestId })
  const two = await other.createOrganization({ form: { name }, requestId })
  t.not(one.organization!.record!.id, two.organization!.record!.id)
  t.not(one.organization!.record!.activationkey, two.organization!.record!.activationkey)
  // Each gets its own response again; another request with the id is refused.
  t.deepEqual(await admin.createOrganization({ form: { name }, requestId }), one)
  t.deepEqual(await other.createOrganization({ form: { name }, requestId }), two)
  t.is(await reasonOf(other.createOrganization({ form: { name: `${name}!` }, requestId })), 'INVALID_ARGUMENT')
  t.is(await count(`SELECT count(*) FROM organizations WHERE name = '${name}'`), 2)
})

test('eight concurrent creations with one request id create one record and get the same response, and only one gets the service key', async t => {
  const name = randomUUID().slice(0, 8)
  const given = `s-${name}`
  await admin.createService({ name: `k-${name}`, scopes: [Scope.USERS_READ] })
  const keys: string[] = []
  /** A response without the key, which is recorded. */
  const withoutKey = <A extends { key: string }>(answer: A): A => {
    if (answer.key !== '') keys.push(answer.key)
    return { ...answer, key: '' }
  }
  const all: Record<string, [create: (requestId: string) => Promise<Uint8Array>, made: string]> = {
    user: [
      async requestId =>
        toBinary(
          CreateUserResponseSchema,
          await admin.createUser({ form: form({ username: name, password }), requestId }),
        ),
      `users WHERE username = '${name}'`,
    ],
    organization: [
      async requestId =>
        toBinary(CreateOrganizationResponseSchema, await admin.createOrganization({ form: { name }, requestId })),
      `organizations WHERE name = '${name}'`,
    ],
    question: [
      async requestId =>
        toBinary(CreateQuestionResponseSchema, await admin.createQuestion({ question: name, requestId })),
      `questions WHERE question = '${name}'`,
    ],
    service: [
      async requestId =>
        toBinary(
          CreateServiceResponseSchema,
          withoutKey(await admin.createService({ name: given, scopes: [Scope.USERS_READ], requestId })),
        ),
      `services WHERE name = '${given}'`,
    ],
    key: [
      async requestId =>
        toBinary(
          CreateServiceKeyResponseSchema,
          withoutKey(await admin.createServiceKey({ name: `k-${name}`, requestId })),
        ),
      `service_keys JOIN services s ON s.id = service_id WHERE s.name = 'k-${name}'`,
    ],
  }
  for (const [what, [create, made]] of Object.entries(all)) {
    const before = await count(`SELECT count(*) FROM ${made}`)
    const requestId = randomUUID()
    const answers = await Promise.all(Array.from({ length: 8 }, () => create(requestId)))
    t.is(new Set(answers.map(bytes => Buffer.from(bytes).toString('hex'))).size, 1, what)
    t.is(await count(`SELECT count(*) FROM ${made}`), before + 1, what)
  }
  t.is(keys.length, 2)
})
