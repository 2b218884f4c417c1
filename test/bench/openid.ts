/** What OpenID Connect costs: each request of a browser, a tool or an app, one after the other, beside `me`. */
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import type { Prepared, Segment } from './measure.js'
import { password } from './operations.js'
import { processorSeconds, root } from './processes.js'
import { type Bench, serviceOn } from './world.js'

const issuer = 'http://127.0.0.1'
const uri = 'https://tool.bench/callback'

export async function openid(bench: Bench): Promise<Prepared> {
  const { service, world, env } = await serviceOn(bench, 1000, 4, { AUTH_ISSUER: issuer, AUTH_LIMIT_FACTOR: '1000' })
  const create = ['services', 'create', 'tool', '--redirect-uri', uri, '--local', '--json']
  const made = execFileSync(process.execPath, [join(root, 'dist/cli/main.js'), ...create], { env })
  const tool = { client_id: 'tool', client_secret: JSON.parse(made.toString()).key }
  const app = { client_id: 'registry' }

  async function send(path: string, expected: RegExp, { form = {}, ...init }: RequestInit & { form?: object } = {}) {
    const body = new URLSearchParams({ ...form })
    const posted = body.size > 0 && { method: 'POST', body }
    const answer = await fetch(`http://127.0.0.1:${service.http}${path}`, { redirect: 'manual', ...init, ...posted })
    const content = `${answer.headers.get('location') ?? ''}${await answer.text()}`
    if (!expected.test(content)) throw new Error(`${path}: ${answer.status} ${content}`)
    return content
  }
  const { username, token: ordinary } = world.holders[0]!
  const bearer = (token: string) => ({ headers: { authorization: `Bearer ${token}` } })
  const session = await send('/users/login', /^eyJ/, { form: { username, password, stay: 'true' } })
  const scope = 'openid profile email roles groups offline_access'
  const asked = new URLSearchParams({ client_id: 'tool', redirect_uri: uri, response_type: 'code', scope })
  const cookie = { headers: { cookie: `auth-session=${session}` } }
  const codeOf = async () => /code=([^&]+)/.exec(await send(`/oauth/authorize?${asked}`, /\?code=/, cookie))![1]!
  const exchange = async (form: object) => JSON.parse(await send('/oauth/token', /"access_token"/, { form }))
  const trade = (code: string) => exchange({ ...tool, grant_type: 'authorization_code', code, redirect_uri: uri })

  /** Exchanges refresh tokens of a line, each for the next. */
  const line = (client: object, first: string) => {
    let kept = first
    return async () => {
      kept = (await exchange({ ...client, grant_type: 'refresh_token', refresh_token: kept })).refresh_token
    }
  }
  const codes: string[] = []
  const { access_token, refresh_token } = await trade(await codeOf())
  const own = await send('/users/me/refreshtoken', /refreshToken/, { method: 'POST', ...bearer(session) })
  const requests: Record<string, () => Promise<unknown>> = {
    me: () => send('/users/me', /username/, bearer(ordinary)),
    'authorize, of a stranger: the page': () => send(`/oauth/authorize?${asked}`, /<form/),
    'authorize, of a session: a code': codeOf,
    'token, of a code': () => trade(codes.pop()!),
    'token, of a refresh token': line(tool, refresh_token),
    userinfo: () => send('/oauth/userinfo', /"sub"/, bearer(access_token)),
    'token, of a refresh token of an app': line(app, JSON.parse(own).refreshToken),
  }
  const measured = ([name, request]: [string, () => Promise<unknown>]): [string, Segment] => [
    name,
    async scale => {
      const times = Math.ceil(300 * scale)
      if (name === 'token, of a code') for (let n = 0; n < times; n++) codes.push(await codeOf())
      const [before, from] = [processorSeconds([service.pid]), performance.now()]
      for (let n = 0; n < times; n++) await request()
      const seconds = (performance.now() - from) / 1000
      const used = processorSeconds([service.pid]) - before
      return { figures: { perSecond: times / seconds, processor: (used * 1e6) / times } }
    },
  ]
  return {
    segments: Object.fromEntries(Object.entries(requests).map(measured)),
    rows: Object.keys(requests).map(label => ({ label, subject: label, baseline: 'me', figure: 'processor' })),
  }
}
