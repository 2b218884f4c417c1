/** What a registry is set up with: signing keys, master key, issuer and settings. */

import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import { assertRefusals, documentsOf, installedRegistry, keys, openTerminal, runCli } from '../_helpers/cli.js'
import { ask, freshDatabase } from '../_helpers/database.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

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
  const list = (...args: string[]) => runCli(env, ['questions', 'list', ...args])
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
  t.is((await runCli(env, ['questions', 'list'])).code, 0)
  const again = openTerminal(env, ['master-key', 'rotate', '--yes'])
  await again.shows('New master key')
  again.type(next + keys.enter)
  await again.shows('Repeat the master key')
  again.type(next + keys.enter)
  t.is(await again.ended, 0)
  t.false(again.screen().includes(next))
  t.is((await runCli({ ...env, AUTH_MASTER_KEY: next }, ['questions', 'list'])).code, 0)
})

// Issuer and audience of the registry's tokens.

/** A registry that `install` has just made. */
async function install(t: ExecutionContext) {
  const env = { ...(await installedRegistry(t)), DATABASE_URL: await freshDatabase(t) }
  t.is((await runCli(env, ['install'])).code, 0)
  return env
}

test('install with settings that differ from the registry changes nothing, and reports both values and the command', async t => {
  const env = await install(t)
  const before = await runCli(env, ['audit', 'list', '--json'])
  const { code, stdout, stderr } = await runCli({ ...env, AUTH_AUDIENCE: "l'app de São Paulo" }, ['install'])
  t.is(code, 1)
  t.regex(stdout, /^Installing in the database [^\n]+\n$/)
  t.is(
    stderr,
    "error: AUTH_AUDIENCE is l'app de São Paulo, but the tokens of this registry have issuer http://127.0.0.1:8080 and " +
      'audience work-packages: leave both unset, or change the registry with `auth-admin api SetIssuer ' +
      `'{"issuer":"http://127.0.0.1:8080","audience":"l'\\''app de São Paulo","confirm":"http://127.0.0.1:8080"}' --yes --local\`.\n`,
  )
  t.deepEqual(await runCli(env, ['audit', 'list', '--json']), before)
})

test('tokens for the issuer are for the registry alone: install refuses it as audience, and so does a start of a registry that has it', async t => {
  const env = { ...(await installedRegistry(t)), DATABASE_URL: await freshDatabase(t) }
  const request = '{"audience":"work-packages","confirm":"http://127.0.0.1:8080"}'
  const says = `\`auth-admin api SetIssuer '${request}' --yes --local\``
  const refused = await runCli({ ...env, AUTH_AUDIENCE: 'http://127.0.0.1:8080' }, ['install'])
  t.is(refused.code, 1)
  t.regex(refused.stderr, /AUTH_AUDIENCE/)
  t.true(refused.stderr.includes(says))
  t.is((await runCli(env, ['install'])).code, 0, 'nothing was installed')
  await ask(env.DATABASE_URL, 'UPDATE token_issuer SET audience = issuer')
  t.true((await runCli(env, ['install'])).stderr.includes(says))
  t.is((await runCli(env, ['api', 'SetIssuer', request, '--yes', '--local'])).code, 0)
})

test('a registry with the audience of administrators is refused until the suggested command changes it', async t => {
  const env = await install(t)
  await ask(env.DATABASE_URL, `UPDATE token_issuer SET audience = 'Auth-Admin'`)
  const { code, stderr } = await runCli(env, ['install'])
  t.is(code, 1)
  t.regex(stderr, /audience Auth-Admin, which is for tokens of administrators/)
  const command = /`auth-admin ([^`]+)`/.exec(stderr)![1]!
  t.is(command, `api SetIssuer '{"audience":"work-packages","confirm":"http://127.0.0.1:8080"}' --yes --local`)
  t.is((await runCli(env, command.replaceAll("'", '').split(' '))).code, 0)
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
