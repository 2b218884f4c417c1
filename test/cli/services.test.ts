/** `auth-admin services`: identities of services, and keys that are shown once. */
import test from 'ava'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { documentsOf, runCli } from '../_helpers/cli.js'
import { openGrpc } from '../_helpers/grpc.js'
import { serviceForFile } from '../_helpers/service.js'
import { serviceEnv, spawnService } from '../_helpers/spawned.js'
import { waitForValue } from '../_helpers/wait.js'

const service = serviceForFile()
const { run: services, json } = documentsOf(service, 'services')

test('create prints the key once, and list and show print its first characters', async t => {
  const added = await json('create', 'grades', '--may', 'users.read,tokens.verify', '--expires', '90d')
  const { key, ...shown } = added
  t.regex(key, /^authsvc_[\w-]{43}$/)
  const [{ id, beginning, createTime, expireTime, ...rest }] = shown.keys
  t.deepEqual(rest, {})
  t.true(Number.isInteger(id) && key.startsWith(beginning))
  t.is(Math.round((Date.parse(expireTime) - Date.parse(createTime)) / 86_400_000), 90)
  t.deepEqual(shown.scopes, ['users.read', 'tokens.verify'])
  t.deepEqual(await json('show', ' grades '), shown)
  t.deepEqual(
    (await json('list')).services.find(({ name }: { name: string }) => name === 'grades'),
    shown,
  )
  for (const args of [['list'], ['show', 'grades'], ['list', '--jsonl']]) {
    const { code, stdout } = await services(...args)
    t.is(code, 0)
    t.true(stdout.includes('grades') && !stdout.includes(key), stdout)
  }
})

test('edit changes name and scopes, and `keys list` lists the keys of one service', async t => {
  const created = await json('create', 'before', '--may', 'users.read')
  await json('keys', 'create', 'before')
  const edited = await json('edit', 'before', '--name', 'after', '--may', 'tokens.verify,users.read')
  t.deepEqual([edited.name, edited.scopes], ['after', ['tokens.verify', 'users.read']])
  t.deepEqual(await json('show', 'after'), edited)
  t.is((await services('show', 'before')).code, 3)
  const { keys } = await json('keys', 'list', 'after')
  t.deepEqual(keys, edited.keys)
  t.deepEqual([keys.length, keys[0].id], [2, created.keys[0].id])
  const { stdout } = await services('keys', 'list', 'after')
  t.true(stdout.includes(created.keys[0].beginning) && !stdout.includes(created.key))
  t.regex((await services('edit', 'after', '--may', 'users.read,tokens.verify')).stdout, /is saved/)
  t.regex((await services('edit', 'after', '--may', 'users.read,tokens.verify')).stdout, /already/)
})

test('in text output, a key is on a separate line', async t => {
  const { stdout } = await services('create', 'plain', '--may', 'USERS.READ')
  t.regex(stdout, /^authsvc_[\w-]{43}$/m)
})

test('every command reports an invalid or missing argument in one sentence, and changes nothing', async t => {
  await json('create', 'steady', '--may', 'users.read')
  const { services: before } = await json('list')
  const cases: [RegExp, number, ...string[]][] = [
    [/--may/, 2, 'create', 'x'],
    [/users\.read, tokens\.verify/, 2, 'create', 'x', '--may', 'everything'],
    [/pass its name/, 2, 'create', '--may', 'users.read'],
    [/lower-case letters/, 2, 'create', 'Übel', '--may', 'users.read'],
    [/90d, 12h/, 2, 'create', 'x', '--may', 'users.read', '--expires', 'soon'],
    [/in the future/, 2, 'create', 'x', '--may', 'users.read', '--expires', '2001-01-01'],
    [/already/, 5, 'create', 'steady', '--may', 'users.read'],
    [/no service unknown/, 3, 'show', 'unknown'],
    [/no service unknown/, 3, 'keys', 'list', 'unknown'],
    [/no service unknown/, 3, 'edit', 'unknown', '--may', 'users.read'],
    [/--name, --may/, 2, 'edit', 'steady'],
    [/users\.read, tokens\.verify/, 2, 'edit', 'steady', '--may', 'everything'],
    [/lower-case letters/, 2, 'edit', 'steady', '--name', 'Übel'],
    [/no service unknown/, 3, 'delete', 'unknown', '--confirm', 'unknown'],
    [/--confirm steady\./, 2, 'delete', 'steady'],
    [/Type steady to confirm/, 2, 'delete', 'steady', '--confirm', 'stead'],
    [/no service unknown/, 3, 'keys', 'create', 'unknown'],
    [/pass its id/, 2, 'keys', 'delete', 'steady'],
    [/whole number/, 2, 'keys', 'delete', 'steady', 'one'],
    [/no key 999999/, 3, 'keys', 'delete', 'steady', '999999', '--yes'],
    [/pass --yes/, 2, 'keys', 'delete', 'steady', '999999'],
  ]
  for (const [sentence, expected, ...args] of cases) {
    const { code, stdout, stderr } = await services(...args)
    t.is(code, expected, `${args.join(' ')}: ${stderr}`)
    t.is(stdout, '')
    t.regex(stderr, sentence)
    t.regex(stderr, /^error: [^\n]+\n$/)
  }
  const steady = (all: { name: string }[]) => all.filter(({ name }) => ['steady', 'x', 'Übel'].includes(name))
  t.deepEqual(steady((await json('list')).services), steady(before))
})

test('a service that may forward addresses and sends none is logged at a limited rate', async t => {
  const env = await serviceEnv(t, { AUTH_LOG_LEVEL: 'warn', AUTH_TRUSTED_PROXIES: '192.0.2.99' })
  const other = await spawnService(t, env)
  const added = await runCli(env, ['services', 'create', 'silent', '--may', 'clients.forward', '--json'])
  t.is(added.code, 0, added.stderr)
  const { key } = JSON.parse(added.stdout)
  const client = openGrpc(other.grpc)
  t.teardown(() => client.close())
  const look = (metadata: Record<string, string>) =>
    client.call(Users.method.existsByUsername, { username: 'admin' }, { token: key, metadata })
  await look({ 'x-forwarded-for': '203.0.113.7' })
  const lines = () => other.output().match(/^.*"service":"silent".*$/gm) ?? []
  t.deepEqual(lines(), [])
  for (let index = 0; index < 5; index++) await look({})
  await waitForValue(lines, value => value.length > 0)
  t.is(lines().length, 1)
  t.false(other.output().includes(key))
})
