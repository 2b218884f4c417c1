/** Refreshing: which tokens are refreshed, until when, and what is different in the next one. */
import test from 'ava'
import fc from 'fast-check'
import { openSignedIn } from '../_helpers/administration.js'
import { ask } from '../_helpers/database.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { enterByAnswers, saveAnswer } from '../_helpers/recovery.js'
import { password, serviceWithClock, startTestService, type TestService, teardownOfFile } from '../_helpers/service.js'
import { claimsOf, forge } from '../_helpers/tokens.js'

const hooks = teardownOfFile()
const mailbox = mailboxForFile()
const [hour, day] = [3600, 86_400]
const settings = () => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url })

let at: Awaited<ReturnType<typeof serviceWithClock>>
test.serial.before(async () => {
  at = await serviceWithClock(hooks, settings())
})

const another = (more = {}) =>
  startTestService(hooks, { ...settings(), DATABASE_URL: at.env.DATABASE_URL!, ...more }, { clock: at.clock })
const refresh = (token: string, on: TestService = at) => on.request('GET', '/users/refresh', { token })
const me = async (token: string) => (await at.request('GET', '/users/me', { token })).status
/** The token that a refresh returns; `refused` for the status of the contract. */
async function next(token: string, on?: TestService): Promise<string> {
  const { status, text, json } = await refresh(token, on)
  if (status === 200) return text
  return status === 500 && json.reason === 'INVALID_TOKEN' ? 'refused' : `${status} ${text}`
}

/** An activated user. */
async function activated(fields = {}) {
  const { activationkey } = await at.organization()
  const { username, token } = await at.signUp('ROLE_INSTITUTION', fields)
  await at.request('POST', '/users/activate', { token, query: { username, activationkey } })
  return username
}

test.serial(
  'an app refreshes until 24 hours after the sign-in; neither it nor a thief of a token goes on then',
  async t => {
    let owner = await at.login(await activated())
    const { auth_time: start } = claimsOf(owner)
    let thief = owner
    for (let minutes = 0; minutes < 23 * 60; minutes += 50) {
      await at.clock.pass(50 * 60)
      owner = await next(owner)
      thief = await next(thief)
      t.deepEqual(
        [claimsOf(owner), claimsOf(thief)].map(({ auth_time }) => auth_time),
        [start, start],
      )
      t.deepEqual(await Promise.all([owner, thief].map(me)), [200, 200])
    }
    await at.clock.pass(start + day - 60 - Math.floor(at.clock.now() / 1000))
    const last = [await next(owner), await next(thief)]
    t.deepEqual(
      last.map(token => claimsOf(token).exp),
      [start + day, start + day],
    )
    await at.clock.pass(61)
    for (const token of [...last, owner, thief]) {
      t.is(await next(token), 'refused')
      t.is(await me(token), 500)
    }
  },
)

test.serial('an expired token of any holder refreshes nothing, and a refresh stores nothing', async t => {
  const email = 'quiet@example.org'
  const username = await activated({ email })
  const pwd = await at.login(username)
  for (const question of [1, 2]) await saveAnswer(at, pwd, question, 'azul')
  const kba = (await enterByAnswers(at, username, 'azul')).text
  const otp = await forge(at, kba, { amr: ['otp'] })
  const all = [pwd, kba, otp, await next(pwd), await at.adminToken(), (await at.signUp('ROLE_CLIENT')).token]
  for (const token of all) t.not(await next(token), 'refused')
  await at.clock.pass(hour)
  for (const token of all) t.is(await next(token), 'refused')
  t.is((await ask(at.env.DATABASE_URL!, 'SELECT FROM refreshed_sessions')).length, 0)
  t.deepEqual(await at.registry.audit.list({ action: 'session.end', limit: 9 }), [])
})

test.serial('a session by recovery is refreshed for an hour', async t => {
  const username = await activated()
  const pwd = await at.login(username)
  for (const question of [1, 2]) await saveAnswer(at, pwd, question, 'azul')
  const kba = (await enterByAnswers(at, username, 'azul')).text
  const { auth_time, exp } = claimsOf(kba)
  await at.clock.pass(hour - 10)
  for (const amr of ['kba', 'otp']) {
    const token = await next(await forge(at, kba, { amr: [amr] }))
    t.like(claimsOf(token), { auth_time, exp, amr: [amr] })
  }
})

test.serial('with a longer AUTH_TOKEN_TTL a sign-in lasts as long, but a refresh doesn’t make it longer', async t => {
  const long = await another({ AUTH_TOKEN_TTL: '3d' })
  const token = await long.login(await activated())
  const { auth_time: start, exp } = claimsOf(token)
  t.is(exp, start + 3 * day)
  await at.clock.pass(day - 10)
  t.is(claimsOf(await next(token, long)).exp, exp)
  await at.clock.pass(10)
  const { status, json } = await refresh(token, long)
  t.is(status, 500)
  t.like(json, { reason: 'INVALID_TOKEN', detail: 'The sign-in was too long ago to refresh its token. Log in again.' })
  t.is((await long.request('GET', '/users/me', { token })).status, 200)
})

test.serial('after activation a refresh returns a whole token, also of a token from before', async t => {
  const { activationkey } = await at.organization()
  const { username, token } = await at.signUp('ROLE_INSTITUTION')
  const second = await next(token)
  const registry = { aud: 'http://auth.test', roles: [], active: false, client_id: 'registry' }
  t.like(claimsOf(token), registry)
  t.like(claimsOf(second), registry)
  await at.request('POST', '/users/activate', { token, query: { username, activationkey } })
  t.is(await me(token), 200)
  const whole = { aud: 'work-packages', roles: ['ROLE_INSTITUTION'], active: true }
  for (const each of [token, second]) t.like(claimsOf(await next(each)), whole)
})

test.serial(
  'no two tokens have the same id, however many begin at once; all of a session begin with its id',
  async t => {
    const servers = [at, await another()]
    const username = await activated()
    const ids = new Set<string>()
    const step = fc.record({ logIns: fc.nat(3), refreshes: fc.array(fc.nat(20), { maxLength: 12 }) })
    const property = fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 4 }), async steps => {
      const tokens = [await at.login(username)]
      const add = (token: string) => {
        const { jti } = claimsOf(token)
        if (ids.has(jti)) throw new Error(`twice: ${jti}`)
        // 1.0.0 takes what follows the id of the session as a number.
        if (!/^[\da-f-]{36}-/.test(jti) || !Number.isNaN(Number(jti.slice(37)))) throw new Error(jti)
        ids.add(jti)
        tokens.push(token)
      }
      for (const { logIns, refreshes } of steps) {
        const added = [
          ...Array.from({ length: logIns }, (_, index) => servers[index % 2]!.login(username)),
          ...refreshes.map(async (chosen, index) => {
            const former = tokens[chosen % tokens.length]!
            const token = await next(former, servers[index % 2])
            if (claimsOf(token).jti.slice(0, 36) !== claimsOf(former).jti.slice(0, 36))
              throw new Error('another session')
            return token
          }),
        ]
        for (const token of await Promise.all(added)) add(token)
      }
    })
    await t.notThrowsAsync(fc.assert(property, { numRuns: 12 }))
    t.true(ids.size > 20)
  },
)

test.serial(
  'tokens of 1.0.0, with the id of the session alone or a number, are valid and refreshed in their session',
  async t => {
    const token = await at.login(await activated())
    const session = claimsOf(token).jti.slice(0, 36)
    for (const jti of [session, `${session}-1`, `${session}-12`]) {
      const former = await forge(at, token, { jti })
      t.is(await me(former), 200)
      t.is(claimsOf(await next(former)).jti.slice(0, 37), `${session}-`)
    }
  },
)

test.serial(
  'another e-mail address ends recoveries, but for the one that confirmed it and those that begin afterwards',
  async t => {
    const email = 'former@example.org'
    const username = await activated({ email })
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
