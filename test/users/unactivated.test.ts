/** Accounts that are never activated are erased after a time, and no other accounts are. */
import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, rm, utimes, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import { sql } from '../../server/database/sql.js'
import { startMaintenance } from '../../server/jobs/maintenance.js'
import { createLog } from '../../server/observability/log.js'
import { usernameKey } from '../../server/rules/names.js'
import { openLocal } from '../_helpers/administration.js'
import { hold } from '../_helpers/database.js'
import { waits } from '../_helpers/models.js'
import {
  password,
  type SignedUp,
  serviceWithClock,
  signUpForm,
  startTestService,
  type TestService,
} from '../_helpers/service.js'
import { waitFor } from '../_helpers/wait.js'

const day = 86_400

/** A service whose maintenance erases none of them. */
const start = (t: ExecutionContext) => serviceWithClock(t, { AUTH_UNACTIVATED_RETENTION: 'off' })

/** Runs maintenance on the database of a service. */
async function round(t: ExecutionContext, { registry, settings }: TestService, { maxErasures = 1_000 } = {}) {
  const { tokenTtl, auditRetention } = settings
  const all = { tokenTtl, auditRetention, unactivatedRetention: 90 * day, dataDir: '/nonexistent' }
  const { round, stop } = startMaintenance(registry, all, createLog('silent'), { first: 2 ** 31 - 1, maxErasures })
  t.teardown(stop)
  await round()
}

/** Which of the users exist. */
async function present<T extends string>({ registry }: TestService, users: Record<T, Pick<SignedUp, 'username'>>) {
  const names = Object.entries<Pick<SignedUp, 'username'>>(users)
  const there = names.map(async ([name, { username }]) => {
    const user = await registry.administeredUsers.find({ usernameKey: usernameKey(username) })
    return user ? name : undefined
  })
  return (await Promise.all(there)).filter(name => name !== undefined)
}

test('an account that was never activated is erased 90 days after its sign-up or last sign-in, and its name is free', async t => {
  const service = await start(t)
  const { clock, registry, request } = service
  const signUp = (fields: Record<string, unknown> = {}) => service.signUp('ROLE_CLIENT', signUpForm(fields))
  const users = {
    silent: await signUp(),
    byPassword: await signUp(),
    byAnswers: await signUp(),
    byKey: await signUp({ email: 'chave@example.org' }),
    failed: await signUp(),
  }
  const { username, token } = users.byAnswers
  for (const forgotpasswordquestionsid of [1, 2]) {
    const body = { forgotpasswordquestionsid, answer: 'x' }
    await request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body })
  }
  await clock.pass(30 * day)
  await service.login(users.byPassword.username)
  const body = [1, 2].map(forgotpasswordquestionsid => ({ forgotpasswordquestionsid, answer: 'x' }))
  const answered = await request('POST', '/forgotpasswords/loginbyusernameandanswers', { query: { username }, body })
  t.is(answered.status, 200, answered.text)
  const { id } = (await registry.users.byUsername(users.byKey.username))!
  await registry.mailedKeys.replace(id, 'recovery', 'ABCD2345')
  const keyed = { username: users.byKey.username, key: 'ABCD2345' }
  t.is((await request('POST', '/forgotpasswords/loginbyusernameandkey', { query: keyed })).status, 200)
  const wrong = { username: users.failed.username, password: 'wrong' }
  t.is((await request('POST', '/users/login', { query: wrong })).status, 404)

  await clock.pass(60 * day - 1)
  await round(t, service)
  t.deepEqual(await present(service, users), ['silent', 'byPassword', 'byAnswers', 'byKey', 'failed'])
  await clock.pass(2)
  await round(t, service)
  t.deepEqual(await present(service, users), ['byPassword', 'byAnswers', 'byKey'])
  const again = await signUp({ username: users.silent.username, nickname: users.silent.nickname })
  t.truthy(again.token)
  await clock.pass(30 * day - 2)
  await round(t, service)
  t.deepEqual(await present(service, users), ['silent', 'byPassword', 'byAnswers', 'byKey'])
  await clock.pass(2)
  await round(t, service)
  t.deepEqual(await present(service, users), ['silent'])

  const events = await registry.audit.list({ action: 'user.erase', limit: 9 })
  t.is(events.length, 5)
  for (const event of events) t.like(event, { actor: 'service', reason: 'unactivated', outcome: 'ok' })
})

test('accounts that were once activated, created by administrators, suspended, or of a ROLE_ADMIN stay, and deleted ones for 30 days', async t => {
  const service = await start(t)
  const { clock } = service
  const administration = await openLocal(t, service, { reason: 'test' })
  const signUp = (role: string) => service.signUp(role, signUpForm({ roles: [role] }))
  const create = async (active: boolean) => {
    const { termsofusage: _, roles: __, ...form } = signUpForm()
    await administration.createUser({ form: { ...form, role: 'ROLE_CLIENT' }, active })
    return form
  }
  const organization = await service.organization()
  const users = {
    activated: await service.institution(organization),
    activeOnce: await service.institution(organization),
    byAdministrator: await signUp('ROLE_CLIENT'),
    suspendedOnce: await signUp('ROLE_CLIENT'),
    made: await create(false),
    madeActive: await create(true),
    administrator: await signUp('ROLE_ADMIN'),
    suspended: await signUp('ROLE_CLIENT'),
    deleted: await signUp('ROLE_CLIENT'),
    resumed: await signUp('ROLE_CLIENT'),
    undeleted: await signUp('ROLE_CLIENT'),
    admin: { username: 'admin' },
  }
  const user = ({ username }: { username: string }) => ({ user: username })
  await administration.activateUser(user(users.byAdministrator))
  await administration.activateUser(user(users.suspendedOnce))
  for (const each of [users.suspendedOnce, users.suspended, users.resumed]) await administration.suspendUser(user(each))
  await administration.resumeUser(user(users.suspendedOnce))
  // For the future: currently nothing makes an active account inactive.
  await service.registry.database.run(
    sql`UPDATE users SET active = false WHERE username = ${users.activeOnce.username}`,
  )
  await administration.deleteUser(user(users.undeleted))
  await clock.pass(89 * day)
  await administration.resumeUser(user(users.resumed))
  await administration.undeleteUser(user(users.undeleted))
  await administration.deleteUser(user(users.deleted))
  for (const days of [2, 28]) {
    await clock.pass(days * day - 1)
    await round(t, service)
    t.deepEqual(await present(service, users), Object.keys(users))
  }
  await clock.pass(3)
  await round(t, service)
  t.is((await present(service, users)).length, Object.keys(users).length - 1)
  // The end of a suspension or deletion restarts the time.
  await clock.pass(60 * day)
  await round(t, service)
  const left = Object.keys(users).filter(name => !['deleted', 'resumed', 'undeleted'].includes(name))
  t.deepEqual(await present(service, users), left)
  const events = await service.registry.audit.list({ action: 'user.erase', limit: 9 })
  t.is(events.map(({ reason }) => reason).join(), 'deleted,unactivated,unactivated')
})

test('a service erases unactivated accounts by itself after 90 days, another configured time, or never', async t => {
  const never = await start(t)
  const { clock } = never
  const users = { seen: await never.signUp('ROLE_CLIENT', signUpForm()) }
  const { username } = users.seen
  /** Starts another service on the database; returns whether its first maintenance run erases the user. */
  const erases = async (env: Record<string, string>) => {
    const { DATABASE_URL = '' } = never.env
    const AUTH_DATA_DIR = await mkdtemp(join(tmpdir(), 'auth-test-'))
    t.teardown(() => rm(AUTH_DATA_DIR, { recursive: true, force: true }))
    // Maintenance deletes it last.
    const old = join(AUTH_DATA_DIR, 'mail', 'old.eml')
    await mkdir(dirname(old))
    await writeFile(old, '')
    await utimes(old, 0, 0)
    const other = await startTestService(t, { ...env, DATABASE_URL, AUTH_DATA_DIR }, { clock })
    await waitFor(() => !existsSync(old))
    await other.service.stop()
    return (await present(never, users)).length === 0
  }
  await clock.pass(90 * day - 600)
  t.false(await erases({}))
  t.false(await erases({ AUTH_UNACTIVATED_RETENTION: '91d' }))
  await clock.pass(601)
  t.false(await erases({ AUTH_UNACTIVATED_RETENTION: 'off' }))
  t.false(await erases({ AUTH_UNACTIVATED_RETENTION: '91d' }))
  t.true(await erases({}))
  t.is((await never.request('POST', '/users/existsByUsername', { query: { username } })).text, 'false')
})

test('a maintenance run erases a limited number, the longest unseen first, and concurrent runs erase each once', async t => {
  const service = await start(t)
  const users: Record<string, SignedUp> = {}
  for (let n = 0; n < 9; n++) {
    users[n] = await service.signUp('ROLE_CLIENT', signUpForm())
    await service.clock.pass(60)
  }
  await service.clock.pass(90 * day)
  await round(t, service, { maxErasures: 3 })
  t.deepEqual(await present(service, users), ['3', '4', '5', '6', '7', '8'])
  await Promise.all([round(t, service), round(t, service), round(t, service)])
  t.deepEqual(await present(service, users), [])
  const events = await service.registry.audit.list({ action: 'user.erase', limit: 20 })
  t.deepEqual([events.length, new Set(events.map(({ subject_id }) => subject_id)).size], [9, 9])
})

test('a round erases no user once the clock has leapt, even if it began before', async t => {
  const service = await start(t)
  const users = { silent: await service.signUp('ROLE_CLIENT', signUpForm()) }
  const blocker = await hold(t, service.env.DATABASE_URL!)
  await blocker.query('BEGIN; LOCK TABLE mailed_keys')
  const running = round(t, service)
  await waitFor(() => waits(service.registry.database))
  await service.clock.leap(91 * day)
  await blocker.query('COMMIT')
  await running
  t.deepEqual(await present(service, users), ['silent'])
})

test('a sign-in neither waits for a concurrent change of the account nor fails because of it', async t => {
  const service = await start(t)
  const { username } = await service.signUp('ROLE_CLIENT', signUpForm())
  await service.registry.database.transact(
    async transaction => {
      const { users, administeredUsers } = service.registry
      await administeredUsers.lock((await users.byUsername(username.toLowerCase()))!.id, transaction)
      const { status } = await service.request('POST', '/users/login', { query: { username, password } })
      t.is(status, 200)
    },
    { unlimited: true },
  )
})
