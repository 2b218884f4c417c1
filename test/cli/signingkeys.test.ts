/** `auth-admin keys`: signing keys change hands and nobody is logged out. */
import test from 'ava'
import { runCli } from '../_helpers/cli.js'
import { startTestService } from '../_helpers/service.js'

test('a new key waits before it signs, or takes over at once, and old tokens stay good', async t => {
  const service = await startTestService(t)
  const keys = async (...args: string[]) => {
    const { code, stdout, stderr } = await runCli(service.env, ['keys', ...args, '--json'])
    if (code !== 0) throw new Error(stderr)
    return { ...{ stderr }, json: JSON.parse(stdout) }
  }
  const states = async () => (await keys('list')).json.map(({ state }: { state: string }) => state)
  const { token } = await service.signUp('ROLE_CLIENT')
  t.deepEqual(await states(), ['signing'])
  const [first] = (await keys('list')).json
  t.deepEqual(Object.keys(first), ['kid', 'state', 'signs_at'])

  const rotated = (await keys('rotate')).json
  t.is(rotated.signs_in_seconds, 600)
  t.deepEqual(await states(), ['published', 'signing'])
  t.is((await keys('list')).json[0].kid, rotated.kid)
  t.is((await service.request('GET', '/users/me', { token })).status, 200)

  const now = await keys('rotate', '--now')
  t.regex(now.stderr, /^warning: [^\n]+\n$/)
  const all = (await keys('list')).json
  t.is(all.find(({ state }: { state: string }) => state === 'signing').kid, now.json.kid)
  t.true(all.some(({ kid, state }: { kid: string; state: string }) => kid === first.kid && state === 'retiring'))
  t.is((await service.request('GET', '/users/me', { token })).status, 200)

  const { stdout } = await runCli(service.env, ['keys', 'list'])
  t.true(stdout.includes(now.json.kid), 'a key id can be copied whole')
  t.true(stdout.split('\n').every(line => line.length <= 80))
  t.notRegex(stdout + JSON.stringify(all), /PRIVATE|"d"/)
  const events = await service.registry.audit.list({ action: 'signing-key.rotate', limit: 9 })
  t.deepEqual(
    events.map(({ object }) => object),
    [`signing-key:${rotated.kid}`, `signing-key:${now.json.kid}`],
  )
})
