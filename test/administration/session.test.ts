/** Sessions of administrators: who gets a token, its access, and its lifetime. */
import test from 'ava'
import { TOTP } from 'otpauth'
import { openAdministration, openLocal, openSignedIn, reasonOf } from '../_helpers/administration.js'
import { refused } from '../_helpers/problem.js'
import { password, serviceWithClock, startTestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

const settings = { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }

test('only administrators sign in, and all other users get the same refusal', async t => {
  const service = await startTestService(t, settings)
  const open = openAdministration(t, service)
  const member = await service.signUp('ROLE_CLIENT')
  for (const form of [
    { username: 'admin', password: 'wrong-password-1' },
    { username: member.username, password },
    { username: 'no such user', password },
  ]) {
    t.is(await reasonOf(open.signIn(form)), 'INVALID_CREDENTIALS')
  }
  const { token, expireTime } = await open.signIn({ username: ' ADMIN ', password })
  t.true(Math.abs(Number(expireTime!.seconds) - Date.now() / 1000 - 12 * 3600) < 60)
  const { user, actor, totp } = await openAdministration(t, service, token).getSession({})
  t.is(user?.record?.username, 'admin')
  t.is(actor, 'user')
  t.false(totp)
})

test('Administration refuses tokens of the public API, and the public API those of Administration', async t => {
  const service = await startTestService(t, settings)
  const foreign = openAdministration(t, service, await service.adminToken())
  t.is(await reasonOf(foreign.listUsers({})), 'INVALID_TOKEN')
  t.is(await reasonOf(openAdministration(t, service).listUsers({})), 'ACCESS_DENIED')
  const { token } = await openAdministration(t, service).signIn({ username: 'admin', password })
  const answer = await service.request('GET', '/users/me', { token })
  refused(t, answer, 500, 'INVALID_TOKEN')
})

test('after enrolment a sign-in needs a one-time code in addition to the password, and each code is valid once', async t => {
  const service = await startTestService(t, settings)
  const session = await openSignedIn(t, service)
  const { secret, uri } = await session.enrollTotp({})
  t.regex(uri, /^otpauth:\/\/totp\/.*secret=/)
  const totp = new TOTP({ secret })
  // No code is required before one was confirmed.
  await openAdministration(t, service).signIn({ username: 'admin', password })
  t.is(await reasonOf(session.confirmTotp({ code: '12345' })), 'INVALID_ARGUMENT')
  const now = Date.now()
  await session.confirmTotp({ code: totp.generate({ timestamp: now }) })
  const open = openAdministration(t, service)
  t.is(await reasonOf(open.signIn({ username: 'admin', password })), 'CODE_NEEDED')
  t.is(await reasonOf(open.signIn({ username: 'admin', password: 'wrong-password-1' })), 'INVALID_CREDENTIALS')
  // The code that confirmed the enrolment is already used.
  const spent = totp.generate({ timestamp: now })
  t.is(await reasonOf(open.signIn({ username: 'admin', password, code: spent })), 'INVALID_CREDENTIALS')
  const next = totp.generate({ timestamp: now + 30_000 })
  const { token } = await open.signIn({ username: 'admin', password, code: next })
  t.true((await openAdministration(t, service, token).getSession({})).totp)
  t.is(await reasonOf(open.signIn({ username: 'admin', password, code: next })), 'INVALID_CREDENTIALS')
})

test('a used code is refused with the time of the next one, which signs in at once, and events tell it from a wrong one', async t => {
  const service = await serviceWithClock(t, settings)
  const { registry, clock } = service
  const open = openAdministration(t, service)
  const session = await openSignedIn(t, service)
  const { secret } = await session.enrollTotp({})
  const totp = new TOTP({ secret })
  /** What an authenticator shows so many seconds from now. */
  const code = (seconds = 0) => totp.generate({ timestamp: clock.now() + seconds * 1000 })
  const signIn = (given: string, secret = password) => open.signIn({ username: 'admin', password: secret, code: given })
  const refusal = async (given: string, secret?: string) => {
    const error = await t.throwsAsync(signIn(given, secret))
    t.is(await reasonOf(Promise.reject(error)), 'INVALID_CREDENTIALS')
    return error!.message
  }
  const seconds = (message: string) => Number(/The next one comes in (\d+) s\b/.exec(message)?.[1])
  // 10 seconds into a step.
  await clock.pass(40 - ((clock.now() / 1000) % 30))
  const used = code()
  const { nextCodeDelay } = await session.confirmTotp({ code: used })
  t.true(Math.abs(Number(nextCodeDelay?.seconds) - 20) <= 1, String(nextCodeDelay?.seconds))
  const message = await refusal(used)
  t.regex(message, /one-time code was already used/)
  t.true(Math.abs(seconds(message) - 20) <= 1, message)
  const wrong = ['000000', '111111', '222222', '333333'].find(each => ![-30, 0, 30].map(code).includes(each))!
  t.regex(await refusal(wrong), /one-time code is wrong/)
  t.notRegex(await refusal(wrong), /used/)
  // A wrong password reveals nothing of a code.
  t.is(await refusal(used, 'wrong-password-1'), await refusal(wrong, 'wrong-password-1'))
  // The next code is accepted at once, as from a clock that is fast; the one before it is spent with it.
  t.is(await reasonOf(signIn(code(30))), 'none')
  const late = await refusal(code(30))
  t.true(Math.abs(seconds(late) - 50) <= 1, late)
  t.regex(await refusal(code()), /already used/)

  const events = await registry.audit.list({ action: 'session.admin-login', outcome: 'refused', limit: 100 })
  const reasons = events.map(({ reason }) => reason)
  t.deepEqual(reasons, ['CODE_USED', 'WRONG_CODE', 'WRONG_CODE', 'INVALID_CREDENTIALS', 'CODE_USED', 'CODE_USED'])
})

test('for a day after a public session has set an administrator’s password, it signs in with a one-time code only', async t => {
  const service = await serviceWithClock(t, settings)
  const { registry, clock } = service
  const open = openAdministration(t, service)
  const local = await openLocal(t, service, { reason: 'teste' })
  const next = 'tatu-canastra 12'
  const update = async (token: string, newPassword: string) => {
    const { status, text } = await service.request('POST', '/forgotpasswords/passwordupdatebyusername', {
      token,
      body: { newPassword },
    })
    t.is(status, 200, text)
  }
  const signIn = (secret: string, code = '') => open.signIn({ username: 'admin', password: secret, code })
  const refusals = async () => {
    const all = await registry.audit.list({ action: 'session.admin-login', outcome: 'refused', limit: 100 })
    return all.map(({ reason }) => reason)
  }
  const stolen = await service.adminToken()
  const id = idOf(stolen)
  await update(stolen, next)
  const error = await t.throwsAsync(signIn(next))
  t.is(await reasonOf(Promise.reject(error)), 'SIGN_IN_AGAIN')
  const [time = ''] = /\d{4}-\d\d-\d\dT[\d:.]+Z/.exec(error!.message) ?? []
  t.true(Math.abs(Date.parse(time) - clock.now() - 86_400_000) < 1000, error!.message)
  t.regex(error!.message, /nother administrator.*set-password --local/)
  // Only the right password shows it, and it isn't a failure: those before and after it count as ever.
  for (let index = 0; index < 9; index++) t.is(await reasonOf(signIn(`guess number ${index}`)), 'INVALID_CREDENTIALS')
  t.is(await reasonOf(signIn(next)), 'SIGN_IN_AGAIN')
  t.is(await reasonOf(signIn(password)), 'INVALID_CREDENTIALS')
  t.is(await reasonOf(signIn(next)), 'TOO_MANY_ATTEMPTS')
  t.true((await refusals()).includes('SIGN_IN_AGAIN'))
  // The contract's own sign-in is as before.
  await service.login('admin', next)

  await clock.pass(86_400 - 1)
  // A process remembers the lock for a moment.
  await waitForValue(() => reasonOf(signIn(next)), 'SIGN_IN_AGAIN')
  await clock.pass(2)
  t.is(await reasonOf(signIn(next)), 'none')

  const byKey = async (seconds: number, secret: string) => {
    await registry.mailedKeys.replace(id, 'recovery', 'ABCD2345')
    const query = { username: 'admin', key: 'ABCD2345' }
    const { text } = await service.request('POST', '/forgotpasswords/loginbyusernameandkey', { query })
    await clock.pass(seconds)
    await update(text, secret)
  }
  await byKey(15 * 60, 'sete girafas bem altas')
  t.is(await reasonOf(signIn('sete girafas bem altas')), 'none')
  await byKey(15 * 60 + 1, next)
  t.is(await reasonOf(signIn(next)), 'SIGN_IN_AGAIN')
  await local.setPassword({ user: 'admin', password })
  const { token } = await signIn(password)

  // With codes, the same password signs in.
  const session = openAdministration(t, service, token)
  const { secret } = await session.enrollTotp({})
  const totp = new TOTP({ secret })
  await session.confirmTotp({ code: totp.generate({ timestamp: clock.now() }) })
  await registry.database.sequelize.query('UPDATE users SET password_updated_at = now() WHERE id = 1')
  t.is(await reasonOf(signIn(password)), 'CODE_NEEDED')
  await clock.pass(60)
  t.is(await reasonOf(signIn(password, '000000')), 'INVALID_CREDENTIALS')
  t.is(await reasonOf(signIn(password, totp.generate({ timestamp: clock.now() }))), 'none')
  await local.removeTotp({ user: 'admin', confirm: 'admin' })
  t.is(await reasonOf(signIn(password)), 'SIGN_IN_AGAIN')
})
