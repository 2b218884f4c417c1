/** `auth-admin users`: the effect of each verb on the user, as the service shows it. */
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'ava'
import { assertRefusals, documentsOf, runCli } from '../_helpers/cli.js'
import { hold } from '../_helpers/database.js'
import { definedNames, profileNames, profileValues } from '../_helpers/fields.js'
import { enterByKey } from '../_helpers/recovery.js'
import { password, serviceForFile } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { idOf } from '../_helpers/tokens.js'

const service = serviceForFile()
const { run: users, json } = documentsOf(service, 'users')
const login = async (username: string, secret = password) =>
  (await service.request('POST', '/users/login', { query: { username, password: secret } })).status

const fields = [
  ...['active', 'city', 'createTime', 'emailProved', 'etag', 'id', 'nickname'],
  ...['role', 'state', 'status', 'suspended', 'termsofusage', 'username'],
]

test('show prints the contract’s fields of a user, keys included, and no secret', async t => {
  const organization = await service.organization()
  const { username, providerKey } = await service.institution(organization)
  const answer = 'resposta muito secreta'
  const client = await service.signUp('ROLE_CLIENT', {
    email: 'cliente@example.org',
    dateofborn: '01/02/1990',
    securityquestion: '1',
    securityanswer: answer,
  })
  const shown = await json('show', username)
  t.deepEqual(Object.keys(shown).sort(), [...fields, 'partnerOrganization', 'providerActivationKey'].sort())
  t.like(shown.partnerOrganization, { id: organization.id, activationkey: organization.activationkey, active: 'true' })
  t.like(shown.providerActivationKey, { usersid: shown.id, activationkey: providerKey })

  const digits = client.username.replace(/\D/g, '')
  const user = await json('show', digits)
  t.like(user, { username: client.username, active: 0, status: 'inactive', suspended: false, dateofborn: '01/02/1990' })
  t.is(user.email, 'cliente@example.org')
  for (const words of [[`#${user.id}`], [String(user.id)]]) t.deepEqual(await json('show', ...words), user)
  const outputs = [
    ['show', digits],
    ['show', digits, '--json'],
    ['list', '--json'],
  ] as const
  const [columns = '', ...documents] = await Promise.all(outputs.map(async args => (await users(...args)).stdout))
  const [, row] = (await users('list', '--text', client.username)).stdout.split('\n')
  t.regex(columns, new RegExp(`^state +${user.state}$`, 'm'))
  t.regex(columns, /^status +inactive$/m)
  t.regex(columns, /^created +\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/m)
  t.regex(row!, new RegExp(` ROLE_CLIENT +inactive +${user.state}$`))
  for (const text of [columns, ...documents]) {
    t.notRegex(text, /secreta|hmac1|\$2b\$|securityanswer|password/i)
    t.false(text.includes(password))
  }
})

test('list filters by flags, and shows no keys', async t => {
  const organization = await service.organization({ name: 'Filtrada' })
  const head = await service.institution(organization)
  const other = await service.signUp('ROLE_CLIENT', { nickname: 'Nenhum Ímpar', email: 'Filtro@example.org' })
  const names = async (...args: string[]) =>
    (await json('list', ...args)).users.map(({ username }: { username: string }) => username)

  const { users: members } = await json('list', '--organization', 'filtrada')
  t.is(members.length, 1)
  t.deepEqual(Object.keys(members[0]).sort(), [...fields, 'partnerOrganization'].sort())
  t.false('activationkey' in members[0].partnerOrganization)
  t.deepEqual(await names('--organization', String(organization.id), '--inactive'), [])
  t.deepEqual(await names('--organization', 'Filtrada', '--active', '--role', 'ROLE_INSTITUTION'), [head.username])
  t.deepEqual(await names('--organization', 'Filtrada', '--role', 'ROLE_CLIENT'), [])
  t.deepEqual(await names('--text', 'nenhum ÍMP'), [other.username])
  await json('suspend', other.username, '--yes')
  t.deepEqual(await names('--suspended', '--text', 'nenhum'), [other.username])
  t.deepEqual(await names('--inactive', '--text', 'nenhum'), [])
  await json('delete', other.username, '--yes')
  t.deepEqual(await names('--text', 'nenhum'), [])
  t.deepEqual(await names('--deleted', '--text', 'nenhum'), [other.username])
})

/** What each verb says: when it changes something, when that is done already, and when it is refused. */
test('a verb says what it changed, that nothing was left to change, or what it needs', async t => {
  const organization = await service.organization({ name: 'Destino' })
  const { username } = await service.institution(organization)
  const [client, other] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  const admin = await service.signUp('ROLE_ADMIN')
  await runCli(service.env, ['organizations', 'create', '--name', 'Parada'])
  await runCli(service.env, ['organizations', 'deactivate', 'Parada', '--yes'])
  const confirmed = ['--confirm', admin.username]
  const why = ['--reason', 'teste']
  const rows: [verb: string, user: string, more: string[], code: number, says: RegExp][] = [
    ['activate', admin.username, [], 2, /--confirm/],
    ['activate', admin.username, confirmed, 2, /--reason/],
    ['activate', admin.username, ['--confirm', 'somebody', ...why], 2, /Type .* to confirm/],
    ['activate', admin.username, [...confirmed, ...why], 0, /is active/],
    ['activate', username, [], 0, /already/],
    ['activate', client.username, ['--organization', 'parada'], 5, /is inactive: activate it first/],
    ['suspend', client.username, ['--yes'], 0, /is suspended/],
    ['suspend', client.username, ['--yes'], 0, /already/],
    [
      'activate',
      client.username,
      ['--organization', 'Destino'],
      5,
      /^error: .+ is suspended\. Run `auth-admin users resume \d+` first/,
    ],
    ['activate', other.username, ['--organization', 'DESTINO'], 0, /is active/],
    ['revoke-tokens', client.username, [], 2, /--yes/],
    ['revoke-tokens', client.username, ['--yes'], 0, /User/],
    ['set-role', client.username, ['ROLE_INSTITUTION', '--yes'], 0, /ROLE_INSTITUTION/],
    ['set-role', client.username, ['ROLE_INSTITUTION'], 0, /already/],
    ['set-role', client.username, ['ROLE_X', '--yes'], 2, /ROLE_CLIENT/],
    ['set-role', client.username, ['ROLE_ADMIN', ...why], 2, /--confirm '.*'\./],
  ]
  for (const [verb, user, more, code, says] of rows) {
    const run = await users(verb, user, ...more)
    t.is(run.code, code, `${verb} ${more}: ${run.stdout}${run.stderr}`)
    t.regex(run.stdout + run.stderr, says, verb)
  }
  t.is((await json('show', client.username)).role, 'ROLE_INSTITUTION')
  t.is((await json('show', other.username)).partnerOrganization.id, organization.id)
})

test('a username that looks like an id is refused as ambiguous, and an id without # identifies a user', async t => {
  const [target, other] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  const [id, trap] = [idOf(target.token), idOf(other.token)]
  await service.registry.database.sequelize.query(
    `UPDATE users SET username = '#${id}', username_key = '#${id}' WHERE id = ${trap}`,
  )
  for (const spelling of [`#${id}`, ` ＃${id}`]) {
    const { code, stderr } = await users('show', spelling)
    t.is(code, 2)
    t.true(stderr.includes(`ids ${id}, ${trap}`) && stderr.includes('an id without #'), stderr)
  }
  t.is((await users('erase', `${id}`, '--confirm', `#${id}`)).code, 2)
  t.is((await json('show', `${id}`)).username, target.username)
  // A number is an id, whether or not a record has it.
  const numeric = await service.signUp('ROLE_CLIENT', { username: '7777777' })
  const wrong = await users('suspend', '7777777', '--reason', 'x', '--yes')
  t.is(wrong.code, 2)
  t.true(wrong.stderr.includes(`#${idOf(numeric.token)}`), wrong.stderr)
  t.is((await json('show', `${trap}`)).username, `#${id}`)
})

test('create says how a user without a password gets one, and an unknown organization how to find it', async t => {
  const form = ['create', '--username', 'sem-senha', '--role', 'ROLE_CLIENT']
  await assertRefusals(t, users, [
    [
      /^error: There is no organization Nenhuma\. To search .* `auth-admin organizations list --text WORDS`\.\n$/,
      3,
      ...['activate', (await service.signUp('ROLE_CLIENT')).username, '--organization', 'Nenhuma'],
    ],
  ])
  const { stdout } = await users(...form, '--state', 'SP', '--city', 'Bauru')
  t.regex(stdout, /^User (\d+) \(sem-senha\) is registered\. It has no .*`auth-admin users set-password \1`\.\n$/)
  const mailed = ['create', '--username', 'com-email', ...form.slice(3), '--state', 'SP', '--city', 'Bauru']
  t.regex((await users(...mailed, '--email', 'ana@example.org')).stdout, /`auth-admin users send-key \d+`\.\n$/)
})

test('every verb without a user says how to name one', async t => {
  const verbs: Record<string, string[]> = {
    ...Object.fromEntries(['show', 'activate', 'unlock', 'set-role', 'send-key'].map(verb => [verb, []])),
    ...Object.fromEntries(['erase', 'export', 'why'].map(verb => [verb, []])),
    ...Object.fromEntries(['suspend', 'revoke-tokens', 'delete'].map(verb => [verb, ['--yes']])),
    edit: ['--city', 'X'],
  }
  const cases = Object.entries(verbs).map(([verb, more]) => [/a username or an id\.\n$/, 2, verb, ...more] as const)
  await assertRefusals(t, users, cases)
})

test('set-password reads UTF-8 from a file or standard input, and neither prints nor records the password', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const file = join(await temporaryFolder(t), 'password')
  const set = async (content: string | Buffer, from = file) => {
    await writeFile(file, content)
    const args = ['users', 'set-password', username, '--password-file', from, '--reason', 'teste']
    return runCli(service.env, args, from === '-' ? String(content) : '')
  }
  for (const [before, words, after, from] of [
    ['', 'uma girafa bem alta 7', '\n', file],
    ['', 'duas girafas altas 8', '\r\n', '-'],
    ['\uFEFF', 'girafa azul 11', '\r\n', file],
    ['\uFEFF', 'girafa azul 12', '\n', '-'],
  ] as const) {
    const { code, stdout, stderr } = await set(before + words + after, from)
    t.is(code, 0, stderr)
    t.notRegex(stdout + stderr, /girafa/)
    t.is(await login(username, words), 200)
  }
  t.notRegex(JSON.stringify(await service.registry.audit.list({ action: 'user.set-password', limit: 10 })), /girafa/)
  for (const [content, exitCode, says] of [
    ['', 2, /^error: Give [^\n]+\n$/],
    ['curta', 2, /^error: Use [^\n]+\n$/],
    ['a\nb\nc\nd\ne\n', 2, /^error: (Give|Use|Choose|Leave) [^\n]+\n$/],
    [
      Buffer.from('\uFEFFgirafa azul 11', 'utf16le'),
      1,
      /^error: [^\n]+-file is in UTF-16, [^\n]+: save it in UTF-8\.\n$/,
    ],
  ] as const) {
    const { code, stdout, stderr } = await set(content)
    t.deepEqual([code, stdout], [exitCode, ''])
    t.regex(stderr, says)
  }
  await assertRefusals(t, users, [
    [/--password-file/, 2, 'set-password', username],
    [/unknown option/, 2, 'set-password', username, '--password', 'girafa azul 9'],
    [/^(?!.*girafa)/, 2, 'set-password', username, 'girafa azul 9'],
    [/can’t be read/, 1, 'set-password', username, '--password-file', '/nonexistent/x'],
  ])
  t.is(await login(username, 'girafa azul 12'), 200)
})

test('create registers active or inactive users with the given fields, and reports every invalid flag', async t => {
  const organization = await service.organization({ name: 'Criadora' })
  const required = ['--state', 'SP', '--city', 'Campinas', '--role']
  const flags = profileNames.flatMap(name => [`--${definedNames[name]!.replaceAll('_', '-')}`, profileValues[name]!])
  const create = ['create', '--username']
  const { id, etag, createTime, ...rest } = await json(
    ...[...create, 'criada', '--role', 'ROLE_CLIENT', '--email', 'criada@example.org', ...flags],
  )
  t.deepEqual(rest, {
    ...profileValues,
    ...{ username: 'criada', role: 'ROLE_CLIENT', active: 0, status: 'inactive', suspended: false },
    ...{ emailProved: false, termsofusage: false, email: 'criada@example.org' },
  })
  t.deepEqual(await json('show', 'criada'), { id, etag, createTime, ...rest })
  const member = [...required, 'ROLE_INSTITUTION', '--active', '--organization', 'criadora']
  const provider = await json(...create, 'provedora', ...member)
  t.like(provider, { active: 1, partnerOrganization: { id: organization.id } })
  t.is(typeof provider.providerActivationKey.activationkey, 'string')
  const signsIn = ['users', ...create, 'com senha', ...required, 'ROLE_CLIENT', '--password-file', '-', '--json']
  const { code, stdout, stderr } = await runCli(service.env, signsIn, 'uma girafa bem alta 7\n')
  t.is(code, 0, stderr)
  t.notRegex(stdout + stderr, /girafa/)
  t.is(await login('com senha', 'uma girafa bem alta 7'), 200)

  const chief = [...create, 'chefa', ...required, 'ROLE_ADMIN', '--active']
  await assertRefusals(t, users, [
    [/username/, 2, 'create', ...required, 'ROLE_CLIENT'],
    [/--role/, 2, ...create, 'x'],
    [/--state: .*--city: /, 2, ...create, 'x', '--role', 'ROLE_CLIENT'],
    [/--username: .*: user \d+ has this one/, 2, ...create, 'CRIADA', ...required, 'ROLE_CLIENT'],
    [/--confirm/, 2, ...chief],
    [/--reason/, 2, ...chief, '--confirm', 'chefa'],
    [/unknown option '--password'/, 2, ...create, 'x', ...required, 'ROLE_CLIENT', '--password', 'girafa azul 9'],
  ])
})

test('a telephone number is one word in any spelling, and a former username says whose it is', async t => {
  const form = ['--role', 'ROLE_CLIENT', '--state', 'SP', '--city', 'Bauru']
  const { id } = await json('create', '--username', '12980000000', ...form)
  const other = await json('create', '--username', 'so.email', '--email', '12980000000@example.org', ...form)
  const found = async (text: string) =>
    (await json('list', '--text', text)).users.map((user: { id: number }) => user.id)
  for (const text of ['(12)98000-0000', '(12) 98000-0000', '12980000000'])
    t.deepEqual(await found(text), [id, other.id], text)
  for (const text of ['+55 12 98000 0000', '012980000000']) t.deepEqual(await found(text), [id], text)
  await json('edit', '12980000000', '--username', 'nome.novo')
  for (const verb of ['why', 'show', 'suspend'])
    await assertRefusals(t, users, [
      [
        new RegExp(`It is a former username of user ${id} \\(nome\\.novo\\)\\.`),
        3,
        verb,
        '(12)98000-0000',
        ...(verb === 'suspend' ? ['--yes'] : []),
      ],
    ])
})

test('issue-keys gives each user of a file a key, as a table, as CSV or as a page to cut, and says who gets none and why', async t => {
  const folder = await temporaryFolder(t)
  const form = ['--role', 'ROLE_CLIENT', '--state', 'SP', '--city', 'Bauru']
  const { id } = await json('create', 'turma.rui', '--nickname', 'Rui <3', ...form)
  await json('create', 'turma.bia', '--nickname', '=Bia', ...form)
  const [list, csv, html] = ['turma.csv', 'chaves.csv', 'chaves.html'].map(name => join(folder, name))
  await writeFile(list!, `id;username\n${id};\n;TURMA.BIA\n;admin\n;ninguém\n;turma.rui\n`)
  const issue = (...args: string[]) => users('issue-keys', list!, ...args, '--reason', 'teste')
  const why = `warning: No key for ninguém: There is no user ninguém. .*
warning: No key for turma.rui: The list names this user twice.
warning: No key for admin: admin gets no key that others know: it administers the registry.
`
  const entersBy = async (username: string, key = '') => (await enterByKey(service, username, key)).status

  const table = await issue()
  t.is(table.code, 6)
  t.regex(table.stderr, new RegExp(`^${why}$`))
  const rows = table.stdout.split('\n')
  t.regex(
    table.stdout,
    /^NICKNAME +USERNAME +KEY\nRui <3 +turma.rui +\w{8}\n=Bia +turma.bia +\w{8}\nKeys that are issued: 2\. /,
  )
  t.is(await entersBy('turma.rui', /\w{8}$/.exec(rows[1]!)?.[0]), 200)

  t.is((await issue('--output', csv!)).code, 6)
  const [head, rui, bia] = (await readFile(csv!, 'utf8')).split('\r\n')
  t.deepEqual([head, bia?.slice(0, 21)], ['\ufeff"nickname","username","key"', `"'=Bia","turma.bia","`])
  t.is(await entersBy('turma.rui', /"(\w{8})"$/.exec(rui!)?.[1]), 200)

  t.is((await issue('--output', html!)).code, 6)
  const page = await readFile(html!, 'utf8')
  t.deepEqual([page.match(/<section>/g)?.length, page.includes('Rui &#60;3')], [2, true])
  t.is(await entersBy('turma.bia', /<b>turma.bia<\/b><\/p><p>Key: <code>(\w{8})</.exec(page)?.[1]), 200)

  // The file is opened, and the list read, before a key is issued.
  const { key } = await json('issue-key', 'turma.bia', '--reason', 'teste')
  await writeFile(join(folder, 'outra.csv'), 'nome\nturma.bia\n')
  await assertRefusals(t, users, [
    [/ENOENT/, 1, 'issue-keys', list!, '--output', join(folder, 'nenhuma', 'x.csv'), '--reason', 'teste'],
    [/no column username or id/, 2, 'issue-keys', join(folder, 'outra.csv'), '--reason', 'teste'],
  ])
  t.is(await entersBy('turma.bia', key), 200)
})

test('issue-keys prints the keys that are issued before a call of it fails', async t => {
  const list = join(await temporaryFolder(t), 'turma.csv')
  const form = ['--role', 'ROLE_CLIENT', '--state', 'SP', '--city', 'Bauru']
  await json('create', 'primeira', ...form)
  const { id } = await json('create', 'ocupada', ...form)
  const unknown = Array.from({ length: 99 }, (_, n) => `desconhecida ${n}`)
  await writeFile(list, ['username', 'primeira', ...unknown, 'ocupada'].join('\n'))
  const holder = await hold(t, service.env.DATABASE_URL!)
  await holder.query(`BEGIN; UPDATE users SET city = 'x' WHERE id = ${id}`)
  const { code, stdout } = await users('issue-keys', list, '--reason', 'teste')
  t.is(code, 7)
  t.regex(stdout, /^primeira +primeira +\w{8}$/m)
})

test('edit changes the given fields, clears empty ones, and keeps all others', async t => {
  const { username } = await service.signUp('ROLE_CLIENT', {
    gender: 'M',
    institution: 'Antes',
    email: 'a@example.org',
  })
  const { gender, email, ...before } = await json('show', username)
  const after = await json('edit', username, '--city', 'Santos', '--gender', '', '--email', '')
  t.deepEqual(after, { ...before, city: 'Santos', etag: after.etag })
  await assertRefusals(t, users, [
    [/--nickname, --state, --city/, 2, 'edit', username],
    [/--state: /, 2, 'edit', username, '--state', 'SPX'],
    [/--city: /, 2, 'edit', username, '--city', ''],
    [/--dateofborn: /, 2, 'edit', username, '--dateofborn', '31/02/2000'],
    [/--email: /, 2, 'edit', username, '--email', 'invalid'],
  ])
  t.is((await json('edit', String(before.id), '--email', ' bia@example.org ')).email, 'bia@example.org')
  t.regex((await users('edit', username, '--email', 'bia@example.org')).stdout, /already/)
})

test('a command that is refused for now exits with 7 and prints the seconds until a retry', async t => {
  const { username } = await service.signUp('ROLE_CLIENT', { email: 'chaves.demais@example.org' })
  for (let index = 0; index < 5; index++) t.is((await users('send-key', username)).code, 0)
  const { code, stdout, stderr } = await users('send-key', username, '--json')
  t.is(code, 7)
  const { error } = JSON.parse(stdout)
  t.like(error, { exitCode: 7, reason: 'TOO_MANY_ATTEMPTS' })
  t.true(error.retryAfter > 0 && error.retryAfter <= 3600)
  t.is(stderr, `error: Too many attempts. Try again later. Try again in ${error.retryAfter} s.\n`)
})

test('send-key, delete, export and erase print what they did, in documents without names of columns', async t => {
  const email = 'chave@example.org'
  const { username } = await service.signUp('ROLE_CLIENT', { email })
  const { id } = await json('show', username)
  t.deepEqual(await json('send-key', username), { id, username, email })
  const deleted = await json('delete', username, '--yes')
  t.true(deleted.suspended && 'deleteTime' in deleted && 'purgeTime' in deleted)
  t.regex((await users('delete', username, '--yes')).stdout, /already/)
  const exported = await json('export', username)
  t.like(exported.users, { id, username, email })
  t.true(Array.isArray(exported.auditEvents) && Array.isArray(exported.formerUsernames))
  t.true('createdAt' in exported.users && Object.keys(exported.users).every(name => !name.includes('_')))
  await assertRefusals(t, users, [[/--confirm/, 2, 'erase', username]])
  const { user, eraseTime, rows } = await json('erase', String(id), '--confirm', username)
  t.deepEqual([user, new Date(eraseTime).toISOString(), rows.users], [id, eraseTime, 1])
  t.is((await users('show', username)).code, 3)
})
