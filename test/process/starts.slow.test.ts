/** Starts: issuer of the registry, a database that isn't up yet, migrations of other versions. */
import { chmod, mkdir, rm, symlink, writeFile } from 'node:fs/promises'
import { type AddressInfo, createServer } from 'node:net'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import { done } from '../_helpers/backups.js'
import { program as cliProgram, documentsOf, runCli } from '../_helpers/cli.js'
import { ask, freshDatabase } from '../_helpers/database.js'
import { openMailbox } from '../_helpers/mailbox.js'
import { freePort, startRelay, withPort } from '../_helpers/relay.js'
import { createRequest, password, signUpForm } from '../_helpers/service.js'
import { addressesOf, launch, type Spawned, serviceEnv, signalUntilEnded, spawnService } from '../_helpers/spawned.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { claimsOf } from '../_helpers/tokens.js'
import { migrations, nextVersion, root, runVersion } from '../_helpers/versions.js'
import { waitFor } from '../_helpers/wait.js'

async function loginAt({ http }: Pick<Spawned, 'http'>): Promise<string> {
  const { status, text } = await createRequest(http)('POST', '/users/login', { body: { username: 'admin', password } })
  if (status !== 200) throw new Error(`${status} ${text}`)
  return text
}

const meAt = async ({ http }: Pick<Spawned, 'http'>, token: string) =>
  (await createRequest(http)('GET', '/users/me', { token })).status

/** A start that must fail: its exit code, and its output without the log. */
async function failedStart(t: ExecutionContext, env: Record<string, string>) {
  const program = launch(t, await serviceEnv(t, env))
  await t.throwsAsync(addressesOf(program), undefined, 'it started')
  const code = await program.ended
  const said = program.output().replace(/^\{.*\n/gm, '')
  return [code, said.trim()]
}

/** Each logs in at each, and all accept the token. Returns the tokens. */
async function agree(t: ExecutionContext, processes: readonly Pick<Spawned, 'http'>[]) {
  const tokens = await Promise.all(processes.map(loginAt))
  for (const token of tokens) for (const each of processes) t.is(await meAt(each, token), 200)
  return tokens
}

test('replicas at different HTTP addresses accept each other’s tokens, also when they start at once', async t => {
  const DATABASE_URL = await freshDatabase(t, { from: 'template0' })
  const replicas = await Promise.all(
    [1, 2, 3].map(n => spawnService(t, { DATABASE_URL, AUTH_HTTP_ADDRESS: `127.0.0.${n}:0` })),
  )
  const tokens = await agree(t, replicas)
  t.is(new Set(tokens.map(token => claimsOf(token).iss)).size, 1)
  t.regex(String(claimsOf(tokens[0]!).iss), /^http:\/\/127\.0\.0\.[123]:0$/)
})

test('beside a proxy of the shell, a start with its own database, its calls, e-mails and commands go directly', async t => {
  let asked = 0
  const proxy = createServer(socket => {
    asked++
    socket.destroy()
  })
  await new Promise<void>(resolve => proxy.listen(0, '127.0.0.1', resolve))
  t.teardown(() => void proxy.close())
  const url = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`
  const names = ['HTTPS_PROXY', 'HTTP_PROXY', 'ALL_PROXY', 'GRPC_PROXY'].flatMap(name => [name, name.toLowerCase()])
  const shell = { ...Object.fromEntries(names.map(name => [name, url])), NODE_USE_ENV_PROXY: '1' }
  const mailbox = await openMailbox(t)
  const service = await spawnService(t, {
    ...shell,
    DATABASE_URL: '',
    SMTP_URL: mailbox.url,
    AUTH_ADMIN_ADDRESS: '127.0.0.1:0',
    npm_lifecycle_event: 'start',
  })
  const request = createRequest(service.http)
  const form = signUpForm({ email: 'ana@example.org' })
  t.is((await request('POST', '/users/signup', { body: form })).status, 200)
  t.is(await meAt(service, await loginAt(service)), 200)
  const query = { username: String(form.username), email: 'ana@example.org' }
  t.is((await request('POST', '/forgotpasswords/sendkeybyemail', { query })).status, 200)
  t.truthy(await mailbox.nextEmail('ana@example.org'))
  const at = await waitFor(() => /auth-admin login (http\S+)/.exec(service.output())?.[1], service.output)
  const env = { ...shell, XDG_CONFIG_HOME: await temporaryFolder(t), AUTH_DATA_DIR: join(service.dataDir, 'none') }
  const login = await runCli(env, ['login', at, '--username', 'admin', '--password-file', '-'], password)
  t.is(login.code, 0, login.stderr)
  t.is((await runCli(env, ['users', 'show', String(form.username)])).code, 0)
  t.is(asked, 0)
})

test('the first process sets the registry’s issuer; others use it, or refuse to start and name both issuers and the command', async t => {
  const DATABASE_URL = await freshDatabase(t)
  const first = await spawnService(t, { DATABASE_URL, AUTH_ISSUER: 'https://a.example', AUTH_AUDIENCE: 'apps' })
  const token = await loginAt(first)
  t.like(claimsOf(token), { iss: 'https://a.example', aud: 'apps' })

  const second = await spawnService(t, { DATABASE_URL })
  t.is(await meAt(second, token), 200)
  t.like(claimsOf(await loginAt(second)), { iss: 'https://a.example', aud: 'apps' })

  t.deepEqual(await failedStart(t, { DATABASE_URL, AUTH_ISSUER: 'https://b.example' }), [
    1,
    'AUTH_ISSUER is https://b.example, but the tokens of this registry have issuer https://a.example and audience apps: ' +
      'leave both unset, or change the registry with `auth-admin api SetIssuer ' +
      '\'{"issuer":"https://b.example","audience":"apps","confirm":"https://b.example"}\' --yes --local`.',
  ])

  // The suggested command, then the start that failed.
  const issuer = { issuer: 'https://b.example', audience: 'apps', confirm: 'https://b.example' }
  const set = ['api', 'SetIssuer', JSON.stringify(issuer), '--yes', '--local']
  done(await runCli(await serviceEnv(t, { DATABASE_URL }), set))
  const third = await spawnService(t, { DATABASE_URL, AUTH_ISSUER: 'https://b.example' })
  t.is(await meAt(third, token), 500)
  t.is(await meAt(first, token), 200)
  t.is(claimsOf(await loginAt(third)).iss, 'https://b.example')
})

test('an installation requires a URL as issuer; a registry with another, such as one in quotation marks, starts, and its warning’s command changes it', async t => {
  const DATABASE_URL = await freshDatabase(t)
  t.deepEqual(await failedStart(t, { DATABASE_URL, AUTH_ISSUER: 'auth.example.org' }), [
    1,
    'AUTH_ISSUER: expected the URL of the registry for clients, such as https://auth.example.org.',
  ])
  const issuer = 'https://a.example'
  const first = await spawnService(t, { DATABASE_URL, AUTH_ISSUER: issuer, AUTH_AUDIENCE: 'apps' })
  t.notRegex(first.output(), /SetIssuer/)
  // As an earlier version installed it.
  await ask(DATABASE_URL, `UPDATE token_issuer SET issuer = '"${issuer}"', audience = '"apps"'`)
  const env = { DATABASE_URL, AUTH_ISSUER: issuer, AUTH_AUDIENCE: 'apps' }
  const quoted = await spawnService(t, env)
  t.is(claimsOf(await loginAt(quoted)).iss, `"${issuer}"`)
  const line = quoted
    .output()
    .split('\n')
    .find(each => each.includes('SetIssuer'))!
  const [, command] = /`auth-admin (.+?)`/.exec(JSON.parse(line).msg)!
  const [, request] = /'(.+)'/.exec(command!)!
  t.is(command, `api SetIssuer '${request}' --yes --local`)
  done(await runCli(await serviceEnv(t, env), ['api', 'SetIssuer', request!, '--yes', '--local']))
  const plain = await spawnService(t, env)
  t.like(claimsOf(await loginAt(plain)), { iss: issuer, aud: 'apps' })
  t.notRegex(plain.output(), /SetIssuer/)
})

test('the file of the first password is needed by the installation alone', async t => {
  const folder = await temporaryFolder(t)
  const file = join(folder, 'admin-password')
  const env = { DATABASE_URL: await freshDatabase(t), AUTH_ADMIN_PASSWORD: '', AUTH_ADMIN_PASSWORD_FILE: file }
  t.deepEqual(await failedStart(t, env), [
    1,
    'AUTH_ADMIN_PASSWORD: the file that AUTH_ADMIN_PASSWORD_FILE names is missing.',
  ])
  await writeFile(file, password)
  await loginAt(await spawnService(t, env))
  await rm(file)
  await loginAt(await spawnService(t, env))
})

test('a start with a database of its own warns that no e-mail leaves, as doctor does, until mail server and sender are set', async t => {
  const DATABASE_URL = await freshDatabase(t)
  for (const [more, says] of [
    [{}, 'SMTP_URL is not set: '],
    [{ SMTP_URL: 'smtp://127.0.0.1:9' }, 'AUTH_MAIL_FROM is an address at localhost: '],
    [{ SMTP_URL: 'smtp://127.0.0.1:9', AUTH_MAIL_FROM: 'Registro <auth@example.org>' }, undefined],
  ] as const) {
    const output = (await spawnService(t, { DATABASE_URL, ...more })).output()
    if (says) t.true(output.includes(says), output)
    else t.notRegex(output, /SMTP_URL|AUTH_MAIL_FROM/)
  }
})

test('a start waits for a database that isn’t up yet, and names it without the password', async t => {
  const url = await freshDatabase(t)
  const port = await freePort()
  const program = launch(t, await serviceEnv(t, { DATABASE_URL: withPort(url, port) }))
  const waiting = await waitFor(() => /.*waiting for the database.*/.exec(program.output())?.[0], program.output)
  const { username, password: secret, pathname } = new URL(url)
  t.is(JSON.parse(waiting).database, `postgres://${username}@127.0.0.1:${port}${pathname}`)
  t.true(program.alive())
  await startRelay(t, url, port)
  t.is(await meAt(await addressesOf(program), 'x'), 500)
  t.false(program.output().includes(secret))
})

test('a wrong master key is reported as such, and no other error is', async t => {
  const DATABASE_URL = await freshDatabase(t)
  await signalUntilEnded(await spawnService(t, { DATABASE_URL }), 'SIGINT')
  t.deepEqual(await failedStart(t, { DATABASE_URL, AUTH_MASTER_KEY: 'ab'.repeat(32) }), [
    1,
    'AUTH_MASTER_KEY is not the key of this registry, which after `auth-admin master-key rotate` is the new one.',
  ])
  await ask(DATABASE_URL, `UPDATE signing_keys SET verifies_until = now() - interval '1 second'`)
  const says = 'No signing key is active: run `auth-admin install`.'
  t.deepEqual(await failedStart(t, { DATABASE_URL }), [1, says])
})

test('a version works beside the next one and starts on its database if that only expanded the schema, and not if it contracted it', async t => {
  const next = await nextVersion(t, {
    '9998-next.sql': '-- expand\nALTER TABLE users ADD COLUMN extra text;',
    '9999-last.sql': 'ALTER TABLE users DROP COLUMN extra;',
  })
  const DATABASE_URL = await freshDatabase(t, { from: 'template0' })
  const env = await serviceEnv(t, { DATABASE_URL })
  const start = (folder: string) => spawnService(t, { DATABASE_URL }, { program: join(folder, 'dist/server/main.js') })
  const before = await start(root)
  const earlier = await loginAt(before)
  t.deepEqual(JSON.parse(done(await runVersion(next, env, ['migrate', '--json']))).migrations, ['9998-next.sql'])
  const all = [before, await start(next), await start(root)]
  for (const each of all) t.is(await meAt(each, earlier), 200)
  await agree(t, all)
  const { pending, newer } = await documentsOf({ env }, 'migrate').json('status')
  t.like({ pending, newer }, { pending: [], newer: [{ name: '9998-next.sql', kind: 'expand' }] })
  for (const each of all) await signalUntilEnded(each, 'SIGINT')
  done(await runVersion(next, env, ['migrate', 'up', '--contract']))
  const says =
    'The database is of a newer version that this one can’t work with (9999-last.sql): run that version instead.'
  t.deepEqual(await failedStart(t, { DATABASE_URL }), [1, says])
})

test('with AUTH_MIGRATE=off a start changes no table, refuses an outdated schema, and works after `migrate`', async t => {
  const env = await serviceEnv(t, { DATABASE_URL: await freshDatabase(t, { from: 'template0' }), AUTH_MIGRATE: 'off' })
  const [code, said] = await failedStart(t, env)
  t.is(code, 1)
  t.true(String(said).startsWith(`The database is behind this version (${migrations.join(', ')}), `), String(said))
  t.regex(String(said), /: run `auth-admin migrate up`\.$/)
  const { run, json } = documentsOf({ env }, 'migrate')
  t.like(await json('status'), { done: [], newer: [] })
  done(await run())
  const service = await spawnService(t, env)
  t.is(await meAt(service, await loginAt(service)), 200)
})

test('a start needs no right to change tables that are up to date', async t => {
  const url = await freshDatabase(t)
  const role = new URL(url).pathname.slice(1)
  t.teardown(async () => void (await ask(url, `DROP OWNED BY ${role}; DROP ROLE ${role}`)))
  await ask(
    url,
    `CREATE ROLE ${role} LOGIN PASSWORD 'x'; REVOKE CREATE ON SCHEMA public FROM PUBLIC, ${role};
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO ${role};
    GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO ${role}`,
  )
  const service = await spawnService(t, {
    DATABASE_URL: Object.assign(new URL(url), { username: role, password: 'x' }).href,
  })
  t.is(await meAt(service, await loginAt(service)), 200)
})

test('processes whose clocks are a minute behind or ahead of the database’s start first, and agree with the others', async t => {
  const DATABASE_URL = await freshDatabase(t, { from: 'template0' })
  const skewed = (seconds: number) =>
    spawnService(
      t,
      // Tokens with a lifetime no longer than the clock difference.
      { DATABASE_URL, AUTH_TOKEN_TTL: '1m', TEST_CLOCK_SKEW: String(seconds * 1000) },
      { flags: ['--import', new URL('../_helpers/skewed-clock.js', import.meta.url).href] },
    )
  const behind = await skewed(-60)
  const ahead = await skewed(60)
  const right = await skewed(0)
  for (const from of [behind, ahead, right]) {
    const earliest = Math.floor(Date.now() / 1000) - 1
    const { iat, exp } = claimsOf(await loginAt(from))
    t.true(iat >= earliest && iat <= Date.now() / 1000 + 1)
    t.is(exp - iat, 60)
  }
  await agree(t, [behind, ahead, right])
  // Also with a key that signs at once.
  done(await runCli(await serviceEnv(t, { DATABASE_URL }), ['api', 'RotateSigningKey', '{"now": true}', '--yes']))
  await agree(t, [behind, ahead, right])
})

test('if AUTH_DATA_DIR can’t be used, a start and a command end with one sentence that names it and what to do', async t => {
  const folder = await temporaryFolder(t)
  const [file, link, shared] = [join(folder, 'file'), join(folder, 'link'), join(folder, 'shared')]
  await writeFile(file, '')
  await symlink(join(folder, 'none'), link)
  await mkdir(shared)
  await chmod(shared, 0o777)
  const url = await freshDatabase(t)
  for (const AUTH_DATA_DIR of [
    file,
    join(file, 'data'),
    link,
    join(link, 'data'),
    '/proc/there',
    '/dev/null',
    shared,
  ]) {
    const says = /AUTH_DATA_DIR: \S+ [^\n]+(Set it to a folder|chmod)[^\n]+\n?$/
    for (const DATABASE_URL of ['', url]) {
      const [code, said] = await failedStart(t, { DATABASE_URL, AUTH_DATA_DIR })
      t.is(code, 1)
      t.regex(String(said), says)
      t.true(String(said).startsWith(`AUTH_DATA_DIR: ${AUTH_DATA_DIR} `), String(said))
    }
    const { code, stderr } = await runCli({ AUTH_DATA_DIR }, ['install'])
    t.is(code, 1, stderr)
    t.regex(stderr, /^error: [^\n]+\n$/)
    t.regex(stderr, says)
  }
})

test('in a folder that was removed, a start and a command end with one sentence, unless AUTH_DATA_DIR is absolute', async t => {
  const before = 'gone=$(mktemp -d) && cd "$gone" && rmdir "$gone"'
  const program = launch(t, await serviceEnv(t, { AUTH_DATA_DIR: './data' }), { before })
  t.is(await program.ended, 1)
  t.regex(program.output(), /^AUTH_DATA_DIR: [^\n]+ no longer exists[^\n]+absolute path\.$/m)

  const { AUTH_DATA_DIR: _, ...env } = await serviceEnv(t, {})
  const removed = /^error: AUTH_DATA_DIR: [^\n]+ no longer exists[^\n]+absolute path\.\n$/
  for (const [AUTH_DATA_DIR, [code, says]] of Object.entries({
    '': [1, removed] as const,
    '/nonexistent': [5, /^error: There is no registry in \/nonexistent/] as const,
  })) {
    const how = { before: `${before} && set -- "$@" users list`, program: cliProgram }
    const command = launch(t, { ...env, DATABASE_URL: '', AUTH_DATA_DIR }, how)
    t.is(await command.ended, code, command.output())
    t.regex(command.output(), says)
  }
})

test('a server without a gateway warns of an issuer that is an address of its machine, and so does doctor', async t => {
  const DATABASE_URL = await freshDatabase(t, { from: 'template0' })
  const env = { DATABASE_URL, AUTH_HTTP_ADDRESS: 'off' }
  const settings = await serviceEnv(t, env)
  const warned = async (more: Record<string, string>) => {
    const program = launch(t, { ...settings, ...more })
    await waitFor(() => /^gRPC /m.test(program.output()) || !program.alive(), program.output)
    const { stdout } = await runCli({ ...settings, ...more }, ['doctor', '--json'])
    const { checks } = JSON.parse(stdout) as { checks: { check: string; status: string; fix: string }[] }
    const { status, fix } = checks.find(({ check }) => check === 'processes')!
    program.child.kill('SIGINT')
    await program.ended
    return { start: program.output().includes('`auth-admin api SetIssuer '), doctor: status, fix }
  }
  const local = await warned({})
  t.deepEqual([local.start, local.doctor], [true, 'warning'])
  t.regex(local.fix, /auth-admin api SetIssuer /)
  const set = ['api', 'SetIssuer', '{"issuer": "https://auth.example", "confirm": "https://auth.example"}', '--yes']
  t.is((await runCli(settings, set)).code, 0)
  const publicOne = await warned({})
  t.deepEqual([publicOne.start, publicOne.doctor], [false, 'ok'])
})
