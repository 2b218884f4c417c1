/** `auth-admin` as a whole: help, failures and control characters. */

import { readdir } from 'node:fs/promises'
import test from 'ava'
import { createProgram } from '../../cli/program.js'
import { assertRefusals, installedRegistry, jsonLines, leaves, runCli, spawnCli } from '../_helpers/cli.js'
import { ask, freshDatabase } from '../_helpers/database.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

for (const { command, path } of leaves(createProgram())) {
  test(`${path} explains what it does, each option and an example, within 80 columns`, async t => {
    const { code, stdout, stderr } = await runCli({}, [...path.split(' '), '--help'])
    t.is(code, 0)
    t.is(stderr, '')
    t.true(stdout.startsWith(`Usage: auth-admin ${path} `))
    t.not(command.description(), '')
    for (const { description, long } of command.options) t.true(description.length > 5, String(long))
    for (const flags of ['--local', '--context <name>', '--reason <text>'])
      t.true(stdout.includes(`  ${flags} `), flags)
    // Output for a shell has no other form.
    if (path !== 'completion') t.true(command.options.some(({ long }) => long === '--json'))
    t.regex(stdout, new RegExp(`\\nExamples?:\\n(  .*\\n)*.*auth-admin ${path}`))
    t.deepEqual(
      stdout.split('\n').filter(line => line.length > 80),
      [],
    )
  })
}

test('help states the required sign-in of each command for which not every session suffices', async t => {
  const needs = { always: new Set<string>(), 'for administrators': new Set<string>() }
  const [always, sometimes] = [
    'On a server, this requires that you signed in within the last 15 minutes, with a one-time code if you enrolled an authenticator. To sign in again, run `auth-admin login`.',
    'On a server, if the user is a ROLE_ADMIN, this requires that you signed in within the last 15 minutes, with a one-time code if you enrolled an authenticator. To sign in again, run `auth-admin login`.',
  ]
  for (const { path } of leaves(createProgram())) {
    const help = (await runCli({}, [...path.split(' '), '--help'])).stdout.replaceAll('\n', ' ').trim()
    if (help.endsWith(always)) needs.always.add(path)
    else if (help.endsWith(sometimes)) needs['for administrators'].add(path)
    else t.notRegex(help, /you signed in within/, path)
  }
  t.deepEqual([...needs.always].sort(), [
    ...['keys retire', 'keys rotate', 'organizations delete', 'organizations import'],
    ...['services create', 'services delete', 'services edit', 'services keys add', 'services keys delete'],
    ...['totp enroll', 'totp remove', 'users erase', 'users grant', 'users import', 'users revoke'],
  ])
  t.deepEqual([...needs['for administrators']].sort(), [
    ...['users activate', 'users clear-answers', 'users create', 'users delete', 'users edit', 'users restore'],
    ...['users resume', 'users send-key', 'users set-password', 'users set-role', 'users suspend', 'users unlock'],
  ])
})

test('help finds a command at any depth, and --version prints the version', async t => {
  const helpOf = async (...words: string[]) => (await runCli({}, [...words, '--help'])).stdout
  for (const words of [[], ['users'], ['mail', 'list'], ['questions', 'unmatched', 'list']])
    t.deepEqual(await runCli({}, ['help', ...words]), { code: 0, stdout: await helpOf(...words), stderr: '' })
  for (const words of [[], ['users'], ['services'], ['organizations']])
    for (const line of (await helpOf(...words)).split('\n')) t.true(line.length <= 80, line)
  t.regex((await runCli({}, ['--version'])).stdout, /^\d+\.\d+\.\d+(-rc\.\d+)?\n$/)
  t.is((await runCli({}, [])).code, 2)
  const unknown = await runCli({}, ['help', 'mail', 'xyzzy'])
  t.deepEqual(unknown, { code: 2, stdout: '', stderr: "error: unknown command 'mail xyzzy'\n" })
})

test('for an unknown word, a similar one is suggested', async t => {
  for (const [words, suggested] of [
    ['user list', 'users'],
    ['mail xyzzy', undefined],
    ['organizations lst', 'list'],
    ['toString', undefined],
  ] as const) {
    const { code, stdout, stderr } = await runCli({}, words.split(' '))
    t.deepEqual([code, stdout], [2, ''], words)
    t.regex(
      stderr,
      suggested ? new RegExp(`\\(Did you mean ${suggested}\\?\\)\n$`) : /^error: unknown command '\w+'\n$/,
    )
  }
  t.deepEqual(await runCli({}, ['completion']), { code: 2, stdout: '', stderr: 'error: Use bash, zsh or fish.\n' })
  const { stderr } = await runCli({}, ['questions', 'edit', '1', '--questoin', 'x'])
  t.is(stderr, "error: unknown option '--questoin' (Did you mean --question?)\n")
})

test('every noun accepts #7 as the id 7', async t => {
  const env = await installedRegistry(t)
  const json = async (...args: string[]) => JSON.parse((await runCli(env, [...args, '--json'])).stdout)
  const ids = {
    users: 1,
    organizations: (await json('organizations', 'create', '--name', 'Escola Azul')).id,
    questions: 1,
  }
  for (const [noun, id] of Object.entries(ids)) {
    const [plain, signed] = [await runCli(env, [noun, 'show', `${id}`]), await runCli(env, [noun, 'show', `#${id}`])]
    t.deepEqual(signed, plain)
    t.is(plain.code, 0, plain.stderr)
  }
})

test('a command without a registry says what to do, and creates none', async t => {
  const AUTH_DATA_DIR = await temporaryFolder(t)
  const DATABASE_URL = await freshDatabase(t, { from: 'template0' })
  for (const [env, says] of [
    [{ AUTH_DATA_DIR }, /`auth-admin login`.*`auth-admin install`/],
    [{ AUTH_DATA_DIR, DATABASE_URL, AUTH_MASTER_KEY: 'a'.repeat(64) }, /auth-admin install/],
  ] as const) {
    const run = (...args: string[]) => runCli(env, args)
    await assertRefusals(t, run, [[says, 5, 'users', 'list']])
  }
  t.deepEqual(await readdir(AUTH_DATA_DIR), [])
})

test('a command reports all invalid settings, without their values', async t => {
  const { code, stderr } = await runCli({ DATABASE_URL: 'mysql://secret', AUTH_TOKEN_TTL: 'never' }, ['users', 'list'])
  t.is(code, 1)
  t.regex(stderr, /DATABASE_URL.*AUTH_TOKEN_TTL/s)
  t.notRegex(stderr, /secret|never/)
})

test('AUTH_LOG_LEVEL=debug shows a stack trace, without secrets', async t => {
  const env = { DATABASE_URL: 'postgres://u:verywrong@127.0.0.1:1/x', AUTH_MASTER_KEY: 'a'.repeat(64) }
  const { stderr } = await runCli({ ...env, AUTH_LOG_LEVEL: 'debug' }, ['users', 'list'])
  t.regex(stderr, /\n {4}at /)
  t.notRegex(stderr, /verywrong/)
})

test('control characters in names don’t reach the terminal', async t => {
  const env = await installedRegistry(t)
  const evil = 'mal\x1b[2J\x07\u202evado\x9b31m\nx\u2028y'
  await ask(env.DATABASE_URL, `UPDATE users SET username = '${evil}', city = '${evil}'`)
  await ask(env.DATABASE_URL, `UPDATE questions SET question = '${evil}' WHERE id = 1`)
  for (const command of [
    'users list',
    'users show #1',
    'users revoke-tokens #1 --yes --reason teste',
    'questions list',
    'users activate #1',
  ]) {
    const { stdout, stderr } = await runCli(env, command.split(' '))
    t.notRegex(stdout + stderr, /[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]/, command)
    t.true((stdout + stderr).includes('\\u001b[2J\\u0007\\u202evado\\u009b31m'), command)
  }
  for (const command of ['users show #1 --json', 'users list --json', 'users list --jsonl', 'questions list --jsonl']) {
    const { stdout } = await runCli(env, command.split(' '))
    t.notRegex(stdout, /[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]/, command)
    const document = command.endsWith('jsonl') ? jsonLines(stdout) : JSON.parse(stdout)
    t.true(JSON.stringify(document).includes(JSON.stringify(evil)), command)
  }
})

test('a command starts the embedded database when the service doesn’t run', async t => {
  const env = { AUTH_DATA_DIR: await temporaryFolder(t) }
  const installed = await spawnCli(env, ['install'])
  t.is(installed.code, 0, installed.stderr)
  t.is(JSON.parse((await spawnCli(env, ['users', 'list', '--json'])).stdout).users.length, 1)
})
