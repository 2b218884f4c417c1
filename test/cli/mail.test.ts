/** `auth-admin mail`: the queue of e-mails, and a test e-mail. */
import { type AddressInfo, createServer } from 'node:net'
import test from 'ava'
import { installedRegistry, runCli } from '../_helpers/cli.js'
import { ask } from '../_helpers/database.js'

test('mail lists, shows, retries and discards e-mails of the queue, without addresses', async t => {
  const env = await installedRegistry(t)
  const mail = (...args: string[]) => runCli(env, ['mail', ...args])
  const json = async (...args: string[]) => JSON.parse((await mail(...args, '--json')).stdout)
  t.is((await mail('list')).stdout, 'No e-mails match.\n')
  const parameters = JSON.stringify({ userId: 1, to: 'hidden@example.org' })
  await ask(
    env.DATABASE_URL,
    `INSERT INTO emails (kind, parameters, locale, next_attempt_at, last_error) VALUES
      ('recovery-key', '${parameters}', 'en', NULL, 'Error ECONNREFUSED'), ('password-changed', '{"userId": 1}', 'en', now(), NULL)`,
  )
  const [failed, waiting] = (await json('list')).emails
  t.like(failed, { id: 1, kind: 'recovery-key', user: 1, attempts: 0, error: 'Error ECONNREFUSED' })
  t.is(failed.dueTime, undefined)
  t.deepEqual((await json('list', '--failed')).emails, [failed])
  t.deepEqual((await json('list', '--waiting')).emails, [waiting])
  t.deepEqual(await json('show', '1'), failed)
  t.regex((await mail('show', '1')).stdout, /^due +failed permanently$/m)
  t.notRegex((await mail('list')).stdout + (await mail('list', '--jsonl')).stdout, /hidden/)
  t.false(Number.isNaN(Date.parse((await json('retry', '1')).dueTime)))
  t.deepEqual(await json('retry', '--failed'), { retried: 0 })
  await ask(env.DATABASE_URL, 'UPDATE emails SET next_attempt_at = NULL')
  t.is((await mail('retry', '--failed')).stdout, 'E-mails that are due now: 2.\n')
  t.deepEqual((await json('list', '--failed')).emails, [])
  for (const wrong of [[], ['1', '--failed']]) t.is((await mail('retry', ...wrong)).code, 2)
  t.is((await mail('delete', '1', '--yes')).stdout, 'E-mail 1 is deleted.\n')
  t.is((await mail('delete', '1', '--yes')).code, 3)
  t.is((await mail('show', 'x')).code, 2)
})

test('`mail test` reports the outcome, and exits with 1 if the e-mail was not accepted', async t => {
  const env = await installedRegistry(t)
  const refused = await runCli({ ...env, SMTP_URL: 'smtp://ana:secret-of-ana@127.0.0.1:1' }, [
    'mail',
    'test',
    'ana@example.org',
    '--json',
  ])
  t.is(refused.code, 1)
  const { error } = JSON.parse(refused.stdout)
  t.regex(error.message, /didn’t accept .*(ECONNREFUSED|ESOCKET)/)
  t.notRegex(refused.stdout + refused.stderr, /secret-of-ana/)
  t.is((await runCli(env, ['mail', 'test', 'invalid'])).code, 2)

  // Doctor tells a wrong port from a wrong scheme, too.
  const plain = createServer(socket => socket.on('error', () => {}).write('220 mail.example ESMTP\r\n'))
  await new Promise<void>(resolve => plain.listen(0, '127.0.0.1', resolve))
  t.teardown(() => plain.close())
  for (const [SMTP_URL, code] of [
    ['smtp://127.0.0.1:1', 'ECONNREFUSED'],
    [`smtps://127.0.0.1:${(plain.address() as AddressInfo).port}`, 'ERR_SSL_WRONG_VERSION_NUMBER'],
  ] as const) {
    const tested = await runCli({ ...env, SMTP_URL }, ['mail', 'test', 'ana@example.org'])
    t.true(tested.stderr.includes(code), tested.stderr)
    const { stdout } = await runCli({ ...env, SMTP_URL }, ['doctor'])
    t.regex(stdout, new RegExp(`mail server: .*${code}.*\\n.*smtps where the port begins with TLS`))
  }
})
