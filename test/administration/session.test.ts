/** Sessions of administrators: who gets a token, its access, and its lifetime. */
import test from 'ava'
import { TOTP } from 'otpauth'
import { openAdministration, openSignedIn, reasonOf } from '../_helpers/administration.js'
import { refused } from '../_helpers/problem.js'
import { password, startTestService } from '../_helpers/service.js'

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
