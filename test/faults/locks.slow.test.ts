/** Somebody else holds a lock, or has frozen in a transaction: nobody waits for him for long. */
import test, { type ExecutionContext } from 'ava'
import pg from 'pg'
import { scrape } from '../_helpers/metrics.js'
import { refused } from '../_helpers/problem.js'
import { type SignedUp, serviceForFile } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { waitFor, within } from '../_helpers/wait.js'

// An issuer of its own has it install the registry itself: it sets the limits, and its first connections take them, too.
const service = serviceForFile(() => ({ AUTH_METRICS_ADDRESS: '127.0.0.1:0', AUTH_ISSUER: 'http://locks.test' }))

/** Somebody with the rights of the service who has locked a user, and does nothing more. */
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

test.serial(
  'who needs a lock that somebody holds is answered with 503 after about 2 s, and nobody else is',
  async t => {
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
  },
)

test.serial(
  'more who need it than there are connections are all answered in time, by limits that each connection has, and so is everybody after them',
  async t => {
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
  },
)

test.serial('who freezes in a transaction loses it, and with it what he has locked', async t => {
  const held = await service.signUp('ROLE_CLIENT')
  const frozen = await lock(t, held)
  t.true(
    await within(
      20_000,
      waitFor(async () => (await change(held)).status === 200),
    ),
  )
  await t.throwsAsync(frozen.query('COMMIT'))
})
