/** RPCs by which administrators change users: their effects, refusals, and events in the audit log. */
import { randomUUID } from 'node:crypto'
import test, { type ExecutionContext } from 'ava'
import { UserState } from '../../../proto/gen/auth/v1/administration_pb.js'
import {
  type AdministrationClient,
  anotherAdministrator,
  openLocal,
  openSignedIn,
  reasonOf,
  signedInForFile,
  whenFree,
  wrongFieldsOf,
} from '../../_helpers/administration.js'
import { hold } from '../../_helpers/database.js'
import { mailboxForFile } from '../../_helpers/mailbox.js'
import { changeTokens, endsOrWaits, lockWaiters } from '../../_helpers/models.js'
import {
  password,
  serviceForFile,
  serviceWithClock,
  signUpForm,
  startTestService,
  type TestService,
} from '../../_helpers/service.js'
import { idOf } from '../../_helpers/tokens.js'
import { waitForValue } from '../../_helpers/wait.js'

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
  const { api: ana, id } = await anotherAdministrator(t, own, admin, { username: 'ana', email: 'ana@example.org' })
  return { own, admin, ana, id }
}

test('an existing username that looks like an id affects no other user’s session or password', async t => {
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

test('a user created as active belongs to its organization, whose key is shown with institutions and not with clients', async t => {
  const organization = await service.organization()
  const member = async (role: string) =>
    (await admin.createUser({ form: form({ role }), active: true, organization: `#${organization.id}` })).user!.record!
  const shown = async (id: number) => (await admin.getUser({ user: `#${id}` })).user!.record!.partnerOrganization!
  for (const [role, key] of [
    ['ROLE_CLIENT', undefined],
    ['ROLE_INSTITUTION', organization.activationkey],
  ] as const) {
    const { id, active, partnerOrganization, providerActivationKey } = await member(role)
    t.deepEqual([active, partnerOrganization!.id], [1, organization.id])
    t.is(providerActivationKey !== undefined, key !== undefined)
    t.is((await shown(id!)).activationkey, key)
    const recorded = (await events(service, id!)).filter(event => event.startsWith('user.show-key'))
    t.is(recorded.length, key === undefined ? 0 : 1)
  }
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

test('suspending and resuming twice changes once, and a suspended user that is deleted and restored is still suspended', async t => {
  const { username: user } = await service.signUp('ROLE_CLIENT')
  t.like(await admin.suspendUser({ user }), { changed: true, user: { suspended: true } })
  t.false((await admin.suspendUser({ user })).changed)
  t.is(await reasonOf(admin.activateUser({ user })), 'WRONG_STATE')
  await admin.deleteUser({ user })
  t.like((await admin.undeleteUser({ user })).user, { suspended: true, deleteTime: undefined })
  t.true((await admin.resumeUser({ user })).changed)
  t.false((await admin.resumeUser({ user })).changed)
  t.is(await login(user), 200)
})

test('activation revokes no token and may move a user, but into no inactive organization', async t => {
  const [here, there] = [await service.organization(), await service.organization()]
  const { username: user, token } = await service.signUp('ROLE_INSTITUTION')
  const into = ({ id }: { id: number }) => ({ user, organization: `#${id}` })
  const activated = await admin.activateUser(into(here))
  t.true(activated.changed)
  t.is(activated.user!.record!.partnerOrganization?.id, here.id)
  t.is(await me(token), 200)
  t.false((await admin.activateUser(into(here))).changed)
  t.true((await admin.activateUser(into(there))).changed)
  await admin.deactivateOrganization({ organization: `#${here.id}` })
  for (const call of [admin.activateUser(into(here)), admin.setOrganization(into(here))])
    t.is(await reasonOf(call), 'WRONG_STATE')
  t.is((await admin.setOrganization({ user })).user!.record!.partnerOrganization, undefined)
})

test('a deleted user is hidden from look-ups, changed by nothing, and can be restored', async t => {
  const { username: user, nickname, token } = await service.signUp('ROLE_CLIENT')
  const deleted = await admin.deleteUser({ user })
  t.true(deleted.changed)
  t.is(Number(deleted.user!.purgeTime!.seconds) - Number(deleted.user!.deleteTime!.seconds), 30 * 86_400)
  t.false((await admin.deleteUser({ user })).changed)
  const adminToken = await service.adminToken()
  const show = await service.request('GET', `/users/${encodeURIComponent(user)}`, { token: adminToken })
  t.is(show.json.reason, 'USER_NOT_FOUND')
  const answer = { forgotpasswordquestionsid: 2, answer: 'x', usersid: idOf(token) }
  const save = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
  t.is((await service.request('POST', save, { token: adminToken, body: answer })).json.reason, 'USER_NOT_FOUND')
  t.deepEqual((await admin.listUsers({ text: nickname })).users, [])
  t.is((await admin.listUsers({ text: nickname, state: UserState.DELETED })).users.length, 1)
  for (const call of [
    admin.suspendUser({ user }),
    admin.resumeUser({ user }),
    admin.activateUser({ user }),
    admin.setRole({ user, role: 'ROLE_INSTITUTION' }),
    admin.setOrganization({ user }),
    admin.revokeTokens({ user }),
    admin.setPassword({ user, password }),
    admin.sendRecoveryKey({ user }),
    admin.clearAnswers({ user }),
    admin.updateUser({ user, form: { city: 'X' }, updateMask: { paths: ['city'] } }),
  ])
    t.is(await reasonOf(call), 'WRONG_STATE')
  t.true((await admin.undeleteUser({ user: `#${idOf(token)}` })).changed)
  t.false((await admin.undeleteUser({ user })).changed)
  t.is(await login(user), 200)
})

test('promoting or demoting an administrator needs the username as confirmation', async t => {
  const { own, admin } = await withTwo(t)
  const { username } = await own.signUp('ROLE_ADMIN')
  const bia = { form: form({ username: 'bia', role: 'ROLE_ADMIN' }), active: true }
  const calls: [string, string, (given: { confirm?: string }) => Promise<unknown>][] = [
    ['making', username, given => admin.activateUser({ user: username, ...given })],
    ['unmaking', 'ana', given => admin.setRole({ user: 'ana', role: 'ROLE_CLIENT', ...given })],
    ['making again', 'ana', given => admin.setRole({ user: 'ana', role: 'ROLE_ADMIN', ...given })],
    ['creating', 'bia', given => admin.createUser({ ...bia, ...given })],
  ]
  for (const [what, confirm, call] of calls) {
    for (const wrong of [{}, { confirm: 'somebody else' }])
      t.is(await reasonOf(call(wrong)), 'CONFIRMATION_NEEDED', what)
    t.is(await reasonOf(call({ confirm })), 'none', what)
  }
})

test('promoting an administrator needs a sign-in at most 15 minutes old', async t => {
  const own = await serviceWithClock(t, settings())
  const admin = await openSignedIn(t, own)
  const { username: user } = await own.signUp('ROLE_CLIENT')
  const make = () => admin.setRole({ user, role: 'ROLE_ADMIN', confirm: user, validateOnly: true })
  await own.clock.pass(15 * 60 - 5)
  t.is(await reasonOf(make()), 'none')
  await own.clock.pass(10)
  t.is(await reasonOf(make()), 'SIGN_IN_AGAIN')
  t.is(await reasonOf(admin.suspendUser({ user })), 'none')
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

test('suspending the second-to-last administrator makes concurrent changes of administrators wait', async t => {
  const { own, admin, id } = await withTwo(t)
  const { database, administeredUsers, users, audit } = own.registry
  let outcome: Promise<string> | undefined
  await database.transact(async at => {
    t.true(await administeredUsers.anotherAdministrator(id, at))
    await users.suspend(id, at)
    await audit.append({ action: 'user.suspend', outcome: 'ok', actor: 'test', subject_id: id }, at)
    outcome = reasonOf(whenFree(() => admin.suspendUser({ user: 'admin' })))
    t.is(await endsOrWaits(database, outcome), 'waits')
  })
  t.is(await outcome!, 'LAST_ADMINISTRATOR')
})

test('on the database itself, only changes of administrators and of passwords need a reason', async t => {
  const { own } = await withTwo(t)
  const silent = await openLocal(t, own)
  const { username } = await own.signUp('ROLE_CLIENT')
  const fields = { form: { city: 'X' }, updateMask: { paths: ['city'] } }
  for (const call of [
    silent.suspendUser({ user: 'ana' }),
    silent.updateUser({ user: 'ana', ...fields }),
    silent.revokeTokens({ user: 'ana' }),
    silent.deleteUser({ user: 'ana' }),
    silent.setOrganization({ user: 'ana', organization: `#${(await own.organization()).id}` }),
    silent.setRole({ user: username, role: 'ROLE_ADMIN', confirm: username }),
    silent.createUser({ form: form({ role: 'ROLE_ADMIN' }) }),
    silent.setPassword({ user: username, password: 'uma girafa bem alta 7' }),
  ])
    t.is(await reasonOf(call), 'JUSTIFICATION_NEEDED')
  t.is(await reasonOf(silent.suspendUser({ user: username })), 'none')
  t.is(await reasonOf(silent.updateUser({ user: username, ...fields })), 'none')
})

test('other active administrators are notified by e-mail of changes on the database itself, and of no others', async t => {
  const { own, admin, id } = await withTwo(t, { AUTH_MAIL_LOCALE: 'en' })
  await admin.updateUser({ user: 'admin', form: { email: 'chefe@example.org' }, updateMask: { paths: ['email'] } })
  const { username } = await own.signUp('ROLE_CLIENT', { email: 'cliente@example.org' })
  await admin.createUser({ form: form({ role: 'ROLE_ADMIN', email: 'inativo@example.org' }) })
  const subject = 'A change made on the database itself'
  // Changes of their own accounts cause another notice.
  const next = async (address: string): Promise<string> => {
    const email = await mailbox.nextEmail(address)
    return email.subject === subject ? email.text! : next(address)
  }
  const local = await openLocal(t, own, { reason: 'chamado 42: http://example.org/perdeu' })
  await local.suspendUser({ user: username })
  await local.setPassword({ user: username, password: 'uma girafa bem alta 7' })
  for (const to of ['ana@example.org', 'chefe@example.org']) {
    const text = await next(to)
    t.true(text.includes('was given a new password'), text)
    for (const line of [/^Who: tester, here/m, /^When: .*\(Brasilia Standard Time\)$/m]) t.regex(text, line)
    t.true(text.includes('Reason given: chamado 42: http:·example·org·perdeu'), text)
  }
  t.is((await mailbox.nextEmail('cliente@example.org')).subject, 'Your password was changed')

  // The changed administrator gets no such notice.
  await local.suspendUser({ user: 'ana' })
  t.true((await next('chefe@example.org')).includes(`ana (id ${id}) was suspended`))
  await local.resumeUser({ user: 'ana' })
  t.true((await next('chefe@example.org')).includes('is no longer suspended'))
  await admin.revokeTokens({ user: 'ana' })
  await local.setRole({ user: username, role: 'ROLE_ADMIN', confirm: username })
  t.true((await next('chefe@example.org')).includes('was given another role: ROLE_ADMIN'))
  await own.registry.database.sequelize.query(`INSERT INTO totp_secrets (user_id, secret_sealed) VALUES (${id}, '')`)
  await local.removeTotp({ user: 'ana', confirm: 'ana' })
  t.true((await next('chefe@example.org')).includes('no longer needs a one-time code to sign in'))
  await local.eraseUser({ user: username, confirm: username })
  t.true((await next('chefe@example.org')).includes('was permanently erased'))
  const notices = mailbox.emails.filter(each => each.subject === subject)
  const recipients = new Set(notices.flatMap(({ to = [] }) => to.map(({ address }) => address)))
  t.deepEqual([...recipients].sort(), ['ana@example.org', 'chefe@example.org'])
  t.true((await events(own, id)).includes('user.suspend chamado 42: http://example.org/perdeu'))
})

test('a change that waits for its locks is refused if the tokens of its administrator are revoked meanwhile', async t => {
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const { api, id } = await anotherAdministrator(t, service, admin)
  const holder = await hold(t, service.env.DATABASE_URL!)
  await holder.query(`BEGIN; SELECT FROM users WHERE id = ${idOf(token)} FOR UPDATE`)
  const change = reasonOf(whenFree(() => api.suspendUser({ user: username })))
  await waitForValue(
    () => lockWaiters(service.registry.database),
    count => count > 0,
  )
  const { users } = service.registry
  await changeTokens(service.registry, id, transaction => users.revokeTokens(id, transaction))
  await holder.query('ROLLBACK')
  t.is(await change, 'INVALID_TOKEN')
  t.is(await me(token), 200)
})

// Administrators change usernames.

const rename = (user: string, username: string) =>
  admin.updateUser({ user, form: { username }, updateMask: { paths: ['username'] } })

test('when an administrator changes a username, the user is notified, tokens stay valid, and the former name stays reserved', async t => {
  const email = `${randomUUID()}@example.org`
  const { token, username } = await service.signUp('ROLE_CLIENT', { email })
  const name = `joana ${randomUUID()}`
  t.like(await rename(username, name), { changed: true, user: { record: { username: name } } })
  t.is((await service.request('GET', '/users/me', { token })).json.username, name)
  t.deepEqual([await login(username), await login(name)], [404, 200])
  t.is((await mailbox.nextEmail(email)).subject, 'Seu nome de usuário foi alterado')
  t.true((await events(service, idOf(token))).includes('user.edit fields:username'))
  const other = await service.signUp('ROLE_CLIENT')
  t.is(await reasonOf(rename(other.username, username)), 'INVALID_SIGN_UP')
  t.deepEqual(await wrongFieldsOf(rename(other.username, username)), ['form.username'])
  t.false((await rename(name, name)).changed)
  t.true((await rename(name, username)).changed)
})

test('administrators get the id of the user who has a taken username, or had it; sign-up doesn’t show it', async t => {
  const holder = await service.signUp('ROLE_CLIENT')
  const [id, former, name] = [idOf(holder.token), holder.username, `rita ${randomUUID()}`]
  await rename(former, name)
  const { username: other } = await service.signUp('ROLE_CLIENT')
  for (const [taken, message] of [
    [name.toUpperCase(), `Choose another username: user ${id} has this one.`],
    [former, `Choose another username: user ${id} had this one in the last 30 days.`],
  ] as const) {
    const says = { message: new RegExp(`form.username: ${message}`) }
    await t.throwsAsync(rename(other, taken), says)
    await t.throwsAsync(admin.createUser({ form: form({ username: taken }) }), says)
    await t.throwsAsync(admin.createUser({ form: form({ username: taken, city: '' }) }), says)
    const signUp = await service.request('POST', '/users/signup', { body: signUpForm({ username: taken }) })
    t.is(signUp.status, 422)
    t.like(signUp.json.errors, [{ field: 'username', message: 'Choose another username: this one is taken.' }])
  }
})

test('notices of a username and of an e-mail address that change together go to the former address', async t => {
  const [former, email] = [`${randomUUID()}@example.org`, `${randomUUID()}@example.org`]
  const { username } = await service.signUp('ROLE_CLIENT', { email: former })
  const form = { username: `maria ${randomUUID()}`, email }
  await admin.updateUser({ user: username, form, updateMask: { paths: ['username', 'email'] } })
  const subjects = [(await mailbox.nextEmail(former)).subject, (await mailbox.nextEmail(former)).subject]
  t.deepEqual(subjects.sort(), ['O endereço de e-mail da sua conta foi alterado', 'Seu nome de usuário foi alterado'])
})

test('a username that is taken or invalid is refused, together with all other invalid fields', async t => {
  const [user, other] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  const wrong = (form: Record<string, string>) =>
    wrongFieldsOf(admin.updateUser({ user: user.username, form, updateMask: { paths: Object.keys(form) } }))
  for (const username of ['', '#7', 'me', 'a\u200bb', 'x'.repeat(256)])
    t.deepEqual(await wrong({ username, state: 'X' }), ['form.state', 'form.username'], username)
  t.deepEqual(await wrong({ username: other.username, nickname: other.nickname }), ['form.nickname', 'form.username'])
  t.is(await login(user.username), 200)
})
