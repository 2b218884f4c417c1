/** Guessing one-time codes with the correct password: how many are compared, what locks, and what unlocks. */
import { randomUUID } from 'node:crypto'
import type { ConnectError } from '@connectrpc/connect'
import test, { type ExecutionContext } from 'ava'
import { TOTP } from 'otpauth'
import { ErrorInfoSchema, RetryInfoSchema } from '../../proto/gen/google/rpc/error_details_pb.js'
import { openAdministration, openLocal, openSignedIn, reasonOf } from '../_helpers/administration.js'
import { runCli } from '../_helpers/cli.js'
import { login as loginFrom } from '../_helpers/crowd.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { password, serviceWithClock } from '../_helpers/service.js'
import { waitForValue } from '../_helpers/wait.js'

const mailbox = mailboxForFile()
const [quarter, day] = [15 * 60, 24 * 3600]

/** Two administrators; `ana` has one-time codes. The clock is stopped. */
async function administrators(t: ExecutionContext) {
  const service = await serviceWithClock(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url })
  const chief = await openSignedIn(t, service)
  const email = `${randomUUID()}@example.org`
  const form = { username: 'ana', role: 'ROLE_ADMIN', password, email, state: 'SP', city: 'X' }
  const { user } = await chief.createUser({ form, active: true, confirm: 'ana' })
  const open = openAdministration(t, service)
  const session = openAdministration(t, service, (await open.signIn({ username: 'ana', password })).token)
  const totp = new TOTP({ secret: (await session.enrollTotp({})).secret })
  /** The code that an authenticator shows so many seconds from now. */
  const code = (seconds = 0) => totp.generate({ timestamp: service.clock.now() + seconds * 1000 })
  await session.confirmTotp({ code: code() })
  // That code is used.
  await service.clock.pass(60)
  const signIn = (code?: string, secret = password) =>
    reasonOf(open.signIn({ username: 'ana', password: secret, ...(code && { code }) }))
  /** Signs in with so many wrong codes, one after the other. */
  const guess = async (times: number) => {
    const near = new Set([-60, -30, 0, 30, 60].map(code))
    const wrong = ['000000', '111111', '222222', '333333', '444444', '555555'].find(each => !near.has(each))!
    const reasons: string[] = []
    for (let index = 0; index < times; index++) reasons.push(await signIn(wrong))
    return reasons
  }
  const events = async (reason: string) =>
    (await service.registry.audit.list({ subjectId: id, action: 'session.admin-login', limit: 1000 })).filter(
      each => each.reason === reason && each.outcome === 'refused',
    ).length
  const id = user!.record!.id!
  return { service, chief, open, id, email, code, signIn, guess, events }
}

const wrong = (times: number) => Array(times).fill('INVALID_CREDENTIALS')

test('a code is accepted 30 seconds before and after its time, and no earlier or later', async t => {
  const { service, code, signIn } = await administrators(t)
  // At the start of a step, so that seconds map to steps, and long after the used code.
  await service.clock.pass(120 - ((service.clock.now() / 1000) % 30))
  for (const seconds of [-60, 60]) t.is(await signIn(code(seconds)), 'INVALID_CREDENTIALS', String(seconds))
  for (const seconds of [-30, 0, 30]) t.is(await signIn(code(seconds)), 'none', String(seconds))
})

test('ten wrong codes from any address lock the account, despite successes between them, until another administrator unlocks it', async t => {
  const { service, chief, open, id, code, signIn, guess, events } = await administrators(t)
  const login = () => loginFrom(service, 'ana')
  const own = openAdministration(t, service, (await open.signIn({ username: 'ana', password, code: code() })).token)
  // The address is known from now on, which doesn't matter.
  t.deepEqual(await guess(9), wrong(9))
  // They count as failures of the address, not of the password.
  const { buckets, counterKeys } = service.registry
  const bucket = { capacity: 300, perSecond: 300 / quarter }
  t.is(await buckets.read(counterKeys.address('failures', '127.0.0.1'), bucket), 9)
  t.is((await login()).status, 200)
  t.is(await signIn(), 'CODE_NEEDED')
  // An administrator who unlocks itself keeps the count of wrong codes.
  t.is((await own.unlockUser({ user: 'ana' })).cleared, 0)
  t.deepEqual(await guess(3), [...wrong(1), 'TOO_MANY_ATTEMPTS', 'TOO_MANY_ATTEMPTS'])
  t.is((await login()).status, 200)
  const refusal: ConnectError = await open.signIn({ username: 'ana', password, code: code(30) }).then(
    () => t.fail() as never,
    error => error,
  )
  t.is(refusal.findDetails(ErrorInfoSchema)[0]?.reason, 'TOO_MANY_ATTEMPTS')
  t.deepEqual(refusal.findDetails(RetryInfoSchema), [])
  t.regex(refusal.rawMessage, new RegExp(`Another administrator .*auth-admin users unlock ${id}`))
  t.is(await signIn(), 'TOO_MANY_ATTEMPTS')
  // Callers without the password get no hint of the lock.
  t.is(await signIn(code(30), 'not the password'), 'INVALID_CREDENTIALS')
  t.is(await events('TOO_MANY_ATTEMPTS'), 1)
  t.is(await reasonOf(own.unlockUser({ user: 'ana' })), 'ACCESS_DENIED')
  t.is(await reasonOf(own.removeTotp({ user: 'ana', confirm: 'ana' })), 'ACCESS_DENIED')

  const { obstacles, failures } = await chief.explainUser({ user: 'ana' })
  const obstacle = obstacles.find(({ prevents }) => prevents === 'sign in to Administration')
  t.like(obstacle, { command: `auth-admin users unlock ${id}`, seconds: undefined })
  t.deepEqual(
    failures
      .filter(({ proof }) => proof === 'one-time code')
      .map(({ scope, count, limit, locked, seconds }) => [scope, count, limit, locked, seconds]),
    [
      ['account', 10, 10, true, 0],
      ['account, in a day', 10, 30, true, 0],
    ],
  )
  // Neither time nor maintenance ends it.
  await service.clock.pass(2 * day)
  await service.registry.attempts.prune()
  t.is(await signIn(code()), 'TOO_MANY_ATTEMPTS')
  const admin = await openSignedIn(t, service)
  t.is((await admin.unlockUser({ user: `#${id}`, validateOnly: true })).cleared, 1)
  t.is(await signIn(code()), 'TOO_MANY_ATTEMPTS')
  t.is((await admin.unlockUser({ user: `#${id}` })).cleared, 1)
  t.is(await signIn(code()), 'none')
  t.is((await admin.unlockUser({ user: `#${id}` })).cleared, 0)

  // Or a command on the database.
  await service.clock.pass(60)
  t.deepEqual(await guess(11), [...wrong(10), 'TOO_MANY_ATTEMPTS'])
  const shown = await runCli(service.env, ['users', 'why', 'ana'])
  t.regex(shown.stdout, /^one-time codes +this account +10\/10 +locked until unlocked$/m)
  t.is((await (await openLocal(t, service)).unlockUser({ user: 'ana' })).cleared, 1)
  t.is(await signIn(code()), 'none')
})

test('of 60 simultaneous wrong codes, 10 are compared', async t => {
  const { guess, signIn, code, events } = await administrators(t)
  await Promise.all(Array.from({ length: 60 }, () => guess(1)))
  // A busy service compares none, and no more attempts are in progress than may fail.
  await waitForValue(async () => (await guess(1))[0] === 'INVALID_CREDENTIALS', false)
  t.deepEqual([await events('WRONG_CODE'), await events('TOO_MANY_ATTEMPTS')], [10, 1])
  t.is(await signIn(code()), 'TOO_MANY_ATTEMPTS')
})

test('a correct code or 15 minutes clear wrong ones, but 30 within a day lock the account, and fewer expire after a day', async t => {
  const { service, code, signIn, guess } = await administrators(t)
  t.deepEqual(await guess(9), wrong(9))
  // They expire, too.
  await service.clock.pass(day)
  t.deepEqual(await guess(9), wrong(9))
  await service.clock.pass(quarter)
  t.deepEqual(await guess(9), wrong(9))
  await service.clock.pass(day)
  /** Fourteen wrong codes, and right ones before they lock. */
  const most = async () => {
    for (const times of [9, 5]) {
      t.deepEqual(await guess(times), wrong(times))
      t.is(await signIn(code()), 'none')
      await service.clock.pass(30)
    }
  }
  await most()
  await most()
  await service.clock.pass(day)
  await most()
  await most()
  t.deepEqual(await guess(1), wrong(1))
  await service.clock.pass(quarter)
  t.is(await signIn(code()), 'none')
  t.deepEqual(await guess(2), [...wrong(1), 'TOO_MANY_ATTEMPTS'])
  await service.clock.pass(day)
  t.is(await signIn(code()), 'TOO_MANY_ATTEMPTS')
})

test('the owner gets an e-mail after five wrong codes, at most one in 15 minutes', async t => {
  const { service, email, guess } = await administrators(t)
  const notices = () =>
    mailbox.emails.filter(({ to, subject }) => to?.[0]?.address === email && /código/i.test(subject!))
  const queued = async () =>
    (await service.registry.emails.list({ limit: 100 })).filter(({ kind }) => kind === 'wrong-codes').length
  await guess(4)
  t.is((await queued()) + notices().length, 0)
  await guess(1)
  await waitForValue(() => notices().length, 1)
  t.regex(notices()[0]!.text!, /senha certa do usuário ana e cinco códigos/)
  await guess(5)
  t.is(await queued(), 0)
  t.is(notices().length, 1)
})

test('a correct password without its code is recorded, and doesn’t count as a failure', async t => {
  const { code, signIn, events } = await administrators(t)
  for (let index = 0; index < 12; index++) t.is(await signIn(), 'CODE_NEEDED')
  t.is(await events('CODE_NEEDED'), 12)
  t.is(await signIn(code()), 'none')
})

test('failures elsewhere don’t lock an administrator out of Administration, and a public login doesn’t clear failures there', async t => {
  const { service, code, signIn } = await administrators(t)
  const login = (secret: string) => loginFrom(service, 'ana', undefined, secret)
  for (let index = 0; index < 12; index++) await login('not the password')
  t.is((await login(password)).status, 429)
  t.is(await signIn(code()), 'none')
  await service.clock.pass(quarter)
  for (let index = 0; index < 9; index++) t.is(await signIn(undefined, 'not the password'), 'INVALID_CREDENTIALS')
  t.is((await login(password)).status, 200)
  t.is(await signIn(undefined, 'not the password'), 'INVALID_CREDENTIALS')
  t.is(await signIn(code()), 'TOO_MANY_ATTEMPTS')
  t.is((await login(password)).status, 200)
  // Other administrators at the same address aren't affected.
  await openSignedIn(t, service)
})
