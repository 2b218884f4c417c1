/** Operations of administrators: migrations, settings without secrets, and diagnosis of the service. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'ava'
import { type AdministrationClient, openLocal, openSignedIn } from '../_helpers/administration.js'
import { createAuthority, writePems } from '../_helpers/certificates.js'
import { ask } from '../_helpers/database.js'
import { startTestService } from '../_helpers/service.js'

const settings = { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }

/** Checks by their names, each with status and detail. */
async function examine(api: AdministrationClient): Promise<Record<string, string>> {
  const { checks } = await api.diagnose({})
  for (const { status, fix } of checks) if ((status === 'ok') !== (fix === '')) throw new Error(`${status} ${fix}`)
  return Object.fromEntries(checks.map(({ check, status, detail }) => [check, `${status} ${detail}`]))
}

test('migrations are listed with kind and time, and those of a newer version as unknown', async t => {
  const service = await startTestService(t, settings)
  const api = await openSignedIn(t, service)
  const { migrations } = await api.getMigrations({})
  t.like(migrations[0], { name: '0001-baseline.sql', kind: 'expand', known: true })
  t.true(migrations.every(({ runTime, known }) => runTime !== undefined && known))
  await ask(service.env.DATABASE_URL!, `INSERT INTO migrations VALUES ('9999-later.sql', 'expand', '')`)
  const later = (await api.getMigrations({})).migrations
  t.like(later.at(-1), { name: '9999-later.sql', kind: 'expand', known: false })
  t.regex((await examine(api)).migrations!, /^warning .*9999-later\.sql/)
  await ask(service.env.DATABASE_URL!, `UPDATE migrations SET kind = 'contract' WHERE name = '9999-later.sql'`)
  t.regex((await examine(api)).migrations!, /^failed .*9999-later\.sql/)
})

test('settings are listed with value, origin and default, and a secret only as set or not set', async t => {
  const secret = 'a very secret password 7'
  const service = await startTestService(t, { ...settings, AUTH_ADMIN_PASSWORD: secret, AUTH_SOMETHING_ELSE: 'x' })
  const api = await openLocal(t, service)
  const { settings: listed, unknown } = await api.getConfiguration({})
  const named = (name: string) => listed.find(setting => setting.name === name)
  t.like(named('AUTH_BCRYPT_COST'), { value: '4', origin: 'environment', default: '12', secret: false })
  t.like(named('AUTH_TOKEN_TTL'), { value: '1h', origin: 'default', default: '1h' })
  t.like(named('AUTH_MASTER_KEY'), { value: 'set', origin: 'environment', secret: true, default: undefined })
  t.like(named('AUTH_ADMIN_PASSWORD'), { value: 'set', origin: 'environment', secret: true })
  t.like(named('SMTP_URL'), { value: undefined, origin: 'default', secret: true })
  t.deepEqual(unknown, ['AUTH_SOMETHING_ELSE'])
  const text = JSON.stringify(listed, (_, value) => (typeof value === 'bigint' ? String(value) : value))
  for (const hidden of [secret, service.env.AUTH_MASTER_KEY!, service.env.DATABASE_URL!]) t.false(text.includes(hidden))
})

test('diagnosis of a working service reports no failure, and warns about possible improvements', async t => {
  const service = await startTestService(t, settings)
  const found = await examine(await openSignedIn(t, service))
  for (const check of ['database', 'migrations', 'data keys', 'clocks', 'connections', 'signing key', 'audit log'])
    t.regex(found[check]!, /^ok /, check)
  for (const check of ['e-mails', 'client addresses', 'initial password', 'recovery e-mails', 'certificate'])
    t.regex(found[check]!, /^ok /, check)
  t.regex(found.administrators!, /^warning 1 active administrator; without one-time codes: 1\./)
  t.regex(
    found['password hashes']!,
    /^warning AUTH_BCRYPT_COST is 4: a hash takes \d+ ms here, about [\d.]+ logins a second/,
  )
  t.regex(found['mail server']!, /^warning SMTP_URL is not set/)
  t.regex(found.administration!, /^ok .*127\.0\.0\.1:0/)
})

test('diagnosis reports each fault', async t => {
  const service = await startTestService(t, {
    ...settings,
    SMTP_URL: 'smtp://ana:secret-of-ana@127.0.0.1:1',
    AUTH_RECOVERY_EMAIL: 'any',
  })
  const api = await openLocal(t, service)
  const url = service.env.DATABASE_URL!
  await writeFile(join(service.settings.dataDir, 'initial-admin-password'), 'x')
  await ask(url, 'UPDATE users SET active = false')
  await ask(url, `UPDATE signing_keys SET signs_at = now() - interval '92 days'`)
  await ask(
    url,
    `INSERT INTO emails (kind, parameters, locale, next_attempt_at) VALUES ('password-changed', '{}', 'en', NULL)`,
  )
  for (let each = 0; each < 10; each++) {
    const { username } = await service.signUp('ROLE_CLIENT')
    await service.login(username)
  }
  while (await service.registry.audit.seal());
  const found = await examine(api)
  t.regex(found.administrators!, /^failed There is no active administrator/)
  t.regex(found['signing key']!, /^warning The signing key is 92 days old and has no successor/)
  t.regex(found['e-mails']!, /^warning 1 e-mail failed permanently/)
  t.regex(found['initial password']!, /^warning /)
  t.regex(found['recovery e-mails']!, /^warning /)
  t.regex(found['mail server']!, /^failed .*(ECONNREFUSED|ESOCKET)/)
  t.regex(found['client addresses']!, /^warning .* sign-ins of \d+ users all came from 127\.0\.0\.1/)
  t.notRegex(JSON.stringify(found), /secret-of-ana/)

  await ask(url, 'DELETE FROM signing_keys')
  await ask(url, `UPDATE data_keys SET wrapped = '\\x00'::bytea || wrapped`)
  const worse = await examine(api)
  t.regex(worse['data keys']!, /^failed AUTH_MASTER_KEY is not the key/)
  // Checks that depend on them are omitted, others aren't.
  t.is(worse['signing key'], undefined)
  t.regex(worse['recovery e-mails']!, /^warning /)
})

test('diagnosis checks when the certificate of the service expires', async t => {
  const authority = createAuthority('Operations')
  const day = 86_400_000
  for (const [days, says] of [
    [100.5, /^ok .* 100 days\.$/],
    [10.5, /^warning .* 10 days\.$/],
    [-1, /^failed .*expired on \d{4}-\d\d-\d\d\.$/],
  ] as const) {
    const until = new Date(Date.now() + days * day)
    const { cert, key } = await writePems(t, authority.issue({ name: 'localhost', until }))
    const service = await startTestService(t, { ...settings, AUTH_TLS_CERT: cert, AUTH_TLS_KEY: key })
    t.regex((await examine(await openLocal(t, service))).certificate!, says)
  }
})
