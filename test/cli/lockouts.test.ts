/** `auth-admin users why` and `unlock`: what locks a user, and how a lock ends. */
import test from 'ava'
import { lockout } from '../../server/policy/limits.js'
import { documentsOf } from '../_helpers/cli.js'
import { anyAddress } from '../_helpers/crowd.js'
import { password, serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()
const { run: users, json } = documentsOf(service, 'users')

const login = async (username: string, address: string, secret = password) => {
  const headers = { 'x-forwarded-for': address }
  return (await service.request('POST', '/users/login', { query: { username, password: secret }, headers })).status
}

interface Found {
  readonly scope: string
  readonly proof: string
  readonly count: number
  readonly limit: number
  readonly seconds: number
  readonly locked: boolean
}

/** A count of wrong passwords, as `why` shows it. */
const countOf = ({ failures }: { failures: Found[] }, scope: string) =>
  failures.find(each => each.scope === scope && each.proof === (scope === 'address' ? '' : 'password'))

test('why shows how long a lock lasts, and a known address only when the user signed in there', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const [home, elsewhere] = ['192.0.2.1', '198.51.100.2']
  t.is(await login(username, home), 200)
  for (let i = 0; i < lockout.failures; i++) t.is(await login(username, elsewhere, 'errada-errada'), 404)
  t.is(await login(username, home, 'errada-errada'), 404)

  const atUnknown = await json('why', username, '--address', elsewhere)
  t.like(atUnknown.user, { username, suspended: false })
  const { locked, seconds } = countOf(atUnknown, 'account')!
  t.true(locked && seconds > 800 && seconds <= 900)
  t.false(countOf(atUnknown, 'address')!.locked)
  t.is(countOf(atUnknown, 'known address'), undefined)
  const there = await json('why', username, '--address', `::ffff:${home}`)
  t.like(countOf(there, 'known address'), { count: 1, locked: false })
  const { stdout } = await users('why', username)
  t.regex(stdout, /^passwords +this account +10 of 10 +locked for 1[45] min$/m)
  t.regex(
    stdout,
    /^passwords +this account, from a known network or device +1 of 10 +not locked, expires in \d+ (s|min)$/m,
  )
  t.notRegex(stdout, /^answers /m)
  t.regex((await users('unlock', username, '--address', 'here')).stderr, /^error: .*--address.*\n$/)
})

test('why lists all obstacles, and the suggested commands remove them', async t => {
  const { username } = await service.signUp('ROLE_CLIENT', { email: 'porque@example.org' })
  await users('suspend', username, '--yes')
  const { stdout } = await users('why', username)
  t.regex(
    stdout,
    /sign in, recover by answers, recover by e-mail, activate +The user is suspended\. +auth-admin users resume \d+/,
  )
  t.regex(stdout, /recover by answers +0 of 2 required answers count/)
  const mended: string[] = []
  for (let left = 3; left > 0; left--) {
    const { obstacles } = await json('why', username)
    const { command } = obstacles.find(({ prevents }: { prevents: string }) => /sign in|activate/.test(prevents)) ?? {}
    if (!command) break
    const { id } = await service.organization()
    const args = command.replace('auth-admin users ', '').replace('ORGANIZATION', `#${id}`).split(' ')
    const { code, stderr } = await users(...args)
    t.is(code, 0, stderr)
    mended.push(args[0])
  }
  t.deepEqual(mended, ['resume', 'activate'])
  t.is(await login(username, anyAddress()), 200)
  const { user, failures } = await json('why', username, '--address', '192.0.2.77')
  t.is(user.active, 1)
  t.deepEqual(
    failures.map(({ scope, proof }: Found) => [scope, proof]),
    [
      ['account', 'password'],
      ['account', 'answers'],
      ['address', ''],
    ],
  )
})

test('`lockouts list` shows locked users, the cause and the command to unlock, until they are unlocked', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const address = anyAddress()
  for (let failure = 0; failure < lockout.failures; failure++) await login(username, address, 'errada-errada')
  const found = async () =>
    (await json('lockouts', 'list', '--all')).lockouts.find((each: { username: string }) => each.username === username)
  const { id, locks } = await found()
  t.is(locks.length, 1)
  t.like(locks[0], { proof: 'password', scope: 'account', count: lockout.failures, limit: lockout.failures })
  const { stdout } = await users('lockouts', 'list', '--all')
  t.regex(
    stdout,
    new RegExp(`^${id} .*10 wrong passwords for this account: locked for 15 min +auth-admin users unlock ${id}$`, 'm'),
  )
  await json('unlock', `#${id}`)
  t.is(await found(), undefined)
})
