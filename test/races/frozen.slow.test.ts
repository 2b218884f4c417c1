/** Replicas that freeze or die at the worst moment: no other replica waits for them, and no acknowledged write is lost. */
import test, { type ExecutionContext } from 'ava'
import { ask, hold } from '../_helpers/database.js'
import { lockWaiters, sealed } from '../_helpers/models.js'
import { createRequest, password, signUpForm, startTestService, type TestService } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { waitFor, within } from '../_helpers/wait.js'

/** Milliseconds in which a slow call ends even on a busy machine, but a hanging one doesn't. */
const long = 30_000

/** A replica in a separate process beside a service. */
const replica = (t: ExecutionContext, { env }: TestService) => {
  const { DATABASE_URL, AUTH_ISSUER } = env as { DATABASE_URL: string; AUTH_ISSUER: string }
  return spawnService(t, { DATABASE_URL, AUTH_ISSUER })
}

/** Waits until a statement waits for a lock. */
const blocked = ({ registry }: TestService, like: string) =>
  waitFor(async () => (await lockWaiters(registry.database, like)) > 0)

test('a replica that freezes during a sign-up blocks no other replica: none of 20 logins there hangs', async t => {
  const service = await startTestService(t)
  const users = await Promise.all(Array.from({ length: 20 }, () => service.signUp('ROLE_CLIENT')))
  const frozen = await replica(t, service)
  const holder = await hold(t, service.env.DATABASE_URL!)
  await sealed(service)
  // Its event is written, and its transaction never ends.
  await holder.query('BEGIN')
  await holder.query('LOCK TABLE audit_staged IN SHARE MODE')
  const signUp = createRequest(frozen.http)('POST', '/users/signup', { body: signUpForm(), once: true })
  await blocked(service, '%audit_append%')
  process.kill(frozen.pid, 'SIGSTOP')
  t.teardown(async () => void process.kill(frozen.pid, 'SIGCONT'))
  await holder.query('ROLLBACK')

  const { events } = await service.registry.audit.verify()
  const at = performance.now()
  const logins = users.map(({ username }) => service.request('POST', '/users/login', { query: { username, password } }))
  t.true(await within(long, Promise.all(logins)))
  t.deepEqual([...new Set((await Promise.all(logins)).map(({ status }) => status))], [200])
  t.log(`20 of 20 logins at another replica: 200, the last after ${Math.round(performance.now() - at)} ms`)
  t.true(await within(long, service.signUp('ROLE_CLIENT')))
  t.true(await within(long, sealed(service)))
  t.like(await sealed(service), { broken: undefined, events: events + 21 })

  process.kill(frozen.pid, 'SIGCONT')
  // It committed or it didn't: the audit log is consistent in both cases.
  const { status } = await signUp
  const after = await sealed(service)
  t.is(after.broken, undefined)
  t.is(after.events, events + 21 + (status === 200 ? 1 : 0))
})

test('a stopping service seals its last events', async t => {
  const service = await startTestService(t)
  const holder = await hold(t, service.env.DATABASE_URL!)
  // Blocks sealing until the stop.
  await holder.query('SELECT pg_advisory_lock(7264004)')
  await service.signUp('ROLE_CLIENT')
  t.true((await service.registry.audit.verify()).staged > 0)
  await holder.query('SELECT pg_advisory_unlock(7264004)')
  await service.service.stop()
  t.like(await service.registry.audit.verify(), { staged: 0, broken: undefined })
})

for (const signal of ['SIGSTOP', 'SIGKILL'] as const) {
  test(`a process that gets ${signal} during sealing loses no event, and another one continues`, async t => {
    const first = await startTestService(t)
    await first.signUp('ROLE_CLIENT')
    const { events } = await sealed(first)
    await first.service.stop()
    const sealer = await replica(t, first)
    const holder = await hold(t, first.env.DATABASE_URL!)
    await holder.query('BEGIN')
    await holder.query('SELECT FROM audit_head FOR UPDATE')
    const request = createRequest(sealer.http)
    for (let index = 0; index < 3; index++)
      t.is((await request('POST', '/users/signup', { body: signUpForm() })).status, 200)
    await blocked(first, '%UPDATE audit_head%')
    process.kill(sealer.pid, signal)
    if (signal === 'SIGSTOP') t.teardown(async () => void process.kill(sealer.pid, 'SIGCONT'))
    await holder.query('ROLLBACK')

    const second = await startTestService(t, { DATABASE_URL: first.env.DATABASE_URL! })
    t.true(await within(long, sealed(second)))
    t.like(await sealed(second), { broken: undefined, events: events + 3 })
    const rows = await ask(first.env.DATABASE_URL!, 'SELECT id::int AS id FROM audit_events ORDER BY id')
    const seen = rows.map(({ id }) => id)
    t.deepEqual(
      seen,
      Array.from({ length: events + 3 }, (_, index) => index + 1),
    )
  })
}
