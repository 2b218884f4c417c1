/** Signing keys and issuer of administrators: rotating asks nothing of anybody, what can't be undone a confirmation. */
import test from 'ava'
import { openSignedIn, reasonOf } from '../_helpers/administration.js'
import { startTestService } from '../_helpers/service.js'

const settings = { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }

test('a key rotates in ten minutes or at once, a check keeps nothing, and nobody is logged out', async t => {
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

test('a key is dropped only by who repeats its id, and then verifies nothing', async t => {
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

test('the issuer is changed by who repeats the new one; what isn’t given stays', async t => {
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
  t.is((await service.registry.audit.list({ action: 'registry.set-issuer', limit: 9 })).length, 3)
})
