/** `auth-admin config`: the settings of this environment, without secrets and without a database. */
import test from 'ava'
import { runCli } from '../_helpers/cli.js'

test('config lists every setting with its origin, names unknown variables, and needs no database', async t => {
  const env = {
    DATABASE_URL: 'postgres://ana:secret-of-ana@127.0.0.1:1/none',
    AUTH_MASTER_KEY: Buffer.alloc(32, 7).toString('base64'),
    AUTH_SOMETHING_ELSE: 'x',
  }
  const { code, stdout } = await runCli(env, ['config', '--json'])
  t.is(code, 0)
  const { settings, unknown } = JSON.parse(stdout)
  t.deepEqual(unknown, ['AUTH_SOMETHING_ELSE'])
  t.deepEqual(
    settings.find(({ name }: { name: string }) => name === 'AUTH_BCRYPT_COST'),
    { name: 'AUTH_BCRYPT_COST', value: '4', origin: 'environment', default: '12', secret: false },
  )
  t.notRegex(stdout, /secret-of-ana|BwcHBwc/)
  const table = await runCli(env, ['config'])
  t.regex(table.stdout, /^AUTH_TOKEN_TTL +1h +default$/m)
  t.regex(table.stderr, /AUTH_SOMETHING_ELSE is not a setting/)
  // Invalid settings are also shown.
  t.is((await runCli({ AUTH_BCRYPT_COST: 'many' }, ['config'])).code, 0)
})
