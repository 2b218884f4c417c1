/** More hashes than threads: which run first, which are refused with a time to retry, and which run when none waits. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import bcrypt from 'bcrypt'
import { openAdministration } from '../_helpers/administration.js'
import { anyAddress, from, known, login, statuses } from '../_helpers/crowd.js'
import { password, signUpForm, startTestService, type TestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

/** How many wait for a hash. */
async function hashesWaiting({ service }: TestService): Promise<number> {
  const answer = await fetch(`http://127.0.0.1:${service.addresses.metrics?.port}/metrics`)
  return Number(/\{state="waiting"\} (\d+)/.exec(await answer.text())?.[1])
}

test.serial('a sign-in from a known address precedes waiting ones from unknown addresses', async t => {
  const service = await startTestService(t, { AUTH_BCRYPT_COST: '9', AUTH_METRICS_ADDRESS: '127.0.0.1:0' })
  const home = anyAddress()
  const { username } = await known(service, home)
  let answered = 0
  const crowd = Array.from({ length: 80 }, async () => {
    await login(service, randomUUID(), anyAddress())
    answered++
  })
  const waiting = () => hashesWaiting(service)
  await waitFor(async () => (await waiting()) >= 20, waiting)
  const before = answered
  t.is((await login(service, username, home)).status, 200)
  t.true(answered - before < 20, `${before} ${answered}`)
  await Promise.all(crowd)
})

test.serial(
  'during a flood of wrong logins from a /48, other users sign in at new addresses, sign up and administer',
  async t => {
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
    await waitFor(
      () => answered >= 20,
      () => answered,
    )
    const beside = async <T>(work: () => Promise<T>) => {
      const before = answered
      const result = await work()
      t.true(answered - before < 30, `${before} ${answered}`)
      return result
    }
    await beside(async () => t.is((await login(service, username, anyAddress())).status, 200))
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
  },
)

test.serial('a new address signs up before waiting addresses that have signed up users before', async t => {
  // Three of an address's 12 sign-ups count for more than the one of a new address.
  const env = { AUTH_LIMIT_FACTOR: '0.02', AUTH_BCRYPT_COST: '9', AUTH_METRICS_ADDRESS: '127.0.0.1:0' }
  const service = await startTestService(t, env)
  const waiting = () => hashesWaiting(service)
  let answered = 0
  const signUp = async (address: string) => {
    const { status, text } = await service.request('POST', '/users/signup', {
      body: signUpForm(),
      headers: from(address),
    })
    t.is(status, 200, text)
    answered++
  }
  const addresses = Array.from({ length: 20 }, anyAddress)
  for (let times = 0; times < 2; times++) await Promise.all(addresses.map(signUp))
  const crowd = [...addresses, ...addresses].map(signUp)
  await waitFor(async () => (await waiting()) >= 20, waiting)
  const before = answered
  await signUp(anyAddress())
  t.true(answered - before < 12, `${before} ${answered}`)
  await Promise.all(crowd)
})

const storeHash = ({ registry }: TestService, token: string, hash: string) =>
  registry.database.sequelize.query('UPDATE users SET password_hash = $1 WHERE id = $2', { bind: [hash, idOf(token)] })

const storedHashes = async ({ registry }: TestService) => {
  const [rows] = await registry.database.sequelize.query(`SELECT password_hash AS hash FROM users WHERE NOT active`)
  return (rows as { hash: string }[]).map(({ hash }) => hash)
}

test('after a migration from another system all users sign in at once, and their hashes are renewed in the background', async t => {
  const service = await startTestService(t, { AUTH_BCRYPT_COST: '6' })
  const moved = Array.from({ length: 12 }, () => service.signUp('ROLE_CLIENT'))
  const users = await Promise.all(moved)
  const old = await bcrypt.hash(password, 5)
  for (const { token } of users) await storeHash(service, token, old)
  let over = false
  t.teardown(() => {
    over = true
  })
  const load = Array.from({ length: 3 }, async () => {
    while (!over) await login(service, randomUUID(), anyAddress())
  })
  const answers = await Promise.all(users.map(({ username }) => login(service, username, anyAddress())))
  t.deepEqual(statuses(answers), { 200: 12 })
  over = true
  await Promise.all(load)
  await waitForValue(
    () => storedHashes(service),
    value => value.every(hash => hash.startsWith('hmac1:$2b$06$')),
  )
  t.pass()
})
