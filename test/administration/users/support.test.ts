/** Support of users who can't sign in: the obstacles, and how administrators remove them. */
import { randomInt, randomUUID } from 'node:crypto'
import test from 'ava'
import { TOTP } from 'otpauth'
import { EmailState, UserState } from '../../../proto/gen/auth/v1/administration_pb.js'
import {
  allPages,
  anotherAdministrator,
  openAdministration,
  openLocal,
  openSignedIn,
  reasonOf,
  signedInForFile,
  wrongFieldsOf,
} from '../../_helpers/administration.js'
import { anyAddress } from '../../_helpers/crowd.js'
import { ask } from '../../_helpers/database.js'
import { mailboxForFile } from '../../_helpers/mailbox.js'
import { endsOrWaits } from '../../_helpers/models.js'
import {
  password,
  type SignedUp,
  serviceForFile,
  serviceWithClock,
  startTestService,
  type TestService,
} from '../../_helpers/service.js'
import { idOf } from '../../_helpers/tokens.js'
import { waitForValue } from '../../_helpers/wait.js'

const mailbox = mailboxForFile()
const settings = () => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url })
const service = serviceForFile(settings)
const admin = signedInForFile(service)

const login = async ({ request }: TestService, username: string, secret: string, address?: string) => {
  const headers: Record<string, string> = address ? { 'x-forwarded-for': address } : {}
  return (await request('POST', '/users/login', { query: { username, password: secret }, headers })).status
}
const setAnswer = (token: string, question: number, answer: string, { request }: TestService = service) =>
  request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', {
    token,
    body: { forgotpasswordquestionsid: question, answer },
  })

/** The obstacles of a user, as `what: why [command]`. */
async function why(user: string, address = '', of = admin): Promise<string[]> {
  const { obstacles } = await of.explainUser({ user, ...(address && { address }) })
  return obstacles.map(({ prevents, reason, command }) => `${prevents}: ${reason} [${command}]`)
}

/** A user without obstacles. */
async function free(of = service, fields: Record<string, unknown> = {}) {
  const email = `u${randomInt(1e9)}@example.org`
  const { activationkey } = await of.organization()
  const { providerKey } = await of.institution({ activationkey })
  const user = await of.signUp('ROLE_CLIENT', { email, securityquestion: '1', securityanswer: 'Rex', ...fields })
  await setAnswer(user.token, 2, 'Assis', of)
  // The notice about the answer.
  await mailbox.nextEmail(email)
  const query = { username: user.username, activationkey: providerKey }
  await of.request('POST', '/users/activate', { token: user.token, query })
  return { ...user, email, id: idOf(user.token) }
}

test('an active user with an e-mail address and two answers has no obstacle', async t => {
  const { username, id } = await free()
  const { user, obstacles, failures } = await admin.explainUser({ user: username })
  t.is(user!.record!.id, id)
  t.deepEqual(obstacles, [])
  t.deepEqual(
    failures.map(({ scope, proof, count, locked }) => [scope, proof, count, locked]),
    [
      ['account', 'password', 0, false],
      ['account', 'answers', 0, false],
    ],
  )
})

test('for a suspended or deleted user everything is prevented, and the obstacle names the command that ends it', async t => {
  const { username, id } = await free()
  const all = (state: string, verb: string) =>
    ['sign in', 'recover by answers', 'recover by e-mail', 'activate'].map(
      what => `${what}: The user is ${state}. [auth-admin users ${verb} ${id}]`,
    )
  await admin.suspendUser({ user: username })
  t.deepEqual(await why(username), all('suspended', 'resume'))
  await admin.deleteUser({ user: username })
  t.deepEqual(await why(username), all('deleted', 'restore'))
})

test('a fix has --reason where the command needs it: on the database itself, for passwords and administrators', async t => {
  const local = await openLocal(t, service)
  const { username, id } = await free()
  await service.registry.database.sequelize.query(`UPDATE users SET password_hash = '', email = NULL WHERE id = ${id}`)
  const fixes = async (of: typeof admin, user: string) =>
    new Set((await of.explainUser({ user })).obstacles.map(({ command }) => command).filter(Boolean))
  const edit = `auth-admin users edit ${id} --email ADDRESS`
  t.deepEqual(await fixes(admin, username), new Set([`auth-admin users set-password ${id}`, edit]))
  t.deepEqual(await fixes(local, username), new Set([`auth-admin users set-password ${id} --reason REASON`, edit]))
  await admin.suspendUser({ user: username })
  t.true((await fixes(local, username)).has(`auth-admin users resume ${id}`))

  const other = await service.signUp('ROLE_ADMIN')
  const otherId = idOf(other.token)
  const activate = `auth-admin users activate ${otherId}`
  t.true((await fixes(admin, other.username)).has(activate))
  t.true((await fixes(local, other.username)).has(`${activate} --reason REASON`))
  await admin.suspendUser({ user: other.username })
  const resume = `auth-admin users resume ${otherId} --reason REASON`
  t.true((await fixes(local, other.username)).has(resume))
})

test('a lock appears exactly where sign-in is refused, with its seconds, and unlocking ends it', async t => {
  const { username, id } = await free()
  const [home, elsewhere] = [anyAddress(), anyAddress()]
  t.is(await login(service, username, password, home), 200)
  for (let i = 0; i < 10; i++) await login(service, username, 'errada-errada', elsewhere)
  t.is(await login(service, username, password, elsewhere), 429)
  const { obstacles, failures } = await admin.explainUser({ user: username, address: elsewhere })
  const [{ prevents, command, seconds = 0 } = { prevents: '' }, ...more] = obstacles
  t.deepEqual([prevents, command, more], ['sign in', `auth-admin users unlock ${id}`, []])
  t.true(seconds > 0 && seconds <= 900)
  t.like(failures[0], { scope: 'account', proof: 'password', count: 10, limit: 10, locked: true })

  for (let i = 0; i < 10; i++) await login(service, username, 'errada-errada', home)
  t.is(await login(service, username, password, home), 429)
  const locked = `sign in: Locked after 10 wrong passwords from this address. [auth-admin users unlock ${id}]`
  t.true((await why(username, home)).includes(locked))
  t.is((await admin.unlockUser({ user: username, address: home, validateOnly: true })).cleared, 3)
  t.is(await login(service, username, password, home), 429)
  t.is((await admin.unlockUser({ user: username, address: home })).cleared, 3)
  t.is((await admin.unlockUser({ user: username })).cleared, 0)
  // A process caches a lock for a moment.
  for (const address of [home, elsewhere]) await waitForValue(() => login(service, username, password, address), 200)
  t.deepEqual(await why(username, home), [])
  t.deepEqual(await wrongFieldsOf(admin.explainUser({ user: username, address: 'here' })), ['address'])
})

const recoveries = '/forgotpasswords/loginbyusernameand'
const update = async (user: { username: string }, token: string, newPassword: string) =>
  service.request('POST', '/forgotpasswords/passwordupdatebyusername', { token, query: { ...user, newPassword } })

/** How a user gets another password. */
const newPasswords: Record<string, (user: { username: string; email: string; token: string }, to: string) => unknown> =
  {
    'by a mailed key': async ({ username, email }, to) => {
      await service.request('POST', '/forgotpasswords/sendkeybyemail', { query: { username, email } })
      const [, key = ''] = /: ([2-9A-HJ-NP-Z]{8})\s/.exec((await mailbox.nextEmail(email)).text!)!
      const { text } = await service.request('POST', `${recoveries}key`, { query: { username, key } })
      await update({ username }, text, to)
    },
    'by answers': async ({ username }, to) => {
      const body = ['Rex', 'Assis'].map((answer, index) => ({ forgotpasswordquestionsid: index + 1, answer }))
      const { text } = await service.request('POST', `${recoveries}answers`, { query: { username }, body })
      await update({ username }, text, to)
    },
    'in a session that goes on': ({ username, token }, to) => update({ username }, token, to),
    'by an administrator': ({ username: user }, to) => admin.setPassword({ user, password: to }),
  }

for (const [how, set] of Object.entries(newPasswords)) {
  test(`a new password ${how} ends the locks of the former one, wherever it was wrong`, async t => {
    const { username, ...user } = await free()
    const [home, elsewhere] = [anyAddress(), anyAddress()]
    const { text: token } = await service.request('POST', '/users/login', {
      query: { username, password },
      headers: { 'x-forwarded-for': home },
    })
    if (how === 'by answers') await setAnswer(token, 1, 'Rex')
    for (const address of [home, elsewhere]) {
      for (let i = 0; i < 10; i++) await login(service, username, 'errada-errada', address)
      t.is(await login(service, username, password, address), 429)
    }
    const next = 'sete girafas bem altas'
    await set({ ...user, username, token }, next)
    for (const address of [home, elsewhere]) await waitForValue(() => login(service, username, next, address), 200)
    t.deepEqual(
      (await why(username, home)).filter(text => text.includes('Locked')),
      [],
    )
  })
}

test('a new password of an administrator ends the lock of its sign-in to Administration', async t => {
  const { username } = await anotherAdministrator(t, service, admin)
  const { signIn } = openAdministration(t, service)
  for (let i = 0; i < 10; i++) await reasonOf(signIn({ username, password: 'errada-errada' }))
  t.is(await reasonOf(signIn({ username, password })), 'TOO_MANY_ATTEMPTS')
  const next = 'sete girafas bem altas'
  await admin.setPassword({ user: username, password: next })
  await waitForValue(() => reasonOf(signIn({ username, password: next })), 'none')
})

interface Holding {
  readonly username: string
  /** What reaches the limit. */
  readonly fill: () => Promise<unknown>
  /** What the limit refuses: the status, or a wait for an e-mail. */
  readonly use: () => Promise<unknown>
}

const times = async (count: number, work: () => Promise<unknown>) => {
  for (let n = 0; n < count; n++) await work()
}
const statusOf = async (path: string, options: Parameters<TestService['request']>[2], method = 'POST') =>
  (await service.request(method, path, options)).status

/** Limits of a user, by what `users why` says of them. */
const limits: Record<string, () => Promise<Holding>> = {
  'activate: Locked after 10 wrong activation keys.': async () => {
    const { providerKey } = await service.institution(await service.organization())
    const { username, token } = await service.signUp('ROLE_CLIENT')
    const activate = (activationkey: string) =>
      statusOf('/users/activate', { token, query: { username, activationkey } })
    return { username, fill: () => times(10, () => activate(randomUUID())), use: () => activate(providerKey) }
  },
  'recover by e-mail: Locked after 5 wrong mailed keys from one address.': async () => {
    const { username, email } = await free()
    const enter = (key: string) =>
      statusOf(`${recoveries}key`, { query: { username, key }, headers: { 'x-forwarded-for': '192.0.2.77' } })
    await admin.sendRecoveryKey({ user: username })
    const [, key = ''] = /: ([2-9A-HJ-NP-Z]{8})\s/.exec((await mailbox.nextEmail(email)).text!)!
    return { username, fill: () => times(5, () => enter('22222222')), use: () => enter(key) }
  },
  'change the e-mail address: Locked after 5 wrong mailed codes from one address.': async () => {
    const { username, token } = await free()
    const email = `u${randomInt(1e9)}@example.org`
    await service.request('POST', '/users/setemail', { token, body: { email, password } })
    const [, code = ''] = /: ([2-9A-HJ-NP-Z]{8})\s/.exec((await mailbox.nextEmail(email)).text!)!
    const confirm = (code: string) => statusOf('/users/confirmemail', { token, body: { code } })
    return { username, fill: () => times(5, () => confirm('22222222')), use: () => confirm(code) }
  },
  'recover by answers: Locked after 10 wrong answers to security questions.': async () => {
    const { username } = await free()
    const answer = (...texts: string[]) =>
      statusOf(`${recoveries}answers`, {
        query: { username },
        headers: { 'x-forwarded-for': '192.0.2.77' },
        body: texts.map((answer, index) => ({ forgotpasswordquestionsid: index + 1, answer })),
      })
    await setAnswer(await service.login(username), 1, 'Rex')
    return { username, fill: () => times(10, () => answer('Totó', 'Alencar')), use: () => answer('Rex', 'Assis') }
  },
  'recover by e-mail: Its quota of recovery e-mails is used up.': async () => {
    const { username, email } = await free()
    const ask = async () => {
      await service.request('POST', '/forgotpasswords/sendkeybyemail', { query: { username, email } })
      return mailbox.nextEmail(email)
    }
    return { username, fill: ask, use: ask }
  },
  'recover by e-mail: The quota of e-mails to its address is used up.': async () => {
    const { username } = await free()
    const send = () => reasonOf(admin.sendRecoveryKey({ user: username }))
    return { username, fill: () => times(6, send), use: send }
  },
  'change the e-mail address: Its quota of codes for another e-mail address is used up.': async () => {
    const { username, token } = await free()
    const ask = () =>
      statusOf('/users/setemail', { token, body: { email: `u${randomInt(1e9)}@example.org`, password } })
    return { username, fill: ask, use: ask }
  },
  'activate: Its quota of activation keys by e-mail is used up.': async () => {
    const { email: emailpartner } = await service.organization({ email: `o${randomInt(1e9)}@example.org` })
    const { username, token } = await service.signUp('ROLE_INSTITUTION')
    const ask = () => statusOf('/1.0.0/users/sendadminkeybyemailpartner', { token, query: { username, emailpartner } })
    return { username, fill: () => times(10, ask), use: ask }
  },
  'activate: Its quota of addresses that no organization has is used up.': async () => {
    const { email } = await service.organization({ email: `o${randomInt(1e9)}@example.org` })
    const { username, token } = await service.signUp('ROLE_INSTITUTION')
    const ask = (emailpartner: string) =>
      statusOf('/1.0.0/users/sendadminkeybyemailpartner', { token, query: { username, emailpartner } })
    const wrong = () => ask(`x${randomInt(1e9)}@example.org`)
    return { username, fill: () => times(10, wrong), use: () => ask(email) }
  },
  'export its data: Its quota of exports is used up.': async () => {
    const { username, token } = await free()
    const take = () => statusOf('/users/me/export', { token }, 'GET')
    return { username, fill: () => times(5, take), use: take }
  },
}

for (const [says, hold] of Object.entries(limits)) {
  test(`${says}: why says so exactly while it holds, and unlock ends it`, async t => {
    const { username, fill, use } = await hold()
    const of = async () => (await why(username)).filter(text => text.startsWith(says))
    t.deepEqual(await of(), [])
    await fill()
    const [held = '', ...more] = await of()
    t.deepEqual([/\[auth-admin users unlock \d+\]$/.test(held), more], [true, []], held)
    const byMail = says.includes('recovery e-mails')
    if (!byMail) t.true(['TOO_MANY_ATTEMPTS', 429, 422].includes((await use()) as never))
    const { cleared } = await admin.unlockUser({ user: username })
    t.true(cleared > 0)
    t.deepEqual(await of(), [])
    // A process caches a refusal for a moment.
    if (byMail) t.truthy(await use())
    else await waitForValue(async () => ['none', 200].includes((await use()) as never), true)
  })
}

test('wrong mailed keys are no obstacle any more once the key has expired', async t => {
  const says = 'recover by e-mail: Locked after 5 wrong mailed keys from one address.'
  const { username, fill } = await limits[says]!()
  await fill()
  const [locked] = await why(username)
  t.true(locked?.startsWith(says), locked)
  const { id } = (await admin.getUser({ user: username })).user!.record!
  await ask(service.env.DATABASE_URL!, `UPDATE mailed_keys SET expires_at = now() WHERE user_id = ${id}`)
  t.deepEqual(await why(username), [])
})

test('a recovery key that was requested with another address is shown to administrators alone, in one event an hour', async t => {
  const [{ username, email, id }, other] = [await free(), await free()]
  const none = await service.signUp('ROLE_CLIENT')
  const ask = async (username: string, email: string) => {
    const answer = await service.request('POST', '/forgotpasswords/sendkeybyemail', { query: { username, email } })
    return [answer.status, answer.text]
  }
  const says = async (user: string) => (await why(user)).filter(text => text.includes('another address'))
  const others = [`x${email}`, email.replace('org', 'com'), 'a@b.example', other.email]
  for (const address of others) t.deepEqual(await ask(username, address), [200, ''], address)
  const said = 'recover by e-mail: A recovery key was requested with another address, 4 times in the last hour'
  await waitForValue(async () => says(username), [`${said}: none was sent. [auth-admin users send-key ${id}]`])
  await ask(none.username, email)
  await waitForValue(async () => (await says(none.username)).length, 1)
  const events = await service.registry.audit.list({ subjectId: id, action: 'recovery.send-key', limit: 9 })
  t.deepEqual(
    events.map(({ outcome, reason, actor }) => [outcome, reason, actor]),
    [['refused', 'OTHER_ADDRESS', 'anonymous']],
  )
  // The registered address in another spelling is none other.
  t.deepEqual(await ask(other.username, ` ${other.email.toUpperCase()} `), [200, ''])
  await mailbox.nextEmail(other.email)
  t.deepEqual(await says(other.username), [])
})

test('too many requests for recovery keys from an address are an obstacle, which unlock ends with the address', async t => {
  for (const of of [' for this user', '']) {
    const { username, email } = await free()
    const address = anyAddress()
    const headers = { 'x-forwarded-for': address }
    const ask = (name = username) =>
      statusOf('/forgotpasswords/sendkeybyemail', { query: { username: name, email }, headers })
    if (of === '') {
      const bind = { subject: service.registry.counterKeys.address('recoveryRequests', address) }
      const full = 'INSERT INTO buckets VALUES ($subject, 599, clock_timestamp())'
      await service.registry.database.sequelize.query(full, { bind })
      t.is(await ask('ninguém'), 200)
    } else await times(60, ask)
    t.is(await ask(), 429)
    const says = `recover by e-mail: Too many recovery e-mails were requested${of} from this address.`
    const held = async () => (await why(username, address)).filter(text => text.startsWith(says)).length
    t.is(await held(), 1)
    await admin.unlockUser({ user: username, address })
    t.is(await held(), 0)
    await waitForValue(ask, 200)
  }
})

test('a blocked address is an obstacle for users to whom it isn’t known', async t => {
  const { username, id } = await free()
  const [full, known] = [anyAddress(), anyAddress()]
  t.is(await login(service, username, password, known), 200)
  for (const address of [full, known]) {
    await service.registry.database.sequelize.query('INSERT INTO buckets VALUES ($subject, 900, clock_timestamp())', {
      bind: { subject: service.registry.counterKeys.address('failures', address) },
    })
  }
  t.is(await login(service, username, password, full), 429)
  t.true((await why(username, full)).every(text => text.endsWith(`[auth-admin users unlock ${id} --address ${full}]`)))
  t.is((await why(username, full)).length, 4)
  t.is(await login(service, username, password, known), 200)
  t.deepEqual(await why(username, known), [])
  // The end of the block is seen within a moment, although the block has been confirmed.
  t.is(await login(service, username, password, full), 429)
  await admin.unlockUser({ user: username, address: full })
  await waitForValue(() => login(service, username, password, full), 200)
})

test('the obstacles to activation are listed for each role', async t => {
  const own = await startTestService(t, settings())
  const chief = await openSignedIn(t, own)
  const activations = async (user: string) =>
    (await why(user, '', chief)).filter(text => text.startsWith('activate')).map(text => text.slice(10))

  const client = await own.signUp('ROLE_CLIENT')
  const id = idOf(client.token)
  const organization = `auth-admin users activate ${id} --organization ORGANIZATION`
  t.deepEqual(await activations(client.username), [
    `It isn’t active, so services may refuse it: no organization has an active ROLE_INSTITUTION user whose key it could use. [${organization}]`,
  ])
  const school = await own.organization()
  const provider = await own.institution(school)
  t.deepEqual(await activations(client.username), [
    `It isn’t active, so services may refuse it: it needs the key of an active ROLE_INSTITUTION user. [${organization}]`,
  ])
  t.deepEqual(await activations(provider.username), [])
  await chief.deactivateOrganization({ organization: `#${school.id}` })
  t.deepEqual(await activations(provider.username), [`Its organization is inactive: its keys don’t work. []`])
  await chief.setOrganization({ user: provider.username })
  t.deepEqual(await activations(provider.username), [
    `It belongs to no organization: its provider key doesn’t work. [auth-admin users move ${idOf(provider.token)} --organization ORGANIZATION]`,
  ])
  const candidate = await own.signUp('ROLE_ADMIN')
  t.deepEqual(await activations(candidate.username), [
    `A ROLE_ADMIN can’t activate itself: another administrator does. [auth-admin users activate ${idOf(candidate.token)}]`,
  ])
  await chief.activateUser({ user: client.username })
  t.deepEqual(await activations(client.username), [])
})

test('the obstacles to recovery by e-mail are listed: no address, failed e-mails, too many keys', async t => {
  const own = await serviceWithClock(t, settings())
  const chief = await openLocal(t, own)
  const { username, id, email } = await free(own)
  const byEmail = async () => (await why(username, '', chief)).filter(text => text.startsWith('recover by e-mail'))
  await own.request('POST', '/forgotpasswords/sendkeybyemail', { query: { username, email } })
  await mailbox.nextEmail(email)
  const quota = `recover by e-mail: Its quota of recovery e-mails is used up. [auth-admin users unlock ${id}`
  const [used, ...more] = await byEmail()
  t.true(used?.startsWith(quota), used)
  t.deepEqual(more, [])
  const { obstacles } = await chief.explainUser({ user: username })
  t.true(obstacles[0]!.seconds! > 0 && obstacles[0]!.seconds! <= 60)

  await own.registry.database.sequelize.query(
    `INSERT INTO emails (kind, parameters, locale, next_attempt_at, last_error, attempts)
     VALUES ('recovery-key', '{"userId": ${id}, "to": "x"}', 'en', NULL, 'mailbox unavailable', 9)`,
  )
  const [failed] = (await byEmail()).sort()
  t.regex(failed!, /1 e-mails to it failed permanently: mailbox unavailable\. \[auth-admin mail retry \d+\]/)
  await chief.updateUser({ user: username, form: {}, updateMask: { paths: ['email'] } })
  const none = `recover by e-mail: It has no e-mail address. [auth-admin users edit ${id} --email ADDRESS`
  t.true((await byEmail()).some(text => text.startsWith(none)))
})

test('the obstacles to recovery by answers are listed: too few that count, when more will count, retired questions', async t => {
  const own = await serviceWithClock(t, settings())
  const chief = await openLocal(t, own)
  const byAnswers = async ({ username }: SignedUp) => {
    const { obstacles } = await chief.explainUser({ user: username })
    return obstacles
      .filter(({ prevents }) => prevents === 'recover by answers')
      .map(({ reason, command, seconds }) => [reason, command, seconds])
  }
  const saved = ': the user saves them when signed in.'
  const late = await own.signUp('ROLE_CLIENT')
  t.deepEqual(await byAnswers(late), [[`0 of 2 required answers count${saved}`, '', undefined]])
  await own.clock.pass(25 * 3600)
  const session = await own.login(late.username)
  await setAnswer(session, 1, 'Rex', own)
  t.deepEqual(await byAnswers(late), [[`0 of 2 required answers count, 1 more later${saved}`, '', undefined]])
  await own.clock.pass(1800)
  await setAnswer(session, 2, 'Assis', own)
  // When the second one counts.
  t.deepEqual(await byAnswers(late), [[`0 of 2 required answers count, 2 more later${saved}`, '', 24 * 3600]])

  const user = await own.signUp('ROLE_CLIENT', { securityquestion: '1', securityanswer: 'Rex' })
  t.deepEqual(await byAnswers(user), [[`1 of 2 required answers count${saved}`, '', undefined]])
  // Answers saved long after sign-up count after a day.
  await own.clock.pass(25 * 3600)
  await setAnswer(await own.login(user.username), 2, 'Assis', own)
  await own.clock.pass(3600)
  t.deepEqual(await byAnswers(user), [[`1 of 2 required answers count, 1 more later${saved}`, '', 23 * 3600]])
  await own.clock.pass(23 * 3600)
  t.deepEqual(await byAnswers(user), [])
  await own.registry.questions.setActive(2, false)
  const [[reason, offer]] = (await byAnswers(user)) as [[string, string]]
  t.regex(reason, /^Fewer than 2 of its questions are offered: “.+” is retired\.$/)
  t.is(offer, 'auth-admin questions offer 2')
})

test('a missing password is an obstacle, and so is the limited access of an administrator’s session by answers', async t => {
  const username = `sem senha ${randomInt(1e9)}`
  const form = { username, role: 'ROLE_CLIENT', state: 'SP', city: 'X', email: 'sem.senha@example.org' }
  const { user } = await admin.createUser({ form })
  const missing = `sign in: It has no password: none was set yet, or the first key mailed to its address ended it. [auth-admin users send-key ${user!.record!.id}]`
  t.true((await why(username)).includes(missing))
  const limited = 'A ROLE_ADMIN that signs in by answers can only read its own record.'
  t.true((await why('admin')).some(text => text.includes(limited)))
})

test('setting a password applies the rules of sign-up, and notifies the owner, also of one set on the database itself', async t => {
  const { username, email, id } = await free()
  const set = (password: string) => admin.setPassword({ user: username, password })
  for (const bad of ['', 'curta', username, 'password1', 'x'.repeat(257)]) {
    t.is(await reasonOf(set(bad)), 'INVALID_PASSWORD', bad)
    t.deepEqual(await wrongFieldsOf(set(bad)), ['password'], bad)
  }
  t.is(await reasonOf(admin.setPassword({ user: username })), 'INVALID_ARGUMENT')
  const secret = 'sete girafas bem altas'
  await admin.setPassword({ user: username, password: secret, validateOnly: true })
  t.is(await login(service, username, password), 200)
  await set(secret)
  t.is(await login(service, username, secret), 200)
  const { subject, text } = await mailbox.nextEmail(email)
  t.regex(subject!, /senha foi alterada/)
  t.notRegex(text!, /girafas/)
  const local = await openLocal(t, service, { reason: 'esquecida' })
  await local.setPassword({ user: username, password })
  t.true((await mailbox.nextEmail(email)).text!.includes('auth-admin'))
  const [, event] = await service.registry.audit.list({ subjectId: id, action: 'user.set-password', limit: 2 })
  t.like(event, { actor: 'cli:tester@here', reason: 'esquecida' })
})

test('clearing answers removes those of questions and that of the sign-up, and notifies the owner', async t => {
  const email = `u${randomInt(1e9)}@example.org`
  const question = `Nome da sua pipa ${randomInt(1e9)}?`
  const fields = { email, securityquestion: question, securityanswer: 'azul' }
  const { username: user, token } = await service.signUp('ROLE_CLIENT', fields)
  for (const id of [1, 2]) {
    await setAnswer(token, id, 'azul')
    await mailbox.nextEmail(email)
  }
  t.is((await admin.clearAnswers({ user, validateOnly: true })).cleared, 3)
  const { cleared, user: shown } = await admin.clearAnswers({ user })
  t.deepEqual([cleared, shown?.record?.username], [3, user])
  const { subject, text } = await mailbox.nextEmail(email)
  t.regex(subject!, /foram removidas/)
  t.true(text!.includes(user), text)
  t.is(await reasonOf(admin.linkQuestion({ question: '1', text: question })), 'RECORD_NOT_FOUND')
  t.is((await admin.clearAnswers({ user })).cleared, 0)
  const of = { subjectId: idOf(token), action: 'user.clear-answers', limit: 9 }
  t.is((await service.registry.audit.list(of)).length, 1)
})

test('an answer that a link moves while answers are cleared is cleared, too', async t => {
  const { database, answers, unmatchedAnswers } = service.registry
  const text = `Pipa ${randomInt(1e9)}?`
  const { token } = await service.signUp('ROLE_CLIENT', { securityquestion: text, securityanswer: 'azul' })
  const id = idOf(token)
  let clearing: Promise<{ cleared: number }> | undefined
  await database.transact(async transaction => {
    t.is((await unmatchedAnswers.link(text.toLowerCase(), 3, transaction)).added, 1)
    clearing = admin.clearAnswers({ user: `#${id}` })
    await endsOrWaits(database, clearing)
  })
  t.is((await clearing)?.cleared, 1)
  t.deepEqual(await answers.of(id), [])
})

test('a recovery key is sent to the registered address, in the language of the service, and signs in', async t => {
  const { username, email } = await free()
  t.is((await admin.sendRecoveryKey({ user: username, validateOnly: true })).email, email)
  t.is((await admin.sendRecoveryKey({ user: username })).email, email)
  const { subject, text } = await mailbox.nextEmail(email)
  t.is(subject, 'Sua chave para recuperar o acesso')
  const [, key = ''] = /: ([2-9A-HJ-NP-Z]{8})\s/.exec(text!)!
  const query = { username, key }
  t.is((await service.request('POST', '/forgotpasswords/loginbyusernameandkey', { query })).status, 200)
  const english = await startTestService(t, { ...settings(), AUTH_MAIL_LOCALE: 'en' })
  const other = await english.signUp('ROLE_CLIENT', { email: 'chave.en@example.org' })
  await (await openSignedIn(t, english)).sendRecoveryKey({ user: other.username })
  t.is((await mailbox.nextEmail('chave.en@example.org')).subject, 'Your key to regain access')
})

test('no key is sent to a user who has no address, is suspended, or has reached the limit of a recipient', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const send = (user: string) => reasonOf(admin.sendRecoveryKey({ user }))
  t.is(await send(username), 'WRONG_STATE')
  const user = await free()
  const outcomes = []
  for (let i = 0; i < 6; i++) outcomes.push(await send(user.username))
  t.deepEqual(outcomes, ['none', 'none', 'none', 'none', 'none', 'TOO_MANY_ATTEMPTS'])
  const suspended = await free()
  await admin.suspendUser({ user: suspended.username })
  t.is(await send(suspended.username), 'WRONG_STATE')
})

test('lists filter by role, state, organization, time and words, and page tokens are bound to the filter', async t => {
  const own = await startTestService(t, settings())
  const chief = await openSignedIn(t, own)
  const school = await own.organization({ name: 'Escola Única' })
  const head = await own.institution(school)
  const clients = []
  for (let n = 0; n < 5; n++) {
    const nickname = `Múltipla palavra${n}x Ação ${randomInt(1e9)}`
    clients.push(await own.signUp('ROLE_CLIENT', { city: 'Mogi das Crüzes', nickname }))
  }
  const list = async (request: Parameters<typeof chief.listUsers>[0]) =>
    (await chief.listUsers(request)).users.map(({ record }) => record!.username)
  const names = clients.map(({ username }) => username)
  t.deepEqual(await list({ role: 'ROLE_INSTITUTION' }), [head.username])
  t.deepEqual(await list({ organization: 'escola única', state: UserState.ACTIVE }), [head.username])
  t.deepEqual(await list({ state: UserState.INACTIVE }), names)
  for (const text of ['mogi CRUZ', 'multipla acao', 'mogi das cruzes']) t.deepEqual(await list({ text }), names, text)
  const { username } = clients[4]!
  await chief.updateUser({ user: username, form: { email: 'Filtro@example.org' }, updateMask: { paths: ['email'] } })
  for (const text of ['FILTRO@', username, username.replace(/\D/g, '').slice(2, 7)])
    t.true((await list({ text })).includes(username), text)
  for (const text of ['ogi', '%']) t.deepEqual(await list({ text }), [])
  t.deepEqual(await list({ text: 'multipla palavra3' }), [names[3]])
  await chief.suspendUser({ user: names[1]! })
  t.deepEqual(await list({ state: UserState.SUSPENDED }), [names[1]])
  t.deepEqual(await list({ state: UserState.INACTIVE, text: 'mogi' }), names.toSpliced(1, 1))
  const { createTime } = (await chief.getUser({ user: names[2]! })).user!
  const before = await list({ createTimeTo: createTime!, role: 'ROLE_CLIENT' })
  t.deepEqual([...before, ...(await list({ createTimeFrom: createTime!, role: 'ROLE_CLIENT' }))], names)

  const filter = { text: 'mogi', pageSize: 2 }
  const pages = await allPages(
    pageToken => chief.listUsers({ ...filter, pageToken }),
    page => page.users.map(({ record }) => record!),
  )
  t.deepEqual([pages.map(each => each.username), pages.some(each => each.providerActivationKey)], [names, false])
  const { nextPageToken: pageToken } = await chief.listUsers(filter)
  t.is(await reasonOf(chief.listUsers({ text: 'das', pageToken })), 'INVALID_ARGUMENT')
})

test('an unknown name or id is reported as an unknown user', async t => {
  for (const user of ['ninguém', '#999999', '999999']) {
    t.is(await reasonOf(admin.explainUser({ user })), 'USER_NOT_FOUND', user)
    t.is(await reasonOf(admin.suspendUser({ user })), 'USER_NOT_FOUND', user)
  }
  t.is(await reasonOf(admin.getUser({ user: ' ' })), 'INVALID_ARGUMENT')
  const { username } = await service.signUp('ROLE_CLIENT')
  t.is((await admin.getUser({ user: username.replace(/\D/g, '') })).user!.record!.username, username)
})

// The list of locked users: exactly those who are locked now, with the failures.

test('users locked by failures are listed with the cause until they are unlocked', async t => {
  // 3 failures lock.
  const service = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0', AUTH_LIMIT_FACTOR: '0.3' })
  const api = await openSignedIn(t, service)
  const fail = async (username: string, times: number, address = anyAddress()) => {
    for (let failure = 0; failure < times; failure++) await login(service, username, 'wrong', address)
  }
  const [ana, bia, clara, dora, eva] = [
    await service.signUp('ROLE_CLIENT'),
    await service.signUp('ROLE_CLIENT'),
    await service.signUp('ROLE_CLIENT'),
    await service.signUp('ROLE_CLIENT'),
    await service.signUp('ROLE_CLIENT'),
  ]
  t.deepEqual((await api.listLockouts({})).lockouts, [])
  await fail(ana.username, 3)
  await fail(bia.username, 2)
  await fail('ninguém', 3)
  // Locked only at the known address.
  const home = anyAddress()
  t.is(await login(service, clara.username, password, home), 200)
  await fail(clara.username, 3, home)
  await fail(dora.username, 3)
  await api.deleteUser({ user: dora.username })
  const query = { username: eva.username, activationkey: randomUUID() }
  for (let n = 0; n < 3; n++) await service.request('POST', '/users/activate', { token: eva.token, query })

  const locks = (pageSize = 0) =>
    allPages(
      pageToken => api.listLockouts({ pageSize, pageToken }),
      ({ lockouts }) =>
        lockouts.map(({ username, failures: [{ proof, scope, count, limit, locked } = {}] }) =>
          [username, proof, scope, count, limit, locked].join(' '),
        ),
    )
  const all = [
    `${ana.username} password account 3 3 true`,
    `${clara.username} password other known 3 3 true`,
    `${eva.username} activation key account 3 3 true`,
  ]
  t.deepEqual([await locks(), await locks(1)], [all, all])
  const [first] = (await api.listLockouts({})).lockouts
  t.is(first!.user, idOf(ana.token))
  const { seconds } = first!.failures[0]!
  t.true(seconds > 800 && seconds <= 900, String(seconds))
  await api.unlockUser({ user: ana.username })
  t.deepEqual(await locks(), all.slice(1))
  await ask(service.env.DATABASE_URL!, `UPDATE attempts SET window_ends = now() - interval '1 second'`)
  t.deepEqual(await locks(), [])
})

test('an administrator with locked one-time codes is listed until it is unlocked', async t => {
  const service = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const api = await openSignedIn(t, service)
  const { username, id, api: own } = await anotherAdministrator(t, service, api)
  const totp = new TOTP({ secret: (await own.enrollTotp({})).secret })
  await own.confirmTotp({ code: totp.generate().replace(/.../, '$&-') })
  await ask(
    service.env.DATABASE_URL!,
    `UPDATE totp_secrets SET failures = 10, day_failures = 10, day_ends = now() + interval '1 day', locked_at = now() - interval '2 days'`,
  )
  const [lockout, ...others] = (await api.listLockouts({})).lockouts
  t.like(lockout, { user: id, failures: { length: 1, 0: { proof: 'one-time code', seconds: 0 } } })
  t.deepEqual(others, [])
  await api.unlockUser({ user: username })
  t.deepEqual((await api.listLockouts({})).lockouts, [])
  // Neither count goes on.
  const codes = (await api.explainUser({ user: username })).failures.filter(({ proof }) => proof === 'one-time code')
  t.deepEqual(
    codes.map(({ count }) => count),
    [0, 0],
  )
})

test('of a user the e-mails of the last 7 days are listed with the answer of the mail server, and the last one shows', async t => {
  const own = await serviceWithClock(t, settings())
  const chief = await openLocal(t, own)
  const email = `u${randomInt(1e9)}@example.org`
  const { username, token } = await own.signUp('ROLE_CLIENT', { email })
  t.is((await chief.explainUser({ user: username })).lastEmail, undefined)
  await own.request('POST', '/forgotpasswords/sendkeybyemail', { query: { username, email } })
  const { text = '' } = await mailbox.nextEmail(email)
  const list = async (more: object = {}) => (await chief.listEmails({ user: username, ...more })).emails
  await waitForValue(async () => (await list()).map(({ state }) => state), [EmailState.SENT])
  const [sent] = await list()
  t.like(sent, { kind: 'recovery-key', user: idOf(token), attempts: 1, error: undefined, dueTime: undefined })
  t.regex(sent!.answer!, /^250 /)
  t.truthy(sent!.sendTime)
  t.false(text.includes(sent!.answer!))
  t.deepEqual((await chief.explainUser({ user: username })).lastEmail, sent)
  t.deepEqual(await list({ failed: true }), [])

  // A later one that failed, and one of another user.
  const parameters = JSON.stringify({ userId: idOf(token) })
  await ask(
    own.env.DATABASE_URL!,
    `INSERT INTO emails (kind, parameters, locale, next_attempt_at, last_error) VALUES
      ('password-changed', '${parameters}', 'en', NULL, 'EENVELOPE 550 RCPT TO'), ('password-changed', '{"userId": 1}', 'en', NULL, '')`,
  )
  t.deepEqual(
    (await list()).map(({ state, error }) => [state, error]),
    [
      [EmailState.SENT, undefined],
      [EmailState.FAILED, 'EENVELOPE 550 RCPT TO'],
    ],
  )
  t.is((await chief.explainUser({ user: username })).lastEmail!.state, EmailState.FAILED)
  const { emails, nextPageToken: pageToken } = await chief.listEmails({ user: username, pageSize: 1 })
  t.is(emails.length, 1)
  t.like(await list({ pageSize: 1, pageToken }), { length: 1, 0: { state: EmailState.FAILED } })

  await own.clock.pass(7 * 86_400 - 60)
  await own.registry.emails.prune()
  t.is((await list()).length, 2)
  await own.clock.pass(120)
  await own.registry.emails.prune()
  t.deepEqual(await list(), [])
})

test('what last ended the sessions of a user shows, with its time', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const end = async () => (await admin.explainUser({ user: username })).sessionEnd
  t.is(await end(), undefined)
  await service.request('POST', '/users/revokemytokens', { token })
  t.like(await end(), { action: 'user.revoke-own-tokens', reason: 'The user logged out everywhere.' })
  await admin.setPassword({ user: username, password })
  // An event that ends none.
  await service.login(username)
  const last = await end()
  t.like(last, { action: 'user.set-password', reason: 'An administrator set a password.' })
  t.true(Math.abs(Number(last!.time!.seconds) - Date.now() / 1000) < 60)
})

test('activation of a suspended user is refused with its suspension, whether it was active or not', async t => {
  const [active, waiting] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  await admin.activateUser({ user: active.username })
  t.false((await admin.activateUser({ user: active.username })).changed)
  for (const { username } of [active, waiting]) {
    await admin.suspendUser({ user: username })
    const refusal = await t.throwsAsync(admin.activateUser({ user: username }))
    t.true(refusal.message.includes('The user is suspended.'), refusal.message)
  }
})

test('the reason that an administrator gives on a server is in the event, if it is a line of text', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const reasonFor = async (header: string) => {
    await admin.revokeTokens({ user: username }, { headers: { 'x-reason': header } })
    const { events } = await admin.listAuditEvents({ user: `#${idOf(token)}`, action: 'user.revoke-tokens' })
    return events[0]!.reason
  }
  t.is(await reasonFor(encodeURIComponent('suspeita de furto, chamado 8')), 'suspeita de furto, chamado 8')
  for (const header of ['%', '%0A', encodeURIComponent('x'.repeat(256)), ' '])
    t.is(await reasonFor(header), undefined, header)
})

test('a former address is sent no telephone number', async t => {
  const [former, email] = [`gmial${randomInt(1e9)}@example.org`, `gmail${randomInt(1e9)}@example.org`]
  const digits = `11 9${randomInt(1e7, 1e8 - 1)}`
  const { username } = await service.signUp('ROLE_CLIENT', { username: digits, email: former })
  await admin.updateUser({ user: username, form: { email }, updateMask: { paths: ['email'] } })
  const { text = '' } = await mailbox.nextEmail(former)
  t.regex(text, new RegExp(`usuário ·${digits.slice(-2)} `))
  t.false(text.replace(/\D/g, '').includes(digits.slice(4, -2)))
})
