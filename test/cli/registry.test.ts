/** What a registry is set up with: signing keys, master key, issuer and settings. */

import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import pg from 'pg'
import { assertRefusals, installedRegistry, keys, openTerminal, runCli } from '../_helpers/cli.js'
import { ask, freshDatabase } from '../_helpers/database.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

test('rotate publishes a key that signs later, or with `--now` at once; retire needs its id as confirmation', async t => {
  const env = await installedRegistry(t)
  const keys = (...args: string[]) => runCli(env, ['keys', ...args])
  const json = async (...args: string[]) => JSON.parse((await keys(...args, '--json')).stdout)
  const states = async () => (await json('list')).keys.map(({ state }: { state: string }) => state)
  t.deepEqual(await states(), ['signing'])
  const [first] = (await json('list')).keys
  t.deepEqual(Object.keys(first), ['kid', 'state', 'signTime'])
  t.deepEqual(await json('show', first.kid), first)
  const rotated = await json('rotate')
  t.is(Math.round((Date.parse(rotated.signTime) - Date.now()) / 60_000), 10)
  t.deepEqual(await states(), ['published', 'signing'])
  t.is((await json('list')).keys[0].kid, rotated.kid)
  await assertRefusals(t, keys, [
    [/no key none/, 3, 'show', 'none'],
    [/--yes/, 2, 'rotate', '--now'],
    [/--now/, 2, 'retire', first.kid],
    [/to confirm/, 2, 'retire', first.kid, '--now', '--confirm', 'another'],
    [/no key none/, 3, 'retire', 'none', '--now', '--confirm', 'none'],
  ])
  t.is((await states()).length, 2)
  const now = await keys('rotate', '--now', '--yes', '--json')
  t.regex(now.stderr, /^warning: [^\n]+\n$/)
  const { kid } = JSON.parse(now.stdout)
  const { keys: all }: { keys: { kid: string; state: string }[] } = await json('list')
  t.is(all.find(({ state }) => state === 'signing')?.kid, kid)
  t.is(all.find(each => each.kid === first.kid)?.state, 'retiring')
  const { stdout } = await keys('list')
  t.true(stdout.includes(kid), 'a key id can be copied whole')
  t.true(stdout.split('\n').every(line => line.length <= 110))
  t.notRegex(stdout + JSON.stringify(all), /PRIVATE|"d"/)
  const { successor } = await json('retire', kid, '--now', '--confirm', kid)
  const left: typeof all = (await json('list')).keys
  t.is(left.find(({ state }) => state === 'signing')?.kid, successor)
  t.false(left.some(each => each.kid === kid))
})

// `auth-admin master-key`: the registry gets a new master key.

const next = Buffer.alloc(32, 9).toString('base64')

test('rotate wraps the data keys with the new master key, voids the old one, and is recorded in the audit log', async t => {
  const env = await installedRegistry(t)
  const folder = await temporaryFolder(t)
  const file = join(folder, 'key')
  await writeFile(file, `${next}\n`)
  const { code, stdout, stderr } = await runCli(env, ['master-key', 'rotate', '--new-key-file', file, '--json'])
  const { pathname, host } = new URL(env.DATABASE_URL)
  const database = `the database ${pathname.slice(1)} at ${host}`
  t.deepEqual([code, stderr, JSON.parse(stdout)], [0, '', { database, rotated: true }])
  const before = await runCli(env, ['keys', 'list'])
  t.deepEqual(
    [before.code, before.stderr],
    [1, 'error: AUTH_MASTER_KEY is not the key that this database was set up with.\n'],
  )
  const after = { ...env, AUTH_MASTER_KEY: next }
  t.is((await runCli(after, ['keys', 'list'])).code, 0)
  const { events } = JSON.parse((await runCli(after, ['audit', 'list', '--json', '--action', 'master-key.*'])).stdout)
  t.is(events.length, 1)
  t.is((await runCli(after, ['audit', 'verify'])).code, 0)
  // And back, from standard input.
  const args = ['master-key', 'rotate', '--new-key-file', '-', '--json']
  t.like(JSON.parse((await runCli(after, args, env.AUTH_MASTER_KEY)).stdout), { rotated: true })
  t.is((await runCli(env, ['keys', 'list'])).code, 0)
})

test('rotate changes nothing if the new key is invalid or missing, or its event can’t be written', async t => {
  const env = await installedRegistry(t)
  const client = new pg.Client({ connectionString: env.DATABASE_URL })
  await client.connect()
  t.teardown(() => client.end())
  const wrapped = async () => (await client.query('SELECT name, wrapped FROM data_keys ORDER BY name')).rows
  const before = await wrapped()
  const short = await runCli(env, ['master-key', 'rotate', '--new-key-file', '-'], 'secret')
  t.is(short.code, 1)
  t.regex(short.stderr, /^error: The new master key can’t be used: expected at least 32 bytes[^\n]*\n$/)
  t.notRegex(short.stderr, /secret/)
  t.is((await runCli(env, ['master-key', 'rotate'])).code, 2)
  t.regex((await runCli(env, ['master-key', 'rotate', '--new-key-file', '/none'])).stderr, /can’t be read \(ENOENT\)/)
  await client.query('ALTER TABLE audit_staged ADD CONSTRAINT closed CHECK (seq < 0) NOT VALID')
  t.is((await runCli(env, ['master-key', 'rotate', '--new-key-file', '-'], next)).code, 1)
  t.deepEqual(await wrapped(), before)
})

test('at a terminal, rotate asks for the key twice, without echo', async t => {
  const env = await installedRegistry(t)
  const terminal = openTerminal(env, ['master-key', 'rotate'])
  await terminal.shows(`Rotating the master key of the database ${new URL(env.DATABASE_URL).pathname.slice(1)} at `)
  await terminal.shows('Rotate?')
  terminal.type(`n${keys.enter}`)
  t.is(await terminal.ended, 1)
  t.notRegex(terminal.screen(), /New master key/)
  t.is((await runCli(env, ['keys', 'list'])).code, 0)
  const again = openTerminal(env, ['master-key', 'rotate', '--yes'])
  await again.shows('New master key')
  again.type(next + keys.enter)
  await again.shows('Repeat the master key')
  again.type(next + keys.enter)
  t.is(await again.ended, 0)
  t.false(again.screen().includes(next))
  t.is((await runCli({ ...env, AUTH_MASTER_KEY: next }, ['keys', 'list'])).code, 0)
})

// `auth-admin issuer`: issuer and audience of the registry's tokens.

/** A registry that `install` has just made. */
async function install(t: ExecutionContext) {
  const env = { ...(await installedRegistry(t)), DATABASE_URL: await freshDatabase(t) }
  t.is((await runCli(env, ['install'])).code, 0)
  return env
}

test('install takes issuer and audience from the settings or the defaults, and `issuer set` changes the given ones', async t => {
  const env = await install(t)
  const show = async () => JSON.parse((await runCli(env, ['issuer', 'show', '--json'])).stdout)
  const set = async (confirm: string, ...args: string[]) =>
    JSON.parse((await runCli(env, ['issuer', 'set', ...args, '--confirm', confirm, '--json'])).stdout)
  const [a, b] = ['https://a.example', 'https://b.example'] as const
  t.deepEqual(await show(), { issuer: 'http://127.0.0.1:8080', audience: 'work-packages' })
  t.deepEqual(await set(a, '--issuer', a), { issuer: a, audience: 'work-packages' })
  t.deepEqual(await set(a, '--audience', 'apps'), { issuer: a, audience: 'apps' })
  t.deepEqual(await set(b, '--issuer', b), { issuer: b, audience: 'apps' })
  t.deepEqual(await show(), { issuer: 'https://b.example', audience: 'apps' })
  const { stdout } = await runCli(env, ['issuer', 'show'])
  t.regex(stdout, /^issuer +https:\/\/b\.example\naudience +apps\n$/)
  const { events } = JSON.parse(
    (await runCli(env, ['audit', 'list', '--action', 'registry.set-issuer', '--json'])).stdout,
  )
  t.deepEqual(
    events.map(({ object }: { object: string }) => object),
    [
      'issuer:https://a.example->https://b.example audience:apps',
      'issuer:https://a.example audience:work-packages->apps',
      'issuer:http://127.0.0.1:8080->https://a.example audience:work-packages',
      'issuer:http://127.0.0.1:8080 audience:work-packages',
    ],
  )
})

test('`issuer set` needs issuer or audience, warns about the effect on tokens, and reports when nothing changes', async t => {
  const env = await installedRegistry(t)
  t.is((await runCli(env, ['issuer', 'set'])).code, 2)
  t.is((await runCli(env, ['issuer', 'set', '--issuer', 'a\nb'])).code, 2)
  const change = ['issuer', 'set', '--issuer', 'https://a.example', '--confirm', 'https://a.example']
  const unsure = await runCli(env, [...change.slice(0, -1), 'https://b.example'])
  t.is(unsure.code, 2)
  t.regex(unsure.stderr, /https:\/\/a\.example/)
  const first = await runCli(env, change)
  t.regex(first.stderr, /^warning: Restart all processes of the service: [^\n]* all users have to sign in again\.\n$/)
  const again = await runCli(env, change)
  t.deepEqual(again, {
    code: 0,
    stderr: '',
    stdout: 'The issuer is https://a.example, the audience work-packages already.\n',
  })
})

test('install with settings that differ from the registry changes nothing, and reports both values and the command', async t => {
  const env = await install(t)
  const before = await runCli(env, ['audit', 'list', '--json'])
  const { code, stdout, stderr } = await runCli({ ...env, AUTH_AUDIENCE: "l'app de São Paulo" }, ['install'])
  t.is(code, 1)
  t.regex(stdout, /^Installing in the database [^\n]+\n$/)
  t.is(
    stderr,
    "error: AUTH_AUDIENCE is l'app de São Paulo, but the tokens of this registry have issuer http://127.0.0.1:8080 and " +
      'audience work-packages: leave both unset, or change the registry with `auth-admin issuer set --issuer ' +
      "http://127.0.0.1:8080 --audience 'l'\\''app de São Paulo' --confirm http://127.0.0.1:8080`.\n",
  )
  t.deepEqual(await runCli(env, ['audit', 'list', '--json']), before)
})

test('at a terminal, `issuer set` asks for both, and Enter keeps the current value', async t => {
  const env = await installedRegistry(t)
  const terminal = openTerminal(env, ['issuer', 'set'])
  await terminal.shows('Issuer')
  terminal.type(`https://b.example${keys.enter}`)
  await terminal.shows('Audience')
  terminal.type(keys.enter)
  await terminal.shows('to confirm:')
  terminal.type(`https://b.example${keys.enter}`)
  t.is(await terminal.ended, 0)
  t.regex(terminal.screen(), /The issuer is https:\/\/b\.example, the audience work-packages\./)
})

test('a registry with the audience of administrators is refused until the suggested command changes it', async t => {
  const env = await install(t)
  await ask(env.DATABASE_URL, `UPDATE token_issuer SET audience = 'Auth-Admin'`)
  const { code, stderr } = await runCli(env, ['install'])
  t.is(code, 1)
  t.regex(stderr, /audience Auth-Admin, which is for tokens of administrators/)
  const command = /`auth-admin ([^`]+)`/.exec(stderr)![1]!
  t.is(command, 'issuer set --audience work-packages --confirm http://127.0.0.1:8080 --local')
  t.is((await runCli(env, command.split(' '))).code, 0)
  t.is((await runCli(env, ['install'])).code, 0)
})

// `auth-admin config`: the settings of this environment, without secrets and without a database.

test('config lists every setting with its origin, names unknown variables, and needs no database', async t => {
  const env = {
    DATABASE_URL: 'postgres://ana:secret-of-ana@127.0.0.1:1/none',
    AUTH_MASTER_KEY: Buffer.alloc(32, 7).toString('base64'),
    AUTH_SOMETHING_ELSE: 'x',
  }
  const { code, stdout } = await runCli(env, ['config', '--json'])
  t.is(code, 0)
  const { settings, unknown } = JSON.parse(stdout)
  t.deepEqual(unknown, ['AUTH_SOMETHING_ELSE'])
  t.deepEqual(
    settings.find(({ name }: { name: string }) => name === 'AUTH_BCRYPT_COST'),
    { name: 'AUTH_BCRYPT_COST', value: '4', origin: 'environment', default: '12', secret: false },
  )
  t.notRegex(stdout, /secret-of-ana|BwcHBwc/)
  const table = await runCli(env, ['config'])
  t.regex(table.stdout, /^AUTH_TOKEN_TTL +1h +default$/m)
  t.regex(table.stderr, /AUTH_SOMETHING_ELSE is not a setting/)
  // Invalid settings are also shown.
  t.is((await runCli({ AUTH_BCRYPT_COST: 'many' }, ['config'])).code, 0)
})
