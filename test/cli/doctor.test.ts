/** `auth-admin doctor`: it works even if nothing else does. */
import { chmod, writeFile } from 'node:fs/promises'
import { hostname } from 'node:os'
import { join } from 'node:path'
import test from 'ava'
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

async function doctor(env: Record<string, string>) {
  const { code, stdout } = await runCli(env, ['doctor', '--json'])
  const { checks }: { checks: Check[] } = JSON.parse(stdout)
  return { code, checks, statusOf: (name: string) => checks.find(({ check }) => check === name)?.status }
}

test('doctor exits with 0 if no check failed, even with warnings', async t => {
  const env = { ...(await installedRegistry(t)), AUTH_DATA_DIR: await temporaryFolder(t) }
  const { code, checks, statusOf } = await doctor(env)
  t.is(code, 0, JSON.stringify(checks))
  t.is(statusOf('database'), 'ok')
  t.is(statusOf('administrators'), 'warning')
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
  const other = { AUTH_RECOVERY_EMAIL: 'any', AUTH_ADMIN_ADDRESS: '127.0.0.1:0', AUTH_BCRYPT_COST: '5' }
  const service = await startTestService(t, { ...other, AUTH_TRUSTED_PROXIES: '127.0.0.1, 10.0.0.0/8' })
  const { env } = service
  const own = {
    DATABASE_URL: env.DATABASE_URL!,
    AUTH_MASTER_KEY: env.AUTH_MASTER_KEY!,
    AUTH_DATA_DIR: await temporaryFolder(t),
  }
  const of = ({ checks }: { checks: Check[] }, name: string) => checks.find(({ check }) => check === name)!.detail
  const environment = /settings of this environment/
  const bare = await doctor(own)
  t.regex(of(bare, 'settings'), environment)
  for (const [check, setting] of [
    ['client addresses', 'AUTH_TRUSTED_PROXIES is not set'],
    ['mail server', 'SMTP_URL is not set'],
    ['initial password', 'AUTH_DATA_DIR has no'],
    ['recovery e-mails', 'AUTH_RECOVERY_EMAIL is registered'],
    ['password hashes', 'AUTH_BCRYPT_COST is 4'],
    ['certificate', 'AUTH_TLS_CERT is not set'],
    ['administration', 'AUTH_ADMIN_ADDRESS is 127.0.0.1:50052'],
  ] as const)
    t.true(of(bare, check).startsWith(setting), of(bare, check))
  // TLS is that of the shell here, and that of the service at a server.
  for (const check of ['certificate', 'administration']) t.regex(of(bare, check), /in this environment/, check)
  const session = await openSignedIn(t, service)
  const { checks } = await session.diagnose({})
  const served = (name: string) => checks.find(({ check }) => check === name)!.detail
  t.is(served('certificate'), 'AUTH_TLS_CERT is not set: this server doesn’t use TLS.')
  t.is(served('administration'), 'AUTH_ADMIN_ADDRESS is 127.0.0.1:0, which only this machine can reach.')
  t.regex(of(await doctor({ ...own, AUTH_SOMETHING: 'x' }), 'settings'), environment)
  t.regex(of(await doctor({ ...own, AUTH_TOKEN_TTL: 'x' }), 'settings'), environment)
  const same = await doctor({ ...own, AUTH_RECOVERY_EMAIL: 'any', AUTH_TRUSTED_PROXIES: env.AUTH_TRUSTED_PROXIES! })
  t.regex(of(same, 'recovery e-mails'), /^AUTH_RECOVERY_EMAIL is any: /)
  t.regex(of(same, 'client addresses'), /^AUTH_TRUSTED_PROXIES has 2 entries; /)
})

test('a registry without an active administrator fails the check, and the suggested command creates one', async t => {
  const env = {
    ...(await installedRegistry(t)),
    DATABASE_URL: await freshDatabase(t),
    AUTH_DATA_DIR: await temporaryFolder(t),
  }
  t.is((await runCli(env, ['install'])).code, 0)
  t.is((await doctor(env)).statusOf('administrators'), 'warning')
  await ask(env.DATABASE_URL, 'DELETE FROM users')
  const { code, checks } = await doctor(env)
  t.is(code, 1)
  const { status, fix } = checks.find(({ check }) => check === 'administrators')!
  t.is(status, 'failed')
  const file = join(env.AUTH_DATA_DIR, 'password')
  await writeFile(file, 'tatu-canastra 12')
  const command = /`auth-admin ([^`]+)`/.exec(fix)![1]!.replaceAll('NAME', 'chefe').replace('FILE', file)
  const words = [...command.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, bare]) => quoted ?? bare!)
  const made = await runCli(env, words)
  t.is(made.code, 0, made.stderr)
  t.is((await doctor(env)).statusOf('administrators'), 'warning')
  const audit = await ask(env.DATABASE_URL, `SELECT username FROM users WHERE role = 'ROLE_ADMIN' AND active`)
  t.deepEqual(audit, [{ username: 'chefe' }])
})

test('existing usernames that look like ids are listed by id, at most 10', async t => {
  const env = {
    ...(await installedRegistry(t)),
    DATABASE_URL: await freshDatabase(t),
    AUTH_DATA_DIR: await temporaryFolder(t),
  }
  t.is((await runCli(env, ['install'])).code, 0)
  t.is((await doctor(env)).statusOf('usernames'), 'ok')
  const add = (name: string) =>
    ask(
      env.DATABASE_URL,
      `INSERT INTO users (username, username_key, username_skeleton, nickname, nickname_key, nickname_skeleton, password_hash,
         state, city, terms_of_usage, role)
       VALUES ('${name}', '${name}', '${name}', '${name}', '${name}', '${name}', '', 'SP', 'Bauru', true, 'ROLE_CLIENT')
       RETURNING id`,
    )
  await add('#a1')
  t.is((await doctor(env)).statusOf('usernames'), 'ok')
  const ids: number[] = []
  for (let n = 1; n <= 11; n++) ids.push(...(await add(`#${n}`)).map(({ id }) => id as number))
  const { checks } = await doctor(env)
  const { status, detail, fix } = checks.find(({ check }) => check === 'usernames')!
  t.is(status, 'warning')
  t.true(detail.endsWith(`users ${ids.slice(0, 10).join(', ')}, ….`), detail)
  t.regex(fix, /`auth-admin users erase ID`/)
  const erased = await runCli(env, ['users', 'erase', `${ids[0]}`, '--confirm', '#1', '--local'])
  t.is(erased.code, 0, erased.stderr)
})

test('after `issuer set`, doctor lists the processes that still use the former issuer or audience', async t => {
  const { env, service } = await startTestService(t, { AUTH_BCRYPT_COST: '4' })
  const own = { DATABASE_URL: env.DATABASE_URL!, AUTH_MASTER_KEY: env.AUTH_MASTER_KEY! }
  const settings = { ...own, AUTH_DATA_DIR: await temporaryFolder(t) }
  const examine = async () => (await doctor(settings)).checks.find(({ check }) => check === 'processes')
  t.like(await examine(), { status: 'ok', detail: 'Processes that serve this registry: 1. All have its issuer.' })
  const set = await runCli(settings, ['issuer', 'set', '--audience', 'other', '--confirm', 'http://auth.test'])
  t.is(set.code, 0, set.stderr)
  const { status, detail, fix } = (await examine())!
  t.deepEqual([status, fix], ['warning', 'Restart them.'])
  const name = `all-in-one ${hostname()}/${process.pid}/`
  t.true(detail.startsWith(`Processes still issue and accept tokens of a former issuer or audience: ${name}`), detail)
  await service.stop()
  t.like(await examine(), { status: 'ok', detail: 'Processes that serve this registry: 0. All have its issuer.' })
})

test('an unavailable database is a failed check, and all other checks run', async t => {
  const env = { DATABASE_URL: 'postgres://ana:secret-of-ana@127.0.0.1:1/none', AUTH_MASTER_KEY: masterKey }
  const { code, stdout, stderr } = await runCli({ ...env, AUTH_DATA_DIR: await temporaryFolder(t) }, [
    'doctor',
    '--json',
  ])
  t.is(code, 1, stderr)
  const { checks }: { checks: Check[] } = JSON.parse(stdout)
  const database = checks.find(({ check }) => check === 'database')
  t.is(database?.status, 'failed')
  t.regex(database!.detail, /ECONNREFUSED/)
  t.true(checks.some(({ check }) => check === 'password hashes'))
  t.notRegex(stdout + stderr, /secret-of-ana/)
})

test('a refused connection is reported with its remedy, as a failing command reports it', async t => {
  const url = new URL(await freshDatabase(t))
  const refused: Readonly<Record<string, Partial<URL>>> = {
    'sslmode=require needs: set `ssl = on`': { search: '?sslmode=require' },
    'channel_binding=require needs: set `ssl = on`': { search: '?sslmode=prefer&channel_binding=require' },
    'require_auth=md5 of DATABASE_URL: it asks for': { search: '?require_auth=md5' },
    'refuses the user or password of DATABASE_URL': { password: 'wrong' },
  }
  for (const [says, change] of Object.entries(refused)) {
    const env = { DATABASE_URL: Object.assign(new URL(url), change).href, AUTH_MASTER_KEY: masterKey }
    const { checks } = await doctor({ ...env, AUTH_DATA_DIR: await temporaryFolder(t) })
    const { status, detail } = checks.find(({ check }) => check === 'database')!
    t.is(status, 'failed')
    t.true(detail.includes(says), detail)
    const { stderr } = await runCli(env, ['users', 'list'])
    t.is(stderr, `error: ${detail}\n`)
  }
})

test('a database without tables, one without an installation, and wrong settings are distinguished', async t => {
  const empty = { DATABASE_URL: await freshDatabase(t, { from: 'template0' }), AUTH_MASTER_KEY: masterKey }
  const bare = await doctor({ ...empty, AUTH_DATA_DIR: await temporaryFolder(t) })
  t.is(bare.code, 1)
  t.deepEqual([bare.statusOf('database'), bare.statusOf('migrations')], ['ok', 'failed'])
  const nowhere = await doctor({ AUTH_DATA_DIR: await temporaryFolder(t) })
  t.is(nowhere.code, 1)
  t.regex(nowhere.checks.find(({ check }) => check === 'service')!.detail, /There is no registry/)
  const wrong = await doctor({ AUTH_BCRYPT_COST: 'many', AUTH_DATA_DIR: await temporaryFolder(t) })
  t.is(wrong.code, 1)
  t.is(wrong.statusOf('settings'), 'failed')
  // Once.
  t.deepEqual(
    wrong.checks.filter(({ detail }) => detail.includes('AUTH_BCRYPT_COST')).map(({ check }) => check),
    ['settings'],
  )
})

test('e-mails that failed, or whose last attempt failed, are never reported as ok', async t => {
  const env = { ...(await installedRegistry(t)), AUTH_DATA_DIR: await temporaryFolder(t) }
  const found = async () => (await doctor(env)).checks.find(({ check }) => check === 'e-mails')
  t.is((await found())?.status, 'ok')
  const queue = (due: string) =>
    ask(
      env.DATABASE_URL,
      `INSERT INTO emails (kind, parameters, locale, next_attempt_at, last_error) VALUES ('password-changed', '{}', 'en', ${due}, 'Error ECONNREFUSED')`,
    )
  await queue('now()')
  t.like(await found(), {
    status: 'warning',
    detail: 'The last attempt of 1 waiting e-mail failed; the service tries again.',
  })
  await queue('NULL')
  t.like(await found(), { status: 'warning', detail: '1 e-mail failed permanently.' })
})

test('secret files that every user of the machine can read are listed', async t => {
  const env = await installedRegistry(t)
  const dataDir = await temporaryFolder(t)
  const file = join(dataDir, 'master-key')
  await writeFile(file, env.AUTH_MASTER_KEY)
  const { AUTH_MASTER_KEY: _, ...rest } = env
  const settings = { ...rest, AUTH_MASTER_KEY_FILE: file, AUTH_DATA_DIR: dataDir }
  await chmod(file, 0o644)
  const open = await doctor(settings)
  t.is(open.statusOf('secret files'), 'warning')
  t.true(open.checks.find(({ check }) => check === 'secret files')!.fix.includes(file))
  await chmod(file, 0o600)
  t.is((await doctor(settings)).statusOf('secret files'), 'ok')
  // A service that root starts gives the user of PostgreSQL only search permission on its data folder.
  await chmod(dataDir, 0o711)
  t.is((await doctor(settings)).statusOf('secret files'), 'ok')
  await chmod(dataDir, 0o755)
  const { fix } = (await doctor(settings)).checks.find(({ check }) => check === 'secret files')!
  t.is(fix, `chmod o-rw ${dataDir}`)
})
