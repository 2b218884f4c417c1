/** After a flood of sign-ups: erasure of only the accounts that were signed up from a network and never activated. */
import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import test, { type ExecutionContext } from 'ava'
import { sql } from '../../../server/database/sql.js'
import { openSignedIn, reasonOf, wrongFieldsOf } from '../../_helpers/administration.js'
import { runCli } from '../../_helpers/cli.js'
import { waits } from '../../_helpers/models.js'
import { signUpForm, startTestService, type TestService } from '../../_helpers/service.js'
import { waitFor, waitForValue } from '../../_helpers/wait.js'

async function start(t: ExecutionContext) {
  const service = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  return { service, administration: await openSignedIn(t, service) }
}

/** Signs a user up from an address; returns the username. */
async function signUp({ request }: TestService, address: string, role = 'ROLE_CLIENT'): Promise<string> {
  const form = signUpForm({ roles: [role] })
  const { status, text } = await request('POST', '/users/signup', {
    body: form,
    headers: { 'x-forwarded-for': address },
  })
  if (status !== 200) throw new Error(`${status} ${text}`)
  return form.username
}

/** Which of the users exist, deleted or not. */
async function present<T extends string>({ registry }: TestService, users: Record<T, string>): Promise<string[]> {
  const there = Object.entries<string>(users).map(async ([name, username]) =>
    (await registry.administeredUsers.find({ usernameKey: username })) ? name : undefined,
  )
  return (await Promise.all(there)).filter(name => name !== undefined)
}

test('accounts from an address, an IPv4 block or an IPv6 block are counted and erased, and those outside stay', async t => {
  const { service, administration } = await start(t)
  const { registry, request } = service
  const users = {
    one: await signUp(service, '203.0.113.7'),
    two: await signUp(service, '203.0.113.9'),
    beside: await signUp(service, '203.0.114.7'),
    six: await signUp(service, '2001:db8:1:2::1'),
    sixToo: await signUp(service, '2001:db8:1:ffff::9'),
    sixBeside: await signUp(service, '2001:db8:2::1'),
  }
  const count = async (network: string) =>
    (await administration.eraseUnactivatedUsers({ network, validateOnly: true })).users
  const counts: Record<string, number> = {
    '203.0.113.7': 1,
    '203.0.113.8': 0,
    '203.0.113.0/24': 2,
    '203.0.113.7/24': 2,
    '203.0.112.0/22': 3,
    '::ffff:203.0.113.0/120': 2,
    '2001:DB8:1::/48': 2,
    '2001:db8:1:2:0:0:0:1': 1,
    '2001:db8::/32': 3,
    '0.0.0.0/0': 3,
  }
  for (const [network, expected] of Object.entries(counts)) t.is(await count(network), expected, network)
  t.is((await present(service, users)).length, 6)

  const erase = (network: string) => administration.eraseUnactivatedUsers({ network, confirm: network })
  t.like(await erase('203.0.113.0/24'), { users: 2, nextPageToken: '' })
  t.deepEqual(await present(service, users), ['beside', 'six', 'sixToo', 'sixBeside'])
  t.is((await erase('2001:db8:1::/48')).users, 2)
  t.is((await erase('2001:db8:1::/48')).users, 0)
  t.deepEqual(await present(service, users), ['beside', 'sixBeside'])
  const again = await request('POST', '/users/signup', { body: signUpForm({ username: users.one }) })
  t.is(again.status, 200, again.text)

  const admin = (await registry.users.byUsername('admin'))!
  const events = await registry.audit.list({ action: 'user.erase', limit: 20 })
  t.is(events.length, 4)
  for (const event of events) t.like(event, { actor: 'user', actor_id: admin.id, object: 'state:unactivated' })
})

test('only never activated accounts are erased, of any role, and only those in the given time range', async t => {
  const { service, administration } = await start(t)
  const { database } = service.registry
  const address = '203.0.113.7'
  const users = {
    client: await signUp(service, address),
    applicant: await signUp(service, address, 'ROLE_ADMIN'),
    active: await signUp(service, address),
    activeOnce: await signUp(service, address),
    suspended: await signUp(service, address),
    deleted: await signUp(service, address),
    old: await signUp(service, address),
    ancient: await signUp(service, address),
  }
  const { termsofusage: _, roles: __, ...form } = signUpForm()
  await administration.createUser({ form: { ...form, role: 'ROLE_CLIENT' } })
  for (const user of [users.active, users.activeOnce]) await administration.activateUser({ user })
  // For the future: currently nothing makes an active account inactive.
  await database.run(sql`UPDATE users SET active = false WHERE username_key = ${users.activeOnce}`)
  await administration.suspendUser({ user: users.suspended })
  await administration.deleteUser({ user: users.deleted })
  for (const [days, name] of Object.entries({ 10: users.old, 20: users.ancient }))
    await database.run(
      sql`UPDATE users SET created_at = created_at - make_interval(days => ${Number(days)}) WHERE username_key = ${name}`,
    )
  const ago = (days: number) => timestampFromDate(new Date(Date.now() - days * 86_400_000))
  const erase = async (more: object) =>
    (await administration.eraseUnactivatedUsers({ network: address, confirm: address, ...more })).users
  const stay = ['active', 'activeOnce', 'suspended', 'deleted']
  t.is(await erase({ createTimeFrom: ago(15), createTimeTo: ago(5) }), 1)
  t.deepEqual(await present(service, users), ['client', 'applicant', ...stay, 'ancient'])
  t.is(await erase({ createTimeFrom: ago(1) }), 2)
  t.deepEqual(await present(service, users), [...stay, 'ancient'])
  t.is(await erase({ createTimeTo: ago(1) }), 1)
  t.deepEqual(await present(service, users), stay)
  t.truthy(await service.registry.administeredUsers.find({ usernameKey: form.username }))
})

test('an invalid network is refused, and erasure needs the network as confirmation', async t => {
  const { service, administration } = await start(t)
  const users = { one: await signUp(service, '203.0.113.7') }
  for (const network of ['', 'x', '203.0.113', '203.0.113.0/33', '203.0.113.0/', '::/129', 'fe80::1%eth0', '::/1/2']) {
    const call = () => administration.eraseUnactivatedUsers({ network, confirm: network })
    t.is(await reasonOf(call()), 'INVALID_ARGUMENT', network)
    t.deepEqual(await wrongFieldsOf(call()), ['network'])
  }
  const network = '203.0.113.7'
  t.is(await reasonOf(administration.eraseUnactivatedUsers({ network })), 'CONFIRMATION_NEEDED')
  const confirm = '203.0.113.0/24'
  t.is(await reasonOf(administration.eraseUnactivatedUsers({ network, confirm })), 'CONFIRMATION_NEEDED')
  t.deepEqual(await present(service, users), ['one'])
})

test('each call erases at most 100 accounts, and further calls erase the rest', async t => {
  const { service, administration } = await start(t)
  const stays = { stays: await signUp(service, '198.51.100.1') }
  for (let n = 0; n < 220; n += 10)
    await Promise.all(Array.from({ length: 10 }, (_, i) => signUp(service, `203.0.113.${n + i}`)))
  const network = '203.0.113.0/24'
  const erase = (pageToken = '') => administration.eraseUnactivatedUsers({ network, confirm: network, pageToken })
  const first = await erase()
  t.is(first.users, 100)
  const second = await erase(first.nextPageToken)
  t.is(second.users, 100)
  // The rest, by a new call without a token.
  const last = await erase()
  t.deepEqual([last.users, last.nextPageToken], [20, ''])
  t.deepEqual(await present(service, stays), ['stays'])
  const other = { network: '198.51.100.1', confirm: '198.51.100.1', pageToken: first.nextPageToken }
  t.deepEqual(await wrongFieldsOf(administration.eraseUnactivatedUsers(other)), ['page_token'])
})

test('concurrent calls erase each account once, and none that is activated meanwhile', async t => {
  const { service, administration } = await start(t)
  const { registry } = service
  const { database, users } = registry
  const network = '203.0.113.0/24'
  const erase = () => administration.eraseUnactivatedUsers({ network, confirm: network })
  const names: Record<string, string> = {}
  for (let n = 0; n < 20; n++) names[n] = await signUp(service, `203.0.113.${n}`)
  const done = await Promise.all([erase(), erase()])
  t.is(done[0].users + done[1].users, 20)
  t.deepEqual(await present(service, names), [])
  t.is((await registry.audit.list({ action: 'user.erase', limit: 50 })).length, 20)

  const activated = await signUp(service, '203.0.113.1')
  let erasing: ReturnType<typeof erase> | undefined
  await database.transact(
    async transaction => {
      const { id } = (await users.byUsername(activated))!
      const user = (await registry.administeredUsers.lock(id, transaction))!
      erasing = erase()
      await waitFor(() => waits(database))
      await users.activate(user, null, transaction)
    },
    { unlimited: true },
  )
  t.is((await erasing)?.users, 0)
  t.deepEqual(await present(service, { activated }), ['activated'])
})

test('the network of a sign-up is known at once, and as long as the audit log keeps its event', async t => {
  const { service, administration } = await start(t)
  const { database, audit } = service.registry
  const network = '203.0.113.7'
  const count = async () => (await administration.eraseUnactivatedUsers({ network, validateOnly: true })).users
  // While another session holds the sealing lock, events stay unsealed.
  await database.transact(
    async transaction => {
      await database.run(sql`SELECT FROM audit_head FOR UPDATE`, transaction)
      const username = await signUp(service, network)
      // Events of the user from other networks don't matter.
      await service.login(username)
      t.is(await count(), 1)
    },
    { unlimited: true },
  )
  await waitForValue(async () => (await audit.backlog()).staged, 0)
  t.is(await count(), 1)
  await database.run(sql`DELETE FROM audit_events WHERE action = 'user.sign-up'`)
  t.is(await count(), 0)
  t.is((await administration.eraseUnactivatedUsers({ network: '127.0.0.0/8', validateOnly: true })).users, 0)
})

test('`auth-admin api` counts the accounts, needs the network as confirmation, and erases them', async t => {
  const { service } = await start(t)
  const users = {
    one: await signUp(service, '203.0.113.7'),
    two: await signUp(service, '203.0.113.8'),
    beside: await signUp(service, '198.51.100.1'),
  }
  const network = '203.0.113.0/24'
  const call = (request: object) =>
    runCli(service.env, ['api', 'EraseUnactivatedUsers', JSON.stringify({ network, ...request }), '--yes', '--local'])
  t.like(JSON.parse((await call({ validateOnly: true })).stdout), { users: 2, nextPageToken: '' })
  for (const confirm of [undefined, '203.0.113.0/25']) t.is((await call({ confirm })).code, 2)
  t.deepEqual(await present(service, users), ['one', 'two', 'beside'])
  const done = await call({ createTimeFrom: '2026-01-01T00:00:00Z', confirm: network })
  t.deepEqual([done.code, done.stderr], [0, ''])
  t.like(JSON.parse(done.stdout), { users: 2, nextPageToken: '' })
  t.deepEqual(await present(service, users), ['beside'])
})
