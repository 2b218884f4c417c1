/** `auth-admin users why` and `unlock`: what locks a user, and how a lock ends. */
import test from 'ava'
import { addressLimits, lockout } from '../../server/policy/limits.js'
import { usernameKey } from '../../server/rules/names.js'
import { runCli } from '../_helpers/cli.js'
import { anyAddress } from '../_helpers/crowd.js'
import { password, serviceForFile } from '../_helpers/service.js'
import { waitForValue } from '../_helpers/wait.js'

const service = serviceForFile()
const users = (...args: string[]) => runCli(service.env, ['users', ...args])
const json = async (...args: string[]) => {
  const { code, stdout, stderr } = await users(...args, '--json')
  if (code !== 0) throw new Error(stderr)
  return JSON.parse(stdout)
}
const counterKeys = () => service.registry.counterKeys

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

/** Each count that can lock a user, and its key. */
const counts = [
  {
    scope: 'account',
    limit: lockout.failures,
    kept: (name: string) => counterKeys().account('password', usernameKey(name)),
  },
  {
    scope: 'known address',
    limit: lockout.failures,
    kept: (name: string, address: string) =>
      counterKeys().known('password', usernameKey(name), counterKeys().knownNetwork(address)),
  },
  {
    scope: 'address',
    limit: addressLimits.failures.capacity,
    kept: (_: string, address: string) => counterKeys().address('failures', address),
  },
]

for (const { scope, limit, kept } of counts) {
  test(`why shows the count "${scope}" as locked exactly when sign-in is refused, and unlock ends the lock`, async t => {
    /** A user, and an address from which sign-ins failed so often. */
    const failed = async (count: number) => {
      const { username } = await service.signUp('ROLE_CLIENT')
      const address = anyAddress()
      if (scope === 'known address') t.is(await login(username, address), 200)
      await service.registry.database.sequelize.query(
        scope === 'address'
          ? 'INSERT INTO buckets VALUES ($subject, $count, clock_timestamp())'
          : `INSERT INTO attempts (subject, account, count, window_ends)
             VALUES ($subject, $account, $count, now() + interval '15 minutes')`,
        {
          bind: {
            subject: kept(username, address),
            count,
            ...(scope !== 'address' && { account: counterKeys().account('password', usernameKey(username)) }),
          },
        },
      )
      return { username, address, lock: countOf(await json('why', username, '--address', address), scope)! }
    }
    // The bucket of an address drains by one in 3 s.
    const drained = scope === 'address' ? 20 : 0
    const open = await failed(limit - 1)
    t.like(open.lock, { limit, locked: false })
    t.true(open.lock.count <= limit - 1 && open.lock.count >= limit - 1 - drained, `${open.lock.count}`)
    t.is(await login(open.username, open.address), 200)

    const locked = await failed(limit + drained)
    t.like(locked.lock, { limit, locked: true })
    t.true(locked.lock.count >= limit && locked.lock.count <= limit + drained, `${locked.lock.count}`)
    t.is(await login(locked.username, locked.address), 429)
    t.true((await json('unlock', locked.username, '--address', locked.address)).cleared >= 1)
    // A process caches a lock for a moment.
    await waitForValue(() => login(locked.username, locked.address), 200)
  })
}

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
