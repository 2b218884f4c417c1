/** `auth-admin` as a whole: help, failures and control characters. */

import { spawn } from 'node:child_process'
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test from 'ava'
import pg from 'pg'
import { createProgram } from '../../cli/program.js'
import { installedRegistry, leaves, runCli, spawnCli } from '../_helpers/cli.js'
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
    // Output for a shell or for man has no other form, and endless output isn't a document.
    if (!['completion', 'manual', 'audit tail'].includes(path))
      t.true(command.options.some(({ long }) => long === '--json'))
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
    ...['imports undo', 'issuer set', 'keys retire', 'keys rotate', 'organizations delete'],
    ...['organizations import', 'services create', 'services delete', 'services edit', 'services keys create'],
    ...['services keys delete', 'totp delete', 'totp enroll', 'users erase', 'users import'],
  ])
  t.deepEqual([...needs['for administrators']].sort(), [
    ...['users activate', 'users clear-answers', 'users create', 'users delete', 'users edit', 'users resume'],
    ...['users send-key', 'users set-password', 'users set-role', 'users suspend', 'users undelete'],
    ...['users unlock'],
  ])
})

test('--version prints the version; a missing and an unknown command end with 2', async t => {
  t.regex((await runCli({}, ['--version'])).stdout, /^\d+\.\d+\.\d+(-rc\.\d+)?\n$/)
  t.is((await runCli({}, [])).code, 2)
  const wrong = await runCli({}, ['user', 'list'])
  t.is(wrong.code, 2)
  t.regex(wrong.stderr, /^error: [^\n]*users[^\n]*\n$/)
})

test('help finds a command at any depth, and the list of commands fits a terminal', async t => {
  for (const words of [['users'], ['keys', 'show'], ['services', 'keys', 'list']]) {
    const { code, stdout } = await runCli({}, ['help', ...words])
    t.deepEqual([code, stdout], [0, (await runCli({}, [...words, '--help'])).stdout])
  }
  t.is((await runCli({}, ['help'])).stdout, (await runCli({}, ['--help'])).stdout)
  const unknown = await runCli({}, ['help', 'keys', 'xyzzy'])
  t.deepEqual(unknown, { code: 2, stdout: '', stderr: "error: unknown command 'keys xyzzy'\n" })
  for (const group of ['', 'users', 'services', 'organizations']) {
    const { stdout } = await runCli({}, [...group.split(' ').filter(Boolean), '--help'])
    t.deepEqual(
      stdout.split('\n').filter(line => line.length > 80),
      [],
    )
  }
})

test('for an unknown word, a synonym or a similar word is suggested', async t => {
  const cases = [
    ['organizations add --name x', 'create'],
    ['organizations new', 'create'],
    ['services rm grades', 'delete'],
    ['services keys remove grades 7', 'delete'],
    ['contexts remove here', 'delete'],
    ['users get ana', 'show'],
    ['keys info', 'show'],
    ['mail ls', 'list'],
    ['questions update 1', 'edit'],
    ['users set ana', 'edit'],
    ['issuer update', 'set'],
    ['orgs list', 'organizations'],
    ['user list', 'users'],
    ['keys rotat', 'rotate'],
    ['users load', 'import'],
    ['organizations dump', 'export'],
    ['imports cancel 7', 'abort'],
    ['users search ana', 'list'],
    ['organizations find azul', 'list'],
    ['audit search', 'list'],
    ['audit get 7', 'show'],
    ['users undo ana', 'undelete'],
    ['imports rollback 7', 'undo'],
    ['imports rm 7', 'undo'],
    ['questions rm 1', 'retire'],
    ['questions remove 1', 'retire'],
    ['keys add', 'rotate'],
    ['totp add', 'enroll'],
    ['contexts ls', 'list'],
    ['issuer get', 'show'],
    ['services keys get grades', 'list'],
    // The verb before the noun.
    ['search users ana', 'users list'],
    ['get user ana', 'users show'],
    ['add organization', 'organizations create'],
    ['rm org 7', 'organizations delete'],
    ['ls questions', 'questions list'],
    ['undo import 7', 'imports undo'],
    ['show user ana', 'users show'],
  ] as const
  for (const [words, suggested] of cases) {
    const { code, stdout, stderr } = await runCli({}, words.split(' '))
    t.deepEqual([code, stdout], [2, ''], words)
    t.regex(stderr, new RegExp(`^error: unknown command '\\w+' \\(Did you mean ${suggested}\\?\\)\n$`))
  }
  for (const words of ['toString', 'organizations constructor', 'xyzzy']) {
    const { code, stderr } = await runCli({}, words.split(' '))
    t.is(code, 2)
    t.regex(stderr, /^error: unknown command '\w+'\n$/)
  }
})

test('every noun accepts #7 as the id 7', async t => {
  const env = await installedRegistry(t)
  const json = async (...args: string[]) => JSON.parse((await runCli(env, [...args, '--json'])).stdout)
  const queue = `INSERT INTO emails (kind, parameters, locale) VALUES ('password-changed', '{"userId": 1}', 'en') RETURNING id`
  const ids = {
    users: 1,
    organizations: (await json('organizations', 'create', '--name', 'Escola Azul')).id,
    questions: 1,
    mail: (await ask(env.DATABASE_URL, queue))[0]!.id,
  }
  for (const [noun, id] of Object.entries(ids)) {
    const [plain, signed] = [await runCli(env, [noun, 'show', `${id}`]), await runCli(env, [noun, 'show', `#${id}`])]
    t.deepEqual(signed, plain)
    t.is(plain.code, 0, plain.stderr)
  }
  t.is((await runCli(env, ['users', 'show', '--id', '#1'])).code, 0)
  const { keys } = await json('services', 'create', 'grades', '--may', 'users.read')
  t.deepEqual((await json('services', 'keys', 'delete', 'grades', `#${keys[0].id}`, '--yes')).keys, [])
})

test('a command reports each obstacle in one sentence, without secrets, and creates no database', async t => {
  const AUTH_DATA_DIR = await temporaryFolder(t)
  const [empty, ready] = [await freshDatabase(t, { from: 'template0' }), await freshDatabase(t)]
  const secret = 'verywrong'
  // As unique as the database.
  const username = new URL(ready).pathname.slice(1)
  const client = new pg.Client({ connectionString: ready })
  await client.connect()
  await client.query(`CREATE ROLE ${username} LOGIN PASSWORD '${secret}'`)
  await client.end()

  const at = (database: string, change: Partial<URL> = {}) => ({
    DATABASE_URL: Object.assign(new URL(database), change).href,
    AUTH_MASTER_KEY: 'a'.repeat(64),
    AUTH_DATA_DIR,
  })
  const obstacles: [what: string, env: Record<string, string>, code: number, says: RegExp][] = [
    ['no data folder', { AUTH_DATA_DIR }, 5, /`auth-admin login`.*`auth-admin install`/],
    ['no tables', at(empty), 5, /auth-admin install/],
    ['no server', at(`postgres://u:${secret}@127.0.0.1:1/x`), 7, /can’t be reached/],
    ['no database', at(empty, { pathname: '/there_is_none' }), 1, /does not exist/],
    ['a wrong password', at(empty, { password: secret }), 1, /refuses the user or password/],
    ['no rights', at(ready, { username, password: secret }), 1, /lacks the rights.*`GRANT SELECT, /],
  ]
  for (const [what, env, expected, says] of obstacles) {
    const { code, stdout, stderr } = await runCli(env, ['users', 'list', '--json'])
    t.is(code, expected, `${what}: ${stderr}`)
    // With --json a failure is a document, too.
    t.is(`error: ${JSON.parse(stdout).error.message}\n`, stderr, what)
    t.regex(stderr, says, what)
    t.regex(stderr, /^error: [^\n]+\n$/, what)
    t.notRegex(stderr, new RegExp(`${secret}| {4}at |select\\s`, 'i'), what)
  }
  t.deepEqual(await readdir(AUTH_DATA_DIR), [])
})

test('a command reports all invalid settings, without their values', async t => {
  const { code, stderr } = await runCli({ DATABASE_URL: 'mysql://secret', AUTH_TOKEN_TTL: 'never' }, ['users', 'list'])
  t.is(code, 1)
  t.regex(stderr, /DATABASE_URL/)
  t.regex(stderr, /AUTH_TOKEN_TTL/)
  t.notRegex(stderr, /secret|never/)
})

test('a wrong master key is reported as such', async t => {
  const env = await installedRegistry(t)
  const other = { ...env, AUTH_MASTER_KEY: Buffer.alloc(32, 8).toString('base64') }
  const { code, stderr } = await runCli(other, ['keys', 'list'])
  t.is(code, 1)
  t.regex(stderr, /^error: AUTH_MASTER_KEY is not the key that this database was set up with\.\n$/)
})

test('AUTH_LOG_LEVEL=debug shows a stack trace, without secrets', async t => {
  const env = { DATABASE_URL: 'postgres://u:verywrong@127.0.0.1:1/x', AUTH_MASTER_KEY: 'a'.repeat(64) }
  const { stderr } = await runCli({ ...env, AUTH_LOG_LEVEL: 'debug' }, ['users', 'list'])
  t.regex(stderr, /\n {4}at /)
  t.notRegex(stderr, /verywrong/)
})

test('control characters in names don’t reach the terminal', async t => {
  const env = await installedRegistry(t)
  const client = new pg.Client({ connectionString: env.DATABASE_URL })
  await client.connect()
  t.teardown(() => client.end())
  const evil = 'mal\x1b[2J\x07\u202evado\x9b31m\nx\u2028y'
  await client.query('UPDATE users SET username = $1, city = $1', [evil])
  await client.query('UPDATE questions SET question = $1 WHERE id = 1', [evil])
  const runs = [
    ['users', 'list'],
    ['users', 'show', '#1'],
    ['users', 'revoke-tokens', '#1', '--yes', '--reason', 'teste'],
    ['questions', 'list'],
    ['users', 'activate', '#1'],
  ]
  for (const args of runs) {
    const { stdout, stderr } = await runCli(env, args)
    t.regex(stdout + stderr, /mal/)
    t.notRegex(stdout + stderr, /[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]/, args.join(' '))
    t.true((stdout + stderr).includes('\\u001b[2J\\u0007\\u202evado\\u009b31m'), args.join(' '))
  }
  for (const args of [
    ['users', 'show', '#1', '--json'],
    ['users', 'list', '--json'],
    ['users', 'list', '--jsonl'],
    ['audit', 'list', '--jsonl'],
    ['questions', 'list', '--jsonl'],
  ]) {
    const { stdout } = await runCli(env, args)
    t.notRegex(stdout, /[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]/, args.join(' '))
    const document = stdout.startsWith('{\n')
      ? JSON.parse(stdout)
      : stdout
          .trim()
          .split('\n')
          .map(line => JSON.parse(line))
    t.true(JSON.stringify(document).includes(JSON.stringify(evil)), args.join(' '))
  }
})

test('a command starts the embedded database when the service doesn’t run', async t => {
  const env = { AUTH_DATA_DIR: await mkdtemp(join(tmpdir(), 'auth-test-')) }
  t.teardown(() => rm(env.AUTH_DATA_DIR, { recursive: true, force: true }))
  const installed = await spawnCli(env, ['install'])
  t.is(installed.code, 0, installed.stderr)
  const { code, stdout } = await spawnCli(env, ['users', 'list', '--json'])
  t.is(code, 0)
  t.is(JSON.parse(stdout).users.length, 1)
})

// The manual: it has every command, and man renders it without warnings.

/** Runs a program of the system with an input; undefined if it isn't installed. */
async function filter(name: string, args: string[], input: string): Promise<string | undefined> {
  const child = spawn(name, args)
  let out = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', part => {
      out += part
    })
  }
  child.stdin.on('error', () => {}).end(input)
  return new Promise(resolve => child.once('error', () => resolve(undefined)).once('close', () => resolve(out)))
}

test('the manual has every command with its options, as a man page and as Markdown', async t => {
  const { stdout: page } = await runCli({}, ['manual'])
  const { stdout: markdown } = await runCli({}, ['manual', '--markdown'])
  const commands = leaves(createProgram()).filter(({ path }) => !path.startsWith('__'))
  t.true(commands.length > 30)
  for (const { command, path } of commands) {
    t.true(page.includes(`.SS ${path.replaceAll('-', '\\-')}\n`), path)
    t.true(markdown.includes(`### ${path}\n`), path)
    for (const { flags, hidden } of command.options) if (!hidden) t.true(markdown.includes(`\`${flags}\``), flags)
  }
  t.notRegex(page, /[^\0-\x7f]/)
})

test('man renders the page without warnings', async t => {
  const { stdout: page } = await runCli({}, ['manual'])
  t.true(page.startsWith('.'))
  const complaints =
    (await filter('mandoc', ['-T', 'lint', '-W', 'warning'], page)) ??
    (await filter('groff', ['-man', '-ww', '-z', '-K', 'utf8'], page))
  if (complaints === undefined) t.log('neither mandoc nor groff is here: the page was not read')
  t.is(complaints ?? '', '')
})
