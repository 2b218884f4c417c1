/** Refreshing: one line of tokens for each session, expired tokens, and what ends a session. */
import test from 'ava'
import fc from 'fast-check'
import { refreshOf } from '../../server/models/refreshed-session.js'
import { publishLead } from '../../server/models/signing-key.js'
import { openSignedIn } from '../_helpers/administration.js'
import { ask } from '../_helpers/database.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { refused } from '../_helpers/problem.js'
import { enterByAnswers, saveAnswer } from '../_helpers/recovery.js'
import { password, serviceWithClock, startTestService, type TestService, teardownOfFile } from '../_helpers/service.js'
import { claimsOf, forge, headerOf } from '../_helpers/tokens.js'

const hooks = teardownOfFile()
const mailbox = mailboxForFile()
const [hour, day] = [3600, 86_400]
const settings = () => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url })

let at: Awaited<ReturnType<typeof serviceWithClock>>
let strict: TestService
test.serial.before(async () => {
  at = await serviceWithClock(hooks, settings())
  const shared = { ...settings(), DATABASE_URL: at.env.DATABASE_URL!, AUTH_STRICT: 'on' }
  strict = await startTestService(hooks, shared, { clock: at.clock })
})

const refresh = (token: string, on: TestService = at) => on.request('GET', '/users/refresh', { token })
const me = async (token: string) => (await at.request('GET', '/users/me', { token })).status
/** The token that a refresh returns; `refused` for the status of the contract. */
async function next(token: string, on?: TestService): Promise<string> {
  const { status, text, json } = await refresh(token, on)
  if (status === 200) return text
  return status === 500 && json.reason === 'INVALID_TOKEN' ? 'refused' : `${status} ${text}`
}

/** An activated user, with a session whose first tokens are given, oldest first. */
async function sessionWith(tokens: number, fields = {}) {
  const { activationkey } = await at.organization()
  const { username, token } = await at.signUp('ROLE_INSTITUTION', fields)
  await at.request('POST', '/users/activate', { token, query: { username, activationkey } })
  const all = [await at.login(username)]
  while (all.length < tokens) all.push(await next(all.at(-1)!))
  return { username, all }
}

const events = async (token: string) => {
  const { json } = await at.request('GET', '/users/me/events', { token })
  return json.events.filter(({ action }: { action: string }) => action === 'session.end').length
}

// newest, ended, number, expired, wakes → result
const table = `
-  -      0  -        -      next
-  -      0  expired  wakes  next
-  -      0  expired  -      refused
-  -      1  -        -      refused
-  -      1  expired  wakes  refused
3  -      3  -        -      next
3  -      3  expired  wakes  next
3  -      3  expired  -      refused
3  -      2  -        -      newest
3  -      2  expired  wakes  newest
3  -      2  expired  -      refused
3  -      1  -        -      refused
3  -      1  expired  wakes  copied
3  -      1  expired  -      copied
3  -      0  expired  wakes  copied
3  -      4  -        -      refused
3  -      4  expired  wakes  refused
1  -      0  expired  wakes  newest
3  ended  3  -        -      refused
3  ended  3  expired  wakes  refused
3  ended  2  -        -      refused
3  ended  1  expired  wakes  refused
`

test('what a token gets, by its place in the line of its session', t => {
  for (const row of table.trim().split('\n')) {
    const [newest, ended, number, expired, wakes, expected] = row.split(/ +/)
    const line = newest === '-' ? undefined : { newest: Number(newest), ended: ended === 'ended' }
    const token = { number: Number(number), expired: expired === 'expired', wakes: wakes === 'wakes' }
    t.is(refreshOf(line, token), expected as ReturnType<typeof refreshOf>, row)
  }
})

test.serial('a phone that slept for weeks stays signed in until 30 days after its sign-in, and no longer', async t => {
  const { username, all } = await sessionWith(1)
  await at.clock.pass(20 * day)
  refused(t, await at.request('GET', '/users/me', { token: all[0]! }), 500, 'INVALID_TOKEN')
  const token = await next(all[0]!)
  const claims = claimsOf(token)
  t.deepEqual(
    [claims.username, claims.auth_time, claims.exp - claims.iat],
    [username, claimsOf(all[0]!).auth_time, hour],
  )
  t.is(await me(token), 200)
  await at.clock.pass(10 * day - 60)
  const last = await next(token)
  t.is(claimsOf(last).exp, claims.auth_time + 30 * day)
  await at.clock.pass(60)
  for (const each of [all[0]!, token, last]) t.is(await next(each), 'refused')
  t.is(await events(await at.login(username)), 0)
})

test.serial(
  'until the newest token is refreshed, the one before it gets the newest again, and the session has one row',
  async t => {
    const { all } = await sessionWith(1)
    const [first] = all as [string]
    const rows = () => ask(at.env.DATABASE_URL!, `SELECT FROM refreshed_sessions WHERE id = '${claimsOf(first).jti}'`)
    t.is((await rows()).length, 0)
    const ids = new Set()
    // A client that never stores a new token.
    for (let hours = 0; hours < 5; hours++) {
      const token = await next(first)
      ids.add(claimsOf(token).jti)
      t.is(await me(token), 200)
      await at.clock.pass(1.5 * hour)
    }
    t.is(ids.size, 1)
    t.not([...ids][0], claimsOf(first).jti)
    t.is((await rows()).length, 1)
  },
)

test.serial(
  'an older token is refused while it is valid; once expired, it ends its session alone, and tells once',
  async t => {
    const email = 'copied@example.org'
    const { username, all } = await sessionWith(3, { email })
    const [first, second, third] = all as [string, string, string]
    const other = await at.login(username)
    t.is(await next(first), 'refused')
    t.is(await me(first), 200)
    t.is(claimsOf(await next(second)).jti, claimsOf(third).jti)
    await at.clock.pass(hour + 1)
    const latest = await next(third)
    // At the same time, too.
    for (const token of await Promise.all(Array.from({ length: 6 }, () => next(first)))) t.is(token, 'refused')
    for (const token of [latest, third, second, first]) t.is(await next(token), 'refused')
    // Nothing else ends.
    t.is(await me(latest), 200)
    t.not(await next(other), 'refused')
    t.is(await events(await at.login(username)), 1)
    const { subject = '', text = '' } = await mailbox.nextEmail(email)
    t.is(subject, 'Alguém pode estar usando uma cópia do seu acesso')
    t.true(text.includes(username.replaceAll(/[()]/g, '').slice(0, 2)))
  },
)

test.serial('an inactive owner gets no e-mail of a copy, and the session ends', async t => {
  const { token } = await at.signUp('ROLE_CLIENT', { email: 'stranger@example.org' })
  const third = await next(await next(token))
  await at.clock.pass(hour + 1)
  t.is(await next(token), 'refused')
  t.is(await next(third), 'refused')
  const queued = await at.registry.emails.list({ limit: 100 })
  t.false(queued.some(({ kind }) => kind === 'session-ended'))
})

test.serial(
  'no expired token wakes a session of a ROLE_ADMIN, by answers or mailed key, or under AUTH_STRICT',
  async t => {
    const { all } = await sessionWith(1)
    const admin = await at.adminToken()
    const { username } = await sessionWith(1)
    const pwd = await at.login(username)
    for (const question of [1, 2]) await saveAnswer(at, pwd, question, 'azul')
    const kba = (await enterByAnswers(at, username, 'azul')).text
    const otp = await forge(at, pwd, { amr: ['otp'] })
    const short = { exp: claimsOf(kba).iat + 600 }
    const dying = [await forge(at, kba, short), await forge(at, otp, short)]
    for (const token of [admin, kba, otp]) t.not(await next(token), 'refused')
    t.not(await next(all[0]!, strict), 'refused')
    await at.clock.pass(601)
    for (const token of dying) t.is(await next(token), 'refused')
    await at.clock.pass(hour)
    for (const token of [admin, kba, otp]) t.is(await next(token), 'refused')
    t.is(await next(all[0]!, strict), 'refused')
    t.not(await next(all[0]!), 'refused')
  },
)

test.serial('a token that the registry doesn’t know is refused without an alarm', async t => {
  const { username, all } = await sessionWith(1)
  const jti = claimsOf(all[0]!).jti
  const lost = await forge(at, all[0]!, { jti: `${jti}-3` })
  t.is(await next(lost), 'refused')
  await next(all[0]!)
  await at.clock.pass(hour + 1)
  t.is(await next(lost), 'refused')
  t.not(await next(all[0]!), 'refused')
  t.is(await events(await at.login(username)), 0)
})

test.serial('what revokes tokens also ends the refreshing of expired ones, without an alarm', async t => {
  const { username, all } = await sessionWith(3)
  await at.clock.pass(hour + 1)
  const api = await openSignedIn(hooks, at)
  await api.suspendUser({ user: username })
  for (const token of all) t.is(await next(token), 'refused')
  await api.resumeUser({ user: username })
  for (const token of all) t.is(await next(token), 'refused')
  t.is(await events(await at.login(username)), 0)
})

test.serial(
  'after activation the next refresh returns a whole token, also from the token before the newest',
  async t => {
    const { activationkey } = await at.organization()
    const { username, token } = await at.signUp('ROLE_INSTITUTION')
    const second = await next(token)
    const registry = { aud: 'http://auth.test', roles: [], active: false, client_id: 'registry' }
    t.like(claimsOf(token), registry)
    t.like(claimsOf(second), registry)
    await at.request('POST', '/users/activate', { token, query: { username, activationkey } })
    t.is(await me(token), 200)
    const whole = { aud: 'work-packages', roles: ['ROLE_INSTITUTION'], active: true }
    t.like(claimsOf(await next(token)), { ...whole, jti: claimsOf(second).jti })
    t.like(claimsOf(await next(second)), whole)
  },
)

test.serial('a superseded key refreshes for 30 days, unpublished; a retired one at once refreshes nothing', async t => {
  const { all } = await sessionWith(1)
  const { all: retired } = await sessionWith(1)
  const { kid } = headerOf(all[0]!)
  const api = await openSignedIn(hooks, at)
  await api.rotateSigningKey({ now: true })
  await at.clock.pass(publishLead + 13 * hour)
  const { json } = await at.request('GET', '/.well-known/jwks.json')
  t.false(json.keys.some((key: { kid: string }) => key.kid === kid))
  const forged = await forge(at, all[0]!, {
    iat: claimsOf(all[0]!).iat + 13 * hour,
    exp: claimsOf(all[0]!).exp + 13 * hour,
  })
  t.is(await me(forged), 500)
  t.is(await me(await next(all[0]!)), 200)
  const again = await openSignedIn(hooks, at)
  t.true((await again.listSigningKeys({})).keys.some(key => key.kid === kid))
  await again.retireSigningKey({ kid, confirm: kid })
  t.is(await next(retired[0]!), 'refused')
})

test.serial(
  'tabs, servers, lost answers and restarts: a session stays one line, and no honest client is lost',
  async t => {
    const shared = { ...settings(), DATABASE_URL: at.env.DATABASE_URL! }
    let servers = [at, await startTestService(hooks, shared, { clock: at.clock })]
    const tab = fc.record({ server: fc.nat(1), lost: fc.boolean() })
    const step = fc.oneof(
      { weight: 6, arbitrary: fc.record({ tabs: fc.array(tab, { minLength: 1, maxLength: 5 }) }) },
      { weight: 3, arbitrary: fc.record({ sleep: fc.constantFrom(1, hour + 1, 9 * hour) }) },
      { weight: 1, arbitrary: fc.constant({ restart: true as const }) },
    )
    const property = fc.asyncProperty(fc.array(step, { minLength: 2, maxLength: 10 }), async steps => {
      const { username } = await sessionWith(1)
      let stored = await at.login(username)
      const issued = new Map<number, string>()
      for (const each of steps) {
        if ('sleep' in each) await at.clock.pass(each.sleep)
        if ('restart' in each) {
          await servers[1]!.service.stop()
          servers = [at, await startTestService(hooks, shared, { clock: at.clock })]
        }
        if (!('tabs' in each)) continue
        const answers = await Promise.all(
          each.tabs.map(async ({ server, lost }) => ({ lost, token: await next(stored, servers[server]) })),
        )
        const ids = new Set(answers.map(({ token }) => claimsOf(token).jti))
        if (ids.size !== 1) throw new Error(`two lines: ${[...ids]}`)
        const [id = ''] = ids as Set<string>
        const number = Number(id.slice(37))
        if ((issued.get(number) ?? id) !== id) throw new Error(`two tokens with the number ${number}`)
        issued.set(number, id)
        stored = answers.find(({ lost }) => !lost)?.token ?? stored
      }
      if ((await next(stored)) === 'refused') throw new Error('lost')
      if ((await events(await at.login(username))) !== 0) throw new Error('a false alarm')
    })
    await t.notThrowsAsync(fc.assert(property, { numRuns: 12 }))
  },
)

test.serial(
  'another e-mail address ends recoveries, but for the one that confirmed it and those that begin afterwards',
  async t => {
    const email = 'former@example.org'
    const { username } = await sessionWith(1, { email })
    const pwd = await at.login(username)
    for (const question of [1, 2]) await saveAnswer(at, pwd, question, 'azul')
    const enter = async () => (await enterByAnswers(at, username, 'azul')).text
    const [confirming, kba] = [await enter(), await enter()]
    const otp = await forge(at, kba, { amr: ['otp'] })
    const refreshed = await next(kba)
    const to = 'next@example.org'
    const body = { email: to, password }
    t.is((await at.request('POST', '/users/setemail', { token: confirming, body })).status, 200)
    const { text = '' } = await mailbox.nextEmail(to)
    const [, code = ''] = /: ([2-9A-HJ-NP-Z]{8})$/m.exec(text) ?? []
    t.is((await at.request('POST', '/users/confirmemail', { token: confirming, body: { code } })).status, 200)
    const kept = [pwd, confirming, await next(confirming), await enter()]
    t.deepEqual(await Promise.all(kept.map(me)), [200, 200, 200, 200])
    t.deepEqual(await Promise.all([kba, refreshed, otp].map(me)), [500, 500, 500])
    t.is(await next(kba), 'refused')
    // By an administrator: no session confirmed it.
    const api = await openSignedIn(hooks, at)
    await api.updateUser({ user: username, form: { email: 'third@example.org' }, updateMask: { paths: ['email'] } })
    t.deepEqual(await Promise.all([pwd, confirming].map(me)), [200, 500])
    t.is(await me(await enter()), 200)
  },
)
