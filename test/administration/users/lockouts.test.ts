/** The list of locked users: exactly those who are locked now, with the failures. */
import test from 'ava'
import { TOTP } from 'otpauth'
import { openAdministration, openSignedIn } from '../../_helpers/administration.js'
import { anyAddress } from '../../_helpers/crowd.js'
import { ask } from '../../_helpers/database.js'
import { password, startTestService } from '../../_helpers/service.js'

test('users locked by failures are listed with the cause until they are unlocked', async t => {
  const service = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0', AUTH_LIMIT_FACTOR: '0.3' })
  const api = await openSignedIn(t, service)
  const login = async (username: string, secret: string, address: string) => {
    const headers = { 'x-forwarded-for': address }
    return (await service.request('POST', '/users/login', { query: { username, password: secret }, headers })).status
  }
  const fail = async (username: string, times: number, address = anyAddress()) => {
    for (let failure = 0; failure < times; failure++) await login(username, 'wrong', address)
  }
  const [ana, bia, clara, dora] = [
    await service.signUp('ROLE_CLIENT'),
    await service.signUp('ROLE_CLIENT'),
    await service.signUp('ROLE_CLIENT'),
    await service.signUp('ROLE_CLIENT'),
  ]
  t.deepEqual((await api.listLockouts({})).lockouts, [])
  // 3 failures lock.
  await fail(ana.username, 3)
  await fail(bia.username, 2)
  await fail('ninguém', 3)
  // Locked only at the known address.
  const home = anyAddress()
  t.is(await login(clara.username, password, home), 200)
  await fail(clara.username, 3, home)
  await fail(dora.username, 3)
  await api.deleteUser({ user: dora.username })

  const locks = async () =>
    (await api.listLockouts({})).lockouts.map(({ username, failures }) => [
      username,
      failures.map(({ proof, scope, count, limit, locked }) => [proof, scope, count, limit, locked].join(' ')),
    ])
  t.deepEqual(await locks(), [
    [ana.username, ['password account 3 3 true']],
    [clara.username, ['password other known 3 3 true']],
  ])
  const [first] = (await api.listLockouts({})).lockouts
  const { user } = await api.getUser({ user: ana.username })
  t.is(first!.user, user!.record!.id!)
  const { seconds } = first!.failures[0]!
  t.true(seconds > 800 && seconds <= 900, String(seconds))

  const pages: string[] = []
  for (let pageToken = '', more = true; more; more = pageToken !== '') {
    const page = await api.listLockouts({ pageSize: 1, pageToken })
    pages.push(...page.lockouts.map(({ username }) => username))
    pageToken = page.nextPageToken
  }
  t.deepEqual(pages, [ana.username, clara.username])

  await api.unlockUser({ user: ana.username })
  t.deepEqual(await locks(), [[clara.username, ['password other known 3 3 true']]])
  await ask(service.env.DATABASE_URL!, `UPDATE attempts SET window_ends = now() - interval '1 second'`)
  t.deepEqual(await locks(), [])
})

test('an administrator with locked one-time codes is listed until it is unlocked', async t => {
  const service = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const api = await openSignedIn(t, service)
  const username = 'ana'
  const form = { username, role: 'ROLE_ADMIN', state: 'SP', city: 'Bauru', password }
  const { user } = await api.createUser({ form, active: true, confirm: username })
  const open = openAdministration(t, service)
  const own = openAdministration(t, service, (await open.signIn({ username, password })).token)
  const totp = new TOTP({ secret: (await own.enrollTotp({})).secret })
  await own.confirmTotp({ code: totp.generate() })
  await ask(
    service.env.DATABASE_URL!,
    `UPDATE totp_secrets SET failures = 10, day_failures = 10, locked_at = now() - interval '2 days'`,
  )
  const { lockouts } = await api.listLockouts({})
  t.deepEqual(
    lockouts.map(({ user, failures }) => [user, failures.map(({ proof, seconds }) => `${proof} ${seconds}`)]),
    [[user!.record!.id, ['one-time code 0']]],
  )
  await api.unlockUser({ user: username })
  t.deepEqual((await api.listLockouts({})).lockouts, [])
})
