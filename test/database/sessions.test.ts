/** Settings of role, database and server, and conflicts of transactions, change nothing that a client sees. */
import { readdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import { sql } from '../../server/database/sql.js'
import { runCli } from '../_helpers/cli.js'
import { ask, databaseOfRole, freshDatabase } from '../_helpers/database.js'
import { createRequest, password, startTestService, type TestService } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

/** Settings that an administrator may prefer, by their names in PostgreSQL. */
const preferences: readonly Readonly<Record<string, string>>[] = [
  { datestyle: 'SQL, DMY', timezone: 'America/Sao_Paulo', default_transaction_isolation: 'serializable' },
  { datestyle: 'German, DMY', bytea_output: 'escape', default_transaction_isolation: 'repeatable read' },
  { datestyle: 'Postgres, YMD', intervalstyle: 'sql_standard', extra_float_digits: '-15', array_nulls: 'off' },
  {
    datestyle: 'SQL, MDY',
    client_encoding: 'LATIN1',
    standard_conforming_strings: 'off',
    extra_float_digits: '0',
    intervalstyle: 'iso_8601',
    timezone: 'Asia/Kathmandu',
  },
]
const places = ['ROLE :name', 'DATABASE :name', 'ROLE :name IN DATABASE :name']

const set = (place: string, settings: Readonly<Record<string, string>>) =>
  Object.entries(settings).map(([name, value]) => `ALTER ${place} SET ${name} = '${value.replace(', ', "', '")}'`)

/** What a client, an administrator and doctor see. */
async function use(t: ExecutionContext, service: TestService): Promise<void> {
  const { env, request, signUp, login } = service
  const email = 'ana@example.org'
  const { username, token } = await signUp('ROLE_CLIENT', { email, dateofborn: '28/02/2001' })
  const me = await request('GET', '/users/me', { token })
  t.like(me.json, { username, dateofborn: '28/02/2001' })
  t.is((await request('POST', '/forgotpasswords/sendkeybyemail', { body: { username, email } })).status, 200)
  const mail = join(env.AUTH_DATA_DIR ?? service.settings.dataDir, 'mail')
  const [file] = await waitFor(async () => {
    const files = (await readdir(mail).catch(() => [])).filter(name => name.endsWith('.eml'))
    return files.length > 0 && files
  })
  const key = /: ([2-9A-HJ-NP-Z]{8})/.exec(await readFile(join(mail, file!), 'utf8'))?.[1]
  t.truthy(key)
  t.truthy(await login(username))
  for (const args of [
    ['users', 'list', '--json'],
    ['mail', 'list', '--json'],
    ['audit', 'list', '--json'],
    ['audit', 'verify'],
    ['api', 'ListSigningKeys'],
    ['questions', 'list', '--json'],
  ]) {
    const { code, stderr } = await runCli(env, args)
    t.is(code, 0, `${args.join(' ')}: ${stderr}`)
  }
  const { stdout } = await runCli(env, ['users', 'list', '--json'])
  const created = Date.parse(
    JSON.parse(stdout).users.find((user: { username: string }) => user.username === username).createTime,
  )
  t.true(Math.abs(created - Date.now()) < 600_000, stdout)
}

/** Ten wrong passwords at once are ten failures, and each gets its answer. */
async function guess(t: ExecutionContext, { request, signUp }: TestService): Promise<void> {
  const { username } = await signUp('ROLE_CLIENT')
  const wrong = (password: string) =>
    request('POST', '/users/login', { query: { username, password }, once: true }).then(({ status }) => status)
  const statuses = await Promise.all(Array.from({ length: 10 }, (_, index) => wrong(`wrong ${index}`)))
  const right = await wrong('wrong')
  t.deepEqual([...statuses, right], [...Array(10).fill(statuses[0]), 429])
  t.true(statuses[0]! >= 400 && statuses[0]! < 429, String(statuses[0]))
}

for (const [index, settings] of preferences.entries()) {
  const place = places[index % places.length]!
  const shown = Object.entries(settings).map(setting => setting.join(' = '))
  test(`the service works as ever with ${shown.join('; ')} of ${place.replaceAll(' :name', '')}`, async t => {
    const DATABASE_URL = await databaseOfRole(t, ...set(place, settings))
    const service = await startTestService(t, { DATABASE_URL })
    await use(t, service)
    await guess(t, service)
  })
}

const relied = {
  DateStyle: 'ISO, MDY',
  IntervalStyle: 'postgres',
  TimeZone: 'UTC',
  array_nulls: 'on',
  bytea_output: 'hex',
  client_encoding: 'UTF8',
  default_transaction_isolation: 'read committed',
  extra_float_digits: '1',
  standard_conforming_strings: 'on',
}

test('each setting that the service relies on holds in its sessions, whichever place sets it, also after its start', async t => {
  const all = Object.assign({}, ...preferences)
  const DATABASE_URL = await databaseOfRole(t, ...places.flatMap(place => set(place, all)))
  const lines: string[] = []
  const service = await startTestService(t, { DATABASE_URL }, { onLine: line => lines.push(line) })
  const effective = async ({ registry }: Pick<TestService, 'registry'>) => {
    const text = `SELECT name, setting FROM pg_settings WHERE name IN ('${Object.keys(relied).join("', '")}')`
    const rows = await registry.database.run<{ name: string; setting: string }>(sql.text(text))
    return Object.fromEntries(rows.map(({ name, setting }) => [name, setting]))
  }
  t.deepEqual(await effective(service), relied)
  // What it replaced is in the log.
  const replaced = lines.find(line => /replaced/.test(line)) ?? ''
  for (const name of [
    'default_transaction_isolation',
    'IntervalStyle',
    'bytea_output',
    'extra_float_digits',
    'array_nulls',
  ])
    t.true(replaced.includes(name), `${name}: ${replaced}`)

  // Later changes of less specific places have no effect; the next start replaces the others.
  const name = new URL(DATABASE_URL).pathname.slice(1)
  const later = (place: string) => ask(DATABASE_URL, set(place, all).join('; ').replaceAll(':name', name))
  await later(places[0]!)
  await later(places[1]!)
  t.deepEqual(await effective(await startTestService(t, { DATABASE_URL })), relied)
  await later(places[2]!)
  t.deepEqual(await effective(await startTestService(t, { DATABASE_URL })), relied)
})

test('a role that acts as another one keeps the settings, too', async t => {
  const DATABASE_URL = await databaseOfRole(t)
  const name = new URL(DATABASE_URL).pathname.slice(1)
  t.teardown(async () => void (await ask(process.env.TEST_DATABASE_URL!, `DROP ROLE ${name}_app`)))
  await ask(
    Object.assign(new URL(process.env.TEST_DATABASE_URL!), { pathname: `/${name}` }).href,
    `CREATE ROLE ${name}_app LOGIN PASSWORD 'x' IN ROLE ${name}; ALTER ROLE ${name}_app SET role = '${name}';
     ALTER ROLE ${name}_app SET default_transaction_isolation = 'serializable'`,
  )
  const service = await startTestService(t, {
    DATABASE_URL: Object.assign(new URL(DATABASE_URL), { username: `${name}_app` }).href,
  })
  const [row] = await service.registry.database.run<{ who: string; level: string }>(
    sql`SELECT current_user AS who, current_setting('default_transaction_isolation') AS level`,
  )
  t.deepEqual(row, { who: name, level: 'read committed' })
})

/** SQL that makes the next `times` writes to a table fail with a SQLSTATE. A sequence counts on when they are rolled back. */
const failing = (table: string, events: string, state: string, times: number) => `
  CREATE SEQUENCE failures;
  CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('failures') <= ${times} THEN RAISE EXCEPTION 'on purpose' USING ERRCODE = '${state}'; END IF;
    RETURN NEW;
  END $$;
  CREATE TRIGGER fail BEFORE ${events} ON ${table} FOR EACH ROW EXECUTE FUNCTION fail()`

for (const state of ['40001', '40P01'])
  test(`a call that PostgreSQL rolls back with ${state} is repeated, alone and in a transaction, and counts once`, async t => {
    const service = await startTestService(t)
    const { request, signUp, env } = service
    const { username, token } = await signUp('ROLE_CLIENT')
    const url = env.DATABASE_URL!
    await ask(url, failing('attempts', 'INSERT OR UPDATE', state, 3))
    const wrong = () =>
      request('POST', '/users/login', { query: { username, password: 'wrong' }, once: true }).then(
        ({ status }) => status,
      )
    const first = await wrong()
    t.true(first >= 400 && first < 429, String(first))
    const [counted] = await ask(url, 'SELECT max(count) AS count, sum(in_flight)::int AS in_flight FROM attempts')
    t.deepEqual(counted, { count: 1, in_flight: 0 })
    await ask(url, 'DROP FUNCTION fail CASCADE; DROP SEQUENCE failures')

    await ask(url, failing('users', 'UPDATE', state, 3))
    const body = { newPassword: 'tatu-canastra 12' }
    const changed = await request('POST', '/forgotpasswords/passwordupdatebyusername', {
      token,
      query: body,
      once: true,
    })
    t.is(changed.status, 200, changed.text)
    const [events] = await ask(
      url,
      `SELECT count(*)::int AS n FROM (SELECT action FROM audit_staged UNION ALL SELECT action FROM audit_events) e
       WHERE action = 'user.change-password'`,
    )
    t.deepEqual(events, { n: 1 })
    await ask(url, 'DROP FUNCTION fail CASCADE; DROP SEQUENCE failures')
  })

test('a call that PostgreSQL rolls back every time is refused as temporary, before its deadline', async t => {
  const { request, signUp, env } = await startTestService(t)
  const { token } = await signUp('ROLE_CLIENT')
  await ask(env.DATABASE_URL!, failing('users', 'UPDATE', '40001', 1_000_000))
  const query = { newPassword: 'tatu-canastra 12' }
  const { status, headers } = await request('POST', '/forgotpasswords/passwordupdatebyusername', {
    token,
    query,
    once: true,
  })
  t.is(status, 503)
  t.truthy(headers.get('retry-after'))
})

test('doctor warns of e-mails that can’t be made', async t => {
  const service = await startTestService(t)
  const { env, request, signUp } = service
  const email = 'ana@example.org'
  const { username } = await signUp('ROLE_CLIENT', { email })
  const check = async () => {
    const { stdout } = await runCli(env, ['doctor', '--json'])
    return JSON.parse(stdout).checks.find((each: { check: string }) => each.check === 'e-mails')
  }
  t.is((await check()).status, 'ok')
  // The key can't be stored.
  await ask(env.DATABASE_URL!, failing('mailed_keys', 'INSERT OR UPDATE', 'XX000', 1_000_000))
  await request('POST', '/forgotpasswords/sendkeybyemail', { body: { username, email } })
  await waitForValue(check, value => value.status !== 'ok')
  const { status, detail, fix } = await check()
  t.is(status, 'warning')
  t.regex(detail, /can’t be made/)
  t.regex(fix, /log/)
})

test('doctor warns of e-mails that no process could finish, before they are old', async t => {
  const { env } = await startTestService(t, { DATABASE_URL: await freshDatabase(t, { from: 'auth_installed' }) })
  // As a process leaves it that fails before it can say why.
  await ask(
    env.DATABASE_URL!,
    `INSERT INTO emails (kind, parameters, locale, attempts, next_attempt_at)
     VALUES ('password-changed', '{}', 'en', 2, now() + interval '1 hour')`,
  )
  const { stdout } = await runCli(env, ['doctor', '--json'])
  const { status, detail } = JSON.parse(stdout).checks.find((each: { check: string }) => each.check === 'e-mails')
  t.is(status, 'warning')
  t.regex(detail, /can’t be made/)
})

test('a rotated password in the file of DATABASE_URL_FILE needs no restart, and until then the log says what is refused', async t => {
  const url = await databaseOfRole(t)
  const { username } = new URL(url)
  const file = join(await temporaryFolder(t), 'database-url')
  await writeFile(file, url)
  const AUTH_MASTER_KEY = 'a'.repeat(64)
  const service = await spawnService(t, { DATABASE_URL: '', DATABASE_URL_FILE: file, AUTH_MASTER_KEY })
  const request = createRequest(service.http)
  const statuses = async () => [
    (await request('GET', '/readyz', { once: true })).status,
    (await request('POST', '/users/login', { query: { username: 'admin', password }, once: true })).status,
    (await request('GET', '/users/me', { token: 'x', once: true })).status,
  ]
  const usual = await statuses()
  t.deepEqual(usual.slice(0, 2), [200, 200])
  const server = process.env.TEST_DATABASE_URL!
  await ask(server, `ALTER ROLE ${username} PASSWORD 'rotated'`)
  await ask(server, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '${username}'`)
  await waitForValue(async () => (await statuses()).slice(0, 2).join(), '503,503')
  await waitFor(() => /"code":"28P01".*refuses the user or password of DATABASE_URL/.test(service.output()))
  // While it is replaced.
  await writeFile(file, '')
  t.is((await statuses())[1], 503)
  await writeFile(file, Object.assign(new URL(url), { password: 'rotated' }).href)
  await waitForValue(statuses, value => value.join() === usual.join())
})
