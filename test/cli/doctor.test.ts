/** `auth-admin doctor`: it works even if nothing else does. */
import { chmod, writeFile } from 'node:fs/promises'
import { hostname } from 'node:os'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import { openSignedIn } from '../_helpers/administration.js'
import { installedRegistry, runCli } from '../_helpers/cli.js'
import { ask, freshDatabase } from '../_helpers/database.js'
import { startTestService } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

const masterKey = Buffer.alloc(32, 7).toString('base64')

interface Check {
  check: string
  status: string
  detail: string
  fix: string
}

/** Runs it with an own data folder unless `env` has one; `of` is a check, its fields empty if it was not made. */
async function doctor(t: ExecutionContext, env: Record<string, string>) {
  const own = { AUTH_DATA_DIR: await temporaryFolder(t), ...env }
  const { code, stdout, stderr } = await runCli(own, ['doctor', '--json'])
  const { checks }: { checks: Check[] } = JSON.parse(stdout)
  const none = { status: '', detail: '', fix: '' }
  return { code, stderr, checks, of: (name: string) => checks.find(({ check }) => check === name) ?? none }
}

test('doctor exits with 0 if no check failed, even with warnings', async t => {
  const env = await installedRegistry(t)
  const { code, checks, of } = await doctor(t, env)
  t.is(code, 0, JSON.stringify(checks))
  t.deepEqual([of('database').status, of('administrators').status], ['ok', 'warning'])
  // Whatever their number.
  t.notRegex(
    JSON.stringify(checks),
    /\b1 (migrations|e-mails|sign-ins|entries|addresses|active administrators|days|minutes)\b|All \d/,
  )
  t.true(checks.every(({ status, fix }) => (status === 'ok') === (fix === '')))
  const { stdout } = await runCli(env, ['doctor'])
  t.regex(stdout, /^ok {7}database: PostgreSQL \d+/m)
  t.regex(stdout, /^warning {2}administrators: [^\n]+\n {9}-> Have each/m)
})

test('doctor says that it checks the settings of its environment, not of the service, and lists each', async t => {
  const more = { AUTH_RECOVERY_EMAIL: 'any', AUTH_TRUSTED_PROXIES: '127.0.0.1, 10.0.0.0/8' }
  const service = await startTestService(t, { ...more, AUTH_ADMIN_ADDRESS: '127.0.0.1:0', AUTH_BCRYPT_COST: '5' })
  const { DATABASE_URL = '', AUTH_MASTER_KEY = '' } = service.env
  const own = { DATABASE_URL, AUTH_MASTER_KEY }
  for (const [env, expected] of [
    [
      {},
      {
        settings: /settings of this environment/,
        'client addresses': /^AUTH_TRUSTED_PROXIES is not set/,
        'mail server': /^SMTP_URL is not set/,
        'initial password': /^AUTH_DATA_DIR has no/,
        'recovery e-mails': /^AUTH_RECOVERY_EMAIL is registered/,
        'password hashes': /^AUTH_BCRYPT_COST is 4/,
        certificate: /^AUTH_TLS_CERT is not set\./,
      },
    ],
    [{ AUTH_SOMETHING: 'x' }, { settings: /settings of this environment/ }],
    [{ AUTH_TOKEN_TTL: 'x' }, { settings: /settings of this environment/ }],
    [
      more,
      {
        'recovery e-mails': /^AUTH_RECOVERY_EMAIL is any: /,
        'client addresses': /^AUTH_TRUSTED_PROXIES has 2 entries; /,
      },
    ],
  ] as const) {
    const { of } = await doctor(t, { ...own, ...env })
    for (const [check, says] of Object.entries(expected)) t.regex(of(check).detail, says, check)
  }
  const { checks } = await (await openSignedIn(t, service)).diagnose({})
  // Those of the service, at a server.
  t.regex(checks.find(({ check }) => check === 'password hashes')!.detail, /^AUTH_BCRYPT_COST is 5/)
})

test('a registry without an active administrator fails the check, and the suggested command creates one', async t => {
  const env = { ...(await installedRegistry(t)), AUTH_DATA_DIR: await temporaryFolder(t) }
  await ask(env.DATABASE_URL, 'DELETE FROM users')
  const { code, of } = await doctor(t, env)
  t.deepEqual([code, of('administrators').status], [1, 'failed'])
  const file = join(env.AUTH_DATA_DIR, 'password')
  await writeFile(file, 'tatu-canastra 12')
  const command = /`auth-admin ([^`]+)`/.exec(of('administrators').fix)![1]!
  const words = command
    .replaceAll('NAME', 'chefe')
    .replace('FILE', file)
    .matchAll(/'([^']*)'|(\S+)/g)
  const made = await runCli(
    env,
    [...words].map(([, quoted, bare]) => quoted ?? bare!),
  )
  t.is(made.code, 0, made.stderr)
  t.is((await doctor(t, env)).of('administrators').status, 'warning')
})

test('existing usernames that look like ids are listed by id, at most 10', async t => {
  const env = await installedRegistry(t)
  const add = async (name: string) =>
    (
      await ask(
        env.DATABASE_URL,
        `INSERT INTO users (username, username_key, username_skeleton, nickname, nickname_key, nickname_skeleton,
           password_hash, state, city, terms_of_usage, role)
         VALUES ('${name}', '${name}', '${name}', '${name}', '${name}', '${name}', '', 'SP', 'Bauru', true, 'ROLE_CLIENT')
         RETURNING id`,
      )
    )[0]!.id
  await add('#a1')
  t.is((await doctor(t, env)).of('usernames').status, 'ok')
  const ids: unknown[] = []
  for (let n = 1; n <= 11; n++) ids.push(await add(`#${n}`))
  const { status, detail, fix } = (await doctor(t, env)).of('usernames')
  t.is(status, 'warning')
  t.true(detail.endsWith(`users ${ids.slice(0, 10).join(', ')}, ….`), detail)
  t.regex(fix, /`auth-admin users erase ID`/)
  const erased = await runCli(env, ['users', 'erase', `${ids[0]}`, '--confirm', '#1', '--local'])
  t.is(erased.code, 0, erased.stderr)
})

test('doctor warns of an issuer on the machine itself unless the database is the embedded one', async t => {
  const env = await installedRegistry(t)
  const issuer = '{"issuer": "http://127.0.0.1:8080", "confirm": "http://127.0.0.1:8080"}'
  t.is((await runCli(env, ['api', 'SetIssuer', issuer, '--yes'])).code, 0)
  const { status, detail, fix } = (await doctor(t, env)).of('processes')
  t.deepEqual(
    [status, detail],
    ['warning', 'Tokens have issuer http://127.0.0.1:8080, an address of the machine itself.'],
  )
  t.regex(fix, /`auth-admin api SetIssuer '[^`]*"URL"[^`]*' --yes`/)
})

test('after SetIssuer, doctor lists the processes that still use the former issuer or audience', async t => {
  const { env, service } = await startTestService(t)
  const settings = { DATABASE_URL: env.DATABASE_URL!, AUTH_MASTER_KEY: env.AUTH_MASTER_KEY! }
  const examine = async () => (await doctor(t, settings)).of('processes')
  t.like(await examine(), { status: 'ok', detail: 'Processes that serve this registry: 1. All have its issuer.' })
  const set = await runCli(settings, [
    ...['api', 'SetIssuer', '{"audience": "other", "confirm": "http://auth.test"}', '--yes'],
  ])
  t.is(set.code, 0, set.stderr)
  const { status, detail, fix } = await examine()
  t.deepEqual([status, fix], ['warning', 'Restart them.'])
  const name = `all-in-one ${hostname()}/${process.pid}/`
  t.true(detail.startsWith(`Processes still issue and accept tokens of a former issuer or audience: ${name}`), detail)
  await service.stop()
  t.like(await examine(), { status: 'ok', detail: 'Processes that serve this registry: 0. All have its issuer.' })
})

test('what keeps doctor from the registry is a failed check, with the sentence of a failing command, and the other checks run', async t => {
  const url = await freshDatabase(t)
  const at = (change: Partial<URL>, from = url) => ({
    DATABASE_URL: Object.assign(new URL(from), change).href,
    AUTH_MASTER_KEY: masterKey,
  })
  const faults: [check: string, says: string, env: Record<string, string>][] = [
    ['database', 'ECONNREFUSED', at({}, 'postgres://ana:secret-of-ana@127.0.0.1:1/none')],
    ['database', 'refuses the user or password of DATABASE_URL', at({ password: 'wrong' })],
    ['database', 'sslmode=require needs: set `ssl = on`', at({ search: '?sslmode=require' })],
    ['migrations', 'The registry is not installed yet', at({}, await freshDatabase(t, { from: 'template0' }))],
    ['service', 'There is no registry', {}],
    ['settings', 'AUTH_BCRYPT_COST', { AUTH_BCRYPT_COST: 'many' }],
  ]
  for (const [check, says, env] of faults) {
    const { code, checks, stderr, of } = await doctor(t, env)
    const { status, detail } = of(check)
    t.deepEqual([code, status], [1, 'failed'], says)
    // Once.
    t.is(checks.filter(each => each.detail.includes(says)).length, 1, says)
    t.notRegex(JSON.stringify(checks) + stderr, /secret-of-ana/)
    if (check === 'database') t.not(of('password hashes').status, '')
    if (/DATABASE_URL|needs/.test(says)) t.is((await runCli(env, ['users', 'list'])).stderr, `error: ${detail}\n`)
  }
})

test('e-mails that failed, or whose last attempt failed, are never reported as ok', async t => {
  const env = await installedRegistry(t)
  const found = async () => (await doctor(t, env)).of('e-mails')
  t.is((await found()).status, 'ok')
  for (const [due, detail] of [
    ['now()', 'The last attempt of 1 waiting e-mail failed; the service tries again.'],
    ['NULL', '1 e-mail failed permanently.'],
  ]) {
    await ask(
      env.DATABASE_URL,
      `INSERT INTO emails (kind, parameters, locale, next_attempt_at, last_error) VALUES ('password-changed', '{}', 'en', ${due}, 'Error ECONNREFUSED')`,
    )
    t.like(await found(), { status: 'warning', detail })
  }
})

test('secret files that every user of the machine can read are listed', async t => {
  const { AUTH_MASTER_KEY, ...rest } = await installedRegistry(t)
  const dataDir = await temporaryFolder(t)
  const file = join(dataDir, 'master-key')
  await writeFile(file, AUTH_MASTER_KEY)
  const settings = { ...rest, AUTH_MASTER_KEY_FILE: file, AUTH_DATA_DIR: dataDir }
  for (const [path, mode, status, fix] of [
    [file, 0o644, 'warning', `chmod o-rw ${file}`],
    [file, 0o600, 'ok', ''],
    // A service that root starts gives the user of PostgreSQL only search permission on its data folder.
    [dataDir, 0o711, 'ok', ''],
    [dataDir, 0o755, 'warning', `chmod o-rw ${dataDir}`],
  ] as const) {
    await chmod(path, mode)
    t.like((await doctor(t, settings)).of('secret files'), { status, fix })
  }
})
