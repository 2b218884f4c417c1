/** More hashes than threads: which run first. */
import { randomUUID } from 'node:crypto'
import ava from 'ava'
import { openAdministration } from '../_helpers/administration.js'
import { anyAddress, from, known, login } from '../_helpers/crowd.js'
import { scrape } from '../_helpers/metrics.js'
import { password, signUpForm, startTestService, type TestService } from '../_helpers/service.js'
import { waitForValue } from '../_helpers/wait.js'

const test = ava.serial

test('a sign-in from a known address, or a sign-up from a new one, precedes waiting ones from others', async t => {
  // Three of an address's 12 sign-ups count for more than the one of a new address.
  const env = { AUTH_LIMIT_FACTOR: '0.02', AUTH_BCRYPT_COST: '9', AUTH_METRICS_ADDRESS: '127.0.0.1:0' }
  const signUp = (service: TestService, address: string) =>
    service.request('POST', '/users/signup', { body: signUpForm(), headers: from(address) })
  const addresses = Array.from({ length: 20 }, anyAddress)
  for (const isSignUp of [false, true]) {
    const service = await startTestService(t, env)
    const home = anyAddress()
    const { username } = await known(service, home)
    if (isSignUp) for (const _ of [1, 2]) await Promise.all(addresses.map(each => signUp(service, each)))
    let answered = 0
    const crowd = [...addresses, ...addresses, ...addresses, ...addresses].map(async address => {
      await (isSignUp ? signUp(service, address) : login(service, randomUUID()))
      answered++
    })
    const waiting = async () => (await scrape(service)).value('auth_hash_queue', { state: 'waiting' }) ?? 0
    // More than may be answered below. The queue of a slow machine is shorter.
    await waitForValue(waiting, count => count >= 13)
    const before = answered
    t.is((await (isSignUp ? signUp(service, anyAddress()) : login(service, username, home))).status, 200)
    t.true(answered - before < 12, `${before} ${answered}`)
    await Promise.all(crowd)
  }
})

test('during a flood of wrong logins from a /48, other users sign in at new addresses, sign up and administer', async t => {
  const service = await startTestService(t, { AUTH_BCRYPT_COST: '10', AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const { username } = await service.signUp('ROLE_CLIENT')
  let answered = 0
  let over = false
  t.teardown(() => {
    over = true
  })
  // Half of them are in the network of the administrator.
  const crowd = Array.from({ length: 100 }, async (_, index) => {
    const address = index % 2 ? '127.0.0.1' : `2001:db8:1:${index.toString(16)}::1`
    for (; !over; answered++) await login(service, randomUUID(), address)
  })
  await waitForValue(
    () => answered,
    count => count >= 20,
  )
  const beside = async <T>(work: () => Promise<T>) => {
    const before = answered
    const result = await work()
    t.true(answered - before < 30, `${before} ${answered}`)
    return result
  }
  await beside(async () => t.is((await login(service, username)).status, 200))
  await beside(async () => {
    const headers = from(anyAddress())
    t.is((await service.request('POST', '/users/signup', { body: signUpForm(), headers })).status, 200)
  })
  const { token } = await beside(() => openAdministration(t, service).signIn({ username: 'admin', password }))
  const admin = openAdministration(t, service, token)
  await beside(() =>
    admin.createUser({
      form: { username: randomUUID(), password, role: 'ROLE_CLIENT', state: 'TO', city: 'Palmas' },
    }),
  )
  await beside(() => admin.setPassword({ user: username, password: 'sete girafas bem altas' }))
  over = true
  await Promise.all(crowd)
})
