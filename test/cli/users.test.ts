/** `auth-admin users`: what each verb changes for the user, as the service shows it. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import { QueryTypes } from 'sequelize'
import { runCli, spawnCli } from '../_helpers/cli.js'
import { password, serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()
const users = (...args: string[]) => runCli(service.env, ['users', ...args])
const json = async (...args: string[]) => {
  const { code, stdout, stderr } = await users(...args, '--json')
  if (code !== 0) throw new Error(stderr)
  return JSON.parse(stdout)
}
const me = async (token: string) => (await service.request('GET', '/users/me', { token })).status
const login = async (username: string, secret = password) =>
  (await service.request('POST', '/users/login', { query: { username, password: secret } })).status
const emailsTo = (id: number) =>
  service.registry.database.sequelize.query(
    `SELECT kind, parameters FROM emails WHERE (parameters->>'userId')::int = ${id}`,
    { type: QueryTypes.SELECT },
  ) as Promise<{ kind: string; parameters: Record<string, unknown> }[]>

const setPassword = async (t: ExecutionContext, username: string, content: string) => {
  const folder = await mkdtemp(join(tmpdir(), 'auth-test-'))
  t.teardown(() => rm(folder, { recursive: true, force: true }))
  await writeFile(join(folder, 'password'), content)
  return users('set-password', username, '--password-file', join(folder, 'password'))
}

const fields = ['active', 'city', 'id', 'nickname', 'role', 'state', 'suspended', 'termsofusage', 'username']

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
  t.like(user, { username: client.username, active: 0, suspended: false, dateofborn: '01/02/1990' })
  t.is(user.email, 'cliente@example.org')
  t.deepEqual(await json('show', `#${user.id}`), user)
  t.deepEqual(await json('show', '--id', String(user.id)), user)
  for (const run of [
    await users('show', digits),
    await users('show', digits, '--json'),
    await users('list', '--json'),
  ]) {
    t.notRegex(run.stdout, /secreta|hmac1|\$2b\$|securityanswer|password/i)
    t.false(run.stdout.includes(password))
  }
})

test('list filters, pages, and shows no keys', async t => {
  const organization = await service.organization({ name: 'Filtrada' })
  const head = await service.institution(organization)
  const other = await service.signUp('ROLE_CLIENT', { nickname: 'Nenhum Ímpar', email: 'Filtro@example.org' })
  const names = async (...args: string[]) =>
    (await json('list', ...args)).map(({ username }: { username: string }) => username)

  const members = await json('list', '--organization', 'filtrada')
  t.is(members.length, 1)
  t.deepEqual(Object.keys(members[0]).sort(), [...fields, 'partnerOrganization'].sort())
  t.false('activationkey' in members[0].partnerOrganization)
  t.deepEqual(await names('--organization', String(organization.id), '--inactive'), [])
  t.deepEqual(await names('--organization', 'Filtrada', '--active', '--role', 'ROLE_INSTITUTION'), [head.username])
  t.deepEqual(await names('--organization', 'Filtrada', '--role', 'ROLE_CLIENT'), [])
  for (const search of ['nenhum ÍMP', 'FILTRO@', other.username, other.username.replace(/\D/g, '').slice(2)]) {
    t.deepEqual(await names('--search', search), [other.username], search)
  }
  t.deepEqual(await names('--search', '%'), [])
  await json('suspend', other.username)
  t.deepEqual(await names('--suspended', '--search', 'nenhum'), [other.username])
  t.deepEqual(await names('--inactive', '--search', 'nenhum'), [other.username])

  const all = await json('list', '--limit', '1000')
  const [first] = await json('list', '--limit', '1')
  t.deepEqual(first, all[0])
  t.deepEqual((await json('list', '--after-id', String(all[1].id)))[0], all[2])
  const { stdout } = await users('list')
  t.true(stdout.split('\n').every(line => line.length <= 80))
})

test('activate activates users of each role, and gives institutions a provider key', async t => {
  const organization = await service.organization({ name: 'Ativadora' })
  const admin = await service.signUp('ROLE_ADMIN')
  t.is((await json('activate', admin.username)).active, 1)
  t.is((await service.request('GET', '/users/admin', { token: admin.token })).status, 200)

  const institution = await service.signUp('ROLE_INSTITUTION')
  const alone = await json('activate', institution.username)
  t.is(alone.active, 1)
  t.is(alone.partnerOrganization, undefined)
  const active = await json('activate', institution.username, '--organization', 'ATIVADORA')
  t.like(active, { active: 1, partnerOrganization: { id: organization.id } })
  t.regex(active.providerActivationKey.activationkey, /^[\da-f-]{36}$/)
  t.regex((await users('activate', institution.username)).stdout, /already/)

  const client = await service.signUp('ROLE_CLIENT')
  await runCli(service.env, ['organizations', 'deactivate', 'Ativadora'])
  const inactive = await users('activate', client.username, '--organization', String(organization.id))
  t.is(inactive.code, 1)
  t.regex(inactive.stderr, /organizations activate/)
  t.is((await json('show', client.username)).active, 0)
})

test('suspend shuts a user out at once; resume lets it in again, but not its old tokens', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  t.is(await me(token), 200)
  t.like(await json('suspend', username), { suspended: true, active: 0 })
  t.is(await me(token), 500)
  t.is(await login(username), 404)
  t.regex((await users('suspend', username)).stdout, /already/)
  const { id } = await service.organization()
  t.regex(
    (await users('activate', username, '--organization', String(id))).stderr,
    /^error: .+ is suspended: [^\n]+\n$/,
  )
  t.is((await json('resume', username)).suspended, false)
  t.is(await login(username), 200)
  t.is(await me(token), 500)
})

test('revoke-tokens ends every session of a user', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const { code } = await users('revoke-tokens', username)
  t.is(code, 0)
  t.is(await me(token), 500)
  t.is(await login(username), 200)
})

test('set-email sets and removes a checked address, and voids a key mailed to the former one', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const { id, email } = await json('set-email', username, ' ana@example.org ')
  t.is(email, 'ana@example.org')
  await service.registry.mailedKeys.replace(id, 'recovery', 'ABCD2345')
  t.is((await json('set-email', '--id', String(id), 'bia@example.org')).email, 'bia@example.org')
  t.is(await service.registry.mailedKeys.attempt(id, 'recovery', '192.0.2.1'), undefined)
  for (const args of [[username, 'nobody'], [username], [username, 'a@example.org', '--remove']]) {
    const { code, stdout, stderr } = await users('set-email', ...args)
    t.is(code, 2)
    t.is(stdout, '')
    t.regex(stderr, /^error: [^\n]+\n$/)
  }
  t.false('email' in (await json('set-email', username, '--remove')))
})

test('set-password reads a file or standard input, logs the user out, and prints no password', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT', { email: 'dona@example.org' })
  const { id } = await json('show', username)
  const secrets = ['uma girafa bem alta 7', 'duas girafas bem altas 8']
  const runs = [await setPassword(t, username, `${secrets[0]}\n`)]
  t.is(runs[0]!.code, 0, runs[0]!.stderr)
  t.is(await login(username, secrets[0]), 200)
  t.is(await me(token), 500)
  runs.push(
    await spawnCli(
      service.env,
      ['users', 'set-password', username, '--password-file', '-', '--json'],
      `${secrets[1]}\r\n`,
    ),
  )
  t.is(runs[1]!.code, 0, runs[1]!.stderr)
  t.is(await login(username, secrets[1]), 200)
  t.is(await login(username, secrets[0]), 404)
  for (const { stdout, stderr } of runs) t.notRegex(stdout + stderr, /girafa/)
  t.is(JSON.parse(runs[1]!.stdout).id, id)
  const events = await service.registry.audit.list({ subjectId: id, action: 'user.set-password', limit: 10 })
  t.is(events.length, 2)
  t.notRegex(JSON.stringify(events), /girafa/)
})

test('set-password enforces the rules of sign-up, and takes no password on the command line', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  for (const bad of ['', 'curta', username, 'password1', 'x'.repeat(257), 'a\nb\nc\nd\ne\n']) {
    const { code, stdout, stderr } = await setPassword(t, username, bad)
    t.is(code, 1)
    t.is(stdout, '')
    t.regex(stderr, /^error: The new password is not acceptable\. [^\n]+\n$/)
  }
  for (const args of [[], ['--password', 'girafa azul 9'], ['girafa azul 9'], ['--password-file', '/nonexistent/x']]) {
    const { code, stdout, stderr } = await users('set-password', username, ...args)
    t.true(code === 1 || code === 2)
    t.is(stdout, '')
    t.regex(stderr, /^error: [^\n]+\n$/)
    t.notRegex(stderr, /girafa/)
  }
  t.is(await login(username), 200)
})

test('a username that looks like an id never stands for another user', async t => {
  const { id } = await json('show', 'admin')
  const trap = `#${id}`
  const signedUp = await service.signUp('ROLE_CLIENT', { username: trap })
  t.is((await json('show', trap)).username, 'admin')
  t.is((await json('list', '--search', trap))[0].username, signedUp.username)
})

test('every command says in one sentence that there is no such user, or that none was given', async t => {
  for (const verb of ['show', 'activate', 'suspend', 'resume', 'revoke-tokens', 'why-locked', 'unlock']) {
    const unknown = await users(verb, 'ninguém')
    t.is(unknown.code, 1, verb)
    t.regex(unknown.stderr, /^error: There is no user ninguém[^\n]+\n$/)
    const missing = await users(verb)
    t.is(missing.code, 2, verb)
    t.regex(missing.stderr, /^error: [^\n]+--id\.\n$/)
  }
})

test('set-password queues an e-mail to the user, without the password', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const { id } = await json('show', username)
  const set = () => setPassword(t, username, 'tres girafas bem altas')
  t.is((await set()).code, 0)
  t.deepEqual(await emailsTo(id), [])
  await json('set-email', username, 'quem@example.org')
  // The service would send it at once.
  await service.registry.database.sequelize.query(
    `CREATE RULE keep AS ON DELETE TO emails WHERE OLD.kind = 'password-changed' DO INSTEAD NOTHING`,
  )
  t.is((await set()).code, 0)
  const emails = await emailsTo(id)
  t.deepEqual(
    emails.map(({ kind }) => kind),
    ['password-changed'],
  )
  t.notRegex(JSON.stringify(emails), /girafa/)
})
