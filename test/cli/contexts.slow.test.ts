/**
 * Remote use of `auth-admin`: contexts, sessions in private files, one-time codes, and errors. Serial,
 * because all tests use the same administrator.
 */
import { readdir, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { join, relative } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import { TOTP } from 'otpauth'
import { newServiceKey } from '../../server/models/service.js'
import { formatAddress } from '../../server/process/settings.js'
import { keys, openTerminal, remoteUser, runCli, spawnCli } from '../_helpers/cli.js'
import { password, serviceForFile } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { forge, nowInSeconds } from '../_helpers/tokens.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))
const url = () => `http://${formatAddress(service.service.addresses.admin!)}`

const isolatedUser = (t: ExecutionContext, start = runCli) => remoteUser(t, service, start)

test.serial('after a login commands use the server, as the user who signed in', async t => {
  const { run, login, config } = await isolatedUser(t, spawnCli)
  const signedIn = await login('--context', 'here', '--json')
  t.is(signedIn.code, 0, signedIn.stderr)
  t.is(JSON.parse(signedIn.stdout).context, 'here')
  const me = JSON.parse((await run(['whoami', '--json'])).stdout)
  t.is(me.user.username, 'admin')
  t.is(me.context, 'here')
  const added = await run(['organizations', 'create', '--name', 'Remota', '--json'])
  t.is(added.code, 0, added.stderr)
  const { id } = JSON.parse(added.stdout)
  const [event] = await service.registry.audit.list({ action: 'organization.add', limit: 1 })
  t.deepEqual([event?.actor, event?.object, event?.address], ['user', `organization:${id}`, '127.0.0.1'])
  // Only its owner can read the session.
  const folder = join(config, 'auth-admin')
  for (const file of ['contexts.json', join('sessions', 'here.token')]) {
    t.is((await stat(join(folder, file))).mode & 0o777, 0o600, file)
  }
  t.false((await readFile(join(folder, 'contexts.json'), 'utf8')).includes('eyJ'))
  t.deepEqual(await readdir(join(folder, 'sessions')), ['here.token'])
})

test.serial(
  'login says when a password that a public session has set signs in, and how to set another one',
  async t => {
    const { run } = await isolatedUser(t)
    const create = ['users', 'create', '--username', 'eva', '--role', 'ROLE_ADMIN', '--state', 'SP', '--city', 'Bauru']
    t.is((await runCli(service.env, [...create, '--active', '--confirm', 'eva', '--reason', 'teste'])).code, 0)
    const file = ['users', 'set-password', 'eva', '--password-file', '-', '--reason', 'teste']
    t.is((await runCli(service.env, file, password)).code, 0)
    const token = await service.login('eva')
    const newPassword = 'tatu-canastra 12'
    await service.request('POST', '/forgotpasswords/passwordupdatebyusername', { token, body: { newPassword } })
    const login = () => run(['login', url(), '--username', 'eva', '--password-file', '-'], newPassword)
    const { code, stderr } = await login()
    t.is(code, 4)
    t.regex(
      stderr,
      /^error: .* or from \S+Z on\. Another administrator, or `auth-admin users set-password --local` [^`]+ now\.\n$/,
    )
    t.is((await runCli(service.env, file, newPassword)).code, 0)
    t.is((await login()).code, 0)
  },
)

test.serial('logout deletes the session, and `--everywhere` also revokes its copies', async t => {
  const first = await isolatedUser(t)
  const second = await isolatedUser(t)
  for (const { login } of [first, second]) await login('--context', 'here')
  t.deepEqual(JSON.parse((await first.run(['logout', '--json'])).stdout), { context: 'here', signedOut: true })
  const after = await first.run(['users', 'list', '--json'])
  t.is(after.code, 4)
  t.regex(JSON.parse(after.stdout).error.message, /not signed in to here/)
  await first.login('--context', 'here')
  t.is((await first.run(['logout', '--everywhere'])).code, 0)
  const refused = await second.run(['users', 'list', '--json'])
  t.is(refused.code, 4)
  t.is(JSON.parse(refused.stdout).error.reason, 'INVALID_TOKEN')
})

test.serial(
  'contexts are listed, chosen and deleted, and `--context` and `--local` override the current one',
  async t => {
    const { run, login, env } = await isolatedUser(t)
    await login('--context', 'one')
    await login('--context', 'two')
    const names = async () =>
      JSON.parse((await run(['contexts', 'list', '--json'])).stdout).contexts.map(
        ({ name, current }: { name: string; current: boolean }) => (current ? `${name}*` : name),
      )
    t.deepEqual(await names(), ['one', 'two*'])
    t.deepEqual(JSON.parse((await run(['contexts', 'use', 'one', '--json'])).stdout), { current: 'one' })
    t.deepEqual(await names(), ['one*', 'two'])
    t.is(JSON.parse((await run(['whoami', '--context', 'two', '--json'])).stdout).context, 'two')
    t.deepEqual(JSON.parse((await run(['contexts', 'show', 'two', '--json'])).stdout), {
      name: 'two',
      url: url(),
      current: false,
    })
    t.is(JSON.parse((await run(['contexts', 'show', '--json'])).stdout).name, 'one')
    t.deepEqual(JSON.parse((await run(['contexts', 'delete', 'two', '--json'])).stdout), { name: 'two', deleted: true })
    t.is((await run(['whoami', '--context', 'two'])).code, 3)
    const local = await runCli({ ...service.env, XDG_CONFIG_HOME: env.XDG_CONFIG_HOME }, [
      'whoami',
      '--local',
      '--json',
    ])
    t.regex(JSON.parse(local.stdout).actor, /^cli:.+@.+$/)
    await run(['contexts', 'use', 'local'])
    const none = await run(['users', 'list'])
    t.is(none.code, 5)
    t.regex(none.stderr, /no registry in/)
  },
)

test.serial('the certificate authority of a context is found from every working directory', async t => {
  const { run, login, config } = await isolatedUser(t)
  const ca = join(config, 'ca.pem')
  await writeFile(ca, '')
  const signedIn = await login('--context', 'here', '--ca', relative(process.cwd(), ca))
  t.is(signedIn.code, 0, signedIn.stderr)
  t.like(JSON.parse((await run(['contexts', 'list', '--json'])).stdout).contexts, [{ name: 'here', ca }])
})

test.serial(
  'at a terminal, login asks for missing credentials without echo, and for a one-time code if enrolled',
  async t => {
    const { env, run, login } = await isolatedUser(t)
    await login('--context', 'here')
    const enrolling = openTerminal(env, ['totp', 'enroll'])
    await enrolling.shows('One-time code:')
    const secret = /\n((?:[A-Z2-7]{4} ){7}[A-Z2-7]{4})\r?\n/.exec(enrolling.screen())?.[1]?.replaceAll(' ', '')
    t.truthy(secret, enrolling.screen())
    t.true(enrolling.screen().includes('█'))
    const totp = new TOTP({ secret: secret! })
    const now = Date.now()
    enrolling.type(`${totp.generate({ timestamp: now })}${keys.enter}`)
    t.is(await enrolling.ended, 0, enrolling.screen())
    t.regex(
      enrolling.screen(),
      /Your sessions have ended:\r?\nrun `auth-admin login` with the next code, which comes in \d+ s/,
    )
    const after = await run(['users', 'list'])
    t.is(after.code, 4)
    t.is(after.stderr, 'error: Your session has ended: run `auth-admin login --context here`.\n')

    const terminal = openTerminal(env, ['login', '--context', 'new'])
    await terminal.shows('URL of the administration listener')
    terminal.type(`auth.example.org${keys.enter}`)
    await terminal.shows('Use https://')
    terminal.type(`${keys.clearLine}${url()}${keys.enter}`)
    await terminal.shows('Username')
    terminal.type(`admin${keys.enter}`)
    await terminal.shows('Password')
    terminal.type(`${password}${keys.enter}`)
    await terminal.shows('One-time code')
    // It was already used for the enrolment.
    terminal.type(`${totp.generate({ timestamp: now })}${keys.enter}`)
    await terminal.shows('This one-time code was already used. The next one comes in')
    await terminal.shows('One-time code')
    terminal.type(`${totp.generate({ timestamp: now + 30_000 })}${keys.enter}`)
    t.is(await terminal.ended, 0, terminal.screen())
    t.notRegex(terminal.screen(), /Invalid username or password/)
    t.false(terminal.screen().includes(password))
    const piped = await login('--context', 'here', '--json')
    t.is(piped.code, 4)
    t.is(JSON.parse(piped.stdout).error.reason, 'CODE_NEEDED')

    const removed = await run(['totp', 'delete', 'admin', '--confirm', 'admin', '--json'])
    t.is(removed.code, 0, removed.stderr)
    t.like(JSON.parse(removed.stdout), { username: 'admin', changed: true })
    t.is((await login('--context', 'here')).code, 0)
  },
)

test.serial(
  'a machine signs in with a service key, has the access of its scopes, and errors name the missing scope',
  async t => {
    const { run, config } = await isolatedUser(t, spawnCli)
    const name = 'rotinas'
    const key = await serviceKey(service, ['organizations.write'], name)
    const args = ['login', url(), '--context', 'ci', '--service-key-file', '-', '--json']
    const signedIn = await run(args, `${key}\n`)
    t.is(signedIn.code, 0, signedIn.stderr)
    t.deepEqual(JSON.parse(signedIn.stdout), {
      context: 'ci',
      url: url(),
      actor: `service:${name}`,
      scopes: ['organizations.write'],
    })
    const file = join(config, 'auth-admin', 'sessions', 'ci.token')
    t.is((await stat(file)).mode & 0o777, 0o600)
    t.false((await readFile(join(config, 'auth-admin', 'contexts.json'), 'utf8')).includes(key))
    t.like(JSON.parse((await run(['whoami', '--json'])).stdout), {
      actor: `service:${name}`,
      scopes: ['organizations.write'],
    })
    const created = await run(['organizations', 'create', '--name', 'Da rotina', '--json'])
    t.is(created.code, 0, created.stderr)
    const { id, activationkey } = JSON.parse(created.stdout)
    t.is(activationkey, undefined)
    t.is((await run(['organizations', 'edit', String(id), '--phone', '7'])).code, 0)
    const refused = await run(['users', 'list', '--json'])
    t.is(refused.code, 4)
    t.like(JSON.parse(refused.stdout).error, {
      reason: 'ACCESS_DENIED',
      message: `The service ${name} may not do this: it needs the scope administration.read.`,
    })
    const deleted = await run(['organizations', 'delete', String(id), '--confirm', 'Da rotina'])
    t.is(deleted.code, 4)
    t.is(deleted.stderr, 'error: No service may do this: sign in as an administrator.\n')
    t.is((await run(['logout', '--everywhere'])).code, 1)
    t.is((await run(['logout'])).code, 0)
  },
)

test.serial(
  'login refuses a key that is unknown, malformed or without a scope for Administration, and stores nothing',
  async t => {
    const { run } = await isolatedUser(t)
    const login = (key: string) => run(['login', url(), '--context', 'ci', '--service-key-file', '-'], key)
    const unknown = await login(newServiceKey())
    t.deepEqual(
      [unknown.code, unknown.stderr],
      [4, 'error: The server doesn’t accept the key: it is wrong, expired or deleted.\n'],
    )
    const other = await login(await serviceKey(service, ['users.read'], 'leitora'))
    t.is(other.code, 4)
    t.regex(other.stderr, /leitora may not do this: it needs the scope administration\.read or organizations\.write/)
    t.is((await login(password)).code, 2)
    t.is((await run(['login', url(), '--service-key-file', '-', '--username', 'admin'], 'x')).code, 2)
    t.deepEqual(JSON.parse((await run(['contexts', 'list', '--json'])).stdout).contexts, [])
  },
)

test.serial('the error for a session that is too old says which sign-in the command needs', async t => {
  const { run, login, config } = await isolatedUser(t)
  await login('--context', 'here')
  const file = join(config, 'auth-admin', 'sessions', 'here.token')
  const genuine = (await readFile(file, 'utf8')).trim()
  const then = nowInSeconds() - 905
  await writeFile(file, await forge(service, genuine, { auth_time: then, iat: then, exp: then + 12 * 3600 }))
  t.is((await run(['users', 'list'])).code, 0)
  const { code, stderr } = await run(['services', 'create', 'notas', '--may', 'users.read', '--json'])
  t.is(code, 4)
  t.is(
    stderr,
    'error: This requires a sign-in in the last 15 minutes, with a one-time code if codes are enrolled. Sign in again. Run `auth-admin login --context here`.\n',
  )
})

test.serial('at a terminal, a sign-in that is too old is renewed before other questions', async t => {
  const { run, login, config, env } = await isolatedUser(t)
  await login('--context', 'here')
  const file = join(config, 'auth-admin', 'sessions', 'here.token')
  const genuine = (await readFile(file, 'utf8')).trim()
  const then = nowInSeconds() - 905
  const age = async () =>
    writeFile(file, await forge(service, genuine, { auth_time: then, iat: then, exp: then + 12 * 3600 }))
  const { username } = await service.signUp('ROLE_CLIENT')
  await age()
  const erasing = openTerminal(env, ['users', 'erase', username])
  await erasing.shows(`Context here (${url()}): sign in again as admin.`)
  await erasing.shows('Password')
  t.notRegex(erasing.screen(), /to confirm/)
  erasing.type(`${password}${keys.enter}`)
  await erasing.shows('to confirm:')
  erasing.type(`${username}${keys.enter}`)
  t.is(await erasing.ended, 0, erasing.screen())
  t.is((await run(['services', 'list'])).code, 0)

  // Here it depends on the changed user.
  await service.signUp('ROLE_CLIENT', { username: 'colega' })
  await run(['users', 'activate', 'colega'])
  await age()
  const suspending = openTerminal(env, ['users', 'suspend', 'colega'])
  await suspending.shows('can no longer sign in')
  suspending.type(`y${keys.enter}`)
  t.is(await suspending.ended, 0, suspending.screen())
  const setting = openTerminal(env, ['users', 'set-password', 'admin'])
  await setting.shows('sign in again as admin')
  await setting.shows('Password')
  setting.type(`${password}${keys.enter}`)
  await setting.shows('New password')
  setting.type(keys.ctrlC)
  t.is(await setting.ended, 130)
})

test.serial('at a terminal, an expired session is renewed, and the command continues', async t => {
  const { run, login, config, env } = await isolatedUser(t)
  await login('--context', 'here')
  const file = join(config, 'auth-admin', 'sessions', 'here.token')
  const genuine = (await readFile(file, 'utf8')).trim()
  const then = nowInSeconds() - 13 * 3600
  const end = async () =>
    writeFile(file, await forge(service, genuine, { auth_time: then, iat: then, exp: then + 12 * 3600 }))
  for (const args of [
    ['users', 'list'],
    // It requires a recent sign-in.
    ['services', 'create', 'renovada', '--may', 'users.read'],
    // It shows its progress meanwhile.
    ['doctor'],
  ]) {
    await end()
    const refused = await run([...args, '--json'])
    t.is(JSON.parse(refused.stdout).error?.exitCode ?? refused.code, args[0] === 'doctor' ? 1 : 4)
    const terminal = openTerminal(env, args)
    await terminal.shows(`Your session has ended. Context here (${url()}): sign in again as admin.`)
    await terminal.shows('Password of admin (not shown):')
    const before = terminal.screen().length
    await new Promise(resolve => setTimeout(resolve, 1_500))
    t.is(terminal.screen().slice(before), '')
    terminal.type(`${password}${keys.enter}`)
    await terminal.shows({ users: 'ROLE_ADMIN', services: 'authsvc_', doctor: 'PostgreSQL' }[args[0]!]!)
    await terminal.ended
  }
  t.is((await run(['whoami'])).code, 0)

  const key = await serviceKey(service, ['administration.read'])
  t.is((await run(['login', '--context', 'here', '--service-key-file', '-'], key)).code, 0)
  await writeFile(file, newServiceKey(), { mode: 0o600 })
  const ofService = openTerminal(env, ['users', 'list'])
  t.is(await ofService.ended, 4)
  t.notRegex(ofService.screen(), /Password/)
})

test.serial('a context remembers the username of its sign-in, and `--username` overrides it', async t => {
  const { run, login, env } = await isolatedUser(t)
  await login('--context', 'here')
  const again = await run(['login', '--context', 'here', '--password-file', '-', '--json'], password)
  t.is(JSON.parse(again.stdout).username, 'admin', again.stderr)
  const terminal = openTerminal(env, ['login', '--context', 'here', '--username', 'bruna'])
  await terminal.shows('Password of bruna (not shown):')
  terminal.type(keys.ctrlC)
  t.is(await terminal.ended, 130)
})

test.serial(
  'AUTH_CONTEXT selects the context unless `--context` or `--local` does, and isn’t a setting of the service',
  async t => {
    const { run, login, env } = await isolatedUser(t)
    await login('--context', 'one')
    await login('--context', 'two')
    const contextOf = async (more: Record<string, string>, ...args: string[]) =>
      JSON.parse((await runCli({ ...env, ...more }, ['whoami', '--json', ...args])).stdout).context
    t.is(await contextOf({}), 'two')
    t.is(await contextOf({ AUTH_CONTEXT: 'one' }), 'one')
    t.is(await contextOf({ AUTH_CONTEXT: 'one' }, '--context', 'two'), 'two')
    const settings = { ...service.env, AUTH_CONTEXT: 'one' }
    t.is(await contextOf(settings, '--local'), 'local')
    t.is(await contextOf({ ...service.env, AUTH_CONTEXT: 'local' }), 'local')
    t.is((await runCli({ ...env, AUTH_CONTEXT: 'three' }, ['whoami'])).code, 3)
    const config = await runCli(settings, ['config', '--local', '--json'])
    t.deepEqual(JSON.parse(config.stdout).unknown, [])
    const used = await runCli({ ...env, AUTH_CONTEXT: 'one' }, ['contexts', 'use', 'two'])
    t.is(used.stderr, 'warning: AUTH_CONTEXT is set: commands still work at one.\n')
    t.regex((await run(['--help'])).stdout, /AUTH_CONTEXT/)
  },
)

test.serial('a local-only command refuses `--context` without effect, and ignores AUTH_CONTEXT', async t => {
  const { run, login, env } = await isolatedUser(t)
  await login('--context', 'prod')
  for (const args of [
    ['install'],
    ['migrate', 'up'],
    ['migrate'],
    ['backup', join(env.AUTH_DATA_DIR, 'registry.age'), '--passphrase-file', '-'],
    ['restore', 'registry.age', '--passphrase-file', '-'],
    ['master-key', 'rotate', '--new-key-file', '-'],
  ]) {
    for (const words of [
      ['--context', 'prod', ...args],
      [...args, '--context', 'prod'],
    ]) {
      const { code, stderr } = await run(words, 'x'.repeat(32))
      t.is(code, 2, words.join(' '))
      const name = { migrate: 'migrate up', 'master-key': 'master-key rotate' }[args[0]!] ?? args[0]
      t.true(stderr.startsWith(`error: \`${name}\` works on the database that the settings of this environment name`))
    }
  }
  t.deepEqual(await readdir(join(env.AUTH_DATA_DIR, '..')), ['auth-admin'])
  const installed = await runCli({ ...service.env, ...env, AUTH_CONTEXT: 'prod' }, ['install'])
  t.is(installed.code, 0, installed.stderr)
})

test.serial('login says what to do about a wrong password, a connection without TLS and a missing URL', async t => {
  const { run } = await isolatedUser(t)
  const login = (...args: string[]) => run(['login', ...args, '--username', 'admin', '--password-file', '-'], 'wrong')
  const wrong = await login(url(), '--json')
  t.deepEqual([wrong.code, JSON.parse(wrong.stdout).error.reason], [4, 'INVALID_CREDENTIALS'])
  const clear = await login('http://auth.example.org:50052')
  t.is(clear.code, 2)
  t.regex(clear.stderr, /https:\/\//)
  t.is((await login()).code, 2)
  t.is((await run(['login', url(), '--username', 'admin', '--password', password])).code, 2)
})

test.serial('a session file that other users can read causes a warning', async t => {
  const { run, login, config } = await isolatedUser(t)
  await login('--context', 'here')
  const file = join(config, 'auth-admin', 'sessions', 'here.token')
  const token = await readFile(file, 'utf8')
  await rm(file)
  await writeFile(file, token, { mode: 0o644 })
  const { code, stderr } = await run(['whoami'])
  t.is(code, 0)
  t.regex(stderr, /readable by other users/)
})

test.serial(
  'an irreversible command needs a confirmation at a server, but not in scripts on the database itself',
  async t => {
    const { run, login } = await isolatedUser(t)
    await login('--context', 'here')
    const [key] = JSON.parse((await run(['keys', 'list', '--json'])).stdout).keys
    const refused = await run(['keys', 'retire', key.kid, '--now', '--json'])
    t.is(refused.code, 2)
    t.regex(refused.stderr, /--confirm/)
    const retired = await runCli(service.env, ['keys', 'retire', key.kid, '--now', '--json'])
    t.is(JSON.parse(retired.stdout).kid, key.kid, retired.stderr)
  },
)
