/** The client package keeps copies of users up to date, on a real service. */
import test from 'ava'
import type { UsersChange } from '../../proto/client/index.js'
import { openLocal } from '../_helpers/administration.js'
import { type SignedUp, serviceForFile, serviceWithClock } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { createNetwork, move, paths, registryOf } from '../_helpers/verifiers.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

const service = serviceForFile(() => ({ AUTH_LIMIT_FACTOR: '1000' }))

test('the first change asks for all users, and each later one has the ids that changed', async t => {
  const registry = await registryOf(service)
  const changes: UsersChange[] = []
  const watch = registry.watchUsers(change => void changes.push(change))
  await waitForValue(
    () => changes,
    value => value.length > 0,
  )
  t.true(changes[0]!.all)
  const user = await service.signUp('ROLE_CLIENT')
  await waitFor(() => changes.some(({ ids }) => ids.includes(idOf(user.token))))
  t.false(changes.at(-1)!.all)
  await watch.close()
  const before = changes.length
  await move(service, user)
  await new Promise(resolve => setTimeout(resolve, 700))
  t.is(changes.length, before)
  const { users } = await registry.users.batchGetUsers({
    references: [{ user: { case: 'id', value: idOf(user.token) } }],
  })
  t.is(users[0]!.city, 'Palmas')
})

test('a change is delivered again until it is applied', async t => {
  const registry = await registryOf(service)
  let awaited: number | undefined
  let [times, applied] = [0, false]
  let started = false
  const watch = registry.watchUsers(({ ids }) => {
    started = true
    if (awaited === undefined || !ids.includes(awaited) || applied) return
    if (++times < 3) throw new Error('the copy is locked')
    applied = true
  })
  t.teardown(() => watch.close())
  await waitFor(() => started)
  const user = await service.signUp('ROLE_CLIENT')
  awaited = idOf(user.token)
  await move(service, user)
  await waitFor(() => applied)
  t.is(times, 3)
})

test('failed polls are repeated, and no change is lost', async t => {
  const network = createNetwork()
  const registry = await registryOf(service, { fetch: network.fetch })
  const ids: number[] = []
  const watch = registry.watchUsers(change => void ids.push(...change.ids))
  t.teardown(() => watch.close())
  await waitForValue(
    () => network.calls,
    value => value.length > 1,
  )
  network.away(true)
  network.broken.add(paths.poll)
  network.away(false)
  const { token } = await service.signUp('ROLE_CLIENT')
  await waitForValue(
    () => network.calls,
    value => value.length > 4,
  )
  t.false(ids.includes(idOf(token)))
  network.broken.clear()
  await waitForValue(
    () => ids,
    value => value.includes(idOf(token)),
  )
})

test('a watcher that was offline for a day misses no change, suspension or erasure', async t => {
  const clocked = await serviceWithClock(t, { AUTH_LIMIT_FACTOR: '1000' })
  const registry = await registryOf(clocked)
  const names = ['changed', 'suspended', 'erased', 'untouched'] as const
  const users = {} as Record<(typeof names)[number], SignedUp>
  let cursor = ''
  const seen: number[] = []
  const first = registry.watchUsers(change => {
    cursor = change.cursor
    seen.push(...change.ids)
  })
  await waitForValue(
    () => cursor,
    value => value !== '',
  )
  for (const name of names) users[name] = await clocked.signUp('ROLE_CLIENT')
  await waitFor(() => names.every(name => seen.includes(idOf(users[name].token))))
  await first.close()

  await clocked.clock.pass(40_000)
  const administration = await openLocal(t, clocked, { reason: 'a test' })
  const late = { ...users.changed, token: await clocked.login(users.changed.username) }
  await move(clocked, late)
  await administration.suspendUser({ user: users.suspended.username })
  await administration.eraseUser({ user: users.erased.username, confirm: users.erased.username })
  await clocked.clock.pass(46_400)

  const changes: UsersChange[] = []
  const again = registry.watchUsers(change => void changes.push(change), { cursor })
  t.teardown(() => again.close())
  const missed = () => changes.flatMap(({ ids }) => ids)
  await waitFor(() =>
    ['changed', 'suspended', 'erased'].every(name => missed().includes(idOf(users[name as 'changed'].token))),
  )
  t.false(missed().includes(idOf(users.untouched.token)))
  t.false(changes.some(({ all }) => all))
})
