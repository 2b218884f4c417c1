/** Commands of nouns: what each prints of organizations, questions, services and locked users, and what it refuses in which sentence. */

import { type AddressInfo, createServer } from 'node:net'
import test from 'ava'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { lockout } from '../../server/policy/limits.js'
import { assertRefusals, documentsOf, installedRegistry, keys, openTerminal, runCli } from '../_helpers/cli.js'
import { anyAddress, login } from '../_helpers/crowd.js'
import { ask } from '../_helpers/database.js'
import { openGrpc } from '../_helpers/grpc.js'
import { serviceForFile } from '../_helpers/service.js'
import { serviceEnv, spawnService } from '../_helpers/spawned.js'
import { waitForValue } from '../_helpers/wait.js'

const service = serviceForFile()
const { run: organizations, json: organizationJson } = documentsOf(service, 'organizations')
const uuid = /^[\da-f]{8}-[\da-f]{4}-4[\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}$/

const flags = {
  name: 'Escola Ímpar',
  email: 'impar@example.org',
  address: 'Rua A, 1',
  inep_code: '12345678',
  login: 'impar',
  phone: '(11)3222-1000',
  responsible: 'Ana Lima',
  type: 'E',
  website: 'https://impar.example.org',
}

test('create, show and list print the contract’s fields of an organization, without absent ones', async t => {
  const given = Object.entries(flags).flatMap(([field, value]) => [`--${field.replace('_', '-')}`, value])
  const added = await organizationJson('create', ...given)
  const { id, creation_date, activationkey, etag, members, ...rest } = added
  t.is(members, 0)
  t.regex(etag, /^[\w-]{22}$/)
  t.deepEqual(rest, { ...flags, active: 'true' })
  t.regex(activationkey, uuid)
  t.regex(creation_date, /^\d{4}-\d\d-\d\d$/)
  t.deepEqual(await organizationJson('show', String(id)), added)
  t.deepEqual(await organizationJson('show', ' ESCOLA  ímpar '), added)
  const listed = (await organizationJson('list')).organizations.find((row: { id: number }) => row.id === id)
  // A list shows no keys.
  t.deepEqual({ ...listed, members, activationkey }, added)
  t.is(listed.activationkey, undefined)

  const bare = await organizationJson('create', '--name', 'Nua')
  t.deepEqual(Object.keys(bare).sort(), ['activationkey', 'active', 'creation_date', 'etag', 'id', 'members', 'name'])
})

test('edit changes the given fields, clears empty ones, and keeps all others', async t => {
  const before = await organizationJson('create', '--name', 'Mutável', '--phone', '1', '--login', 'm', '--type', 'N')
  const after = await organizationJson(
    'edit',
    'mutável',
    '--phone',
    '',
    '--responsible',
    'Bia',
    '--type',
    'o',
    '--name',
    'Mudada',
  )
  const { phone: _, etag, ...rest } = before
  t.deepEqual(after, { ...rest, name: 'Mudada', responsible: 'Bia', type: 'O', etag: after.etag })
  t.not(after.etag, etag)
  t.deepEqual(await organizationJson('show', 'MUDADA'), after)
  t.is((await organizations('show', 'Mutável')).code, 3)
})

test('an ambiguous name is refused with the ids of all matches, and each id is accepted', async t => {
  const ids = []
  for (const name of ['Gêmea', 'GÊMEA ']) ids.push((await organizationJson('create', '--name', name)).id)
  const { code, stderr } = await organizations('show', 'gêmea')
  t.is(code, 2)
  t.true(stderr.includes(`#${ids[0]}, #${ids[1]}.`), stderr)
  t.is((await organizationJson('show', `#${ids[1]}`)).id, ids[1])
})

test('an INEP code identifies its organization, and ambiguous digits are refused', async t => {
  const { id } = await organizationJson('create', '--name', 'Codificada', '--inep-code', '87654321')
  t.is((await organizationJson('show', '87654321')).id, id)
  const taken = new RegExp(`#${id} already has this INEP code`)
  const { id: other } = await organizationJson('create', '--name', 'Outra codificada')
  await assertRefusals(t, organizations, [
    [taken, 5, 'create', '--name', 'Terceira', '--inep-code', '87654321'],
    [taken, 5, 'edit', `#${other}`, '--inep-code', '87654321'],
  ])
  await organizationJson('edit', `#${id}`, '--inep-code', String(other))
  await assertRefusals(t, organizations, [[/Ambiguous/, 2, 'show', String(other)]])
})

test('every command of organizations reports an invalid or missing flag in one sentence', async t => {
  const { id } = await organizationJson('create', '--name', 'Sentenças')
  await assertRefusals(t, organizations, [
    [/--name/, 2, 'create'],
    [/--name/, 2, 'create', '--name', '\u200b'],
    [/--email/, 2, 'create', '--name', 'Y', '--email', 'invalid'],
    [/--phone/, 2, 'create', '--name', 'Y', '--phone', 'a\nb'],
    [/--address/, 2, 'create', '--name', 'Y', '--address', 'x'.repeat(256)],
    [/--name/, 2, 'edit', String(id), '--name', ''],
    [/--name, --email/, 2, 'edit', String(id)],
    [/id or name/, 2, 'show'],
    [/no organization 999/, 3, 'show', '999'],
    [/no organization Ninguém/, 3, 'rotate-key', 'Ninguém', '--yes'],
    [/--colour/, 2, 'create', '--name', 'Y', '--colour', 'red'],
  ])
})

// `auth-admin questions`: questions change, and answers survive every change.

const { run: questions, json: questionJson } = documentsOf(service, 'questions')

test('create, list, retire, offer and edit print the contract’s fields of a question', async t => {
  const { id, etag, ...added } = await questionJson('create', '--question', 'Qual é a cor do mar?')
  t.deepEqual(added, { question: 'Qual é a cor do mar?', active: 1, status: 'offered' })
  t.like(await questionJson('retire', String(id)), { id, question: 'Qual é a cor do mar?', active: 0 })
  t.deepEqual(await questionJson('offer', 'qual e a COR do mar?'), {
    id,
    question: 'Qual é a cor do mar?',
    active: 1,
    status: 'offered',
    etag,
  })
  const edited = await questionJson('edit', `#${id}`, '--question', 'Qual era?')
  t.like(edited, { id, question: 'Qual era?', active: 1 })
  t.not(edited.etag, etag)
  const { questions: all } = await questionJson('list')
  t.deepEqual(
    all.find((row: { id: number }) => row.id === id),
    edited,
  )
  t.false((await questionJson('list', '--retired')).questions.some((row: { id: number }) => row.id === id))
  t.true((await questionJson('list', '--offered')).questions.some((row: { id: number }) => row.id === id))
  const served = await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')
  t.deepEqual([...Object.keys(served.json[0]), 'status', 'etag'].sort(), Object.keys(all[0]).sort())
})

test('show prints one question, and order puts questions first', async t => {
  const { id } = await questionJson('create', '--question', 'Primeira de todas?')
  const { questions: all } = await questionJson('list')
  t.deepEqual(
    await questionJson('show', 'PRIMEIRA de todas?'),
    all.find((row: { id: number }) => row.id === id),
  )
  t.regex((await questions('show', String(id))).stdout, /^question +Primeira de todas\?\nstatus +offered$/m)
  const ids = async () => (await questionJson('list')).questions.map(({ id }: { id: number }) => id)
  const ordered = await questionJson('order', `#${id}`, '2')
  t.true(ordered.changed)
  t.deepEqual((await ids()).slice(0, 2), [id, 2])
  const again = await questions('order', String(id), '#2')
  t.regex(again.stdout, new RegExp(`^The order of the questions is already ${id}, 2, `))
})

test('custom questions of sign-ups are listed, and link says how many answers count then', async t => {
  const { id } = await questionJson('create', '--question', 'Nome do primeiro navio?')
  for (const securityquestion of ['Qual foi o navio?', 'qual FOI o navio?'])
    await service.signUp('ROLE_CLIENT', { securityquestion, securityanswer: 'Bounty' })
  t.regex((await questions('unmatched', 'list')).stdout, /^2 +[Qq]ual foi o navio\?/im)
  t.like(await questionJson('link', 'QUAL foi o navio?', String(id), '--yes'), { id, linked: 2 })
  t.deepEqual((await questionJson('unmatched', 'list')).questions, [])
})

test('edit at a terminal starts with the current text, and a retired question stays retired', async t => {
  const { id } = await questionJson('create', '--question', 'Que dia é hoje?')
  await questionJson('retire', String(id))
  const { shows, type, ended, screen } = openTerminal(service.env, ['questions', 'edit', String(id)])
  await shows('Que dia é hoje?')
  type(keys.enter)
  t.is(await ended, 0, screen())
  const { questions: all } = await questionJson('list', '--retired')
  t.like(
    all.find((row: { id: number }) => row.id === id),
    { question: 'Que dia é hoje?', active: 0 },
  )
})

test('every command of questions reports an invalid or missing argument in one sentence', async t => {
  const { question } = await questionJson('show', '1')
  const first = question.normalize('NFD').replace(/\p{M}/gu, '').toUpperCase()
  await assertRefusals(t, questions, [
    [/--question/, 2, 'create'],
    [/--question/, 2, 'create', '--question', ' '],
    [/--question/, 2, 'edit', '3'],
    [/id or text/, 2, 'retire'],
    [/no question 999/, 3, 'offer', '999'],
    [/^error: Question 1 already has this text\./, 5, 'create', '--question', first],
    [/^error: Question 1 already has this text\./, 5, 'edit', '2', '--question', first],
    [/999/, 3, 'link', 'Qual foi o navio?', '999', '--yes'],
    [/No sign-up has the question/, 3, 'link', 'Qual foi o avião?', '1', '--yes'],
  ])
})

// `auth-admin services`: identities of services, and keys that are shown once.

const { run: services, json: serviceJson } = documentsOf(service, 'services')

test('create prints the key once, and list and show print its first characters', async t => {
  const added = await serviceJson('create', 'grades', '--may', 'users.read,tokens.verify', '--expires', '90d')
  const { key, ...shown } = added
  t.regex(key, /^authsvc_[\w-]{43}$/)
  const [{ id, beginning, createTime, expireTime, ...rest }] = shown.keys
  t.deepEqual(rest, {})
  t.true(Number.isInteger(id) && key.startsWith(beginning))
  t.is(Math.round((Date.parse(expireTime) - Date.parse(createTime)) / 86_400_000), 90)
  t.deepEqual(shown.scopes, ['users.read', 'tokens.verify'])
  t.deepEqual(await serviceJson('show', ' grades '), shown)
  t.deepEqual(
    (await serviceJson('list')).services.find(({ name }: { name: string }) => name === 'grades'),
    shown,
  )
  for (const args of [['list'], ['show', 'grades'], ['list', '--jsonl']]) {
    const { code, stdout } = await services(...args)
    t.is(code, 0)
    t.true(stdout.includes('grades') && !stdout.includes(key), stdout)
  }
})

test('edit changes name and scopes, and `keys list` lists the keys of one service', async t => {
  const created = await serviceJson('create', 'before', '--may', 'users.read')
  await serviceJson('keys', 'create', 'before')
  const edited = await serviceJson('edit', 'before', '--name', 'after', '--may', 'tokens.verify,users.read')
  t.deepEqual([edited.name, edited.scopes], ['after', ['tokens.verify', 'users.read']])
  t.deepEqual(await serviceJson('show', 'after'), edited)
  t.is((await services('show', 'before')).code, 3)
  const { keys } = await serviceJson('keys', 'list', 'after')
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

test('every command of services reports an invalid or missing argument in one sentence, and changes nothing', async t => {
  await serviceJson('create', 'steady', '--may', 'users.read')
  const { services: before } = await serviceJson('list')
  await assertRefusals(t, services, [
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
  ])
  const steady = (all: { name: string }[]) => all.filter(({ name }) => ['steady', 'x', 'Übel'].includes(name))
  t.deepEqual(steady((await serviceJson('list')).services), steady(before))
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

// `auth-admin users why` and `unlock`: what locks a user, and how a lock ends.

const { run: users, json: userJson } = documentsOf(service, 'users')

const statusOf = async (username: string, address: string, secret?: string) =>
  (await login(service, username, address, secret)).status

interface Found {
  readonly scope: string
  readonly proof: string
  readonly count: number
  readonly limit: number
  readonly seconds: number
  readonly locked: boolean
}

/** A count of wrong passwords, as `why` shows it. */
const countOf = ({ failures }: { failures: Found[] }, scope: string) =>
  failures.find(each => each.scope === scope && each.proof === (scope === 'address' ? '' : 'password'))

test('why shows how long a lock lasts, and a known address only when the user signed in there', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const [home, elsewhere] = ['192.0.2.1', '198.51.100.2']
  t.is(await statusOf(username, home), 200)
  for (let i = 0; i < lockout.failures; i++) t.is(await statusOf(username, elsewhere, 'errada-errada'), 404)
  t.is(await statusOf(username, home, 'errada-errada'), 404)

  const atUnknown = await userJson('why', username, '--address', elsewhere)
  t.like(atUnknown.user, { username, suspended: false })
  const { locked, seconds } = countOf(atUnknown, 'account')!
  t.true(locked && seconds > 800 && seconds <= 900)
  t.false(countOf(atUnknown, 'address')!.locked)
  t.is(countOf(atUnknown, 'known address'), undefined)
  const there = await userJson('why', username, '--address', `::ffff:${home}`)
  t.like(countOf(there, 'known address'), { count: 1, locked: false })
  const { stdout } = await users('why', username)
  t.regex(stdout, /^passwords +this account +10 of 10 +locked for 1[45] min$/m)
  t.regex(
    stdout,
    /^passwords +this account, from a known network or device +1 of 10 +not locked, expires in \d+ (s|min)$/m,
  )
  t.notRegex(stdout, /^answers /m)
  t.regex((await users('unlock', username, '--address', 'here')).stderr, /^error: .*--address.*\n$/)
})

test('why lists all obstacles, and the suggested commands remove them', async t => {
  const { username } = await service.signUp('ROLE_CLIENT', { email: 'porque@example.org' })
  await users('suspend', username, '--yes')
  const { stdout } = await users('why', username)
  t.regex(
    stdout,
    /sign in, recover by answers, recover by e-mail, activate +The user is suspended\. +auth-admin users resume \d+/,
  )
  t.regex(stdout, /recover by answers +0 of 2 required answers count/)
  const mended: string[] = []
  for (let left = 3; left > 0; left--) {
    const { obstacles } = await userJson('why', username)
    const { command } = obstacles.find(({ prevents }: { prevents: string }) => /sign in|activate/.test(prevents)) ?? {}
    if (!command) break
    const { id } = await service.organization()
    const args = command.replace('auth-admin users ', '').replace('ORGANIZATION', `#${id}`).split(' ')
    const { code, stderr } = await users(...args)
    t.is(code, 0, stderr)
    mended.push(args[0])
  }
  t.deepEqual(mended, ['resume', 'activate'])
  t.is(await statusOf(username, anyAddress()), 200)
  const { user, failures } = await userJson('why', username, '--address', '192.0.2.77')
  t.is(user.active, 1)
  t.deepEqual(
    failures.map(({ scope, proof }: Found) => [scope, proof]),
    [
      ['account', 'password'],
      ['account', 'answers'],
      ['address', ''],
    ],
  )
})

test('`lockouts list` shows locked users, the cause and the command to unlock, until they are unlocked', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const address = anyAddress()
  for (let failure = 0; failure < lockout.failures; failure++) await statusOf(username, address, 'errada-errada')
  const found = async () =>
    (await userJson('lockouts', 'list', '--all')).lockouts.find(
      (each: { username: string }) => each.username === username,
    )
  const { id, locks } = await found()
  t.is(locks.length, 1)
  t.like(locks[0], { proof: 'password', scope: 'account', count: lockout.failures, limit: lockout.failures })
  const { stdout } = await users('lockouts', 'list', '--all')
  t.regex(
    stdout,
    new RegExp(`^${id} .*10 wrong passwords for this account: locked for 15 min +auth-admin users unlock ${id}$`, 'm'),
  )
  await userJson('unlock', `#${id}`)
  t.is(await found(), undefined)
})

// `auth-admin mail`: the queue of e-mails, and a test e-mail.

test('mail lists, shows, retries and discards e-mails of the queue, without addresses', async t => {
  const env = await installedRegistry(t)
  const mail = (...args: string[]) => runCli(env, ['mail', ...args])
  const json = async (...args: string[]) => JSON.parse((await mail(...args, '--json')).stdout)
  t.is((await mail('list')).stdout, 'No e-mails match.\n')
  const parameters = JSON.stringify({ userId: 1, to: 'hidden@example.org' })
  await ask(
    env.DATABASE_URL,
    `INSERT INTO emails (kind, parameters, locale, next_attempt_at, last_error) VALUES
      ('recovery-key', '${parameters}', 'en', NULL, 'Error ECONNREFUSED'), ('password-changed', '{"userId": 1}', 'en', now(), NULL)`,
  )
  const [failed, waiting] = (await json('list')).emails
  t.like(failed, { id: 1, kind: 'recovery-key', user: 1, attempts: 0, error: 'Error ECONNREFUSED' })
  t.is(failed.dueTime, undefined)
  t.deepEqual((await json('list', '--failed')).emails, [failed])
  t.deepEqual((await json('list', '--waiting')).emails, [waiting])
  t.deepEqual(await json('show', '1'), failed)
  t.regex((await mail('show', '1')).stdout, /^due +failed permanently$/m)
  t.notRegex((await mail('list')).stdout + (await mail('list', '--jsonl')).stdout, /hidden/)
  t.false(Number.isNaN(Date.parse((await json('retry', '1')).dueTime)))
  t.deepEqual(await json('retry', '--failed'), { retried: 0 })
  await ask(env.DATABASE_URL, 'UPDATE emails SET next_attempt_at = NULL')
  t.is((await mail('retry', '--failed')).stdout, 'E-mails that are due now: 2.\n')
  t.deepEqual((await json('list', '--failed')).emails, [])
  for (const wrong of [[], ['1', '--failed']]) t.is((await mail('retry', ...wrong)).code, 2)
  t.is((await mail('delete', '1', '--yes')).stdout, 'E-mail 1 is deleted.\n')
  t.is((await mail('delete', '1', '--yes')).code, 3)
  t.is((await mail('show', 'x')).code, 2)
})

test('`mail test` reports the outcome, and exits with 1 if the e-mail was not accepted', async t => {
  const env = await installedRegistry(t)
  const args = ['mail', 'test', 'ana@example.org', '--json']
  const refused = await runCli({ ...env, SMTP_URL: 'smtp://ana:secret-of-ana@127.0.0.1:1' }, args)
  t.is(refused.code, 1)
  const { error } = JSON.parse(refused.stdout)
  t.regex(error.message, /didn’t accept .*(ECONNREFUSED|ESOCKET)/)
  t.notRegex(refused.stdout + refused.stderr, /secret-of-ana/)
  t.is((await runCli(env, ['mail', 'test', 'invalid'])).code, 2)

  // Doctor tells a wrong port from a wrong scheme, too.
  const plain = createServer(socket => socket.on('error', () => {}).write('220 mail.example ESMTP\r\n'))
  await new Promise<void>(resolve => plain.listen(0, '127.0.0.1', resolve))
  t.teardown(() => plain.close())
  for (const [SMTP_URL, code] of [
    ['smtp://127.0.0.1:1', 'ECONNREFUSED'],
    [`smtps://127.0.0.1:${(plain.address() as AddressInfo).port}`, 'ERR_SSL_WRONG_VERSION_NUMBER'],
  ] as const) {
    const tested = await runCli({ ...env, SMTP_URL }, ['mail', 'test', 'ana@example.org'])
    t.true(tested.stderr.includes(code), tested.stderr)
    const { stdout } = await runCli({ ...env, SMTP_URL }, ['doctor'])
    t.regex(stdout, new RegExp(`mail server: .*${code}.*\\n.*smtps where the port begins with TLS`))
  }
})
