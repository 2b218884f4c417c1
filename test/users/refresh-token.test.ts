/** Apps that stay signed in: who gets refresh tokens, what each is exchanged for, and what ends them. */
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import fc from 'fast-check'
import { openSignedIn } from '../_helpers/administration.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { enterByAnswers, saveAnswer } from '../_helpers/recovery.js'
import {
  password,
  serviceWithClock,
  signUpForm,
  startTestService,
  type TestService,
  teardownOfFile,
} from '../_helpers/service.js'
import { claimsOf } from '../_helpers/tokens.js'

const hooks = teardownOfFile()
const mailbox = mailboxForFile()
const day = 86_400
const settings = () => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url, AUTH_LIMIT_FACTOR: '1000' })

let at: Awaited<ReturnType<typeof serviceWithClock>>
test.serial.before(async () => {
  at = await serviceWithClock(hooks, settings())
})
const another = (more: Record<string, string> = {}) =>
  startTestService(hooks, { ...settings(), DATABASE_URL: at.env.DATABASE_URL!, ...more }, { clock: at.clock })

interface Tokens {
  readonly status: number
  readonly access_token: string
  readonly refresh_token: string
  readonly [name: string]: unknown
}

/** What a refresh token is exchanged for; or the error. */
async function exchange(refresh_token: string, on: TestService = at, more = {}): Promise<Tokens> {
  const body = new URLSearchParams({ grant_type: 'refresh_token', client_id: 'registry', refresh_token, ...more })
  const response = await fetch(`${on.http}/oauth/token`, { method: 'POST', body })
  return { ...((await response.json()) as Tokens), status: response.status }
}
const revoke = async (token: string) => {
  const body = new URLSearchParams({ client_id: 'registry', token })
  return (await fetch(`${at.http}/oauth/revoke`, { method: 'POST', body })).status
}
const seen = async (token: string, path = '/users/me', method = 'GET', on: TestService = at) => {
  const { status, json } = await on.request(method, path, { token })
  return status === 200 ? 200 : json.reason
}

/** An active user with an e-mail address. */
async function person(active = true) {
  const email = `${crypto.randomUUID()}@example.org`
  const user = await at.signUp('ROLE_INSTITUTION', { email })
  const { activationkey } = await at.organization()
  const activate = () =>
    at.request('POST', '/users/activate', { token: user.token, query: { username: user.username, activationkey } })
  if (active) await activate()
  return { ...user, email, activate }
}
const logIn = async (username: string, on: TestService = at) =>
  (await on.request('POST', '/users/login', { body: { username, password, stay: true } })).text
const begin = (token: string, on: TestService = at) => on.request('POST', '/users/me/refreshtoken', { token })
/** The first refresh token of a new session. */
const first = async (username: string): Promise<string> => (await begin(await logIn(username))).json.refreshToken

const reasonsOf = async (token: string): Promise<string[]> => {
  const { events } = (await at.request('GET', '/users/me/events', { token })).json
  return events
    .filter(({ action }: { action: string }) => action === 'session.end')
    .map(({ reason }: { reason: string }) => reason)
}

/** What happens to the app of a user who is alone with its device. */
type Event = 'use' | 'tabs' | 'lost' | 'seconds' | 'minutes'
const events = fc.constantFrom<Event>('use', 'tabs', 'lost', 'seconds', 'minutes')

/** An app whose device keeps one token. */
async function app(username: string) {
  let kept = await first(username)
  let ended = false
  const use = async () => {
    const { status, refresh_token } = await exchange(kept)
    if (status === 200) kept = refresh_token
    else ended = true
    return status
  }
  const happen: Record<Event, () => Promise<unknown>> = {
    use,
    // Both tabs have the token; the app keeps what the later one gets.
    tabs: async () => {
      const answers = await Promise.all([exchange(kept), exchange(kept)])
      if (answers.some(({ status }) => status !== 200)) ended = true
      else kept = answers[1]!.refresh_token
    },
    lost: async () => {
      if ((await exchange(kept)).status !== 200) ended = true
    },
    seconds: () => at.clock.pass(20),
    minutes: () => at.clock.pass(120),
  }
  return { use, happen, kept: () => kept, ended: () => ended }
}

test.serial(
  'an app alone with its tokens is never signed out: parallel use, lost answers and stops included',
  async t => {
    const { username } = await person()
    await fc.assert(
      fc.asyncProperty(fc.array(events, { minLength: 3, maxLength: 14 }), async order => {
        const { happen, ended } = await app(username)
        for (const event of order) await happen[event]()
        t.false(ended(), order.join())
      }),
      { numRuns: 15 },
    )
  },
)

test.serial(
  'whatever happened before, when a thief uses a copy and both go on, the line ends and its owner learns of it',
  async t => {
    const { username, email } = await person()
    const step = fc.oneof(events, fc.constant('theft' as const))
    await fc.assert(
      fc.asyncProperty(fc.array(events, { maxLength: 5 }), fc.array(step, { maxLength: 6 }), async (before, after) => {
        const own = await app(username)
        for (const event of before) await own.happen[event]()
        let copy = own.kept()
        const thief = async () => {
          const { status, refresh_token } = await exchange(copy)
          if (status === 200) copy = refresh_token
          return status
        }
        for (const event of after) await (event === 'theft' ? thief() : own.happen[event]())
        await thief()
        for (const use of [own.use, thief, own.use, thief]) {
          await at.clock.pass(120)
          await use()
        }
        t.deepEqual([await own.use(), await thief()], [400, 400], `${before} | ${after}`)
        t.regex((await mailbox.nextEmail(email)).text ?? '', /um token antigo/)
      }),
      { numRuns: 12 },
    )
  },
)

test.serial(
  'a copy that is used after the app advanced twice ends the line with COPIED; a revoked line with REVOKED',
  async t => {
    const { username, email } = await person()
    const own = await app(username)
    const copy = own.kept()
    t.deepEqual([await own.use(), await own.use()], [200, 200])
    t.like(await exchange(copy), { status: 400, error: 'invalid_grant' })
    t.is(await own.use(), 400)
    t.truthy(await mailbox.nextEmail(email))
    const other = await first(username)
    t.deepEqual([await revoke(other), await revoke(other), await revoke('nonsense')], [200, 200, 200])
    t.is((await exchange(other)).status, 400)
    t.deepEqual(await reasonsOf(await at.login(username)), ['REVOKED', 'COPIED'])
    const why = async () => {
      const { obstacles } = await (await openSignedIn(t, at)).explainUser({ user: username })
      const ended = obstacles.filter(({ prevents }) => prevents === 'stay signed in')
      return ended.map(({ reason }) => reason.replace(/\d{4}-\S+Z/, 'TIME'))
    }
    t.deepEqual(await why(), [
      'The refresh tokens of an app ended at TIME: they were revoked.',
      'The refresh tokens of an app ended at TIME: a copy of one was presented.',
    ])
    await at.clock.pass(31 * day)
    t.deepEqual(await why(), [])
  },
)

test.serial(
  'a token of a login with stay is for the registry alone, and is refreshed as one only on request',
  async t => {
    const { username } = await person()
    const token = await logIn(username)
    t.like(claimsOf(token), { aud: 'http://auth.test', stay: true, roles: ['ROLE_INSTITUTION'] })
    t.is(await seen(token), 200)
    const isActive = async (token: string) =>
      (await at.request('POST', '/auth.v1.Users/VerifyToken', { body: { token } })).json.active === true
    t.false(await isActive(token))
    const ordinary = (await at.request('GET', '/users/refresh', { token })).text
    t.true(await isActive(ordinary))
    t.like(claimsOf(ordinary), { aud: 'work-packages', stay: undefined })
    const again = (await at.request('GET', '/users/refresh', { token, query: { stay: 'true' } })).text
    t.like(claimsOf(again), { aud: 'http://auth.test', stay: true })
    // What was shown to services can’t become a token of the registry.
    const query = { stay: 'true' }
    t.like(claimsOf((await at.request('GET', '/users/refresh', { token: ordinary, query })).text), { stay: undefined })
    t.is(await seen(ordinary, '/users/me/refreshtoken', 'POST'), 'ACCESS_DENIED')
    const signedUp = await at.request('POST', '/users/signup', { body: { ...signUpForm(), stay: true } })
    t.like(claimsOf(signedUp.text), { stay: true, active: false })
  },
)

test.serial('a session has one line: within a minute the same answer again, later a second call ends it', async t => {
  const { username, email } = await person()
  const token = await logIn(username)
  const { refreshToken, expireTime } = (await begin(token)).json
  t.is(Date.parse(expireTime), (claimsOf(token).auth_time + 30 * day) * 1000)
  const again = (await begin(token)).json.refreshToken
  t.is((await exchange(refreshToken)).status, 200)
  t.is((await exchange(again)).status, 200)
  t.is(await seen(token, '/users/refresh'), 'INVALID_TOKEN')
  const late = await logIn(username)
  const kept = (await begin(late)).json.refreshToken
  await at.clock.pass(61)
  t.like((await begin(late)).json, { reason: 'INVALID_GRANT' })
  t.is((await exchange(kept)).status, 400)
  t.truthy(await mailbox.nextEmail(email))
})

test.serial(
  'a line lasts AUTH_SESSION_DAYS from its sign-in, however long the device sleeps, in every process',
  async t => {
    const { username } = await person()
    const other = await another()
    const token = await logIn(username)
    let kept = (await begin(token, other)).json.refreshToken
    await at.clock.pass(29 * day)
    const { access_token, refresh_token, expires_in, token_type } = await exchange(kept)
    t.deepEqual([expires_in, token_type], [3600, 'Bearer'])
    const { auth_time } = claimsOf(token)
    t.like(claimsOf(access_token), { aud: 'work-packages', auth_time, amr: ['pwd'], stay: undefined })
    t.is(claimsOf(access_token).jti.slice(0, 36), claimsOf(token).jti.slice(0, 36))
    t.is(await seen(access_token), 200)
    t.is(await seen(access_token, '/users/refresh'), 'INVALID_TOKEN')
    t.is(await seen(access_token, '/users/me/refreshtoken', 'POST'), 'ACCESS_DENIED')
    kept = (await exchange(refresh_token, other)).refresh_token
    await at.clock.pass(day - 60)
    const last = await exchange(kept)
    t.true(claimsOf(last.access_token).exp <= auth_time + 30 * day)
    await at.clock.pass(61)
    t.is((await exchange(last.refresh_token)).status, 400)
    const short = await another({ AUTH_SESSION_DAYS: '2' })
    kept = (await begin(await logIn(username, short), short)).json.refreshToken
    await at.clock.pass(2 * day)
    t.is((await exchange(kept, short)).status, 400)
  },
)

test.serial('a user who isn’t activated has a line; after activation its next access token is whole', async t => {
  const { username, activate } = await person(false)
  const before = await exchange(await first(username))
  t.like(claimsOf(before.access_token), { aud: 'http://auth.test', active: false, roles: [] })
  await activate()
  const after = await exchange(before.refresh_token)
  t.like(claimsOf(after.access_token), { aud: 'work-packages', active: true, roles: ['ROLE_INSTITUTION'] })
})

test.serial(
  'administrators, recoveries and registries with AUTH_STRICT have no refresh tokens; their tokens are refreshed',
  async t => {
    const admin = (await at.request('POST', '/users/login', { body: { username: 'admin', password, stay: true } })).text
    const { username } = await person()
    const strict = await another({ AUTH_STRICT: 'on' })
    const own = await logIn(username, strict)
    for (const [token, on] of [
      [admin, at],
      [own, strict],
    ] as const) {
      t.is(await seen(token, '/users/me/refreshtoken', 'POST', on), 'ACCESS_DENIED')
      t.like(claimsOf((await on.request('GET', '/users/refresh', { token })).text), { aud: 'work-packages' })
    }
    const kept = await first(username)
    t.is((await exchange(kept, strict)).status, 400)
    const pwd = await at.login(username)
    for (const question of [1, 2]) await saveAnswer(at, pwd, question, 'azul')
    const kba = (await enterByAnswers(at, username, 'azul')).text
    t.is(await seen(kba, '/users/me/refreshtoken', 'POST'), 'ACCESS_DENIED')
  },
)

test.serial('a line ends with the tokens of its user, with its sealing key, and by no guess', async t => {
  const { username } = await person()
  const kept = await first(username)
  for (const wrong of [
    `${kept}A`,
    kept.slice(0, -2),
    kept.replace(/.$/, c => (c === 'A' ? 'B' : 'A')),
    'sealed_000000000000AAAA',
    '',
    ' ',
  ])
    t.is((await exchange(wrong)).status, 400, wrong)
  for (const more of [{ client_id: 'nobody' }, { client_secret: 'authsvc_x' }])
    t.is((await exchange(kept, at, more)).status, 401)
  t.like(await exchange(kept, at, { grant_type: 'password' }), { status: 400, error: 'unsupported_grant_type' })
  t.is((await exchange(kept)).status, 200)
  const revoked = await first(username)
  await at.request('POST', '/users/revokemytokens', { token: await at.login(username) })
  t.like(await exchange(revoked), { status: 400, error: 'invalid_grant', reason: 'SIGNED_OUT' })
  const sealed = await first(username)
  const administration = await openSignedIn(t, at)
  const { sealingKeys } = await administration.listSigningKeys({})
  for (const { kid } of sealingKeys) await administration.retireSigningKey({ kid, confirm: kid })
  t.is((await exchange(sealed)).status, 400)
  const resealed = await first(username)
  t.is((await exchange(resealed)).status, 200)
})

test.serial('a refresh token that another process sealed with a new key is good at once, amid unknown ids', async t => {
  const { username } = await person()
  const other = await another()
  const until = Date.now() + 1_500
  const strangers = (async () => {
    for (let n = 0; Date.now() < until; n++) {
      await exchange(`sealed_${n.toString(16).padStart(12, '0')}${'A'.repeat(80)}`)
      await sleep(5)
    }
  })()
  await at.clock.pass(91 * day)
  await sleep(100)
  const sealed = (await begin(await logIn(username, other), other)).json.refreshToken
  t.is((await exchange(sealed)).status, 200)
  await strangers
})
