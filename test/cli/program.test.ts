/** `auth-admin` as a whole: help, failures and what a terminal must not obey. */
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import type { Command } from 'commander'
import { createProgram } from '../../cli/program.js'
import { runCli } from '../_helpers/cli.js'
import { freshDatabase } from '../_helpers/database.js'

const masterKey = Buffer.alloc(32, 7).toString('base64')

function leaves(command: Command, path: string[] = []): { command: Command; path: string[] }[] {
  if (command.commands.length === 0) return [{ command, path }]
  return command.commands.flatMap(sub => leaves(sub, [...path, sub.name()]))
}

for (const { command, path } of leaves(createProgram())) {
  test(`${path.join(' ')} explains itself: what it does, each option, an example, within 80 columns`, async t => {
    const { code, stdout, stderr } = await runCli({}, [...path, '--help'])
    t.is(code, 0)
    t.is(stderr, '')
    t.true(stdout.startsWith(`Usage: auth-admin ${path.join(' ')} `))
    t.not(command.description(), '')
    for (const { description, long } of command.options) t.true(description.length > 5, String(long))
    t.true(command.options.some(({ long }) => long === '--json'))
    t.regex(stdout, new RegExp(`\\nExamples?:\\n(  .*\\n)*.*auth-admin ${path.join(' ')}`))
    t.deepEqual(
      stdout.split('\n').filter(line => line.length > 80),
      [],
    )
  })
}

test('--version prints the version; no command and a wrong one end with 2', async t => {
  t.regex((await runCli({}, ['--version'])).stdout, /^\d+\.\d+\.\d+\n$/)
  t.is((await runCli({}, [])).code, 2)
  const wrong = await runCli({}, ['user', 'list'])
  t.is(wrong.code, 2)
  t.regex(wrong.stderr, /^error: [^\n]*users[^\n]*\n$/)
})

async function dataDir(t: ExecutionContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'auth-test-'))
  t.teardown(() => rm(folder, { recursive: true, force: true }))
  return folder
}

const commands = [
  ['users', 'list'],
  ['organizations', 'list'],
  ['questions', 'list'],
  ['keys', 'list'],
  ['audit', 'verify'],
]

for (const args of commands) {
  test(`${args.join(' ')} says in one sentence what stands in its way`, async t => {
    const AUTH_DATA_DIR = await dataDir(t)
    const empty = {
      DATABASE_URL: await freshDatabase(t, { from: 'template0' }),
      AUTH_MASTER_KEY: masterKey,
      AUTH_DATA_DIR,
    }
    const nothing = new URL(empty.DATABASE_URL)
    nothing.pathname = '/there_is_none'
    const stranger = new URL(empty.DATABASE_URL)
    stranger.password = 'verywrong'
    const cases: [RegExp, Record<string, string>][] = [
      [/auth-admin install/, { AUTH_DATA_DIR }],
      [/auth-admin install/, empty],
      [/can’t be reached/, { ...empty, DATABASE_URL: 'postgres://u:verywrong@127.0.0.1:1/x' }],
      [/does not exist/, { ...empty, DATABASE_URL: nothing.href }],
      [/user or password/, { ...empty, DATABASE_URL: stranger.href }],
    ]
    for (const [sentence, env] of cases) {
      const { code, stdout, stderr } = await runCli(env, [...args, '--json'])
      t.is(code, 1, stderr)
      t.is(stdout, '')
      t.regex(stderr, sentence)
      t.regex(stderr, /^error: [^\n]+\n$/)
      t.notRegex(stderr, /verywrong| {4}at |select/i)
    }
    t.deepEqual(await readdir(AUTH_DATA_DIR), [], 'a look-up makes no database')
  })
}

test('all wrong settings are named, without their values', async t => {
  const { code, stderr } = await runCli({ DATABASE_URL: 'mysql://secret', AUTH_TOKEN_TTL: 'never' }, ['users', 'list'])
  t.is(code, 1)
  t.regex(stderr, /DATABASE_URL/)
  t.regex(stderr, /AUTH_TOKEN_TTL/)
  t.notRegex(stderr, /secret|never/)
})

test('a wrong master key is told apart from a fault', async t => {
  const env = {
    DATABASE_URL: await freshDatabase(t),
    AUTH_MASTER_KEY: masterKey,
    AUTH_ADMIN_PASSWORD: 'um cavalo bem azul 19',
  }
  t.is((await runCli(env, ['install'])).code, 0)
  const { code, stderr } = await runCli({ ...env, AUTH_MASTER_KEY: Buffer.alloc(32, 8).toString('base64') }, [
    'keys',
    'list',
  ])
  t.is(code, 1)
  t.regex(stderr, /^error: The master key [^\n]+\n$/)
})

test('a stack is shown to those who ask for it only', async t => {
  const env = { DATABASE_URL: 'postgres://u:verywrong@127.0.0.1:1/x', AUTH_MASTER_KEY: masterKey }
  const { stderr } = await runCli({ ...env, AUTH_LOG_LEVEL: 'debug' }, ['users', 'list'])
  t.regex(stderr, /\n {4}at /)
  t.notRegex(stderr, /verywrong/)
})

test('names can’t make the terminal obey', async t => {
  const env = {
    DATABASE_URL: await freshDatabase(t),
    AUTH_MASTER_KEY: masterKey,
    AUTH_ADMIN_PASSWORD: 'um cavalo bem azul 19',
  }
  t.is((await runCli(env, ['install'])).code, 0)
  const { default: pg } = await import('pg')
  const client = new pg.Client({ connectionString: env.DATABASE_URL })
  await client.connect()
  t.teardown(() => client.end())
  const evil = 'mal\x1b[2J\x07\u202evado\x9b31m\nx'
  await client.query('UPDATE users SET username = $1, city = $1', [evil])
  await client.query('UPDATE questions SET question = $1 WHERE id = 1', [evil])
  const runs = [
    ['users', 'list'],
    ['users', 'show', '#1'],
    ['users', 'suspend', '#1'],
    ['questions', 'list'],
    ['users', 'activate', '#1'],
  ]
  for (const args of runs) {
    const { stdout, stderr } = await runCli(env, args)
    t.regex(stdout + stderr, /mal/)
    t.notRegex(stdout + stderr, /[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]/, args.join(' '))
  }
})

test('it runs while nobody else does, on the embedded database', async t => {
  const env = { AUTH_DATA_DIR: await dataDir(t) }
  const installed = await runCli(env, ['install'])
  t.is(installed.code, 0, installed.stderr)
  const { code, stdout } = await runCli(env, ['users', 'list', '--json'])
  t.is(code, 0)
  t.is(JSON.parse(stdout).length, 1)
})
