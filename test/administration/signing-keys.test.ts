/** What signs and what signs in: signing keys and issuer of administrators, and their sessions. */
import test from 'ava'
import fc from 'fast-check'
import { decodeJwt, decodeProtectedHeader } from 'jose'
import jwt from 'jsonwebtoken'
import { TOTP } from 'otpauth'
import { Scope } from '../../proto/gen/auth/v1/scopes_pb.js'
import { createSeals } from '../../server/access/seals.js'
import { newKeyPair } from '../../server/models/signing-key.js'
import { openAdministration, openLocal, openSignedIn, reasonOf, wrongFieldsOf } from '../_helpers/administration.js'
import { anyAddress, login } from '../_helpers/crowd.js'
import { password, serviceWithClock, startTestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { forge, headerOf, idOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

const settings = { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }

/** In seconds. */
const hour = 3600

test('a key rotates after ten minutes or at once, validate_only changes nothing, and no user is logged out', async t => {
  const service = await startTestService(t, settings)
  const api = await openSignedIn(t, service)
  const { token } = await service.signUp('ROLE_CLIENT')
  const [first] = (await api.listSigningKeys({})).keys
  t.true(first!.signs)
  t.is(first!.tokenTtl, 3600)
  t.is(first!.expireTime, undefined)

  await api.rotateSigningKey({ validateOnly: true })
  t.is((await api.listSigningKeys({})).keys.length, 1)
  const { key } = await api.rotateSigningKey({})
  t.false(key!.signs)
  t.true(Math.abs(Number(key!.signTime!.seconds) - Date.now() / 1000 - 600) < 60)
  const now = await api.rotateSigningKey({ now: true })
  t.true(now.key!.signs)
  t.is((await service.request('GET', '/users/me', { token })).status, 200)
  await api.getSession({})
  t.is((await service.registry.audit.list({ action: 'signing-key.rotate', limit: 9 })).length, 2)
})

test('retiring a key needs its id as confirmation, and leaves one that signs', async t => {
  const service = await startTestService(t, settings)
  const api = await openSignedIn(t, service)
  const [{ kid } = { kid: '' }] = (await api.listSigningKeys({})).keys
  t.is(await reasonOf(api.retireSigningKey({ kid: 'none', confirm: 'none' })), 'RECORD_NOT_FOUND')
  for (const wrong of [{}, { confirm: 'another' }])
    t.is(await reasonOf(api.retireSigningKey({ kid, ...wrong })), 'CONFIRMATION_NEEDED')
  t.is(await reasonOf(api.retireSigningKey({})), 'INVALID_ARGUMENT')
  t.is(await reasonOf(api.getSession({})), 'none')
  const { successor } = await api.retireSigningKey({ kid, confirm: kid })
  const [key, ...others] = (await (await openSignedIn(t, service)).listSigningKeys({})).keys
  t.like(key, { kid: successor, signs: true })
  t.deepEqual(others, [])
})

test('once a key is retired, its tokens make no device known, in any process', async t => {
  const service = await startTestService(t, settings)
  const other = await startTestService(t, service.env)
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const enter = (given: string, token?: string) =>
    login(other, username, anyAddress(), given, { ...(token && { token }), once: true })
  for (let n = 0; n < 10; n++) await enter('not the password')
  t.is((await enter(password)).status, 429)
  t.is((await enter('not the password', token)).status, 404)
  const api = await openSignedIn(t, service)
  const [{ kid } = { kid: '' }] = (await api.listSigningKeys({})).keys
  await api.retireSigningKey({ kid, confirm: kid })
  t.is((await enter(password, token)).status, 429)
})

test('an expired token makes a device known while its key is published; then maintenance deletes the key', async t => {
  const service = await serviceWithClock(t, settings)
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const { database, signingKeys } = service.registry
  await database.transact(at => signingKeys.rotate({ force: true, lead: 0, tokenTtl: hour }, at))
  const byDevice = async () => (await login(service, username, anyAddress(), password, { token })).status
  const isKept = async () => {
    await signingKeys.prune()
    return (await signingKeys.all()).some(({ kid }) => kid === headerOf(token).kid)
  }
  await service.clock.pass(hour + 1)
  for (let n = 0; n < 10; n++) await login(service, username, anyAddress(), 'not the password')
  t.is((await login(service, username)).status, 429)
  t.is(await byDevice(), 200)
  t.true(await isKept())
  await service.clock.pass(61)
  t.is(await byDevice(), 429)
  t.false(await isKept())
})

test('in any order of rotations and retirements, one key has no expiry, and the signing key outlives its tokens', async t => {
  const { registry, clock } = await serviceWithClock(t)
  const { database, signingKeys } = registry
  const rotate = (lead: number) =>
    database.transact(at => signingKeys.rotate({ force: true, lead, tokenTtl: hour }, at))
  const step = fc.oneof(
    fc.constant({ what: 'rotate' as const }),
    fc.constant({ what: 'rotate now' as const }),
    fc.nat(4).map(index => ({ what: 'retire' as const, index })),
    fc.constantFrom(1, 300, 601, hour, 2 * hour).map(seconds => ({ what: 'pass' as const, seconds })),
  )
  const [rotation, retirement] = [{ what: 'rotate' } as const, (index: number) => ({ what: 'retire', index }) as const]
  const pass = (seconds: number) => ({ what: 'pass', seconds }) as const
  const examples = [
    // The signing key is retired while two are published: the newer one signs at once, and the other one never.
    [rotation, rotation, retirement(2), pass(601)],
    // The new key is retired after an immediate rotation, and the first one expires.
    [{ what: 'rotate now' } as const, pass(0.3 * hour), retirement(0), pass(hour)],
    // The signing key is retired while its successor is published: the successor signs at once.
    [rotation, retirement(1)],
    // The next key is retired.
    [rotation, retirement(0), pass(2 * hour)],
  ]
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 8 }), async steps => {
      for (const step of steps) {
        const [before, signedBefore] = [await signingKeys.all(), await signingKeys.signer()]
        let retired: Awaited<ReturnType<typeof signingKeys.retire>> | undefined
        if (step.what === 'rotate') await rotate(600)
        else if (step.what === 'rotate now') await rotate(0)
        else if (step.what === 'pass') await clock.pass(step.seconds)
        else {
          const { kid } = before[step.index % before.length]!
          retired = await database.transact(at => signingKeys.retire(kid, at))
        }
        const [keys, signs] = [await signingKeys.all(), await signingKeys.signer()]
        const [newest] = keys
        t.is(newest!.verifiesUntil, null)
        if (newest!.signsAt.getTime() <= clock.now()) t.is(signs, newest!.kid)
        const signer = keys.find(({ kid }) => kid === signs)
        t.is(keys.filter(({ verifiesUntil }) => verifiesUntil === null).length, 1)
        const end = signer?.verifiesUntil === null ? Number.POSITIVE_INFINITY : Number(signer?.verifiesUntil)
        t.true(end >= clock.now() + hour * 1000, `${end}`)
        if (retired) {
          t.is(signer?.verifiesUntil, null)
          t.is(retired.successor, signs === signedBefore ? undefined : signs)
        }
      }
    }),
    { numRuns: 20, examples: examples.map(steps => [steps] as [typeof steps]) },
  )
})

test('changing issuer or audience needs the new issuer as confirmation, and an omitted field stays unchanged', async t => {
  const service = await startTestService(t, settings)
  const api = await openSignedIn(t, service)
  t.like(await api.getIssuer({}), { issuer: 'http://auth.test', audience: 'work-packages' })
  const issuer = 'https://auth.example.org'
  t.is(await reasonOf(api.setIssuer({ issuer })), 'CONFIRMATION_NEEDED')
  for (const wrong of [undefined, ' ', 'a\nb'])
    t.is(await reasonOf(api.setIssuer(wrong ? { issuer: wrong, confirm: wrong } : {})), 'INVALID_ARGUMENT')
  t.like(await api.setIssuer({ issuer, confirm: issuer, validateOnly: true }), { issuer, changed: true })
  t.like(await api.getIssuer({}), { issuer: 'http://auth.test' })
  t.like(await api.setIssuer({ issuer, confirm: issuer }), { issuer, audience: 'work-packages', changed: true })
  t.like(await api.setIssuer({ issuer, confirm: issuer }), { changed: false })
  t.like(await api.setIssuer({ audience: 'apps', confirm: issuer }), { issuer, audience: 'apps', changed: true })
  for (const audience of ['auth-admin', ' Auth-Admin', 'ａｕｔｈ-admin'])
    t.deepEqual(await wrongFieldsOf(api.setIssuer({ audience, confirm: issuer })), ['audience'])
  for (const audience of [issuer, ' HTTPS://auth.example.org '])
    t.deepEqual(await wrongFieldsOf(api.setIssuer({ audience, confirm: issuer })), ['audience'])
  t.deepEqual(await wrongFieldsOf(api.setIssuer({ issuer: 'apps', confirm: 'apps' })), ['issuer'])
  await api.createService({ name: 'grades', scopes: [Scope.TOKENS_VERIFY] })
  t.deepEqual(await wrongFieldsOf(api.setIssuer({ audience: 'grades', confirm: issuer })), ['audience'])
  const host = 'https://grades/'
  t.deepEqual(await wrongFieldsOf(api.setIssuer({ issuer: host, confirm: host })), ['issuer'])
  t.like(await api.getIssuer({}), { audience: 'apps' })
  t.is((await service.registry.audit.list({ action: 'registry.set-issuer', limit: 9 })).length, 3)
})

test('no key id starts with a hyphen, as an option on the command line does', t => {
  for (let made = 0; made < 500; made++) t.regex(newKeyPair().kid, /^[A-Za-z\d_][\w-]{42}$/)
})

// Sessions of administrators: who gets a token, its access, and its lifetime.

test('only administrators sign in, and all other users get the same refusal', async t => {
  const service = await startTestService(t, settings)
  const open = openAdministration(t, service)
  const member = await service.signUp('ROLE_CLIENT')
  for (const form of [
    { username: 'admin', password: 'wrong-password-1' },
    { username: member.username, password },
    { username: 'no such user', password },
  ])
    t.is(await reasonOf(open.signIn(form)), 'INVALID_CREDENTIALS')
  const { token, expireTime } = await open.signIn({ username: ' ADMIN ', password })
  t.true(Math.abs(Number(expireTime!.seconds) - Date.now() / 1000 - 12 * 3600) < 60)
  const { user, actor, totp } = await openAdministration(t, service, token).getSession({})
  t.is(user?.record?.username, 'admin')
  t.is(actor, 'user')
  t.false(totp)
})

test('the token of a session is opaque: no verifier of JWTs reads it, and it is good at no public endpoint, nor a public token here', async t => {
  const service = await startTestService(t, settings)
  const { token } = await openAdministration(t, service).signIn({ username: 'admin', password })
  t.regex(token, /^sealed_[\da-f]{12}[\w-]{100,}$/)
  t.notRegex(Buffer.from(token.slice(19), 'base64url').toString('latin1'), /userId|admin/)
  t.is(jwt.decode(token), null)
  t.throws(() => decodeJwt(token))
  t.throws(() => decodeProtectedHeader(token))
  const { json } = await service.request('GET', '/.well-known/jwks.json')
  t.false(JSON.stringify(json).includes(token.slice(7, 19)))
  t.is((await service.request('GET', '/users/me', { token })).status, 500)
  const key = await serviceKey(service, ['tokens.verify'])
  const verified = await service.request('POST', '/auth.v1.Users/VerifyToken', { token: key, body: { token } })
  t.deepEqual([verified.status, verified.json.active], [200, undefined])
  const ofBefore = await forge(service, await service.adminToken(), { aud: 'auth-admin' })
  for (const other of [await service.adminToken(), ofBefore]) {
    const error = await t.throwsAsync(openAdministration(t, service, other).getSession({}))
    t.is(await reasonOf(Promise.reject(error)), 'INVALID_TOKEN')
    t.regex(error!.message, /Sign in again/)
  }
})

test('a session lasts 12 hours, and its token is refused if a character differs or it was sealed for another use', async t => {
  const service = await serviceWithClock(t, settings)
  const { token } = await openAdministration(t, service).signIn({ username: 'admin', password })
  const outcome = (given: string) => reasonOf(openAdministration(t, service, given).getSession({}))
  t.is(await outcome(token), 'none')
  const altered = [...token].map((each, at) => token.slice(0, at) + (each === '0' ? '1' : '0') + token.slice(at + 1))
  for (const other of [...altered, `${token}A`, token.slice(0, -1), token.slice(0, 30)])
    t.is(await outcome(other), 'INVALID_TOKEN', other)
  const { seal, open } = createSeals(service.registry.sealingKeys)
  const { payload } = (await open('administration', token))!
  t.is(await outcome(await seal('administration', payload)), 'none')
  t.is(await outcome(await seal('codes', payload)), 'INVALID_TOKEN')
  await service.clock.pass(12 * hour - 60)
  t.is(await outcome(token), 'none')
  await service.clock.pass(61)
  t.is(await outcome(token), 'INVALID_TOKEN')
})

test('a password update and a revocation end the sessions of an administrator, and no key is retired', async t => {
  const service = await startTestService(t, settings)
  for (const path of ['/users/revokemytokens', '/forgotpasswords/passwordupdatebyusername']) {
    const api = await openSignedIn(t, service)
    const body = path.endsWith('username') ? { newPassword: 'tatu-canastra 12' } : undefined
    t.is((await service.request('POST', path, { token: await service.adminToken(), body })).status, 200)
    t.is(await reasonOf(api.getSession({})), 'INVALID_TOKEN', path)
  }
})

test('retiring a sealing key ends the sessions that it sealed in every process at once, and the next is sealed by a new key', async t => {
  const service = await startTestService(t, settings)
  const other = await startTestService(t, { ...settings, DATABASE_URL: service.env.DATABASE_URL! })
  const [api, there] = [await openSignedIn(t, service), await openSignedIn(t, other)]
  const { keys, sealingKeys } = await there.listSigningKeys({})
  t.is(sealingKeys.length, 1)
  const { kid, createTime } = sealingKeys[0]!
  t.true(Math.abs(Number(createTime!.seconds) - Date.now() / 1000) < 60)
  const { token } = await service.signUp('ROLE_CLIENT')
  t.is(await reasonOf(api.retireSigningKey({ kid })), 'CONFIRMATION_NEEDED')
  t.deepEqual((await api.retireSigningKey({ kid, confirm: kid })).successor, undefined)
  for (const each of [api, there]) t.is(await reasonOf(each.getSession({})), 'INVALID_TOKEN')
  const again = await openSignedIn(t, other)
  const { keys: after, sealingKeys: next } = await again.listSigningKeys({})
  t.deepEqual(after, keys)
  t.is(next.length, 1)
  t.not(next[0]!.kid, kid)
  t.is((await service.request('GET', '/users/me', { token })).status, 200)
  const [event] = await service.registry.audit.list({ action: 'signing-key.retire', limit: 9 })
  t.is(event!.object, `sealing-key:${kid}`)
})

test('after 90 days a new key seals; the former one opens what it sealed, for longer than any token lives', async t => {
  const { registry, clock } = await serviceWithClock(t)
  const { sealingKeys } = registry
  const { seal, open } = createSeals(sealingKeys)
  const day = 86_400
  // Of two processes at once, one creates the key.
  const [first, same] = await Promise.all([seal('a', 'x'), createSeals(sealingKeys).seal('a', 'x')])
  t.is(first.slice(0, 19), same.slice(0, 19))
  t.not(first, same)
  await clock.pass(89 * day)
  t.is((await seal('a', 'x')).slice(0, 19), first.slice(0, 19))
  await clock.pass(2 * day)
  t.not((await seal('a', 'x')).slice(0, 19), first.slice(0, 19))
  await clock.pass(400 * day)
  await sealingKeys.prune()
  t.is((await createSeals(sealingKeys).open('a', first))?.payload, 'x')
  await clock.pass(2 * day)
  await sealingKeys.prune()
  t.is(await createSeals(sealingKeys).open('a', first), undefined)
  t.is(
    (await open('a', same))?.payload,
    'x',
    'An opened token isn’t accepted yet: the statement of its user asks for the key.',
  )
})

test('after enrolment a sign-in needs a one-time code in addition to the password, and each code is valid once', async t => {
  const service = await startTestService(t, settings)
  const session = await openSignedIn(t, service)
  const open = openAdministration(t, service)
  const signIn = (code = '', secret = password) => open.signIn({ username: 'admin', password: secret, code })
  const { secret, uri } = await session.enrollTotp({})
  t.regex(uri, /^otpauth:\/\/totp\/.*secret=/)
  const [now, totp] = [Date.now(), new TOTP({ secret })]
  // No code is required before one was confirmed.
  await signIn()
  t.is(await reasonOf(session.confirmTotp({ code: '12345' })), 'INVALID_ARGUMENT')
  await session.confirmTotp({ code: totp.generate({ timestamp: now }) })
  t.is(await reasonOf(signIn()), 'CODE_NEEDED')
  t.is(await reasonOf(signIn('', 'wrong-password-1')), 'INVALID_CREDENTIALS')
  const next = totp.generate({ timestamp: now + 30_000 })
  const { token } = await signIn(next)
  t.true((await openAdministration(t, service, token).getSession({})).totp)
  t.is(await reasonOf(signIn(next)), 'INVALID_CREDENTIALS')
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
    const path = '/forgotpasswords/passwordupdatebyusername'
    t.is((await service.request('POST', path, { token, body: { newPassword } })).status, 200)
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

  const email = { form: { email: 'admin@example.org' }, updateMask: { paths: ['email'] } }
  await local.updateUser({ user: 'admin', ...email })
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
