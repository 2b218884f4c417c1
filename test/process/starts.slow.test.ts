/** Starts: issuer of the registry, a database that isn't up yet, migrations of other versions. */
import { chmod, mkdir, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import pg from 'pg'
import { done } from '../_helpers/backups.js'
import { program as cliProgram, runCli } from '../_helpers/cli.js'
import { freshDatabase } from '../_helpers/database.js'
import { freePort, startRelay, withPort } from '../_helpers/relay.js'
import { createRequest, password } from '../_helpers/service.js'
import { addressesOf, launch, type Spawned, serviceEnv, spawnService } from '../_helpers/spawned.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { claimsOf } from '../_helpers/tokens.js'
import { nextVersion, root, runVersion } from '../_helpers/versions.js'
import { waitFor } from '../_helpers/wait.js'

async function loginAt({ http }: Pick<Spawned, 'http'>): Promise<string> {
  const { status, text } = await createRequest(http)('POST', '/users/login', { body: { username: 'admin', password } })
  if (status !== 200) throw new Error(`${status} ${text}`)
  return text
}

const meAt = async ({ http }: Pick<Spawned, 'http'>, token: string) =>
  (await createRequest(http)('GET', '/users/me', { token })).status

/** A start that must fail: its output and exit code. */
async function failedStart(t: ExecutionContext, env: Record<string, string>) {
  const program = launch(t, await serviceEnv(t, env))
  const started = await addressesOf(program).then(
    () => true,
    () => false,
  )
  if (started) throw new Error('it started')
  const code = await program.ended
  // Without the log.
  return {
    code,
    said: program
      .output()
      .replace(/^\{.*\n/gm, '')
      .trim(),
  }
}

test('replicas at different HTTP addresses accept each other’s tokens, also when they start at once', async t => {
  const DATABASE_URL = await freshDatabase(t, { from: 'template0' })
  const replicas = await Promise.all(
    [1, 2, 3].map(n => spawnService(t, { DATABASE_URL, AUTH_HTTP_ADDRESS: `127.0.0.${n}:0` })),
  )
  const tokens = await Promise.all(replicas.map(loginAt))
  for (const token of tokens) for (const replica of replicas) t.is(await meAt(replica, token), 200)
  t.is(new Set(tokens.map(token => claimsOf(token).iss)).size, 1)
  t.regex(String(claimsOf(tokens[0]!).iss), /^http:\/\/127\.0\.0\.[123]:0$/)
})

test('the first process sets the registry’s issuer; others use it, or refuse to start and name both issuers and the command', async t => {
  const DATABASE_URL = await freshDatabase(t)
  const first = await spawnService(t, { DATABASE_URL, AUTH_ISSUER: 'https://a.example', AUTH_AUDIENCE: 'apps' })
  const token = await loginAt(first)
  t.like(claimsOf(token), { iss: 'https://a.example', aud: 'apps' })

  const second = await spawnService(t, { DATABASE_URL })
  t.is(await meAt(second, token), 200)
  t.like(claimsOf(await loginAt(second)), { iss: 'https://a.example', aud: 'apps' })

  const { code, said } = await failedStart(t, { DATABASE_URL, AUTH_ISSUER: 'https://b.example' })
  t.is(code, 1)
  t.is(
    said,
    'AUTH_ISSUER is https://b.example, but the tokens of this registry have issuer https://a.example and audience apps: ' +
      'leave both unset, or change the registry with `auth-admin issuer set --issuer https://b.example --audience apps ' +
      '--confirm https://b.example`.',
  )

  // The suggested command, then the start that failed.
  const env = await serviceEnv(t, { DATABASE_URL })
  const { AUTH_BCRYPT_COST: _, ...settings } = env
  const set = await runCli(settings, ['issuer', 'set', '--issuer', 'https://b.example', '--audience', 'apps'])
  t.is(set.code, 0, set.stderr)
  t.regex(set.stderr, /^warning: Restart all processes/)
  const third = await spawnService(t, { DATABASE_URL, AUTH_ISSUER: 'https://b.example' })
  t.is(await meAt(third, token), 500)
  t.is(await meAt(first, token), 200)
  t.is(claimsOf(await loginAt(third)).iss, 'https://b.example')
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

test('a start waits for one of several hosts, even if another has an unknown name', async t => {
  const url = await freshDatabase(t)
  const port = await freePort()
  const DATABASE_URL = withPort(url, port).replace(`:${port}/`, `:${port},there-is-none.invalid/`)
  const program = launch(t, await serviceEnv(t, { DATABASE_URL }))
  await waitFor(() => !program.alive() || program.output().includes('waiting for the database'), program.output)
  t.true(program.alive(), program.output())
  await startRelay(t, url, port)
  t.is(await meAt(await addressesOf(program), 'x'), 500)
})

test('a wrong master key is reported as such, and no other error is', async t => {
  const DATABASE_URL = await freshDatabase(t)
  const first = await spawnService(t, { DATABASE_URL })
  first.child.kill('SIGINT')
  await first.ended
  const { code, said } = await failedStart(t, { DATABASE_URL, AUTH_MASTER_KEY: 'ab'.repeat(32) })
  t.deepEqual([code, said], [1, 'AUTH_MASTER_KEY is not the key that this database was set up with.'])
  const client = new pg.Client({ connectionString: DATABASE_URL })
  await client.connect()
  await client.query(`UPDATE signing_keys SET signs_at = now() + interval '1 hour'`).finally(() => client.end())
  const other = await failedStart(t, { DATABASE_URL })
  t.deepEqual([other.code, other.said], [1, 'No signing key is active: run `auth-admin install`.'])
})

/** Runs two versions, each in its folder, on one database: the older one starts first, and again at the end. */
async function runTogether(t: ExecutionContext, older: string, newer: string): Promise<string> {
  const DATABASE_URL = await freshDatabase(t, { from: 'template0' })
  const start = (folder: string) => spawnService(t, { DATABASE_URL }, { program: join(folder, 'dist/server/main.js') })
  const before = await start(older)
  const earlier = await loginAt(before)
  const { migrations } = JSON.parse(
    done(await runVersion(newer, await serviceEnv(t, { DATABASE_URL }), ['migrate', '--json'])),
  )
  t.deepEqual(migrations, ['9999-next.sql'])
  const later = await loginAt(before)
  const all = [before, await start(newer), await start(older)]
  for (const each of all) {
    for (const token of [earlier, later]) t.is(await meAt(each, token), 200)
    for (const other of all) t.is(await meAt(other, await loginAt(each)), 200)
  }
  return DATABASE_URL
}

test('a version works beside the next one and starts on its database if that only expanded the schema', async t => {
  const next = await nextVersion(t, '-- expand\nALTER TABLE users ADD COLUMN extra text;')
  const DATABASE_URL = await runTogether(t, root, next)
  const { stdout } = await runCli(await serviceEnv(t, { DATABASE_URL }), ['migrate', 'status', '--json'])
  t.like(JSON.parse(stdout), { pending: [], newer: [{ name: '9999-next.sql', kind: 'expand' }] })
})

test('a version refuses to start on an incompatible database of the next version, with a one-sentence message', async t => {
  for (const text of ['-- contract\nALTER TABLE users DROP COLUMN city;', 'ALTER TABLE users DROP COLUMN city;']) {
    const env = await serviceEnv(t)
    done(await runVersion(await nextVersion(t, text), env, ['migrate', 'up', '--contract']))
    const { code, said } = await failedStart(t, { DATABASE_URL: env.DATABASE_URL! })
    t.is(code, 1)
    t.is(
      said,
      'The database is of a newer version that this one can’t work with (9999-next.sql): run that version instead.',
    )
  }
})

test('with AUTH_MIGRATE=off a start changes no table, refuses an outdated schema, and works after `migrate`', async t => {
  const env = await serviceEnv(t, { DATABASE_URL: await freshDatabase(t, { from: 'template0' }), AUTH_MIGRATE: 'off' })
  const { code, said } = await failedStart(t, env)
  t.is(code, 1)
  t.regex(said, /^The database is behind this version \(0001-baseline\.sql\), .*: run `auth-admin migrate`\.$/)
  t.like(JSON.parse((await runCli(env, ['migrate', 'status', '--json'])).stdout), { done: [], newer: [] })
  t.is((await runCli(env, ['migrate'])).code, 0)
  const service = await spawnService(t, env)
  t.is(await meAt(service, await loginAt(service)), 200)
})

test('a start needs no right to change tables that are up to date', async t => {
  const url = await freshDatabase(t)
  const role = new URL(url).pathname.slice(1)
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  t.teardown(async () => {
    await client.query(`DROP OWNED BY ${role}; DROP ROLE ${role}`)
    await client.end()
  })
  await client.query(`CREATE ROLE ${role} LOGIN PASSWORD 'x'; REVOKE CREATE ON SCHEMA public FROM PUBLIC, ${role};
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO ${role};
    GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO ${role}`)
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
    const token = await loginAt(from)
    for (const to of [behind, ahead, right]) t.is(await meAt(to, token), 200)
    const { iat, exp } = claimsOf(token)
    t.true(iat >= earliest && iat <= Date.now() / 1000 + 1)
    t.is(exp - iat, 60)
  }
  // Also with a key that signs at once.
  const rotated = await runCli(await serviceEnv(t, { DATABASE_URL }), ['keys', 'rotate', '--now', '--yes'])
  t.is(rotated.code, 0, rotated.stderr)
  for (const from of [behind, ahead, right]) {
    const token = await loginAt(from)
    for (const to of [behind, ahead, right]) t.is(await meAt(to, token), 200)
  }
})

/** Puts something at a path where the data folder is to be. Returns the path. */
const badFolders: Record<string, (parent: string) => Promise<string>> = {
  'is a file': async parent => {
    await writeFile(join(parent, 'file'), '')
    return join(parent, 'file')
  },
  'is below a file': async parent => {
    await writeFile(join(parent, 'file'), '')
    return join(parent, 'file', 'data')
  },
  'is a dangling link': async parent => {
    await symlink(join(parent, 'none'), join(parent, 'link'))
    return join(parent, 'link')
  },
  'is below a dangling link': async parent => {
    await symlink(join(parent, 'none'), join(parent, 'link'))
    return join(parent, 'link', 'data')
  },
  'is below /proc': async () => '/proc/there/is/none',
  'is /dev/null': async () => '/dev/null',
  'is writable by every user': async parent => {
    await mkdir(join(parent, 'open'))
    await chmod(join(parent, 'open'), 0o777)
    return join(parent, 'open')
  },
}
for (const [what, make] of Object.entries(badFolders)) {
  test(`if AUTH_DATA_DIR ${what}, a start and a command end with one sentence that names it and what to do`, async t => {
    const parent = await temporaryFolder(t)
    const AUTH_DATA_DIR = await make(parent)
    const url = await freshDatabase(t)
    for (const DATABASE_URL of ['', url]) {
      const { code, said } = await failedStart(t, { DATABASE_URL, AUTH_DATA_DIR })
      t.is(code, 1)
      t.regex(said, /^AUTH_DATA_DIR: \S+ [^\n]+(Set it to a folder|chmod)[^\n]+$/)
      t.true(said.includes(AUTH_DATA_DIR))
    }
    const { code, stderr } = await runCli({ AUTH_DATA_DIR }, ['install'])
    t.is(code, 1, stderr)
    t.regex(stderr, /^error: AUTH_DATA_DIR: \S+ [^\n]+(Set it to a folder|chmod)[^\n]+\n$/)
  })
}

test('in a folder that was removed, a start and a command end with one sentence, unless AUTH_DATA_DIR is absolute', async t => {
  const before = 'gone=$(mktemp -d) && cd "$gone" && rmdir "$gone"'
  const program = launch(t, await serviceEnv(t, { AUTH_DATA_DIR: './data' }), { before })
  t.is(await program.ended, 1)
  t.regex(program.output(), /^AUTH_DATA_DIR: [^\n]+ no longer exists[^\n]+absolute path\.$/m)

  const { AUTH_DATA_DIR: _, ...env } = await serviceEnv(t, {})
  for (const [AUTH_DATA_DIR, code, says] of [
    ['', 1, /^error: AUTH_DATA_DIR: [^\n]+ no longer exists[^\n]+absolute path\.\n$/],
    ['/nonexistent', 5, /^error: There is no registry in \/nonexistent/],
  ] as const) {
    const command = launch(
      t,
      { ...env, DATABASE_URL: '', AUTH_DATA_DIR },
      { before: `${before} && set -- "$@" users list`, program: cliProgram },
    )
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
    return { start: program.output().includes('`auth-admin issuer set`'), doctor: status, fix }
  }
  const local = await warned({})
  t.deepEqual([local.start, local.doctor], [true, 'warning'])
  t.regex(local.fix, /auth-admin issuer set --issuer URL/)
  const set = ['issuer', 'set', '--issuer', 'https://auth.example', '--confirm', 'https://auth.example']
  t.is((await runCli(settings, set)).code, 0)
  const publicOne = await warned({})
  t.deepEqual([publicOne.start, publicOne.doctor], [false, 'ok'])
})
