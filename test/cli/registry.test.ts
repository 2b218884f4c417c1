/** What a registry is set up with: signing keys, master key, issuer and settings. */

import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import { assertRefusals, documentsOf, installedRegistry, keys, openTerminal, runCli } from '../_helpers/cli.js'
import { ask, freshDatabase } from '../_helpers/database.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

test('RotateSigningKey publishes a key that signs later, or at once; retire needs its id as confirmation', async t => {
  const env = await installedRegistry(t)
  const { run, json } = documentsOf({ env }, 'keys')
  const rotate = async (...request: string[]) => {
    const { code, stdout, stderr } = await runCli(env, ['api', 'RotateSigningKey', ...request, '--yes'])
    t.is(code, 0, stderr)
    return JSON.parse(stdout).key
  }
  const stateOf = async (kid: string) =>
    (await json('list')).keys.find((key: { kid: string }) => key.kid === kid)?.state
  const states = async () => (await json('list')).keys.map(({ state }: { state: string }) => state)
  const [first] = (await json('list')).keys
  t.deepEqual(Object.keys(first), ['kid', 'state', 'signTime'])
  const rotated = await rotate()
  t.is(Math.round((Date.parse(rotated.signTime) - Date.now()) / 60_000), 10)
  await assertRefusals(t, run, [
    [/--now/, 2, 'retire', first.kid],
    [/to confirm/, 2, 'retire', first.kid, '--now', '--confirm', 'another'],
    [/no key none/, 3, 'retire', 'none', '--now', '--confirm', 'none'],
  ])
  t.deepEqual(await states(), ['published', 'signing'])
  const { kid } = await rotate('{"now": true}')
  t.is(await stateOf(kid), 'signing')
  t.is(await stateOf(first.kid), 'retiring')
  const { stdout } = await run('list')
  t.true(stdout.includes(kid), 'a key id can be copied whole')
  t.true(stdout.split('\n').every(line => line.length <= 110))
  t.notRegex(stdout + JSON.stringify(await json('list')), /PRIVATE|"d"/)
  const { successor } = await json('retire', kid, '--now', '--confirm', kid)
  t.is(await stateOf(successor), 'signing')
  t.is(await stateOf(kid), undefined)
})

// `auth-admin master-key`: the registry gets a new master key.

const next = Buffer.alloc(32, 9).toString('base64')

test('rotate wraps the data keys with the new master key, and voids the old one', async t => {
  const env = await installedRegistry(t)
  const file = join(await temporaryFolder(t), 'key')
  await writeFile(file, `${next}\n`)
  const { code, stdout, stderr } = await runCli(env, ['master-key', 'rotate', '--new-key-file', file, '--json'])
  const { pathname, host } = new URL(env.DATABASE_URL)
  const database = `the database ${pathname.slice(1)} at ${host}`
  t.deepEqual([code, stderr, JSON.parse(stdout)], [0, '', { database, rotated: true }])
  const list = (...args: string[]) => runCli(env, ['keys', 'list', ...args])
  await assertRefusals(t, list, [
    [
      /^error: AUTH_MASTER_KEY is not the key of this registry, which after `auth-admin master-key rotate` is the new one\.\n$/,
      1,
    ],
  ])
  const after = { ...env, AUTH_MASTER_KEY: next }
  const { json } = documentsOf({ env: after })
  t.is((await json('audit', 'list', '--action', 'master-key.*')).events.length, 1)
  await json('audit', 'verify')
  // And back, from standard input.
  const back = await runCli(after, ['master-key', 'rotate', '--new-key-file', '-'], env.AUTH_MASTER_KEY)
  t.is(back.code, 0, back.stderr)
  t.is((await list()).code, 0)
})

test('rotate changes nothing if the new key is invalid or missing, or its event can’t be written', async t => {
  const env = await installedRegistry(t)
  const wrapped = () => ask(env.DATABASE_URL, 'SELECT name, wrapped FROM data_keys ORDER BY name')
  const before = await wrapped()
  const rotate = (key: string, ...args: string[]) => runCli(env, ['master-key', 'rotate', ...args], key)
  const short = await rotate('secret', '--new-key-file', '-')
  t.is(short.code, 1)
  t.regex(short.stderr, /^error: The new master key can’t be used: expected at least 32 bytes(?!.*secret)[^\n]*\n$/)
  t.is((await rotate('')).code, 2)
  t.regex((await rotate('', '--new-key-file', '/none')).stderr, /can’t be read \(ENOENT\)/)
  await ask(env.DATABASE_URL, 'ALTER TABLE audit_staged ADD CONSTRAINT closed CHECK (seq < 0) NOT VALID')
  t.is((await rotate(next, '--new-key-file', '-')).code, 1)
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

test('install takes issuer and audience from the defaults, and `issuer set` changes the given ones', async t => {
  const env = await install(t)
  const { run, json } = documentsOf({ env }, 'issuer')
  const [a, b] = ['https://a.example', 'https://b.example'] as const
  const now = async () => JSON.parse((await runCli(env, ['api', 'GetIssuer'])).stdout)
  t.deepEqual(await now(), { issuer: 'http://127.0.0.1:8080', audience: 'work-packages' })
  const set = (confirm: string, ...args: string[]) => json('set', ...args, '--confirm', confirm)
  t.deepEqual(await set(a, '--issuer', a), { issuer: a, audience: 'work-packages' })
  t.deepEqual(await set(a, '--audience', 'apps'), { issuer: a, audience: 'apps' })
  const warned = await run('set', '--issuer', b, '--confirm', b)
  t.regex(warned.stderr, /^warning: Restart all processes of the service: [^\n]* all users have to sign in again\.\n$/)
  const { events } = await documentsOf({ env }, 'audit').json('list', '--action', 'registry.set-issuer', '--limit', '2')
  t.is(events[0].object, `issuer:${a}->${b} audience:apps`)
  t.is(events[1].object, `issuer:${a} audience:work-packages->apps`)
  t.deepEqual(await now(), { issuer: b, audience: 'apps' })
  const stdout = `The issuer is ${b}, the audience apps already.\n`
  t.deepEqual(await run('set', '--issuer', b, '--confirm', b), { code: 0, stderr: '', stdout })
  await assertRefusals(t, run, [
    [/--issuer/, 2, 'set'],
    [/--issuer/, 2, 'set', '--issuer', 'a\nb'],
    [/https:\/\/a\.example/, 2, 'set', '--issuer', a, '--confirm', b],
  ])
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

test('tokens for the issuer are for the registry alone: install refuses it as audience, and so does a start of a registry that has it', async t => {
  const env = { ...(await installedRegistry(t)), DATABASE_URL: await freshDatabase(t) }
  const says =
    /AUTH_AUDIENCE.*`auth-admin issuer set --audience work-packages --confirm http:\/\/127\.0\.0\.1:8080 --local`/
  const refused = await runCli({ ...env, AUTH_AUDIENCE: 'http://127.0.0.1:8080' }, ['install'])
  t.is(refused.code, 1)
  t.regex(refused.stderr, says)
  t.is((await runCli(env, ['install'])).code, 0, 'nothing was installed')
  await ask(env.DATABASE_URL, 'UPDATE token_issuer SET audience = issuer')
  t.regex((await runCli(env, ['install'])).stderr, says)
  t.is(
    (
      await runCli(env, [
        'issuer',
        'set',
        '--audience',
        'work-packages',
        '--confirm',
        'http://127.0.0.1:8080',
        '--local',
      ])
    ).code,
    0,
  )
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
