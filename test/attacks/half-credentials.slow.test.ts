/**
 * Incomplete credentials of an administrator: a password without the code, an old session, one from before codes were
 * enrolled, one that ends while its change is in progress, or a call that was canceled.
 */
import { randomUUID } from 'node:crypto'
import type { DescMethodUnary } from '@bufbuild/protobuf'
import type { ClientUnaryCall } from '@grpc/grpc-js'
import test, { type ExecutionContext } from 'ava'
import { TOTP } from 'otpauth'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { formatAddress } from '../../server/process/settings.js'
import {
  type AdministrationClient,
  openAdministration,
  openSignedIn,
  reasonOf,
  signedInForFile,
} from '../_helpers/administration.js'
import { contents } from '../_helpers/backups.js'
import { ask, hold } from '../_helpers/database.js'
import { type GrpcClient, openGrpc, refusalOf } from '../_helpers/grpc.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { changeTokens, endsOrWaits, lockWaiters } from '../_helpers/models.js'
import { password, serviceForFile, startTestService, type TestService } from '../_helpers/service.js'
import { claimsOf, forge, idOf, nowInSeconds } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

const mailbox = mailboxForFile()
const settings = () => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url, AUTH_LIMIT_FACTOR: '1000' })
const service = serviceForFile(settings)
const api = signedInForFile(service)
const another = 'tartaruga de couro 7'

/** A new active ROLE_ADMIN with a recovery address. */
async function administrator(by: AdministrationClient = api) {
  const username = randomUUID()
  const email = `${username}@example.org`
  const form = { username, role: 'ROLE_ADMIN', state: 'SP', city: 'Bauru', password, email }
  const { user } = await by.createUser({ form, active: true, confirm: username })
  return { username, email, id: user!.record!.id! }
}

/** A session of Administration. */
async function session(t: ExecutionContext, username: string, at: TestService = service): Promise<string> {
  return (await openAdministration(t, at).signIn({ username, password })).token
}

/** Enrols one-time codes with a session, which ends it. */
async function enroll(t: ExecutionContext, token: string): Promise<void> {
  const open = openAdministration(t, service, token)
  const { secret } = await open.enrollTotp({})
  await open.confirmTotp({ code: new TOTP({ secret }).generate() })
}

function openPublic(t: ExecutionContext, at: TestService = service): GrpcClient {
  const client = openGrpc(at.grpc)
  t.teardown(async () => client.close())
  return client
}

/** The reason of a refusal over a bare client; `none` when there is none. */
const reason = (call: Promise<unknown>): Promise<string> =>
  call.then(
    () => 'none',
    error => refusalOf(error).info?.reason ?? String(error),
  )

const questions = async (): Promise<number[]> => {
  const list = await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')
  return list.json.map(({ id }: { id: number }) => id)
}

/** Saves answers to two questions. */
async function saveAnswers(token: string): Promise<{ forgotpasswordquestionsid: number; answer: string }[]> {
  const all = (await questions()).slice(0, 2).map(id => ({ forgotpasswordquestionsid: id, answer: 'azul' }))
  for (const body of all) {
    const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
    const { status, text } = await service.request('POST', path, { token, body })
    if (status !== 200) throw new Error(text)
  }
  return all
}

const answersOf = (id: number) => ask(service.env.DATABASE_URL!, `SELECT * FROM answers WHERE user_id = ${id}`)

test('a password without its code permits only reading the own record, refresh and logout at the public endpoints', async t => {
  const { username, id } = await administrator()
  await enroll(t, await session(t, username))
  t.is(await reasonOf(openAdministration(t, service).signIn({ username, password })), 'CODE_NEEDED')
  const client = openPublic(t)
  const token = await service.login(username)
  const other = await service.signUp('ROLE_CLIENT')
  const [question] = await questions()
  const answer = { forgotpasswordquestionsid: question!, answer: 'azul' }
  const calls: Record<string, [rpc: DescMethodUnary, request: Record<string, unknown>, opens: boolean]> = {
    'its record': [Users.method.getMe, {}, true],
    'its record by name': [Users.method.getUser, { username }, true],
    'a refresh': [Users.method.refresh, {}, true],
    'another record': [Users.method.getUser, { username: other.username }, false],
    'its e-mail address': [Users.method.setEmail, { email: 'x@example.org', password }, false],
    'its deletion': [Users.method.deleteMe, { password }, false],
    'its export': [Users.method.exportMe, {}, false],
    'its events': [Users.method.listMyEvents, {}, false],
    'its profile': [Users.method.updateMe, { record: { city: 'Bauru' } }, false],
    'its username': [Users.method.setUsername, { username: randomUUID(), password }, false],
    'a code of an address': [Users.method.confirmEmail, { code: 'ABCDEFGH' }, false],
    'an activation': [Users.method.activate, { username: other.username, activationkey: randomUUID() }, false],
    'its password': [ForgotPasswords.method.passwordUpdateByUsername, { newPassword: another }, false],
    'another password': [
      ForgotPasswords.method.passwordUpdateByUsername,
      { username: other.username, newPassword: another },
      false,
    ],
    'its answers': [ForgotPasswords.method.saveForgotPasswordQuestionsUsersAnswers, { answer }, false],
    'other answers': [
      ForgotPasswords.method.saveForgotPasswordQuestionsUsersAnswers,
      { answer: { ...answer, usersid: idOf(other.token) } },
      false,
    ],
  }
  for (const [what, [rpc, request, opens]] of Object.entries(calls)) {
    t.is(await reason(client.call(rpc, request, { token })), opens ? 'none' : 'ACCESS_DENIED', what)
  }
  // A refreshed token gives no further access.
  const refreshed = (await client.call(Users.method.refresh, {}, { token })).token
  const update = client.call(
    ForgotPasswords.method.passwordUpdateByUsername,
    { newPassword: another },
    { token: refreshed },
  )
  t.is(await reason(update), 'ACCESS_DENIED')
  t.deepEqual(await answersOf(id), [])
  t.truthy(await service.login(other.username))
  t.is(await reason(client.call(Users.method.revokeMyTokens, {}, { token })), 'none')
  t.is(await reason(client.call(Users.method.getMe, {}, { token })), 'INVALID_TOKEN')
})

test('a session at the public endpoints can’t set the password or the answers of another administrator', async t => {
  const [byPassword, byKey, byAnswers, enrolled] = [
    await administrator(),
    await administrator(),
    await administrator(),
    await administrator(),
  ]
  await enroll(t, await session(t, enrolled.username))
  const given = await saveAnswers(await service.login(byAnswers.username))
  const mailKey = { username: byKey.username, email: byKey.email }
  t.is((await service.request('POST', '/forgotpasswords/sendkeybyemail', { query: mailKey })).status, 200)
  // The notices about its account arrived before.
  let key: string | undefined
  while (!key) key = /: ([2-9A-HJ-NP-Z]{8})\n/.exec((await mailbox.nextEmail(byKey.email)).text ?? '')?.[1]
  const answered = { query: { username: byAnswers.username }, body: given }
  const keyed = { query: { username: byKey.username, key } }
  const tokens: Record<string, [token: string, method: string]> = {
    'by password': [await service.login(byPassword.username), 'pwd'],
    'by password, with codes': [await service.login(enrolled.username), 'pwd'],
    'by key': [(await service.request('POST', '/forgotpasswords/loginbyusernameandkey', keyed)).text, 'otp'],
    'by answers': [(await service.request('POST', '/forgotpasswords/loginbyusernameandanswers', answered)).text, 'kba'],
  }
  const victim = await administrator()
  const client = openPublic(t)
  for (const [how, [token, method]] of Object.entries(tokens)) {
    t.deepEqual(claimsOf(token).amr, [method], how)
    const { username } = victim
    const newPassword = another
    const update = client.call(ForgotPasswords.method.passwordUpdateByUsername, { username, newPassword }, { token })
    t.is(await reason(update), 'ACCESS_DENIED', how)
    const answer = { ...given[0]!, usersid: victim.id }
    const save = client.call(ForgotPasswords.method.saveForgotPasswordQuestionsUsersAnswers, { answer }, { token })
    t.is(await reason(save), 'ACCESS_DENIED', how)
  }
  t.truthy(await service.login(victim.username))
  t.deepEqual(await answersOf(victim.id), [])
})

test('a stolen session of Administration that is older than 15 minutes can’t open another way in or do anything irreversible', async t => {
  const own = await startTestService(t, settings())
  const recent = await openSignedIn(t, own)
  const admin = { username: 'admin', id: 1 }
  const [ana, gone, deleted] = [await administrator(recent), await administrator(recent), await administrator(recent)]
  await recent.suspendUser({ user: gone.username })
  await recent.deleteUser({ user: deleted.username })
  const waiting = await own.signUp('ROLE_ADMIN')
  const client = await own.signUp('ROLE_CLIENT')
  const made = await recent.createService({ name: 'alertas', scopes: [1] })
  const { keys } = await recent.listSigningKeys({})
  const { secret } = await recent.enrollTotp({})
  const organization = await own.organization({ name: 'Defesa Civil' })
  const genuine = await session(t, 'admin', own)
  const then = nowInSeconds() - 15 * 60 - 5
  const token = await forge(own, genuine, { auth_time: then, iat: then, exp: then + 12 * 3600 })
  const stolen = openAdministration(t, own, token)
  const email = { form: { email: 'thief@example.org' }, updateMask: { paths: ['email'] } }
  const form = { username: 'thief', role: 'ROLE_ADMIN', state: 'SP', city: 'Bauru', password }
  const calls: Record<string, () => Promise<unknown>> = {
    'enroll codes': () => stolen.enrollTotp({}),
    'confirm codes': () => stolen.confirmTotp({ code: new TOTP({ secret }).generate() }),
    'remove codes': () => stolen.removeTotp({ user: ana.username, confirm: ana.username }),
    'set its own password': () => stolen.setPassword({ user: admin.username, password: another }),
    'set another password': () => stolen.setPassword({ user: ana.username, password: another }),
    'change its own e-mail': () => stolen.updateUser({ user: admin.username, ...email }),
    'change another e-mail': () => stolen.updateUser({ user: ana.username, ...email }),
    'mail itself a key': () => stolen.sendRecoveryKey({ user: admin.username }),
    'mail another a key': () => stolen.sendRecoveryKey({ user: ana.username }),
    'unlock another': () => stolen.unlockUser({ user: ana.username }),
    resume: () => stolen.resumeUser({ user: gone.username }),
    undelete: () => stolen.undeleteUser({ user: deleted.username }),
    activate: () => stolen.activateUser({ user: waiting.username, confirm: waiting.username }),
    promote: () => stolen.setRole({ user: client.username, role: 'ROLE_ADMIN', confirm: client.username }),
    create: () => stolen.createUser({ form, active: true, confirm: 'thief' }),
    demote: () => stolen.setRole({ user: ana.username, role: 'ROLE_CLIENT', confirm: ana.username }),
    suspend: () => stolen.suspendUser({ user: ana.username }),
    delete: () => stolen.deleteUser({ user: ana.username }),
    erase: () => stolen.eraseUser({ user: client.username, confirm: client.username }),
    'delete an organization': () =>
      stolen.deleteOrganization({ organization: `#${organization.id}`, confirm: 'Defesa Civil' }),
    'create a service': () => stolen.createService({ name: 'thief', scopes: [1] }),
    'create a key': () => stolen.createServiceKey({ name: 'alertas' }),
    'delete a key': () => stolen.deleteServiceKey({ name: 'alertas', id: made.service!.keys[0]!.id }),
    'delete a service': () => stolen.deleteService({ name: 'alertas', confirm: 'alertas' }),
    'rotate keys': () => stolen.rotateSigningKey({ now: true }),
    'retire a key': () => stolen.retireSigningKey({ kid: keys[0]!.kid, confirm: keys[0]!.kid }),
    'set the issuer': () => stolen.setIssuer({ issuer: 'http://thief.test', confirm: 'http://thief.test' }),
  }
  // Background work of the process isn't a change: sealing of events, and a heartbeat every 10 seconds.
  const sealed = async () => {
    await waitForValue(async () => (await own.registry.audit.backlog()).staged, 0)
    const { processes, ...tables } = await contents(own.env.DATABASE_URL!)
    t.truthy(processes)
    return tables
  }
  await waitForValue(async () => (await recent.listEmails({})).emails.length, 0)
  const before = await sealed()
  for (const [what, call] of Object.entries(calls)) t.is(await reasonOf(call()), 'SIGN_IN_AGAIN', what)
  t.deepEqual(await sealed(), before)

  const edit = { form: { city: 'Marília' }, updateMask: { paths: ['city'] } }
  t.is((await stolen.updateUser({ user: client.username, ...edit })).user!.record!.city, 'Marília')
  t.is(await reasonOf(stolen.setPassword({ user: client.username, password: another })), 'none')
  t.truthy(await own.login(client.username, another))
})

test('enrolling one-time codes ends every earlier session', async t => {
  const { username } = await administrator()
  const [enrolling, other] = [await session(t, username), await session(t, username)]
  const token = await service.login(username)
  await enroll(t, enrolling)
  for (const each of [enrolling, other])
    t.is(await reasonOf(openAdministration(t, service, each).getSession({})), 'INVALID_TOKEN')
  t.is((await service.request('GET', '/users/me', { token })).json.reason, 'INVALID_TOKEN')
  t.is((await service.request('GET', '/users/refresh', { token })).json.reason, 'INVALID_TOKEN')
})

test.serial(
  'an administrator who is suspended, demoted or erased while its change is in progress changes nothing',
  async t => {
    const { database, users, erasure } = service.registry
    const ends = {
      suspended: (id: number, t: Parameters<typeof users.suspend>[1]) => users.suspend(id, t),
      demoted: (id: number, t: Parameters<typeof users.suspend>[1]) =>
        users.setRole({ id, active: true }, 'ROLE_CLIENT', t),
      erased: (id: number, t: Parameters<typeof users.suspend>[1]) => erasure.erase(id, t),
    }
    for (const [how, end] of Object.entries(ends)) {
      const user = await service.signUp('ROLE_CLIENT')
      const username = randomUUID()
      const form = { username, role: 'ROLE_CLIENT', state: 'SP', city: 'Bauru', password }
      const changes: Record<string, (open: AdministrationClient) => Promise<unknown>> = {
        'a password': open => open.setPassword({ user: user.username, password: another }),
        'a user': open => open.createUser({ form }),
      }
      for (const [what, change] of Object.entries(changes)) {
        const admin = await administrator()
        const open = openAdministration(t, service, await session(t, admin.username))
        let outcome: Promise<string> | undefined
        await changeTokens(service.registry, admin.id, async transaction => {
          await end(admin.id, transaction)
          outcome = reasonOf(change(open))
          // It has authenticated its caller, has hashed, and waits before the change.
          t.is(await endsOrWaits(database, outcome), 'waits', `${what}, ${how}`)
        })
        t.is(await outcome, 'INVALID_TOKEN', `${what}, ${how}`)
      }
      t.truthy(await service.login(user.username))
      t.is((await service.request('GET', '/users/me', { token: user.token })).status, 200)
      t.is(await reasonOf(api.getUser({ user: username })), 'USER_NOT_FOUND')
    }
  },
)

test.serial('a user whose tokens are revoked while it saves an answer or a password keeps the former one', async t => {
  const { database, users } = service.registry
  const [question] = await questions()
  const answer = { forgotpasswordquestionsid: question!, answer: 'azul' }
  const client = openPublic(t)
  for (const [what, rpc, request] of [
    ['an answer', ForgotPasswords.method.saveForgotPasswordQuestionsUsersAnswers, { answer }],
    ['a password', ForgotPasswords.method.passwordUpdateByUsername, { newPassword: another }],
  ] as const) {
    const { username, token } = await service.signUp('ROLE_CLIENT')
    let outcome: Promise<string> | undefined
    await changeTokens(service.registry, idOf(token), async transaction => {
      await users.revokeTokens(idOf(token), transaction)
      outcome = reason(client.call(rpc as DescMethodUnary, request, { token }))
      t.is(await endsOrWaits(database, outcome), 'waits', what)
    })
    t.is(await outcome, 'INVALID_TOKEN', what)
    t.deepEqual(await answersOf(idOf(token)), [])
    t.truthy(await service.login(username))
  }
})

test('administrators who change each other concurrently don’t deadlock: twenty pairs all get responses', async t => {
  const own = await startTestService(t, settings())
  const by = await openSignedIn(t, own)
  const sessions: { user: string; open: AdministrationClient }[] = []
  while (sessions.length < 40) {
    const admin = await administrator(by)
    sessions.push({ user: admin.username, open: openAdministration(t, own, await session(t, admin.username, own)) })
  }
  const pairs = Array.from({ length: 20 }, (_, index) => [sessions[2 * index]!, sessions[2 * index + 1]!] as const)
  const both = (change: (open: AdministrationClient, user: string) => Promise<unknown>) =>
    Promise.all(
      pairs.map(async ([one, other]) =>
        Promise.all([reasonOf(change(one.open, other.user)), reasonOf(change(other.open, one.user))]),
      ),
    )
  const edit = { form: { city: 'Marília' }, updateMask: { paths: ['city'] } }
  for (const reasons of await both((open, user) => open.updateUser({ user, ...edit }))) {
    t.deepEqual(reasons, ['none', 'none'])
  }
  // The second caller no longer has a session.
  for (const reasons of await both((open, user) => open.suspendUser({ user }))) {
    t.deepEqual(reasons.sort(), ['INVALID_TOKEN', 'none'])
  }
})

/** Locks a user's row until it is released. */
async function lockRow(t: ExecutionContext, id: number) {
  const holder = await hold(t, service.env.DATABASE_URL!)
  const lock = () => holder.query(`SELECT FROM users WHERE id = ${id} FOR UPDATE`)
  await holder.query('BEGIN')
  await lock()
  return {
    /** Releases the lock, and returns once the waiting transaction has ended. */
    async letPass() {
      await holder.query('COMMIT')
      await holder.query('BEGIN')
      // Waiting transactions are served in order.
      await lock()
      await holder.query('COMMIT')
    },
  }
}

const leaving = {
  'has left': (started: Promise<ClientUnaryCall>) => ({
    options: {},
    leave: async () => (await started).cancel(),
  }),
  'takes no answer any more': () => ({ options: { deadline: Date.now() + 4000 }, leave: async () => {} }),
}

for (const [how, leave] of Object.entries(leaving)) {
  test.serial(`a call that waits before its change has no effect for a caller who ${how}`, async t => {
    const { database } = service.registry
    const user = await service.signUp('ROLE_CLIENT')
    const id = idOf(user.token)
    const open = openGrpc(formatAddress(service.service.addresses.admin!))
    t.teardown(async () => open.close())
    const calls = [
      {
        client: openPublic(t),
        rpc: ForgotPasswords.method.passwordUpdateByUsername,
        request: { newPassword: another },
        token: user.token,
        after: Users.method.getKeys,
      },
      {
        client: open,
        rpc: Administration.method.setPassword,
        request: { user: user.username, password: another },
        token: await session(t, 'admin'),
        after: Administration.method.getIssuer,
      },
    ] as const
    const events = async () => (await service.registry.audit.list({ subjectId: id, limit: 100 })).length
    const before = await events()
    for (const { client, rpc, request, token, after } of calls) {
      const row = await lockRow(t, id)
      let given: (call: ClientUnaryCall) => void = () => {}
      const started = new Promise<ClientUnaryCall>(resolve => {
        given = resolve
      })
      const { options, leave: go } = leave(started)
      const call = client.call(rpc as DescMethodUnary, request, { token, started: given, once: true, ...options })
      const left = t.throwsAsync(call)
      await waitForValue(
        () => lockWaiters(database),
        value => value > 0,
      )
      await go()
      await left
      // A later request on the same connection is answered once the service has noticed.
      await client.call(after as DescMethodUnary, {}, { token })
      await row.letPass()
      t.is(await events(), before, rpc.name)
      t.is((await service.request('GET', '/users/me', { token: user.token })).status, 200, rpc.name)
    }
    t.truthy(await service.login(user.username))
  })
}
