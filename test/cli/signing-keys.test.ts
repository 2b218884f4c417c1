/** `auth-admin keys`: signing keys rotate, and no user is logged out. */
import test from 'ava'
import { runCli } from '../_helpers/cli.js'
import { startTestService } from '../_helpers/service.js'
import { headerOf } from '../_helpers/tokens.js'

test('rotate publishes a key that signs later, or with `--now` at once, and old tokens stay valid', async t => {
  const service = await startTestService(t)
  const keys = async (...args: string[]) => {
    const { code, stdout, stderr } = await runCli(service.env, ['keys', ...args, '--json'])
    if (code !== 0) throw new Error(stderr)
    return { ...{ stderr }, json: JSON.parse(stdout) }
  }
  const states = async () => (await keys('list')).json.keys.map(({ state }: { state: string }) => state)
  const { token } = await service.signUp('ROLE_CLIENT')
  t.deepEqual(await states(), ['signing'])
  const [first] = (await keys('list')).json.keys
  t.deepEqual(Object.keys(first), ['kid', 'state', 'signTime'])
  t.deepEqual((await keys('show', first.kid)).json, first)
  t.is((await runCli(service.env, ['keys', 'show', 'none'])).code, 3)

  const rotated = (await keys('rotate')).json
  t.is(Math.round((Date.parse(rotated.signTime) - Date.now()) / 60_000), 10)
  t.deepEqual(await states(), ['published', 'signing'])
  t.is((await keys('list')).json.keys[0].kid, rotated.kid)
  t.is((await service.request('GET', '/users/me', { token })).status, 200)

  const unconfirmed = await runCli(service.env, ['keys', 'rotate', '--now'])
  t.deepEqual([unconfirmed.code, (await states()).length], [2, 2])
  const now = await keys('rotate', '--now', '--yes')
  t.regex(now.stderr, /^warning: [^\n]+\n$/)
  const all = (await keys('list')).json.keys
  t.is(all.find(({ state }: { state: string }) => state === 'signing').kid, now.json.kid)
  t.true(all.some(({ kid, state }: { kid: string; state: string }) => kid === first.kid && state === 'retiring'))
  t.is((await service.request('GET', '/users/me', { token })).status, 200)

  const { stdout } = await runCli(service.env, ['keys', 'list'])
  t.true(stdout.includes(now.json.kid), 'a key id can be copied whole')
  t.true(stdout.split('\n').every(line => line.length <= 110))
  t.notRegex(stdout + JSON.stringify(all), /PRIVATE|"d"/)
  const events = await service.registry.audit.list({ action: 'signing-key.rotate', limit: 9 })
  t.deepEqual(
    events.map(({ object }) => object),
    [`signing-key:${rotated.kid}`, `signing-key:${now.json.kid}`],
  )
})

test('retire voids a key and its signatures at once on every replica, and the next key signs', async t => {
  const service = await startTestService(t)
  const other = await startTestService(t, { DATABASE_URL: service.env.DATABASE_URL! })
  const retire = (kid: string, ...more: string[]) => runCli(service.env, ['keys', 'retire', kid, ...more])
  const me = (token: string, at = service) => at.request('GET', '/users/me', { token })
  const { username, token } = await service.signUp('ROLE_CLIENT')
  for (const at of [service, other]) t.is((await me(token, at)).status, 200)
  const { kid } = headerOf(token)

  t.is((await retire(kid)).code, 2)
  t.is((await retire(kid, '--now', '--confirm', 'another')).code, 2)
  t.is((await retire('no-such-key', '--now', '--confirm', 'no-such-key')).code, 3)
  t.is((await me(token)).status, 200)
  const { code, stdout } = await retire(kid, '--now', '--confirm', kid, '--json')
  t.is(code, 0)
  // Both accepted the token before.
  for (const at of [service, other]) t.is((await me(token, at)).status, 500)
  for (const at of [service, other]) {
    const next = await at.login(username)
    t.is(headerOf(next).kid, JSON.parse(stdout).successor)
    for (const each of [service, other]) t.is((await me(next, each)).status, 200)
  }

  // The already published key signs next.
  const rotated = JSON.parse((await runCli(service.env, ['keys', 'rotate', '--json'])).stdout)
  const { successor } = JSON.parse(stdout)
  const second = JSON.parse((await retire(successor, '--now', '--confirm', successor, '--json')).stdout)
  t.is(second.successor, rotated.kid)
  t.is(headerOf(await service.login(username)).kid, rotated.kid)
})
