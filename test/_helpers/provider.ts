/** A registry as a provider of OpenID Connect, its clients, and a browser without scripts. */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import * as client from 'openid-client'
import { newServiceKey } from '../../server/models/service.js'
import { spawnGateway } from './apart.js'
import type { Teardown } from './database.js'
import { plantSecret } from './logged.js'
import { freePort } from './relay.js'
import { password, startTestService, type TestService } from './service.js'

/** A service whose issuer is the address at which its gateway answers. */
export interface Provider extends TestService {
  readonly issuer: string
}

/** Starts a provider; with `apart`, its issuer is a separate gateway. */
export async function startProvider(t: Teardown, env: Record<string, string> = {}, apart = false): Promise<Provider> {
  const port = await freePort()
  const address = `127.0.0.1:${port}`
  const issuer = `http://${address}`
  const http: Record<string, string> = apart ? {} : { AUTH_HTTP_ADDRESS: address }
  const all = { AUTH_ISSUER: issuer, AUTH_LIMIT_FACTOR: '1000', AUTH_NAME: 'Registro <1>', ...http, ...env }
  const service = await startTestService(t, all)
  if (apart) await spawnGateway(t, service.grpc, { AUTH_HTTP_ADDRESS: address })
  return Object.assign(service, { issuer })
}

/** How a client authenticates. */
export type Method = 'basic' | 'post' | 'none'

/** A client that openid-client knows, with one redirect URI. */
export interface TestClient {
  readonly name: string
  readonly secret: string
  readonly uri: string
  readonly config: client.Configuration
}

/** Registers a service as a client. */
export async function registerService({ registry }: Pick<Provider, 'registry'>, method: Method = 'basic') {
  const name = `tool-${randomUUID()}`
  const secret = plantSecret(newServiceKey())
  const uri = 'http://127.0.0.1:26469/callback'
  const { database, services } = registry
  await database.transact(async t => {
    const form = { name, scopes: [], redirectUris: [uri], postLogoutUris: [`${uri}?out`], title: `Tool & ${method}` }
    const row = await services.add({ ...form, public: method === 'none' }, t)
    await services.addKey(row!.id, secret, new Date(Date.now() + 86_400_000), t)
  })
  return { name, secret, uri }
}

/** Retries what a busy service refused before it began; a call whose answer was lost isn't repeated, since a code is good once. */
async function patiently(url: string | URL, init?: object): Promise<Response> {
  for (;;) {
    const answer = await fetch(url, init)
    if (answer.status !== 503 || !/busy|ocupado/.test(await answer.clone().text())) return answer
    await sleep(1000 * Number(answer.headers.get('retry-after')))
  }
}

/** Registers a service as a client, and discovers the provider. */
export async function registerClient(provider: Provider, method: Method = 'basic'): Promise<TestClient> {
  const { name, secret, uri } = await registerService(provider, method)
  const how = {
    basic: client.ClientSecretBasic(secret),
    post: client.ClientSecretPost(secret),
    none: client.None(),
  }[method]
  const config = await client.discovery(new URL(provider.issuer), name, undefined, how, {
    execute: [client.allowInsecureRequests],
    [client.customFetch]: patiently,
  })
  return { name, secret, uri, config }
}

/** A request of a client, with what its callback checks. */
export async function askFor({ config, uri }: TestClient, parameters: Record<string, string> = {}) {
  const pkceCodeVerifier = client.randomPKCECodeVerifier()
  const checks = { pkceCodeVerifier, expectedNonce: client.randomNonce(), expectedState: client.randomState() }
  const url = client.buildAuthorizationUrl(config, {
    redirect_uri: uri,
    scope: 'openid profile email roles groups offline_access',
    code_challenge: await client.calculatePKCECodeChallenge(pkceCodeVerifier),
    code_challenge_method: 'S256',
    nonce: checks.expectedNonce,
    state: checks.expectedState,
    ...parameters,
  })
  return { url, checks }
}

/** The answer to a browser; redirects aren't followed. */
export interface Seen {
  readonly url: URL
  readonly status: number
  readonly headers: Headers
  readonly text: string
  /** Where it sends the browser. */
  readonly location: URL
}

/** A browser without scripts: it keeps cookies and sends forms. */
export function createBrowser({ issuer }: Provider, headers: Record<string, string> = {}) {
  let cookies = ''
  async function send(url: string | URL, init: RequestInit = {}): Promise<Seen> {
    const all = { 'accept-language': 'en', ...headers, ...(cookies && { cookie: cookies }), ...init.headers }
    const response = await patiently(url, { redirect: 'manual', ...init, headers: all })
    const [set] = response.headers.getSetCookie()
    if (set) cookies = /Max-Age=0/.test(set) ? '' : set.split(';')[0]!
    if (cookies) plantSecret(cookies.slice(cookies.indexOf('=') + 1))
    const text = await response.text()
    const [, refreshed] = /^0; url=(.*)/.exec(response.headers.get('refresh') ?? '') ?? []
    const location = new URL(response.headers.get('location') ?? refreshed ?? 'about:blank', url)
    const code = location.searchParams.get('code')
    if (code) plantSecret(code)
    return { url: new URL(url), status: response.status, headers: response.headers, text, location }
  }
  return {
    get: send,
    cookie: () => cookies,
    forget() {
      cookies = ''
    },
    /** Sends the first form of a page whose action has this name, as its button with this step does. */
    submit(page: Seen, fields: Record<string, string>, step = '', origin = issuer) {
      const forms = [...page.text.matchAll(/<form method="post" action="([^"]*)">(.*?)<\/form>/gs)]
      const [, action] = forms.find(([, , content]) => !step || content!.includes(`value="${step}"`)) ?? []
      if (action === undefined) throw new Error(`no form: ${page.status} ${page.text}`)
      const url = new URL(action.replaceAll('&amp;', '&'), page.url)
      const body = new URLSearchParams({ ...fields, ...(step && { step }) })
      return send(url, { method: 'POST', body, headers: { origin } })
    },
  }
}

/** Signs in on the page of a request; returns the answer that goes on to the client. */
export async function signIn(
  browser: ReturnType<typeof createBrowser>,
  url: URL,
  username: string,
  secret = password,
): Promise<Seen> {
  return browser.submit(await browser.get(url), { username, password: secret })
}
