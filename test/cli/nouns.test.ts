/** Commands of nouns: what each prints of organizations, questions, services and locked users, and what it refuses in which sentence. */

import { type AddressInfo, createServer } from 'node:net'
import test from 'ava'
import { lockout } from '../../server/policy/limits.js'
import { assertRefusals, documentsOf, installedRegistry, keys, openTerminal, runCli } from '../_helpers/cli.js'
import { login } from '../_helpers/crowd.js'
import { ask } from '../_helpers/database.js'
import { serviceForFile } from '../_helpers/service.js'

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
  t.regex((await organizations('list', '--all')).stdout, new RegExp(`^${id} +Escola Ímpar +12345678 +E +yes +0 `, 'm'))
  t.regex((await organizations('show', String(id))).stdout, /^active +yes$/m)

  const bare = await organizationJson('create', '--name', 'Nua')
  t.deepEqual(Object.keys(bare).sort(), ['activationkey', 'active', 'creation_date', 'etag', 'id', 'members', 'name'])
})

test('create refuses a name that exists, in any spelling, until `--yes` registers another organization', async t => {
  const named = async () => (await organizationJson('list', '--text', 'Repetida')).organizations.length
  await organizationJson('create', '--name', 'Repetida')
  for (const [times, name] of [
    [1, ' REPETIDA '],
    [2, 'Repetida'],
  ] as const) {
    const { code, stdout } = await organizations('create', '--name', name, '--json')
    t.deepEqual([code, await named()], [5, times])
    t.regex(JSON.parse(stdout).error.message, /^There is an organization \S+ already: .* pass --yes\.$/)
    await organizationJson('create', '--name', name, '--yes')
    t.is(await named(), times + 1)
  }
  const { id } = await organizationJson('create', '--name', 'Sem par')
  await organizationJson('create', '--name', String(id))
})

test('edit changes the given fields, clears empty ones, and keeps all others', async t => {
  const before = await organizationJson('create', '--name', 'Mutável', '--phone', '1', '--login', 'm', '--type', 'N')
  const flags = ['--phone', '', '--responsible', 'Bia', '--type', 'o', '--name', 'Mudada']
  const after = await organizationJson('edit', 'mutável', ...flags)
  const { phone: _, ...rest } = before
  t.deepEqual(after, { ...rest, name: 'Mudada', responsible: 'Bia', type: 'O', etag: after.etag })
  t.deepEqual(await organizationJson('show', 'MUDADA'), after)
})

test('a name, an INEP code or an id identifies an organization, and what fits two is refused with both ids', async t => {
  const [first, second] = [
    (await organizationJson('create', '--name', 'Gêmea', '--inep-code', '87654321')).id,
    (await organizationJson('create', '--name', 'GÊMEA ', '--yes')).id,
  ]
  for (const name of [`#${first}`, '87654321']) t.is((await organizationJson('show', name)).id, first)
  await organizationJson('edit', `#${first}`, '--inep-code', String(second))
  const taken = new RegExp(`#${first} already has this INEP code`)
  await assertRefusals(t, organizations, [
    [new RegExp(`#${first}, #${second}\\.`), 2, 'show', 'gêmea'],
    [/Ambiguous/, 2, 'show', String(second)],
    [taken, 5, 'edit', `#${second}`, '--inep-code', String(second)],
    [taken, 5, 'create', '--name', 'Terceira', '--inep-code', String(second)],
  ])
})

test('every command of organizations reports an invalid or missing flag in one sentence', async t => {
  const { id } = await organizationJson('create', '--name', 'Sentenças')
  await assertRefusals(t, organizations, [
    [/name/, 2, 'create'],
    [/name/, 2, 'create', '--name', '\u200b'],
    [/--email/, 2, 'create', '--name', 'Y', '--email', 'invalid'],
    [/--phone/, 2, 'create', '--name', 'Y', '--phone', 'a\nb'],
    [/--address/, 2, 'create', '--name', 'Y', '--address', 'x'.repeat(256)],
    [/name/, 2, 'edit', String(id), '--name', ''],
    [/--name, --email/, 2, 'edit', String(id)],
    [/id or name/, 2, 'show'],
    [/no organization 999/, 3, 'show', '999'],
    [/no organization Ninguém/, 3, 'rotate-key', 'Ninguém', '--yes'],
    [/--colour/, 2, 'create', '--name', 'Y', '--colour', 'red'],
  ])
})

// `auth-admin questions`: questions change, and answers survive every change.

const { run: questions, json: questionJson } = documentsOf(service, 'questions')

test('create, retire, offer, edit, show and order print the contract’s fields of a question', async t => {
  const { id, etag, ...added } = await questionJson('create', '--question', 'Qual é a cor do mar?')
  t.deepEqual(added, { question: 'Qual é a cor do mar?', active: 1, status: 'offered' })
  const listed = async (...args: string[]) =>
    (await questionJson('list', ...args)).questions.map((row: { id: number }) => row.id)
  t.like(await questionJson('retire', String(id)), { id, question: 'Qual é a cor do mar?', active: 0 })
  t.deepEqual([(await listed('--retired')).includes(id), (await listed('--offered')).includes(id)], [true, false])
  t.deepEqual(await questionJson('offer', 'qual e a COR do mar?'), { id, etag, ...added })
  const edited = await questionJson('edit', `#${id}`, '--question', 'Primeira de todas?')
  t.deepEqual(edited, { id, etag: edited.etag, ...added, question: 'Primeira de todas?' })
  const served = await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')
  t.deepEqual([...Object.keys(served.json[0]), 'status', 'etag'].sort(), Object.keys(edited).sort())
  t.regex((await questions('show', 'PRIMEIRA de todas?')).stdout, /^question +Primeira de todas\?\nstatus +offered$/m)
  t.true((await questionJson('order', `#${id}`, '2')).changed)
  t.deepEqual((await listed()).slice(0, 2), [id, 2])
  t.regex(
    (await questions('order', String(id), '#2')).stdout,
    new RegExp(`^The order of the questions is already ${id}, 2, `),
  )
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
  t.like(await questionJson('show', String(id)), { question: 'Que dia é hoje?', active: 0 })
})

test('every command of questions reports an invalid or missing argument in one sentence', async t => {
  const { question } = await questionJson('show', '1')
  const first = question.normalize('NFD').replace(/\p{M}/gu, '').toUpperCase()
  await assertRefusals(t, questions, [
    [/text/, 2, 'create'],
    [/text/, 2, 'create', '--question', ' '],
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

test('create prints the key once, and list prints its first characters', async t => {
  const added = await serviceJson('create', 'grades', '--may', 'users.read,tokens.verify', '--expires', '90d')
  const { key, ...shown } = added
  t.regex(key, /^authsvc_[\w-]{43}$/)
  const [{ id, beginning, createTime, expireTime, ...rest }] = shown.keys
  t.deepEqual(rest, {})
  t.true(Number.isInteger(id) && key.startsWith(beginning))
  t.is(Math.round((Date.parse(expireTime) - Date.parse(createTime)) / 86_400_000), 90)
  t.deepEqual(shown.scopes, ['users.read', 'tokens.verify'])
  t.deepEqual(
    (await serviceJson('list')).services.find(({ name }: { name: string }) => name === 'grades'),
    shown,
  )
  for (const args of [['list'], ['list', '--jsonl']]) {
    const { code, stdout } = await services(...args)
    t.is(code, 0)
    t.true(stdout.includes('grades') && !stdout.includes(key), stdout)
  }
  // In text output, a key is on a separate line.
  t.regex((await services('create', 'plain', '--may', 'USERS.READ')).stdout, /^authsvc_[\w-]{43}$/m)
})

test('create with redirect URIs registers a client of OpenID Connect, which needs no scope', async t => {
  const [uri, out] = ['https://tool.example.org/callback', 'https://tool.example.org/']
  const uris = ['--redirect-uri', uri, '--redirect-uri', `${uri}2`, '--post-logout-uri', out]
  t.like(await serviceJson('create', 'tool', ...uris, '--public', '--title', 'The tool'), {
    ...{ scopes: [], redirectUris: [uri, `${uri}2`], postLogoutUris: [out], public: true, title: 'The tool' },
  })
  const { stdout } = await services('show', 'tool')
  for (const each of [uri, `${uri}2`, out]) t.regex(stdout, new RegExp(` ${each}$`, 'm'))
})

test('every command of services reports an invalid or missing argument in one sentence, and changes nothing', async t => {
  await serviceJson('create', 'steady', '--may', 'users.read')
  const steady = async () =>
    (await serviceJson('list')).services.find(({ name }: { name: string }) => name === 'steady')
  const before = await steady()
  await assertRefusals(t, services, [
    [/--may/, 2, 'create', 'x'],
    [/users\.read, tokens\.verify/, 2, 'create', 'x', '--may', 'everything'],
    [/pass its name/, 2, 'create', '--may', 'users.read'],
    [/lower-case letters/, 2, 'create', 'Übel', '--may', 'users.read'],
    [/90d, 12h/, 2, 'create', 'x', '--may', 'users.read', '--expires', 'soon'],
    [/in the future/, 2, 'create', 'x', '--may', 'users.read', '--expires', '2001-01-01'],
    [/at most 20 URIs/, 2, 'create', 'x', '--redirect-uri', 'http://tool.example.org/'],
    [/--post-logout-uri: /, 2, 'edit', 'steady', '--post-logout-uri', 'http://tool.example.org/'],
    [/already/, 5, 'create', 'steady', '--may', 'users.read'],
  ])
  t.deepEqual(await steady(), before)
})

// `auth-admin users why` and `unlock`: what locks a user, and how a lock ends.

test('why shows how long a lock lasts and which commands remove obstacles, until `unlock`', async t => {
  const { run: users, json } = documentsOf(service, 'users')
  const { username } = await service.signUp('ROLE_CLIENT')
  const [home, elsewhere] = ['192.0.2.1', '198.51.100.2']
  t.is((await login(service, username, home)).status, 200)
  for (const address of [...Array(lockout.failures).fill(elsewhere), home])
    t.is((await login(service, username, address, 'errada-errada')).status, 404)
  const { id } = await json('suspend', username, '--yes')

  const { user, failures } = await json('why', username, '--address', `::ffff:${home}`)
  t.like(user, { username, suspended: true })
  t.like(
    failures.find(({ scope }: { scope: string }) => scope === 'known address'),
    { proof: 'password', count: 1, locked: false },
  )
  const { stdout } = await users('why', username)
  const known = 'this account, from a known network or device'
  for (const line of [
    /^passwords +this account +10\/10 +locked for 1[45] min$/m,
    new RegExp(`^passwords +${known} +1/10 +not locked, expires in \\d+ (s|min)$`, 'm'),
    /Locked after 10 wrong passwords \((14|15) min left\)\. /,
    new RegExp(`sign in, .*, activate +The user is suspended\\. +auth-admin users resume ${id}$`, 'm'),
  ])
    t.regex(stdout, line)
  t.regex((await users('why', username, '--local')).stdout, /users resume \d+ --local$/m)
  t.notRegex(stdout, /^answers /m)
  await assertRefusals(t, users, [[/--address/, 2, 'unlock', username, '--address', 'here']])
  await json('unlock', `#${id}`)
  t.notRegex((await users('why', username)).stdout, /Locked/)
})

// `auth-admin mail`: the queue of e-mails.

test('mail lists e-mails of the queue', async t => {
  const env = await installedRegistry(t)
  const { run: mail, json } = documentsOf({ env }, 'mail')
  t.is((await mail('list')).stdout, 'No e-mails match.\n')
  await ask(
    env.DATABASE_URL,
    `INSERT INTO emails (kind, parameters, locale, next_attempt_at, last_error) VALUES
      ('recovery-key', '{"userId": 1, "to": "hidden@example.org"}', 'en', NULL, 'Error ECONNREFUSED'),
      ('password-changed', '{"userId": 1}', 'en', now(), NULL)`,
  )
  const [failed, waiting] = (await json('list')).emails
  t.deepEqual(failed, { ...failed, id: 1, kind: 'recovery-key', user: 1, attempts: 0, error: 'Error ECONNREFUSED' })
  t.false('dueTime' in failed)
  for (const [flag, found] of Object.entries({ '--failed': failed, '--waiting': waiting }))
    t.deepEqual((await json('list', flag)).emails, [found])
})

test('doctor says why the mail server doesn’t answer, and tells a wrong port from a wrong scheme', async t => {
  const env = await installedRegistry(t)
  const plain = createServer(socket => socket.on('error', () => {}).write('220 mail.example ESMTP\r\n'))
  await new Promise<void>(resolve => plain.listen(0, '127.0.0.1', resolve))
  t.teardown(() => plain.close())
  for (const [SMTP_URL, code] of [
    ['smtp://ana:secret-of-ana@127.0.0.1:1', 'ECONNREFUSED'],
    [`smtps://127.0.0.1:${(plain.address() as AddressInfo).port}`, 'ERR_SSL_WRONG_VERSION_NUMBER'],
  ] as const) {
    const { stdout, stderr } = await runCli({ ...env, SMTP_URL }, ['doctor'])
    t.regex(stdout, new RegExp(`mail server: .*${code}.*\\n.*smtps where the port begins with TLS`))
    t.notRegex(stdout + stderr, /secret-of-ana/)
  }
})
