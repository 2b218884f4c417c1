/** Signing keys and issuer of administrators: rotation needs no confirmation, irreversible changes do. */
import test from 'ava'
import fc from 'fast-check'
import { newKeyPair } from '../../server/models/signing-key.js'
import { openSignedIn, reasonOf, wrongFieldsOf } from '../_helpers/administration.js'
import { serviceWithClock, startTestService } from '../_helpers/service.js'
import { headerOf } from '../_helpers/tokens.js'

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

test('retiring a key needs its id as confirmation, and voids its signatures', async t => {
  const service = await startTestService(t, settings)
  const api = await openSignedIn(t, service)
  const { token } = await service.signUp('ROLE_CLIENT')
  const [{ kid } = { kid: '' }] = (await api.listSigningKeys({})).keys
  t.is(await reasonOf(api.retireSigningKey({ kid: 'none', confirm: 'none' })), 'RECORD_NOT_FOUND')
  t.is(await reasonOf(api.retireSigningKey({ kid })), 'CONFIRMATION_NEEDED')
  t.is(await reasonOf(api.retireSigningKey({ kid, confirm: 'another' })), 'CONFIRMATION_NEEDED')
  t.is(await reasonOf(api.retireSigningKey({})), 'INVALID_ARGUMENT')
  t.is((await service.request('GET', '/users/me', { token })).status, 200)
  const { successor } = await api.retireSigningKey({ kid, confirm: kid })
  t.is((await service.request('GET', '/users/me', { token })).status, 500)
  // The administrator's own token was signed with it, too.
  const again = await openSignedIn(t, service)
  t.deepEqual(
    (await again.listSigningKeys({})).keys.map(({ kid, signs }) => [kid, signs]),
    [[successor, true]],
  )
})

test('after an immediate rotation and the retirement of the new key hours later, one key signs without an expiry', async t => {
  const service = await serviceWithClock(t, settings)
  const { username } = await service.signUp('ROLE_CLIENT')
  const rotated = await (await openSignedIn(t, service)).rotateSigningKey({ now: true })
  const { kid } = rotated.key!
  t.is(headerOf(await service.login(username)).kid, kid)
  await service.clock.pass(3 * hour)
  const { successor } = await (await openSignedIn(t, service)).retireSigningKey({ kid, confirm: kid })
  t.is(headerOf(await service.login(username)).kid, successor)
  // After the expiry of the first key, which the rotation set.
  await service.clock.pass(10 * hour)
  t.is(headerOf(await service.login(username)).kid, successor)
  const [key, ...others] = (await (await openSignedIn(t, service)).listSigningKeys({})).keys
  t.like(key, { kid: successor, signs: true, expireTime: undefined })
  t.deepEqual(others, [])
})

test('after the next signing key is retired, one key signs without an expiry', async t => {
  const service = await serviceWithClock(t, settings)
  const { username } = await service.signUp('ROLE_CLIENT')
  const { kid } = (await (await openSignedIn(t, service)).rotateSigningKey({})).key!
  const { successor } = await (await openSignedIn(t, service)).retireSigningKey({ kid, confirm: kid })
  await service.clock.pass(13 * hour)
  t.is(headerOf(await service.login(username)).kid, successor)
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
    fc.constantFrom(1, 300, 601, hour, 11 * hour, 13 * hour).map(seconds => ({ what: 'pass' as const, seconds })),
  )
  // The signing key is retired while two are published: the newer one signs at once, and the other one never.
  const twoPublished = [
    { what: 'rotate' as const },
    { what: 'rotate' as const },
    { what: 'retire' as const, index: 2 },
    { what: 'pass' as const, seconds: 601 },
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
        // Tokens of administrators last 12 hours.
        const end = signer?.verifiesUntil === null ? Number.POSITIVE_INFINITY : Number(signer?.verifiesUntil)
        t.true(end >= clock.now() + 12 * hour * 1000, `${end}`)
        if (retired) {
          t.is(signer?.verifiesUntil, null)
          t.is(retired.successor, signs === signedBefore ? undefined : signs)
        }
      }
    }),
    { numRuns: 20, examples: [[twoPublished]] },
  )
})

test('changing issuer or audience needs the new issuer as confirmation, and an omitted field stays unchanged', async t => {
  const service = await startTestService(t, settings)
  const api = await openSignedIn(t, service)
  t.like(await api.getIssuer({}), { issuer: 'http://auth.test', audience: 'work-packages' })
  const issuer = 'https://auth.example.org'
  t.is(await reasonOf(api.setIssuer({ issuer })), 'CONFIRMATION_NEEDED')
  t.is(await reasonOf(api.setIssuer({})), 'INVALID_ARGUMENT')
  t.is(await reasonOf(api.setIssuer({ issuer: ' ', confirm: ' ' })), 'INVALID_ARGUMENT')
  t.is(await reasonOf(api.setIssuer({ issuer: 'a\nb', confirm: 'a\nb' })), 'INVALID_ARGUMENT')
  t.like(await api.setIssuer({ issuer, confirm: issuer, validateOnly: true }), { issuer, changed: true })
  t.like(await api.getIssuer({}), { issuer: 'http://auth.test' })
  t.like(await api.setIssuer({ issuer, confirm: issuer }), { issuer, audience: 'work-packages', changed: true })
  t.like(await api.setIssuer({ issuer, confirm: issuer }), { changed: false })
  t.like(await api.setIssuer({ audience: 'apps', confirm: issuer }), { issuer, audience: 'apps', changed: true })
  for (const audience of ['auth-admin', ' Auth-Admin', 'ａｕｔｈ-admin']) {
    const change = api.setIssuer({ audience, confirm: issuer })
    t.is(await reasonOf(change), 'INVALID_ARGUMENT')
    t.deepEqual(await wrongFieldsOf(change), ['audience'])
  }
  t.like(await api.getIssuer({}), { audience: 'apps' })
  t.is((await service.registry.audit.list({ action: 'registry.set-issuer', limit: 9 })).length, 3)
})

test('no key id starts with a hyphen, as an option on the command line does', t => {
  for (let made = 0; made < 500; made++) t.regex(newKeyPair().kid, /^[A-Za-z\d_][\w-]{42}$/)
})
