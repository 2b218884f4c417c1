/** What clients of OpenID Connect hold: what each code and token is good for, how often, and what ends it. */
import { createHash, createPublicKey, randomUUID } from 'node:crypto'
import test from 'ava'
import fc from 'fast-check'
import jwt from 'jsonwebtoken'
import { TOTP } from 'otpauth'
import { isRegistered, isReturnUri } from '../../server/rules/return-uri.js'
import {
  type AdministrationClient,
  anotherAdministrator,
  openAdministration,
  openSignedIn,
  reasonOf,
  wrongFieldsOf,
} from '../_helpers/administration.js'
import { type Clock, createStoppedClock, stopClock } from '../_helpers/clock.js'
import { ask, freshDatabase } from '../_helpers/database.js'
import { databaseFor } from '../_helpers/installed.js'
import { password, startTestService, type TestService, teardownOfFile } from '../_helpers/service.js'
import { forge } from '../_helpers/tokens.js'

const hooks = teardownOfFile()
const issuer = 'http://127.0.0.1:26480'
const settings = { AUTH_ADMIN_ADDRESS: '127.0.0.1:0', AUTH_ISSUER: issuer, AUTH_LIMIT_FACTOR: '1000' }
const uri = 'https://tool.example.org/callback'
const everything = 'openid profile email roles groups offline_access'

let at: TestService & { readonly clock: Clock }
let admin: AdministrationClient
let user: Awaited<ReturnType<TestService['institution']>>
test.serial.before(async () => {
  const url = await freshDatabase(hooks, { from: 'template0' })
  await stopClock(url)
  const clock = await createStoppedClock(hooks, url)
  at = { ...(await startTestService(hooks, { ...settings, DATABASE_URL: url }, { clock })), clock }
  admin = await openSignedIn(hooks, at)
  user = await at.institution(await at.organization())
})
test.serial.beforeEach(async () => {
  // A session of Administration lasts 12 hours, and some of its RPCs need one of the last 15 minutes.
  admin = await openSignedIn(hooks, at)
})

interface Tool {
  readonly name: string
  /** Absent: a client without a secret. */
  readonly secret: string | undefined
}

async function register({ isPublic = false, ...more } = {}): Promise<Tool> {
  const name = `tool-${randomUUID()}`
  const { key } = await admin.createService({ name, redirectUris: [uri], public: isPublic, ...more })
  return { name, secret: key || undefined }
}

const logIn = async ({ username }: { username: string } = user) =>
  (await at.request('POST', '/users/login', { body: { username, password, stay: true } })).text

const verifier = 'v'.repeat(43)
const challenge = createHash('sha256').update(verifier).digest('base64url')

/** The answer to a request for a code. */
async function authorize({ name }: Tool, token: string, more = {}, oneTimeCode?: string, on: TestService = at) {
  const pkce = { codeChallenge: challenge, codeChallengeMethod: 'S256' }
  const asked = {
    clientId: name,
    redirectUri: uri,
    responseType: 'code',
    scope: everything,
    state: 's',
    ...pkce,
    ...more,
  }
  const body = { authorization: asked, oneTimeCode }
  const { json } = await on.request('POST', '/auth.v1.OpenId/Authorize', { token, body })
  const location = json.location && new URL(json.location)
  const reason = json.details?.find(({ debug }: { debug?: { reason?: string } }) => debug?.reason)?.debug.reason
  return {
    location,
    code: location?.searchParams.get('code') as string,
    reason: reason ?? json.reason ?? json.code,
    json,
  }
}

async function post(path: string, form: Record<string, string>, on: TestService = at) {
  const response = await fetch(`${on.http}${path}`, { method: 'POST', body: new URLSearchParams(form) })
  const text = await response.text()
  return { status: response.status, ...(text && JSON.parse(text)) }
}
const credentials = ({ name, secret }: Tool) => ({ client_id: name, ...(secret && { client_secret: secret }) })
const trade = (tool: Tool, code: string, more = {}, on: TestService = at) => {
  const grant = { grant_type: 'authorization_code', code, redirect_uri: uri, code_verifier: verifier }
  return post('/oauth/token', { ...credentials(tool), ...grant, ...more }, on)
}
const refresh = (tool: Tool, refresh_token: string, on: TestService = at) =>
  post('/oauth/token', { ...credentials(tool), grant_type: 'refresh_token', refresh_token }, on)
const userInfo = async (token: string, on: TestService = at) =>
  (await fetch(`${on.http}/oauth/userinfo`, { headers: { authorization: `Bearer ${token}` } })).status

/** The tokens of a new sign-in at a client. */
const enter = async (tool: Tool, token?: string) => trade(tool, (await authorize(tool, token ?? (await logIn()))).code)
const keySet = async () => (await at.request('GET', '/oauth/keys')).json.keys as { kid: string }[]

test.serial('of five exchanges of a code at once one wins, and a later use ends what the client has', async t => {
  const tool = await register()
  const { code } = await authorize(tool, await logIn())
  const answers = await Promise.all(Array.from({ length: 5 }, () => trade(tool, code)))
  t.deepEqual(answers.map(({ status }) => status).sort(), [200, 400, 400, 400, 400])
  const { code: other } = await authorize(tool, await logIn())
  const tokens = await trade(tool, other)
  t.is(await userInfo(tokens.access_token), 200)
  t.like(await trade(tool, other), { status: 400, error: 'invalid_grant' })
  t.is(await userInfo(tokens.access_token), 401)
  t.is((await refresh(tool, tokens.refresh_token)).status, 400)
})

test.serial('a code is good for a minute, for its client, redirect URI and verifier alone', async t => {
  const [tool, other] = [await register(), await register()]
  const { code } = await authorize(tool, await logIn())
  for (const more of [{ redirect_uri: `${uri}/` }, { code_verifier: 'w'.repeat(43) }, { code_verifier: '' }])
    t.is((await trade(tool, code, more)).status, 400)
  t.is((await trade(other, code)).error, 'invalid_grant')
  t.is((await trade({ name: tool.name, secret: other.secret }, code)).error, 'invalid_client')
  t.is((await trade({ name: tool.name, secret: undefined }, code)).error, 'invalid_client')
  t.is((await trade(tool, '')).error, 'invalid_request')
  t.is((await trade(tool, code)).status, 200)
  const { code: late } = await authorize(tool, await logIn())
  await at.clock.pass(61)
  t.is((await trade(tool, late)).status, 400)
})

test.serial('a code, an access token and a refresh token are each good at their own place alone', async t => {
  const tool = await register()
  const { access_token, refresh_token } = await enter(tool)
  const { code } = await authorize(tool, await logIn())
  for (const other of [code, refresh_token]) t.is(await userInfo(other), 401)
  for (const other of [code, access_token]) t.is((await refresh(tool, other)).error, 'invalid_grant')
  for (const other of [access_token, refresh_token]) t.is((await trade(tool, other)).error, 'invalid_grant')
  const statuses = [await userInfo(access_token), (await refresh(tool, refresh_token)).status]
  t.deepEqual([...statuses, (await trade(tool, code)).status], [200, 200, 200])
})

test.serial(
  'a verifier has 43 to 128 unreserved characters, and is given if and only if there is a challenge',
  async t => {
    const tool = await register()
    const challenged = async (text: string) => {
      const codeChallenge = createHash('sha256').update(text).digest('base64url')
      const { code } = await authorize(tool, await logIn(), { codeChallenge })
      return (await trade(tool, code, { code_verifier: text })).error
    }
    for (const right of ['aZ09-._~'.repeat(6), 'v'.repeat(43), 'v'.repeat(128)])
      t.is(await challenged(right), undefined)
    for (const wrong of ['v'.repeat(42), 'v'.repeat(129), 'é'.repeat(43), `${verifier} `])
      t.is(await challenged(wrong), 'invalid_grant', wrong)
    const plain = { codeChallenge: undefined, codeChallengeMethod: undefined }
    for (const [code_verifier, status] of [
      [verifier, 400],
      ['v', 400],
      ['', 200],
    ] as const)
      t.is((await trade(tool, (await authorize(tool, await logIn(), plain)).code, { code_verifier })).status, status)
  },
)

test.serial(
  'a client with a secret may present its former refresh token again; one without loses its line by any reuse',
  async t => {
    const [tool, open] = [await register(), await register({ isPublic: true })]
    const { refresh_token } = await enter(tool)
    const parallel = await Promise.all(Array.from({ length: 4 }, () => refresh(tool, refresh_token)))
    t.deepEqual(
      parallel.map(({ status }) => status),
      [200, 200, 200, 200],
    )
    await at.clock.pass(600)
    const again = await refresh(tool, refresh_token)
    const next = await refresh(tool, again.refresh_token)
    t.deepEqual([again.status, next.status], [200, 200])
    t.is((await refresh(tool, refresh_token)).status, 400)
    t.is((await refresh(tool, next.refresh_token)).status, 400)
    const first = await enter(open)
    const second = await refresh(open, first.refresh_token)
    t.is(second.status, 200)
    t.is((await refresh(open, first.refresh_token)).status, 400)
    t.is((await refresh(open, second.refresh_token)).status, 400)
    const events = (await at.request('GET', '/users/me/events', { token: await at.login(user.username) })).json.events
    t.like(
      events.find(({ action }: { action: string }) => action === 'session.end'),
      { reason: 'COPIED', service: open.name },
    )
    const { obstacles } = await admin.explainUser({ user: user.username })
    const ended = obstacles.find(({ prevents }) => prevents === 'stay signed in')!.reason
    t.regex(
      ended,
      new RegExp(`^The refresh tokens of the tool ${open.name} ended at 2\\S+Z: a copy of one was presented.$`),
    )
  },
)

test.serial('what the registry takes away, a client loses: code, access token and refresh token', async t => {
  const ways: Record<string, (tool: Tool) => Promise<unknown>> = {
    'tokens revoked': async () => at.request('POST', '/users/revokemytokens', { token: await at.login(user.username) }),
    'suspended, resumed': async () => {
      await admin.suspendUser({ user: user.username })
      await admin.resumeUser({ user: user.username })
    },
    'redirect URI removed': ({ name }) =>
      admin.updateService({ name, form: { redirectUris: [`${uri}2`] }, updateMask: { paths: ['redirect_uris'] } }),
    'key deleted': async ({ name }) => {
      const { service } = await admin.getService({ name })
      await admin.deleteServiceKey({ name, id: service!.keys[0]!.id })
    },
    'service deleted': ({ name }) => admin.deleteService({ name, confirm: name }),
    'service deleted, and another of its name': async ({ name }) => {
      await admin.deleteService({ name, confirm: name })
      await admin.createService({ name, redirectUris: [uri] })
    },
    'sealing key retired': async () => {
      for (const { kid } of (await admin.listSigningKeys({})).sealingKeys) {
        await admin.retireSigningKey({ kid, confirm: kid })
        admin = await openSignedIn(hooks, at)
      }
    },
  }
  for (const [name, happen] of Object.entries(ways)) {
    const tool = await register()
    const { access_token, refresh_token } = await enter(tool)
    const { code } = await authorize(tool, await logIn())
    t.is(await userInfo(access_token), 200, name)
    await happen(tool)
    // Service keys are cached for a second.
    await at.clock.pass(2)
    t.is(await userInfo(access_token), 401, name)
    t.not((await refresh(tool, refresh_token)).status, 200, name)
    t.not((await trade(tool, code)).status, 200, name)
  }
})

test.serial('a client changes its secret without signing anybody out: the next refresh is by the new one', async t => {
  const tool = await register()
  const { refresh_token } = await enter(tool)
  const { key, service } = await admin.createServiceKey({ name: tool.name })
  const renewed = { name: tool.name, secret: key }
  const next = await refresh(renewed, refresh_token)
  await admin.deleteServiceKey({ name: tool.name, id: service!.keys[0]!.id })
  t.is((await refresh(renewed, next.refresh_token)).status, 200)
  t.is((await refresh(renewed, refresh_token)).status, 400)
})

test.serial(
  'the browser’s session opens a client only as long as it holds, is recent enough, and is one by password',
  async t => {
    const tool = await register()
    const token = await logIn()
    await at.clock.pass(100)
    t.is((await authorize(tool, token, { maxAge: '90' })).reason, 'SIGN_IN_AGAIN')
    t.truthy((await authorize(tool, token, { maxAge: '900' })).code)
    const { id_token } = await enter(tool, token)
    t.truthy((await authorize(tool, token, { idTokenHint: id_token })).code)
    const other = await at.institution(await at.organization())
    t.is((await authorize(tool, await logIn(other), { idTokenHint: id_token })).reason, 'SIGN_IN_AGAIN')
    for (const method of ['kba', 'otp'])
      t.is((await authorize(tool, await forge(at, token, { amr: [method] }))).reason, 'ACCESS_DENIED')
    const newcomer = await at.signUp('ROLE_INSTITUTION')
    t.is((await authorize(tool, await logIn(newcomer))).reason, 'WRONG_STATE')
    t.is((await at.request('POST', '/auth.v1.OpenId/SignOut', { token, body: {} })).status, 200)
    t.is((await authorize(tool, token)).reason, 'INVALID_TOKEN')
    t.is((await at.request('GET', '/users/refresh', { token, query: { stay: 'true' } })).status, 500)
  },
)

test.serial('an administrator who enrolled gives a one-time code, once a session; a wrong one is counted', async t => {
  const tool = await register()
  const { username, api } = await anotherAdministrator(hooks, at, admin)
  const { secret } = await api.enrollTotp({})
  const code = () => new TOTP({ secret }).generate({ timestamp: at.clock.now() })
  await api.confirmTotp({ code: code() })
  await at.clock.pass(60)
  const token = await logIn({ username })
  t.is((await authorize(tool, token)).reason, 'CODE_NEEDED')
  t.is((await authorize(tool, token, {}, '000000')).reason, 'INVALID_CREDENTIALS')
  const { code: granted, json } = await authorize(tool, token, {}, code())
  const { amr } = jwt.decode((await trade(tool, granted)).id_token) as { amr: string[] }
  t.deepEqual(amr, ['pwd', 'otp'])
  t.truthy((await authorize(tool, json.token)).code)
  const actions = (await at.registry.audit.list({ action: 'session.authorize', limit: 9 })).map(
    ({ outcome, reason }) => reason ?? outcome,
  )
  for (const expected of ['CODE_NEEDED', 'WRONG_CODE', 'ok']) t.true(actions.includes(expected), `${actions}`)
})

test.serial(
  'an anonymous request stores nothing, and a session leaves one event at a client, however often it asks',
  async t => {
    const tool = await register()
    const count = async () =>
      (
        await ask(
          at.env.DATABASE_URL!,
          `SELECT (SELECT count(*) FROM refreshed_sessions)::int AS lines,
      (SELECT count(*) FROM audit_events WHERE object = 'service:${tool.name}' AND action = 'session.authorize')::int
        + (SELECT count(*) FROM audit_staged WHERE object = 'service:${tool.name}' AND action = 'session.authorize')::int AS events`,
        )
      )[0] as { lines: number; events: number }
    const before = await count()
    const authorization = { clientId: tool.name, redirectUri: uri, responseType: 'code', scope: 'openid' }
    const body = { authorization }
    const { status, json } = await at.request('POST', '/auth.v1.OpenId/CheckAuthorization', { body })
    t.is(status, 200)
    t.like(json, { issuer, loginRequiredLocation: `${uri}?error=login_required&iss=${encodeURIComponent(issuer)}` })
    const token = await logIn()
    await authorize(tool, token)
    t.deepEqual(await count(), before)
    for (let times = 0; times < 3; times++) await enter(tool, token)
    t.deepEqual(await count(), { lines: before.lines + 3, events: 1 })
  },
)

test.serial(
  'ID tokens have keys of their own: a retired one ends at once, and the next published one signs',
  async t => {
    const tool = await register()
    const { id_token, access_token } = await enter(tool)
    const keys = await keySet()
    t.is(keys.length, 2)
    for (const key of keys) t.deepEqual(Object.keys(key).sort(), ['alg', 'e', 'kid', 'kty', 'n', 'use'])
    const { header, payload } = jwt.decode(id_token, { complete: true })!
    t.is(header.kid, keys[0]!.kid)
    const key = createPublicKey({ key: keys[0] as never, format: 'jwk' })
    t.like(jwt.verify(id_token, key, { algorithms: ['RS256'], issuer, audience: tool.name, ignoreExpiration: true }), {
      sub: (payload as jwt.JwtPayload).sub,
      amr: ['pwd'],
      roles: ['ROLE_INSTITUTION'],
      at_hash: createHash('sha256').update(access_token).digest().subarray(0, 16).toString('base64url'),
    })
    // Neither is taken for the other.
    t.is((await at.request('GET', '/users/me', { token: id_token })).status, 500)
    t.is(await userInfo(await at.login(user.username)), 401)
    const subOf = async (idTokenHint: string) =>
      (await at.request('POST', '/auth.v1.OpenId/CheckSignOut', { body: { idTokenHint } })).json.sub
    const [head, body, signature] = id_token.split('.')
    t.is(await subOf(id_token), (payload as jwt.JwtPayload).sub)
    const encode = (part: object) => Buffer.from(JSON.stringify(part)).toString('base64url')
    const altered = encode({ ...(payload as jwt.JwtPayload), sub: '1' })
    for (const forged of [`${head}.${altered}.${signature}`, `${encode({ ...header, alg: 'none' })}.${body}.`])
      t.is(await subOf(forged), undefined)
    const { idTokenKeys } = await admin.listSigningKeys({})
    t.deepEqual(
      idTokenKeys.map(({ kid, signs }) => [kid, signs]),
      [
        [keys[0]!.kid, true],
        [keys[1]!.kid, false],
      ],
    )
    const { kid } = keys[0]!
    t.is(await reasonOf(admin.retireSigningKey({ kid })), 'CONFIRMATION_NEEDED')
    await admin.retireSigningKey({ kid, confirm: kid })
    const after = await keySet()
    t.deepEqual([after.length, after[0]!.kid], [2, keys[1]!.kid])
    t.is((await authorize(tool, await logIn(), { idTokenHint: id_token })).reason, undefined)
    const next = await enter(tool)
    t.is(jwt.decode(next.id_token, { complete: true })!.header.kid, keys[1]!.kid)
    // A rotation is published long before, and the former key a day longer.
    await at.clock.pass(90 * 86_400 + 3_600)
    await at.registry.idTokenKeys.prune()
    t.is((await keySet()).length, 3)
    const rotated = await enter(tool)
    t.is(jwt.decode(rotated.id_token, { complete: true })!.header.kid, after[1]!.kid)
    const other = await logIn(await at.institution(await at.organization()))
    for (const { id_token } of [next, rotated])
      t.is((await authorize(tool, other, { idTokenHint: id_token })).reason, 'SIGN_IN_AGAIN')
    await at.clock.pass(86_400 - 3_599)
    await at.registry.idTokenKeys.prune()
    t.deepEqual((await keySet()).map(({ kid }) => kid).slice(0, 1), [after[1]!.kid])
  },
)

test.serial('two servers are one provider, and one whose issuer is no URL with https refuses all but apps', async t => {
  const other = await startTestService(hooks, { ...settings, DATABASE_URL: at.env.DATABASE_URL! }, { clock: at.clock })
  const tool = await register()
  const { code } = await authorize(tool, await logIn(), {}, undefined, other)
  const both = await Promise.all([trade(tool, code), trade(tool, code, {}, other)])
  t.deepEqual(both.map(({ status }) => status).sort(), [200, 400])
  // Earlier versions installed any text.
  const [DATABASE_URL, AUTH_ISSUER] = [await databaseFor(hooks), 'registry of schools']
  await ask(DATABASE_URL, `UPDATE token_issuer SET issuer = '${AUTH_ISSUER}'`)
  const plain = await startTestService(hooks, { DATABASE_URL, AUTH_ISSUER, AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const api = await openSignedIn(hooks, plain)
  await api.createService({ name: 'tool', redirectUris: [uri] })
  t.is((await plain.request('GET', '/.well-known/openid-configuration')).status, 409)
  const body = { authorization: { clientId: 'tool', redirectUri: uri, responseType: 'code', scope: 'openid' } }
  t.is((await plain.request('POST', '/auth.v1.OpenId/CheckAuthorization', { body })).status, 400)
  const { checks } = await api.diagnose({})
  t.like(
    checks.find(({ check }) => check === 'clients'),
    { status: 'warning' },
  )
  const { username } = await plain.signUp('ROLE_CLIENT')
  const token = (await plain.request('POST', '/users/login', { body: { username, password, stay: true } })).text
  const { refreshToken } = (await plain.request('POST', '/users/me/refreshtoken', { token })).json
  const form = { grant_type: 'refresh_token', client_id: 'registry', refresh_token: refreshToken }
  t.is((await post('/oauth/token', form, plain)).status, 200)
})

test.serial('administrators register exact addresses alone', async t => {
  const wrong = [
    'http://example.org/',
    'https://a@example.org/',
    'https://example.org/*',
    'https://example.org/#a',
    'javascript:alert(1)',
    'data:text/html,x',
    'file:///etc/passwd',
    'myapp:/callback',
    'https:/example.org',
    'https://ex ample.org/',
    'https:\\\\example.org',
    '',
    'x'.repeat(3000),
  ]
  const right = [
    'https://example.org/a?b=c',
    'http://127.0.0.1/x',
    'http://[::1]:80/',
    'http://localhost:3000/',
    'org.example.app:/callback',
  ]
  for (const each of wrong) {
    const call = admin.createService({ name: `t-${randomUUID()}`, redirectUris: [each] })
    t.deepEqual(await wrongFieldsOf(call), ['redirect_uris'], each)
  }
  t.is(
    (await admin.createService({ name: `t-${randomUUID()}`, redirectUris: right })).service!.redirectUris.length,
    right.length,
  )
  t.is(await reasonOf(openAdministration(hooks, at).createService({ name: 'a', redirectUris: right })), 'ACCESS_DENIED')
})

test('no text but a registered URI is one, whatever stands in it, except for the port of a loopback address', t => {
  const registered = [
    'https://tool.example.org/cb',
    'http://127.0.0.1/cb?x=1',
    'http://localhost/cb',
    'org.example.app:/cb',
  ]
  const pieces =
    '/ /cb ? ?x=1 # @ . .. : :80 :99999 :999999 \\ %2f // * evil.test 127.0.0.1 [::1] localhost a@ \n \0'.split(' ')
  const piece = fc.constantFrom(...pieces, ' ', '')
  // Text inserted in a registered one, or put in the place of a part.
  const edited = fc
    .tuple(fc.constantFrom(...registered), fc.nat(27), fc.array(piece, { maxLength: 2 }), fc.nat(3))
    .map(([uri, at, inserted, cut]) => uri.slice(0, at) + inserted.join('') + uri.slice(at + cut))
  fc.assert(
    fc.property(fc.oneof({ arbitrary: edited, weight: 8 }, fc.webUrl(), fc.string()), text => {
      const exact = registered.includes(text)
      const loopback = URL.canParse(text) && /^http:\/\/127\.0\.0\.1(:\d{1,5})?\/cb\?x=1$/.test(text)
      t.is(isRegistered(registered, text), exact || loopback, text)
      if (!isReturnUri(text)) return
      const { protocol, username, password, hash } = new URL(text)
      t.deepEqual([username, password, hash], ['', '', ''], text)
      t.regex(protocol, /^https?:$|\./, text)
    }),
    {
      numRuns: 5_000,
      examples: [
        ['http://127.0.0.1:80/cb?x=1'],
        ['http://127.0.0.1:99999/cb?x=1'],
        ['http://localhost:80/cb'],
        ['https://tool.example.org:80/cb'],
      ],
    },
  )
})

test.serial(
  'any request has a code, an error that its client learns, or none of both for an unknown client or address',
  async t => {
    const [tool, open] = [await register(), await register({ isPublic: true })]
    const token = await logIn()
    const text = fc.oneof(
      fc.constantFrom(
        '',
        'code',
        'token',
        'openid',
        'plain',
        'S256',
        uri,
        `${uri}?`,
        challenge,
        '-1',
        '1e3',
        'query',
        'fragment',
      ),
      fc.string({ maxLength: 40 }),
    )
    const fields = [
      'clientId',
      'redirectUri',
      'responseType',
      'scope',
      'state',
      'nonce',
      'codeChallenge',
      'codeChallengeMethod',
      'maxAge',
      'responseMode',
      'request',
      'requestUri',
      'idTokenHint',
    ]
    const changes = fc.dictionary(fc.constantFrom(...fields), fc.option(text, { nil: undefined }), { maxKeys: 3 })
    await fc.assert(
      fc.asyncProperty(fc.constantFrom(tool, open), changes, async (asker, change) => {
        const { location, reason } = await authorize(asker, token, change)
        if (!location)
          return void t.true(
            ['RECORD_NOT_FOUND', 'SIGN_IN_AGAIN'].includes(reason),
            `${reason} ${JSON.stringify(change)}`,
          )
        t.is(location.origin + location.pathname, uri)
        t.is(location.searchParams.get('iss'), issuer)
        t.not(location.searchParams.has('code'), location.searchParams.has('error'))
        const isPlain = !({ codeChallenge: challenge, ...change } as Record<string, string | undefined>).codeChallenge
        if (asker === open && isPlain) t.true(location.searchParams.has('error'))
      }),
      { numRuns: 60 },
    )
  },
)
