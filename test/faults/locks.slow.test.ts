/** Another session holds a lock or freezes in a transaction: callers wait for a limited time. */
import ava, { type ExecutionContext } from 'ava'
import pg from 'pg'
import { scrape } from '../_helpers/metrics.js'
import { refused } from '../_helpers/problem.js'
import { type SignedUp, serviceForFile } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { waitForValue, within } from '../_helpers/wait.js'

const test = ava.serial

// With another issuer it installs the registry itself: it sets the limits, which its first connections also have.
const service = serviceForFile(() => ({ AUTH_METRICS_ADDRESS: '127.0.0.1:0', AUTH_ISSUER: 'http://locks.test' }))

/** A session with the rights of the service that locks a user and then stays idle. */
async function lock(t: ExecutionContext, { token }: SignedUp): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: service.env.DATABASE_URL! })
  client.on('error', () => {})
  await client.connect()
  t.teardown(() => client.end())
  await client.query('BEGIN')
  await client.query('SELECT FROM users WHERE id = $1 FOR UPDATE', [idOf(token)])
  return client
}

const change = ({ token }: SignedUp) =>
  service.request('POST', '/forgotpasswords/passwordupdatebyusername', {
    token,
    query: { newPassword: 'tatu-canastra 12' },
    once: true,
  })

test('a call that needs a held lock is answered with 503 after about 2 s, and other calls aren’t affected', async t => {
  const [held, free] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  const holder = await lock(t, held)
  await holder.query('SET idle_in_transaction_session_timeout = 0; SET transaction_timeout = 0')
  const at = performance.now()
  const waiting = change(held)
  t.is((await change(free)).status, 200)
  t.log(`who needs no lock: 200 after ${Math.round(performance.now() - at)} ms`)
  t.true(await within(4_500, waiting))
  refused(t, await waiting, 503, 'UNAVAILABLE')
  t.is((await waiting).headers.get('retry-after'), '1')
  t.log(`who needs it: 503 after ${Math.round(performance.now() - at)} ms`)
  await holder.query('ROLLBACK')
  t.is((await change(held)).status, 200)
})

test('more calls that need a held lock than there are connections are all answered in time by limits of each connection, and so are the calls after them', async t => {
  const [held, free] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  const holder = await lock(t, held)
  await holder.query('SET idle_in_transaction_session_timeout = 0; SET transaction_timeout = 0')
  const waiting = Array.from({ length: 25 }, () => change(held))
  t.true(await within(13_000, Promise.all(waiting)))
  for (const answer of waiting) refused(t, await answer, 503, 'UNAVAILABLE')
  const { value } = await scrape(service)
  t.is(value('auth_database_errors_total', { class: 'silent' }), undefined)
  t.is((await change(free)).status, 200)
  await holder.query('ROLLBACK')
})

test('a process that freezes in a transaction loses the transaction and its locks', async t => {
  const held = await service.signUp('ROLE_CLIENT')
  const frozen = await lock(t, held)
  t.true(
    await within(
      20_000,
      waitForValue(async () => (await change(held)).status, 200),
    ),
  )
  await t.throwsAsync(frozen.query('COMMIT'))
})
