/** Whatever the clock of the database does, no lock, wait or age outlasts its own length, and nothing is deleted too soon. */
import test from 'ava'
import { openDatabase } from '../../server/database/database.js'
import { createClockRecord } from '../../server/models/clock.js'
import { runCli } from '../_helpers/cli.js'
import { createClock } from '../_helpers/clock.js'
import { ask, freshDatabase } from '../_helpers/database.js'
import { openMailbox } from '../_helpers/mailbox.js'
import { enterByKey, sendKey } from '../_helpers/recovery.js'
import { signUpForm, startTestService } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

const hour = 3600

for (const [leap, seconds] of Object.entries({
  '20 min ahead': 1200,
  '3 h ahead': 3 * hour,
  '2 d ahead': 48 * hour,
  '400 d ahead': 9600 * hour,
  '3 h behind': -3 * hour,
}))
  test(`a clock that was ${leap} delays no user once it is corrected`, async t => {
    const mailbox = await openMailbox(t)
    const url = await freshDatabase(t, { from: 'template0' })
    const clock = await createClock(url)
    await clock.leap(seconds)
    // The first start, so that the signing key has the wrong time as well.
    const { request, signUp, login } = await startTestService(t, { DATABASE_URL: url, SMTP_URL: mailbox.url })
    const email = 'ana@example.org'
    const { username } = await signUp('ROLE_CLIENT', { email })
    const wrong = () =>
      request('POST', '/users/login', { query: { username, password: 'wrong password 1' }, once: true })
    for (let n = 0; n < 11; n++) await wrong()
    t.is((await wrong()).status, 429)
    const recover = () => request('POST', '/forgotpasswords/sendkeybyemail', { query: { username, email } })
    await recover()
    await mailbox.nextEmail(email)
    const moved = {
      username: (await signUp('ROLE_CLIENT', { email: 'old@example.org' })).username,
      email: 'new@example.org',
    }
    await ask(url, `UPDATE users SET email = '${moved.email}' WHERE username = '${moved.username}'`)

    await clock.leap(-seconds)
    const other = signUpForm({ email: 'bia@example.org' })
    t.is((await request('POST', '/users/signup', { body: other, once: true })).status, 200)
    t.truthy(await login(other.username as string))
    const asked = { username: other.username as string, email: 'bia@example.org' }
    await request('POST', '/forgotpasswords/sendkeybyemail', { query: asked })
    t.truthy(await mailbox.nextEmail('bia@example.org'))
    await waitFor(async () => Number((await wrong()).headers.get('retry-after') ?? 0) <= 900)
    const ahead = `SELECT (SELECT count(*) FROM mailed_keys WHERE expires_at > now() + interval '15 minutes')
      + (SELECT count(*) FROM emails WHERE next_attempt_at > now() + interval '2 minutes')
      + (SELECT count(*) FROM email_quotas WHERE now() < ANY (sent_at))
      + (SELECT count(*) FROM users
        WHERE now() < greatest(created_at, unactivated_seen_at, recovery_from - interval '1 second')) AS count`
    await waitForValue(async () => Number((await ask(url, ahead))[0]!.count), 0)
    await sendKey({ request }, moved.username, moved.email)
    const [key = ''] = /\b[2-9A-HJ-NP-Z]{8}$/m.exec((await mailbox.nextEmail(moved.email)).text!) ?? []
    const { text: token } = await enterByKey({ request }, moved.username, key)
    t.is((await request('GET', '/users/me', { token })).status, 200)
    t.deepEqual(await ask(url, 'SELECT count(*)::int AS users FROM users'), [{ users: 4 }])
  })

test('after a leap of more than an hour nothing is deleted by age until processes have run for a day', async t => {
  const url = await freshDatabase(t, { from: 'template0' })
  const clock = await createClock(url)
  const settings = { DATABASE_URL: url, AUTH_METRICS_ADDRESS: '127.0.0.1:0' }
  const first = await startTestService(t, settings)
  await first.signUp('ROLE_CLIENT')
  const count = async () => (await ask(url, 'SELECT count(*)::int AS users FROM users'))[0]!.users
  const doubt = async ({ service }: typeof first) => {
    const text = await (await fetch(`http://127.0.0.1:${service.addresses.metrics!.port}/metrics`)).text()
    return Number(/^auth_clock_doubt_seconds (\d+)/m.exec(text)?.[1])
  }
  t.is(await doubt(first), 0)
  await clock.leap(9600 * hour)
  t.is(await doubt(first), 86_400)
  await first.service.stop()

  const again = { ...first.env, ...settings }
  const second = await startTestService(t, again)
  // Once the round that begins a second after the start is over.
  await waitFor(async () => (await doubt(second)) < 86_400)
  t.is(await count(), 2)
  const { stdout } = await runCli(second.env, ['doctor'])
  t.regex(stdout, /^failed +clocks: The clocks of this machine and of the database differ by 3456\d{4}\.\d s\./m)
  await second.service.stop()

  await ask(url, 'UPDATE clock SET doubted_for = 0')
  const third = await startTestService(t, again)
  t.is(await doubt(third), 0)
  await waitForValue(count, 1)
})

test('the log says that the signing key lies ahead, that the clock leapt, and how many times were brought back', async t => {
  const url = await freshDatabase(t, { from: 'template0' })
  const clock = await createClock(url)
  await clock.leap(2 * hour)
  const first = await spawnService(t, { DATABASE_URL: url })
  first.child.kill()
  await first.ended
  await clock.leap(-2 * hour)
  const { output } = await spawnService(t, { DATABASE_URL: url })
  await waitFor(() => /"seconds":-7\d{3},"msg":"the clock of the database leapt/.test(output()))
  await waitFor(() => /"rows":\d+,"msg":"times that lay ahead/.test(output()))
  await waitFor(() => output().includes('the time of the signing key lies ahead'))
  t.pass()
})

test('a process that can’t sign a token isn’t ready', async t => {
  const { request, registry } = await startTestService(t)
  const ready = async () => (await request('GET', '/readyz', { once: true })).status
  await waitForValue(ready, 200)
  await registry.database.sequelize.query('DELETE FROM signing_keys')
  await waitForValue(ready, 503)
  t.pass()
})

/** Columns whose times may stay ahead, by table. */
const mayStayAhead: Record<string, string[]> = {
  // Sealed.
  ...{ audit_events: ['at'], audit_staged: ['at'] },
  // Chosen by administrators.
  service_keys: ['created_at', 'expires_at'],
  // Only shown.
  ...{ users: ['activated_at'], services: ['created_at'], data_keys: ['created_at'], signing_keys: ['created_at'] },
  migrations: ['run_at'],
  // Rows that are only kept for longer.
  ...{ imports: ['created_at', 'updated_at'], refreshed_sessions: ['ends_at'], sealing_keys: ['created_at'] },
  // A process of the future counts as gone.
  processes: ['seen_at'],
}

const records = { 'was set back': "VALUES (now() + interval '9 years')", 'was never recorded': 'SELECT now() LIMIT 0' }

for (const [when, record] of Object.entries(records))
  test(`a start when the clock ${when} brings back each time that lies ahead, unless nothing waits for it`, async t => {
    const url = await freshDatabase(t)
    await ask(url, `DELETE FROM clock; INSERT INTO clock (seen_at) ${record}`)
    const tables = (await ask(
      url,
      `SELECT relname AS table, array_agg(attname::text) AS columns, array_agg(attndims) AS dimensions
    FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> 'clock'
      AND format_type(atttypid, NULL) LIKE 'timestamp%' GROUP BY relname`,
    )) as { table: string; columns: string[]; dimensions: number[] }[]
    for (const { table, columns, dimensions } of tables) {
      const times = dimensions.map(many => (many ? "ARRAY[now() + interval '9 years']" : "now() + interval '9 years'"))
      // Without constraints and triggers: a row has nothing but times.
      await ask(
        url,
        `ALTER TABLE ${table} RENAME TO former_${table}; CREATE TABLE ${table} AS TABLE former_${table} WITH NO DATA;
      INSERT INTO ${table} (${columns}) VALUES (${times})`,
      )
      if (table === 'signing_keys') await ask(url, `UPDATE signing_keys SET token_ttl = 3600`)
    }
    const database = openDatabase(url)
    t.teardown(() => database.close())
    await createClockRecord(database).beat()
    const stayed: typeof mayStayAhead = {}
    for (const { table, columns } of tables) {
      const [row = {}] = await ask(url, `SELECT * FROM ${table}`)
      const ahead = columns.filter(column => Number([row[column]].flat()[0]) > Date.now() + 366 * 86_400_000)
      if (ahead.length > 0) stayed[table] = ahead.sort()
    }
    t.deepEqual(stayed, mayStayAhead)
  })
