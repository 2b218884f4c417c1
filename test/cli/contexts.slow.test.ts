/**
 * Remote use of `auth-admin`: contexts, sessions in private files, one-time codes, and errors. Serial,
 * because all tests use the same administrator.
 */
import { readdir, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { join, relative } from 'node:path'
import ava, { type ExecutionContext } from 'ava'
import { TOTP } from 'otpauth'
import { newServiceKey } from '../../server/models/service.js'
import { formatAddress } from '../../server/process/settings.js'
import { assertRefusals, documentsOf, keys, openTerminal, remoteUser, runCli, spawnCli } from '../_helpers/cli.js'
import { password, serviceForFile } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { forgeSession, nowInSeconds } from '../_helpers/tokens.js'

const test = ava.serial

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))
const url = () => `http://${formatAddress(service.service.addresses.admin!)}`

/** A user of the command line without settings of the service; `signedIn` is the context of a session. */
async function isolatedUser(t: ExecutionContext, { signedIn = '', start = runCli } = {}) {
  const user = await remoteUser(t, service, start)
  const login = async (...args: string[]) => {
    const { code, stderr } = await user.login(...args)
    t.is(code, 0, stderr)
  }
  if (signedIn) await login('--context', signedIn)
  const session = join(user.config, 'auth-admin', 'sessions', `${signedIn}.token`)
  return {
    ...user,
    ...documentsOf(user),
    login,
    session,
    /** Runs a command with this standard input. */
    pipe: user.run,
    /** Makes the session this old. */
    async age(seconds: number) {
      const then = nowInSeconds() - seconds
      const times = { startedAt: then, expiresAt: then + 12 * 3600 }
      await writeFile(session, await forgeSession(service, (await readFile(session, 'utf8')).trim(), () => times))
    },
    terminal: (...args: string[]) => openTerminal(user.env, args),
  }
}

test('after a login commands use the server, as the user who signed in', async t => {
  const { pipe, login, json, config } = await isolatedUser(t, { start: spawnCli })
  await login('--context', 'here')
  t.like(JSON.parse((await pipe(['whoami', '--json'])).stdout), { user: { username: 'admin' }, context: 'here' })
  const { id } = await json('organizations', 'create', '--name', 'Remota')
  const [event] = await service.registry.audit.list({ action: 'organization.add', limit: 1 })
  t.deepEqual([event?.actor, event?.object, event?.address], ['user', `organization:${id}`, '127.0.0.1'])
  // Only its owner can read the session.
  const folder = join(config, 'auth-admin')
  for (const file of ['contexts.json', join('sessions', 'here.token')])
    t.is((await stat(join(folder, file))).mode & 0o777, 0o600, file)
  t.false((await readFile(join(folder, 'contexts.json'), 'utf8')).includes('eyJ'))
  t.deepEqual(await readdir(join(folder, 'sessions')), ['here.token'])
})

test('login says when a password that a public session has set signs in, and how to set another one', async t => {
  const { pipe } = await isolatedUser(t)
  const create = ['users', 'create', '--username', 'eva', '--role', 'ROLE_ADMIN', '--state', 'SP', '--city', 'Bauru']
  t.is((await runCli(service.env, [...create, '--active', '--confirm', 'eva', '--reason', 'teste'])).code, 0)
  const set = (words: string) =>
    runCli(service.env, ['users', 'set-password', 'eva', '--password-file', '-', '--reason', 'teste'], words)
  t.is((await set(password)).code, 0)
  const token = await service.login('eva')
  const newPassword = 'tatu-canastra 12'
  await service.request('POST', '/forgotpasswords/passwordupdatebyusername', { token, body: { newPassword } })
  const login = () => pipe(['login', url(), '--username', 'eva', '--password-file', '-'], newPassword)
  const { code, stderr } = await login()
  t.is(code, 4)
  t.regex(
    stderr,
    /^error: .* or from \S+Z on\. Another administrator, or `auth-admin users set-password --local` [^`]+ now\.\n$/,
  )
  t.is((await set(newPassword)).code, 0)
  t.is((await login()).code, 0)
})

test('a login says which context is current now, and the server records the reason of a change', async t => {
  const { run, login, pipe } = await isolatedUser(t, { signedIn: 'one' })
  const second = ['login', url(), '--username', 'admin', '--password-file', '-', '--context', 'two']
  t.regex((await pipe(second, password)).stdout, /\nIt is now the current context \(was one\)\.\n$/)
  t.notRegex((await pipe(second, password)).stdout, /current context/)
  const key = await serviceKey(service, ['administration.read'], 'terceira')
  const third = ['login', url(), '--context', 'three', '--service-key-file', '-']
  t.regex((await pipe(third, key)).stdout, /\nIt is now the current context \(was two\)\.\n$/)
  t.is(
    (await run('contexts', 'three', '--delete')).stdout,
    'Context three is deleted. Commands work on the database itself.\n',
  )
  await run('contexts', 'one')
  t.is((await run('contexts', 'two', '--delete')).stdout, 'Context two is deleted. Commands work at one.\n')
  await login('--context', 'one')
  const { username } = await service.signUp('ROLE_CLIENT')
  const { code, stderr } = await run('users', 'suspend', username, '--yes', '--reason', 'perdeu o celular')
  t.is(code, 0, stderr)
  const events = await documentsOf(service).run('audit', 'list', '--action', 'user.suspend', '--json')
  t.regex(events.stdout, /perdeu o celular/)
  await assertRefusals(t, run, [
    [/`auth-admin login https:\/\/HOST:50052 --context new`/, 2, 'login', '--context', 'new', '--username', 'admin'],
  ])
  t.true((await documentsOf(service).json('users', 'show', username)).suspended)
})

test('logout deletes the session, and `--everywhere` also revokes its copies', async t => {
  const [first, second] = [await isolatedUser(t), await isolatedUser(t)]
  for (const { login } of [first, second]) await login('--context', 'here')
  t.deepEqual(await first.json('logout'), { context: 'here', signedOut: true })
  await assertRefusals(t, first.run, [[/not signed in to here/, 4, 'users', 'list']])
  await first.login('--context', 'here')
  t.is((await first.run('logout', '--everywhere')).code, 0)
  const refused = await second.run('users', 'list', '--json')
  t.deepEqual([refused.code, JSON.parse(refused.stdout).error.reason], [4, 'INVALID_TOKEN'])
})

test('contexts are listed, chosen and deleted', async t => {
  const { json, run, login, config, env } = await isolatedUser(t)
  // Its certificate authority is found from every working directory.
  const ca = join(config, 'ca.pem')
  await writeFile(ca, '')
  await login('--context', 'one', '--ca', relative(process.cwd(), ca))
  await login('--context', 'two')
  const listed = async () => (await json('contexts')).contexts
  const [one, two] = [
    { name: 'one', url: url(), current: false, ca },
    { name: 'two', url: url(), current: true },
  ]
  t.like(await listed(), [one, two])
  t.deepEqual(await json('contexts', 'one'), { current: 'one' })
  t.like(await listed(), [
    { ...one, current: true },
    { ...two, current: false },
  ])
  t.is((await json('whoami', '--context', 'two')).context, 'two')
  t.deepEqual(await json('contexts', 'two', '--delete'), { name: 'two', deleted: true })
  const local = documentsOf({ env: { ...service.env, XDG_CONFIG_HOME: env.XDG_CONFIG_HOME } })
  t.regex((await local.json('whoami', '--local')).actor, /^cli:.+@.+$/)
  await run('contexts', 'local')
  await assertRefusals(t, run, [
    [/two/, 3, 'whoami', '--context', 'two'],
    [/no registry in/, 5, 'users', 'list'],
  ])
})

test('at a terminal, login asks for missing credentials without echo, and for a one-time code if enrolled', async t => {
  const { run, json, login, terminal, pipe } = await isolatedUser(t, { signedIn: 'here' })
  const enrolling = terminal('totp', 'enroll')
  await enrolling.shows('One-time code:')
  const secret = /\n((?:[A-Z2-7]{4} ){7}[A-Z2-7]{4})\r?\n/.exec(enrolling.screen())?.[1]?.replaceAll(' ', '')
  t.truthy(secret, enrolling.screen())
  t.true(enrolling.screen().includes('█'))
  const totp = new TOTP({ secret: secret! })
  const now = Date.now()
  const code = (later = 0) => `${totp.generate({ timestamp: now + later })}${keys.enter}`
  enrolling.type(code())
  t.is(await enrolling.ended, 0, enrolling.screen())
  t.regex(
    enrolling.screen(),
    /Your sessions have ended:\r?\nrun `auth-admin login` with the next code, which comes in \d+ s/,
  )
  await assertRefusals(t, run, [
    [/^error: Your session has ended: run `auth-admin login --context here`\.\n$/, 4, 'users', 'list'],
  ])

  const asked = terminal('login', '--context', 'new')
  for (const [question, answer] of Object.entries({
    'URL of the administration listener': `auth.example.org${keys.enter}`,
    'Use https://': `${keys.clearLine}${url()}${keys.enter}`,
    Username: `admin${keys.enter}`,
    Password: `${password}${keys.enter}`,
    // It was already used for the enrolment.
    'One-time code': code(),
    'This one-time code was already used. The next one comes in': '',
    'One-time code (': code(30_000),
  })) {
    await asked.shows(question.replace(' (', ''))
    asked.type(answer)
  }
  t.is(await asked.ended, 0, asked.screen())
  t.notRegex(asked.screen(), /Invalid username or password/)
  t.false(asked.screen().includes(password))
  const words = ['login', url(), '--context', 'here', '--username', 'admin', '--password-file', '-', '--json']
  const piped = await pipe(words, password)
  t.deepEqual([piped.code, JSON.parse(piped.stdout).error.reason], [4, 'CODE_NEEDED'])
  t.like(await json('api', 'RemoveTotp', '{"user": "admin", "confirm": "admin"}', '--yes'), { changed: true })
  await login('--context', 'here')
})

test('a machine signs in with a service key, has the access of its scopes, and errors name the missing scope', async t => {
  const { pipe, run, json, config } = await isolatedUser(t, { start: spawnCli })
  const [actor, scopes] = ['service:rotinas', ['organizations.write']]
  const key = await serviceKey(service, ['organizations.write'], 'rotinas')
  const login = (key: string, ...more: string[]) =>
    pipe(['login', url(), '--context', 'ci', '--service-key-file', '-', ...more], key)
  for (const [wrong, code, says] of [
    [newServiceKey(), 4, /^error: The server doesn’t accept the key: it is wrong, expired or deleted\.\n$/],
    [
      await serviceKey(service, ['users.read'], 'leitora'),
      4,
      /leitora may not do this: it needs the scope administration\.read or organizations\.write/,
    ],
    [password, 2, /key/],
  ] as const)
    await assertRefusals(t, () => login(wrong), [[says, code]])
  t.is((await login(key, '--username', 'admin')).code, 2)
  t.deepEqual((await json('contexts')).contexts, [])

  const signedIn = await login(`${key}\n`, '--json')
  t.deepEqual(JSON.parse(signedIn.stdout), { context: 'ci', url: url(), actor, scopes })
  const folder = join(config, 'auth-admin')
  t.is((await stat(join(folder, 'sessions', 'ci.token'))).mode & 0o777, 0o600)
  t.false((await readFile(join(folder, 'contexts.json'), 'utf8')).includes(key))
  t.like(await json('whoami'), { actor, scopes })
  const { id, activationkey } = await json('organizations', 'create', '--name', 'Da rotina')
  t.is(activationkey, undefined)
  await assertRefusals(t, run, [
    [/^error: The service rotinas may not do this: it needs the scope administration\.read\.\n$/, 4, 'users', 'list'],
    [
      /No service may do this: sign in as an administrator/,
      4,
      'organizations',
      'delete',
      `${id}`,
      '--confirm',
      'Da rotina',
    ],
    [/./, 1, 'logout', '--everywhere'],
  ])
  t.is((await run('logout')).code, 0)
})

test('at a terminal, a sign-in that is too old is renewed before other questions; elsewhere the error says what to do', async t => {
  const { run, age, terminal } = await isolatedUser(t, { signedIn: 'here' })
  const { username } = await service.signUp('ROLE_CLIENT')
  await age(905)
  t.is((await run('users', 'list')).code, 0)
  const says =
    /^error: This requires a sign-in in the last 15 minutes, with a one-time code if codes are enrolled: run `auth-admin login --context here`\.\n$/
  await assertRefusals(t, run, [[says, 4, 'services', 'create', 'notas', '--may', 'users.read']])
  const erasing = terminal('users', 'erase', username)
  await erasing.shows(`Context here (${url()}): sign in again as admin.`)
  await erasing.shows('Password')
  t.notRegex(erasing.screen(), /to confirm/)
  erasing.type(`${password}${keys.enter}`)
  await erasing.shows(`On here (${url()}): This permanently erases`)
  await erasing.shows('to confirm:')
  erasing.type(`${username}${keys.enter}`)
  t.is(await erasing.ended, 0, erasing.screen())

  // Here it depends on the changed user.
  await service.signUp('ROLE_CLIENT', { username: 'colega' })
  await run('users', 'activate', 'colega')
  await age(905)
  const suspending = terminal('users', 'suspend', 'colega')
  await suspending.shows(`On here (${url()}): User `)
  await suspending.shows('can no longer sign in')
  suspending.type(`y${keys.enter}`)
  t.is(await suspending.ended, 0, suspending.screen())
  const setting = terminal('users', 'set-password', 'admin')
  await setting.shows('sign in again as admin')
  await setting.shows('Password')
  setting.type(`${password}${keys.enter}`)
  await setting.shows('New password')
  setting.type(keys.ctrlC)
  t.is(await setting.ended, 130)
})

test('at a terminal, an expired session is renewed, and the command continues', async t => {
  const { run, pipe, session, age, terminal } = await isolatedUser(t, { signedIn: 'here' })
  for (const [command, shows] of Object.entries({
    'users list': 'ROLE_ADMIN',
    // It requires a recent sign-in.
    'services create renovada --may users.read': 'authsvc_',
    // It shows its progress meanwhile.
    doctor: 'PostgreSQL',
  })) {
    await age(13 * 3600)
    const args = command.split(' ')
    t.is((await run(...args)).code, command === 'doctor' ? 1 : 4)
    const asked = terminal(...args)
    await asked.shows(`Your session has ended. Context here (${url()}): sign in again as admin.`)
    await asked.shows('Password of admin (not shown):')
    const before = asked.screen().length
    await new Promise(resolve => setTimeout(resolve, 1_500))
    t.is(asked.screen().slice(before), '')
    asked.type(`${password}${keys.enter}`)
    await asked.shows(shows)
    await asked.ended
  }
  t.is((await run('whoami')).code, 0)

  const login = ['login', '--context', 'here', '--service-key-file', '-']
  t.is((await pipe(login, await serviceKey(service, ['administration.read']))).code, 0)
  await writeFile(session, newServiceKey(), { mode: 0o600 })
  const ofService = terminal('users', 'list')
  t.is(await ofService.ended, 4)
  t.notRegex(ofService.screen(), /Password/)
})

test('a context remembers the username of its sign-in, and `--username` overrides it', async t => {
  const { pipe, terminal } = await isolatedUser(t, { signedIn: 'here' })
  const again = await pipe(['login', '--context', 'here', '--password-file', '-', '--json'], password)
  t.is(JSON.parse(again.stdout).username, 'admin', again.stderr)
  const asked = terminal('login', '--context', 'here', '--username', 'bruna')
  await asked.shows('Password of bruna (not shown):')
  asked.type(keys.ctrlC)
  t.is(await asked.ended, 130)
})

test('AUTH_CONTEXT selects the context unless `--context` or `--local` does, and isn’t a setting of the service', async t => {
  const { run, login, env } = await isolatedUser(t)
  await login('--context', 'one')
  await login('--context', 'two')
  const at = (AUTH_CONTEXT: string, more = env) => documentsOf({ env: { ...more, AUTH_CONTEXT } })
  for (const [context, given, ...args] of [
    ['two', ''],
    ['one', 'one'],
    ['two', 'one', '--context', 'two'],
  ] as const)
    t.is((await at(given).json('whoami', ...args)).context, context)
  const here = service.env as typeof env
  t.is((await at('one', here).json('whoami', '--local')).context, 'local')
  t.is((await at('local', here).json('whoami')).context, 'local')
  t.is((await at('three').run('whoami')).code, 3)
  t.deepEqual((await at('one', here).json('config', '--local')).unknown, [])
  const used = await at('one').run('contexts', 'two')
  t.is(used.stderr, 'warning: AUTH_CONTEXT is set: commands still work at one.\n')
  t.regex((await run('--help')).stdout, /AUTH_CONTEXT/)
})

test('a local-only command refuses `--context` without effect, and ignores AUTH_CONTEXT', async t => {
  const { pipe, env, config } = await isolatedUser(t, { signedIn: 'prod' })
  for (const [command, name = command] of [
    ['install'],
    ['migrate up'],
    ['migrate', 'migrate up'],
    [`backup ${join(config, 'registry.age')} --passphrase-file -`, 'backup'],
    ['restore registry.age --passphrase-file -', 'restore'],
    ['master-key rotate --new-key-file -', 'master-key rotate'],
  ]) {
    for (const words of [`--context prod ${command}`, `${command} --context prod`]) {
      const { code, stderr } = await pipe(words.split(' '), 'x'.repeat(32))
      t.is(code, 2, words)
      t.true(stderr.startsWith(`error: \`${name}\` works on the database that the settings of this environment name`))
    }
  }
  t.deepEqual(await readdir(config), ['auth-admin'])
  const installed = await runCli({ ...service.env, ...env, AUTH_CONTEXT: 'prod' }, ['install'])
  t.is(installed.code, 0, installed.stderr)
  for (const [question, ...args] of [
    ['Rotate?', 'master-key', 'rotate'],
    ['RotateSigningKey changes the registry', 'api', 'RotateSigningKey', '--local'],
  ] as const) {
    const asked = openTerminal({ ...service.env, ...env, AUTH_CONTEXT: 'prod' }, args)
    await asked.shows(question)
    asked.type(`n${keys.enter}`)
    t.is(await asked.ended, 1, asked.screen())
    t.notRegex(asked.screen(), /On prod/)
  }
})

test('login says what to do about a wrong password, a connection without TLS and a missing URL', async t => {
  const { pipe } = await isolatedUser(t)
  const login = (...args: string[]) => pipe(['login', '--username', 'admin', ...args], 'wrong')
  const wrong = await login(url(), '--password-file', '-', '--json')
  t.deepEqual([wrong.code, JSON.parse(wrong.stdout).error.reason], [4, 'INVALID_CREDENTIALS'])
  await assertRefusals(t, login, [
    [/https:\/\//, 2, 'http://auth.example.org:50052', '--password-file', '-'],
    [/URL/, 2, '--password-file', '-'],
    [/--password/, 2, url(), '--password', password],
  ])
})

test('a session file that other users can read causes a warning', async t => {
  const { run, session } = await isolatedUser(t, { signedIn: 'here' })
  const token = await readFile(session, 'utf8')
  for (const mode of [0o644, 0o640]) {
    await rm(session)
    await writeFile(session, token, { mode })
    const { code, stderr } = await run('whoami')
    t.is(code, 0)
    t.regex(stderr, /readable by other users/)
  }
})
