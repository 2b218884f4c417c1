/** OpenID Connect as clients and browsers without scripts see it; openid-client checks every answer. */
import { randomUUID } from 'node:crypto'
import test, { type ExecutionContext } from 'ava'
import * as client from 'openid-client'
import { TOTP } from 'otpauth'
import { anotherAdministrator, openSignedIn } from '../_helpers/administration.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import {
  askFor,
  createBrowser,
  type Method,
  type Provider,
  registerClient,
  registerService,
  type Seen,
  signIn,
  startProvider,
} from '../_helpers/provider.js'
import { saveAnswer } from '../_helpers/recovery.js'
import { password, teardownOfFile } from '../_helpers/service.js'
import { waitFor } from '../_helpers/wait.js'

const mailbox = mailboxForFile()
const hooks = teardownOfFile()
const provider = {} as Provider
const apart = {} as Provider
test.before(async () => {
  Object.assign(provider, await startProvider(hooks, { SMTP_URL: mailbox.url, AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))
  Object.assign(apart, await startProvider(hooks, {}, true))
})

const activeUser = async (on = provider) => on.institution(await on.organization())

/** Signs a new user in to a client; returns the tokens, and what led to them. */
async function enter(method: Method, parameters: Record<string, string> = {}, on = provider) {
  const tool = await registerClient(on, method)
  const user = await activeUser(on)
  const browser = createBrowser(on)
  const { url, checks } = await askFor(tool, parameters)
  const seen = await signIn(browser, url, user.username)
  if (!seen.location.search) throw new Error(seen.text)
  const tokens = await client.authorizationCodeGrant(tool.config, seen.location, checks)
  return { tool, user, browser, seen, checks, tokens, claims: tokens.claims()! }
}

for (const method of ['basic', 'post', 'none'] as const)
  for (const where of ['its own gateway', 'a separate gateway'] as const)
    test(`a client that authenticates by ${method} signs a user in, and refreshes, through ${where}`, async t => {
      const { tool, user, tokens, claims } = await enter(method, {}, where === 'its own gateway' ? provider : apart)
      t.is(claims.preferred_username, user.username)
      const info = await client.fetchUserInfo(tool.config, tokens.access_token, claims.sub)
      t.is(info.name, user.nickname)
      const fresh = await client.refreshTokenGrant(tool.config, tokens.refresh_token!)
      t.is(fresh.claims()!.sub, claims.sub)
      await client.tokenRevocation(tool.config, fresh.refresh_token!)
      await t.throwsAsync(client.refreshTokenGrant(tool.config, fresh.refresh_token!), { message: /.*/ }, 'revoked')
      await t.throwsAsync(client.fetchUserInfo(tool.config, fresh.access_token, claims.sub))
    })

test('of five exchanges of a code at once, one gets tokens, and the others end them', async t => {
  const tool = await registerClient(provider)
  const { url, checks } = await askFor(tool)
  const seen = await signIn(createBrowser(provider), url, (await activeUser()).username)
  const all = await Promise.allSettled(
    [1, 2, 3, 4, 5].map(() => client.authorizationCodeGrant(tool.config, seen.location, checks)),
  )
  const won = all.flatMap(each => (each.status === 'fulfilled' ? [each.value] : []))
  t.is(won.length, 1)
  for (const each of all) if (each.status === 'rejected') t.is(each.reason.error, 'invalid_grant')
  await t.throwsAsync(client.fetchUserInfo(tool.config, won[0]!.access_token, client.skipSubjectCheck))
})

test('a browser that signed in once goes on to other clients, unless they ask for more', async t => {
  const { browser, claims, user, cookie } = await enter('basic').then(all => ({ ...all, cookie: all.browser.cookie() }))
  const other = await registerClient(provider, 'none')
  const goTo = async (parameters: Record<string, string>) => {
    const asked = await askFor(other, parameters)
    return { ...asked, seen: await browser.get(asked.url) }
  }
  const silent = await goTo({ prompt: 'none' })
  const tokens = await client.authorizationCodeGrant(other.config, silent.seen.location, silent.checks)
  t.is(tokens.claims()!.sub, claims.sub)
  t.is(tokens.claims()!.auth_time, claims.auth_time)

  t.is((await goTo({ prompt: 'login' })).seen.status, 200)
  t.is((await goTo({ max_age: '100000' })).seen.status, 303)
  t.is((await goTo({ max_age: '0' })).seen.status, 200, 'the sign-in is too old')
  const recent = await goTo({ max_age: '0' })
  const again = await browser.submit(recent.seen, { username: user.username, password })
  const fresh = await client.authorizationCodeGrant(other.config, again.location, { ...recent.checks, maxAge: 600 })
  t.true(fresh.claims()!.auth_time! >= claims.auth_time!)
  t.not(browser.cookie(), cookie)

  const { id_token } = await enter('basic').then(({ tokens }) => tokens)
  t.is((await goTo({ id_token_hint: id_token! })).seen.status, 200, 'another user is expected')
  t.regex((await goTo({ prompt: 'login', login_hint: '"><b>' })).seen.text, /value="&quot;&gt;&lt;b&gt;"/)

  browser.forget()
  for (const prompt of ['none', 'none login']) {
    const { seen, checks } = await goTo({ prompt })
    t.is(seen.location.searchParams.get('error'), 'login_required')
    t.is(seen.location.searchParams.get('state'), checks.expectedState)
    t.is(seen.location.searchParams.get('iss'), provider.issuer)
  }
})

test('a request by POST is answered as one by GET, with the cookie', async t => {
  const { browser, tool } = await enter('basic')
  const { url, checks } = await askFor(tool, { unknown: 'x y' })
  const posted = await browser.get(`${provider.issuer}/oauth/authorize`, { method: 'POST', body: url.searchParams })
  t.is(posted.status, 303)
  const seen = await browser.get(posted.location)
  t.truthy((await client.authorizationCodeGrant(tool.config, seen.location, checks)).id_token)
})

test('a request of an unknown client, or to an unknown address, gets a page with 400 and no redirect', async t => {
  const tool = await registerClient(provider)
  const browser = createBrowser(provider)
  const wrong = [{ client_id: 'nobody' }, { redirect_uri: 'https://evil.example' }, { redirect_uri: `${tool.uri}/x` }]
  for (const parameters of wrong) {
    const { url } = await askFor(tool)
    for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value)
    const seen = await browser.get(url)
    t.is(seen.status, 400)
    t.is(seen.headers.get('location'), null)
    t.regex(seen.text, /The application isn’t registered here/)
  }
  const { url } = await askFor(tool, { response_type: 'token' })
  t.is((await browser.get(url)).location.searchParams.get('error'), 'unsupported_response_type')
  url.searchParams.append('client_id', 'another')
  t.is((await browser.get(url)).status, 400, 'a parameter is given twice')
})

test('the cookie is for this host and hidden from scripts; with https it is for https alone', async t => {
  const tool = await registerClient(provider)
  const seen = await signIn(createBrowser(provider), (await askFor(tool)).url, (await activeUser()).username)
  t.regex(seen.headers.get('set-cookie')!, /^auth-session=[\w.-]+; Path=\/; HttpOnly; SameSite=Lax$/)

  const issuer = 'https://login.example.org/auth'
  const https = await startProvider(t, { AUTH_ISSUER: issuer })
  const { url } = await askFor(tool)
  url.searchParams.set('client_id', (await registerService(https)).name)
  const browser = createBrowser(https)
  const page = await browser.get(`${https.http}/oauth/authorize${url.search}`, { headers: { host: 'evil.example' } })
  t.notRegex(page.text, /evil/)
  const { username } = await activeUser(https)
  const entered = await browser.submit(page, { username, password }, '', 'https://login.example.org')
  t.regex(entered.headers.get('set-cookie')!, /^__Host-auth-session=[\w.-]+; Path=\/; HttpOnly; SameSite=Lax; Secure$/)
  const { aud } = JSON.parse(Buffer.from(browser.cookie().split('.')[1]!, 'base64url').toString())
  t.is(aud, issuer)
})

test('the token of the cookie is refreshed at a request once half its life is over', async t => {
  const brief = await startProvider(t, { AUTH_TOKEN_TTL: '20s' })
  const tool = await registerClient(brief)
  const browser = createBrowser(brief)
  await signIn(browser, (await askFor(tool)).url, (await activeUser(brief)).username)
  const read = () => JSON.parse(Buffer.from(browser.cookie().split('.')[1]!, 'base64url').toString())
  const { exp, auth_time, stay } = read()
  t.true(stay)
  await waitFor(async () => (await browser.get((await askFor(tool, { prompt: 'none' })).url)) && read().exp > exp)
  t.is(read().auth_time, auth_time)
  t.true(read().stay)
})

test('a form of another site is refused, and signs no user in or out', async t => {
  const { browser, user, tool } = await enter('basic')
  const { url } = await askFor(tool, { prompt: 'login' })
  const page = await browser.get(url)
  const fields = { username: user.username, password }
  for (const origin of ['https://evil.example', 'null', 'http://127.0.0.1:1']) {
    const refused = await createBrowser(provider).submit(page, fields, '', origin)
    t.is(refused.status, 403)
    t.is(refused.headers.get('set-cookie'), null)
  }
  const asked = await browser.get(`${provider.issuer}/oauth/logout`)
  t.is((await browser.submit(asked, {}, 'confirmed', 'https://evil.example')).status, 403)
  t.is((await browser.get((await askFor(tool, { prompt: 'none' })).url)).location.searchParams.get('error'), null)
  const policy = page.headers.get('content-security-policy')!
  t.regex(policy, /^default-src 'none'; style-src 'sha256-[^']+'; img-src data:; form-action 'self'; base-uri 'none';/)
  t.regex(policy, /frame-ancestors 'none'$/)
  t.is(page.headers.get('referrer-policy'), 'same-origin')
})

test('a form goes on to the web by a page, so that clients may redirect further, and to an app by a redirect', async t => {
  const { name } = await registerService(provider)
  const { username } = await activeUser()
  const app = 'org.example.app:/callback'
  const { services, database } = provider.registry
  await database.transact(async transaction => {
    const { id, redirectUris } = (await services.lock(name, transaction))!
    await services.edit(id, { redirectUris: [...redirectUris, app] }, transaction)
  })
  for (const [uri, status, policy] of [
    ['http://127.0.0.1:26469/callback', 200, "form-action 'self';"],
    [app, 303, "form-action 'self' org.example.app:;"],
  ] as const) {
    const url = new URL(`${provider.issuer}/oauth/authorize`)
    const asked = { client_id: name, redirect_uri: uri, response_type: 'code', scope: 'openid', state: 's' }
    url.search = new URLSearchParams(asked).toString()
    const browser = createBrowser(provider)
    const page = await browser.get(url)
    t.true(page.headers.get('content-security-policy')!.includes(policy))
    const seen = await browser.submit(page, { username, password })
    t.is(seen.status, status)
    t.is(seen.headers.has('location'), status === 303)
    t.is(`${seen.location}`.split('?')[0], uri)
    t.is(status === 200, seen.text.includes('Going on to the application'))
    t.regex((await browser.get(url)).headers.get('location')!, /[?&]code=/, 'what no form has sent is a redirect')
  }
})

test('a client signs its user out, with confirmation unless it names the user', async t => {
  const { browser, tool, tokens, user } = await enter('basic')
  const cookie = browser.cookie()
  const out = (more: Record<string, string>) =>
    client.buildEndSessionUrl(tool.config, { post_logout_redirect_uri: `${tool.uri}?out`, state: 's', ...more })
  const asked = await browser.get(out({}))
  t.is(asked.status, 200)
  const confirmed = await browser.submit(asked, {}, 'confirmed')
  t.is(confirmed.location.href, `${tool.uri}?out&state=s`)
  t.is(browser.cookie(), '')
  const silent = async (as: string) =>
    (await createBrowser(provider, { cookie: as }).get((await askFor(tool, { prompt: 'none' })).url)).location
  t.is((await silent(cookie)).searchParams.get('error'), 'login_required', 'a copy of the cookie is void')

  await signIn(browser, (await askFor(tool)).url, user.username)
  t.is((await browser.get(out({ id_token_hint: tokens.id_token! }))).location.href, `${tool.uri}?out&state=s`)
  t.is(browser.cookie(), '')
  const refused = await browser.get(out({ post_logout_redirect_uri: 'https://evil.example' }))
  t.is(refused.status, 400)
  t.regex(refused.text, /<h1>You aren’t signed out<\/h1>/)
})

test('clients are refused as in the RFCs of OAuth', async t => {
  const tool = await registerClient(provider)
  const post = async (path: string, body: string, headers: Record<string, string> = {}) => {
    const type = { 'content-type': 'application/x-www-form-urlencoded' }
    const answer = await fetch(provider.issuer + path, { method: 'POST', body, headers: { ...type, ...headers } })
    const text = await answer.text()
    t.is(answer.headers.get('cache-control'), 'no-store')
    return {
      status: answer.status,
      error: text && JSON.parse(text).error,
      challenge: answer.headers.get('www-authenticate')?.split(' ')[0],
    }
  }
  const basic = (name: string, secret: string) => ({ authorization: `Basic ${btoa(`${name}:${secret}`)}` })
  const ours = basic(tool.name, encodeURIComponent(tool.secret).replace('authsvc', '%61uthsvc'))
  const refusals: [body: string, headers: Record<string, string>, status: number, error: string, challenge?: string][] =
    [
      ['grant_type=authorization_code&code=x', basic(tool.name, 'wrong'), 401, 'invalid_client', 'Basic'],
      [`grant_type=refresh_token&client_id=${tool.name}`, {}, 401, 'invalid_client', 'Basic'],
      ['grant_type=authorization_code&code=x', ours, 400, 'invalid_grant'],
      ['grant_type=refresh_token&refresh_token=x', ours, 400, 'invalid_grant'],
      ['grant_type=password', ours, 400, 'unsupported_grant_type'],
      ['code=x', ours, 400, 'invalid_request'],
      ['grant_type=refresh_token&grant_type=refresh_token', ours, 400, 'invalid_request'],
      [`grant_type=refresh_token&refresh_token=x&client_secret=${tool.secret}`, ours, 400, 'invalid_request'],
      ['grant_type=refresh_token&refresh_token=x&client_id=another', ours, 400, 'invalid_request'],
      ['grant_type=refresh_token', { authorization: 'Basic !' }, 400, 'invalid_request'],
      ['{"grant_type":7}', { ...ours, 'content-type': 'application/json' }, 400, 'invalid_request'],
      ['grant_type=refresh_token', { ...ours, 'content-type': 'text/plain' }, 400, 'invalid_request'],
    ]
  for (const [body, headers, status, error, challenge] of refusals)
    t.deepEqual(await post('/oauth/token', body, headers), { status, error, challenge }, body)
  const none = { status: 200, error: '', challenge: undefined }
  t.deepEqual(await post('/oauth/revoke', 'token=unknown', ours), none)
  const wrong = { status: 401, error: 'invalid_client', challenge: 'Basic' }
  t.deepEqual(await post('/oauth/revoke', 'token=unknown', basic(tool.name, 'wrong')), wrong)
})

test('userinfo takes the token in a header or a form, and challenges as RFC 6750 says', async t => {
  const { tokens, claims } = await enter('basic')
  const ask = async (init: RequestInit) => {
    const answer = await fetch(`${provider.issuer}/oauth/userinfo`, init)
    return { status: answer.status, json: await answer.json(), challenge: answer.headers.get('www-authenticate') }
  }
  const header = { authorization: `Bearer ${tokens.access_token}` }
  const form = new URLSearchParams({ access_token: tokens.access_token })
  const empty = new URLSearchParams()
  for (const init of [{ headers: header }, { method: 'POST', headers: header }, { method: 'POST', body: form }])
    t.is((await ask(init)).json.sub, claims.sub)
  t.is((await ask({ method: 'POST', headers: header, body: empty })).json.sub, claims.sub)
  for (const init of [{}, { method: 'POST' }, { method: 'POST', body: empty }])
    t.deepEqual(await ask(init), { status: 401, json: {}, challenge: 'Bearer' })
  const wrong = await ask({ headers: { authorization: 'Bearer x' } })
  t.is(wrong.status, 401)
  t.regex(wrong.challenge!, /^Bearer error="invalid_token", error_description="[ -~]+"$/)
  t.like(await ask({ method: 'POST', headers: header, body: form }), {
    status: 400,
    json: { error: 'invalid_request' },
  })
  t.is((await fetch(`${provider.issuer}/oauth/userinfo?${form}`)).status, 401, 'URLs are stored on the way')
})

test('pages of clients read what clients call, other pages do not, and none reads it with cookies', async t => {
  await registerClient(provider)
  const read = async (path: string, origin: string, init: RequestInit = {}) =>
    (await fetch(provider.issuer + path, { ...init, headers: { ...init.headers, origin } })).headers
  const preflight = {
    method: 'OPTIONS',
    headers: {
      'access-control-request-method': 'POST',
      'access-control-request-headers': 'authorization, content-type',
    },
  }
  const ours = 'http://127.0.0.1:9999'
  for (const path of ['token', 'userinfo', 'revoke', 'keys'].map(name => `/oauth/${name}`)) {
    for (const init of [{}, preflight]) {
      const headers = await read(path, ours, init)
      t.is(headers.get('access-control-allow-origin'), ours, path)
      t.is(headers.get('access-control-allow-credentials'), null)
      t.is((await read(path, 'https://evil.example', init)).get('access-control-allow-origin'), null)
      t.is((await read(path, 'null', init)).get('access-control-allow-origin'), null)
    }
    t.regex((await read(path, ours, preflight)).get('access-control-allow-headers')!, /authorization.*content-type/)
  }
  const discovery = '/.well-known/openid-configuration'
  t.is((await read(discovery, ours)).get('access-control-allow-origin'), ours)
  t.is((await fetch(provider.issuer + discovery)).headers.get('vary'), 'origin')
  for (const path of ['/oauth/authorize', '/users/me'])
    t.is((await read(path, ours)).get('access-control-allow-origin'), null)
})

test('a user who is not activated learns what to do, and another can sign in', async t => {
  const tool = await registerClient(provider)
  const { username } = await provider.signUp('ROLE_CLIENT')
  const browser = createBrowser(provider)
  const stopped = await signIn(browser, (await askFor(tool)).url, username)
  t.regex(stopped.text, /isn’t activated yet/)
  t.regex(stopped.text, /href="authorize\?[^"]*prompt=login/)
  t.is(browser.cookie(), '')
})

/** An active user with an address and answers, and a browser at the page of a client. */
async function forgetful() {
  const email = `${randomUUID()}@example.org`
  const { username, token } = await provider.signUp('ROLE_INSTITUTION', { email })
  const { activationkey } = await provider.organization()
  await provider.request('POST', '/users/activate', { token, query: { username, activationkey } })
  for (const question of [1, 2]) await saveAnswer(provider, token, question, `azul ${question}`)
  const tool = await registerClient(provider)
  const { url, checks } = await askFor(tool, { ui_locales: 'pt-BR' })
  const browser = createBrowser(provider)
  const page = await browser.get(url)
  const path = /href="(recover[^"]*)"/.exec(page.text)![1]!.replaceAll('&amp;', '&')
  return { email, username, tool, url, checks, browser, start: await browser.get(new URL(path, page.url)) }
}

const recovered = 'tatu-canastra 12'

/** Sets a new password on the page, and goes on to the client; a weak one is refused first. */
async function setPassword(t: ExecutionContext, { username, tool, url, checks, browser }: Forgetful, page: Seen) {
  t.regex(page.text, /autocomplete="new-password"/)
  t.is((await browser.get(url)).status, 200, 'a recovery opens no client')
  const weak = await browser.submit(page, { username, password: 'curta' }, 'password')
  t.regex(weak.text, /role="alert"/)
  const seen = await browser.submit(weak, { username, password: recovered }, 'password')
  t.is((await client.authorizationCodeGrant(tool.config, seen.location, checks)).claims()!.preferred_username, username)
  t.is(await provider.login(username, recovered).then(() => 'in'), 'in')
}

type Forgetful = Awaited<ReturnType<typeof forgetful>>

test('a user who forgot the password recovers by a mailed key, and goes on to the client', async t => {
  const all = await forgetful()
  const { email, username, browser, start } = all
  t.regex((await browser.submit(start, { username, email: 'x' }, 'mail')).text, /role="alert"/)
  const asked = await browser.submit(start, { username, email }, 'mail')
  let key: string | undefined
  // Notices of the saved answers came before.
  while (!key) key = /: ([2-9A-HJ-NP-Z]{8})$/m.exec((await mailbox.nextEmail(email)).text!)?.[1]
  const wrong = await browser.submit(asked, { username, key: 'AAAAAAAA' }, 'key')
  t.regex(wrong.text, /Nome de usuário ou chave inválidos/)
  await setPassword(t, all, await browser.submit(wrong, { username, key }, 'key'))
})

test('a user who forgot the password recovers by answers, and goes on to the client', async t => {
  const all = await forgetful()
  const { username, browser, start } = all
  const questions = await browser.submit(start, {}, 'questions')
  const answers = { username, question1: '1', answer1: 'azul 1', question2: '2', answer2: 'verde' }
  const wrong = await browser.submit(questions, answers, 'answers')
  t.regex(wrong.text, /Pelo menos 2 respostas devem estar corretas/)
  await setPassword(t, all, await browser.submit(wrong, { ...answers, answer2: 'AZUL 2' }, 'answers'))
})

test('a recovery whose session has ended begins again', async t => {
  const { username, browser, start } = await forgetful()
  const body = new URLSearchParams({ step: 'password', username, password: recovered })
  const again = await browser.get(start.url, { method: 'POST', body })
  t.regex(again.text, /role="alert".*name="step" value="mail"/s)
})

test('an administrator who enrolled gives the one-time code on the page, once a session', async t => {
  const { username, api } = await anotherAdministrator(t, provider, await openSignedIn(t, provider))
  const { secret } = await api.enrollTotp({})
  const totp = new TOTP({ secret })
  await api.confirmTotp({ code: totp.generate({ timestamp: Date.now() - 30_000 }) })
  const tool = await registerClient(provider)
  const { url, checks } = await askFor(tool, { max_age: '0' })
  const browser = createBrowser(provider)
  const asked = await signIn(browser, url, username)
  t.regex(asked.text, /name="code" type="text" autocomplete="one-time-code"/)
  t.is(
    (await browser.get((await askFor(tool, { prompt: 'none' })).url)).location.searchParams.get('error'),
    'login_required',
  )
  const wrong = await browser.submit(asked, { code: '000000' })
  t.regex(wrong.text, /The one-time code is wrong/)
  const seen = await browser.submit(wrong, { code: totp.generate() })
  const tokens = await client.authorizationCodeGrant(tool.config, seen.location, { ...checks, maxAge: 600 })
  t.deepEqual(tokens.claims()!.amr, ['pwd', 'otp'])
  t.is((await browser.get((await askFor(tool)).url)).status, 303, 'the session has the code now')
})

test('too many attempts are refused with the time to wait, in the language of the browser', async t => {
  const limited = await startProvider(t, { AUTH_LIMIT_FACTOR: '1' })
  const tool = await registerClient(limited)
  const { username } = await activeUser(limited)
  const browser = createBrowser(limited, { 'accept-language': 'pt-BR' })
  const { url } = await askFor(tool)
  let seen = await signIn(browser, url, username, 'errada')
  t.is(seen.status, 200)
  t.regex(seen.text, /Nome de usuário ou senha inválidos.*suspensa/)
  for (let times = 0; times < 20 && seen.status === 200; times++) seen = await signIn(browser, url, username, 'errada')
  t.is(seen.status, 429)
  t.regex(seen.text, /Tentativas demais.* Espere \d+ min\./)
})
