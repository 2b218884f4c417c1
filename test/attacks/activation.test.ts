/** Guessing at activation keys, a hundred at once: the cost for others, and when it is blocked. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { anyAddress, from, statuses } from '../_helpers/crowd.js'
import { hold } from '../_helpers/database.js'
import { endsOrWaits } from '../_helpers/models.js'
import { enterByKey } from '../_helpers/recovery.js'
import { type SignedUp, serviceWithClock, type TestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { within } from '../_helpers/wait.js'

const activate = (
  service: TestService,
  { username, token }: SignedUp,
  activationkey: string = randomUUID(),
  address = anyAddress(),
) => service.request('POST', '/users/activate', { token, body: { username, activationkey }, headers: from(address) })

test('wrong activation keys wait for no lock, are blocked after ten without a query, and are recorded as one lockout', async t => {
  const service = await serviceWithClock(t, { AUTH_TOKEN_TTL: '4h' })
  const { clock, registry } = service
  const { database } = registry
  const { activationkey } = await service.organization()
  const [guesser, other] = [await service.signUp('ROLE_INSTITUTION'), await service.signUp('ROLE_INSTITUTION')]
  const holder = await hold(t, service.env.DATABASE_URL!)
  await holder.query(`BEGIN; SELECT FROM users WHERE id = ${idOf(guesser.token)} FOR UPDATE`)
  const flood = Promise.all(Array.from({ length: 100 }, () => activate(service, guesser)))
  const others = Promise.all([service.request('GET', '/users/me', { token: guesser.token }), service.login('admin')])
  // Behind the lock they would be refused and sent again until it ends.
  t.true(await within(60_000, others))
  t.deepEqual(statuses(await flood), { 422: 10, 429: 90 })
  const events = await registry.audit.list({ action: 'user.activate', limit: 1000 })
  const seen = events.map(({ reason, object, subject_id }) => [reason, object, subject_id])
  t.deepEqual(seen, [['TOO_MANY_ATTEMPTS', 'failures:10', idOf(guesser.token)]])
  await holder.query('ROLLBACK; BEGIN; LOCK TABLE users, attempts, buckets, organizations')
  const held = await activate(service, guesser, activationkey)
  t.is(held.status, 429)
  const wait = Number(held.headers.get('retry-after'))
  t.true(wait > 800 && wait <= 900, `${wait}`)
  const behind = activate(service, other, activationkey)
  t.is(await endsOrWaits(database, behind), 'waits')
  await holder.query('ROLLBACK')
  t.is((await behind).status, 200)
  await clock.pass(wait)
  t.is((await activate(service, guesser, activationkey)).status, 200)
})

test('a wrong activation key counts for its client address, and one that blocks it is recorded', async t => {
  const service = await serviceWithClock(t, { AUTH_LIMIT_FACTOR: '0.1' })
  const address = anyAddress()
  for (let index = 0; index < 29; index++) await enterByKey(service, randomUUID(), 'ABCD2345', address)
  const [guesser, other] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  t.is((await activate(service, guesser, undefined, address)).status, 422)
  t.is((await activate(service, other, undefined, address)).status, 429)
  const events = await service.registry.audit.list({ action: 'user.activate', limit: 10 })
  t.deepEqual(
    events.map(event => [event.address, event.reason, event.object, event.subject_id]),
    [
      [address, 'TOO_MANY_ATTEMPTS', 'failures:1', idOf(guesser.token)],
      [address, 'TOO_MANY_ATTEMPTS', 'failures:30', null],
    ],
  )
})
