/** What OpenID Connect costs: each request of a browser, a tool or an app, one after the other, beside `me`. */
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import type { Prepared, Segment } from './measure.js'
import { password } from './operations.js'
import { processorSeconds, root } from './processes.js'
import { type Bench, type Send, serviceOn } from './world.js'

const uri = 'https://tool.bench/callback'
const bearer = (token: string) => ({ headers: { authorization: `Bearer ${token}` } })
const signIn = (send: Send, username: string) =>
  send('/users/login', /^eyJ/, { form: { username, password, stay: 'true' } })

async function exchange(send: Send, form: object): Promise<{ access_token: string; refresh_token: string }> {
  return JSON.parse(await send('/oauth/token', /"access_token"/, { form }))
}

/** Exchanges the refresh tokens of a line, each for the next. */
function line(send: Send, client: object, first: string): () => Promise<void> {
  let kept = first
  return async () => {
    kept = (await exchange(send, { ...client, grant_type: 'refresh_token', refresh_token: kept })).refresh_token
  }
}

/** The line of an app in which a user stays signed in. */
export async function appLine(send: Send, username: string): Promise<() => Promise<void>> {
  const session = await signIn(send, username)
  const made = await send('/users/me/refreshtoken', /refreshToken/, { method: 'POST', ...bearer(session) })
  return line(send, { client_id: 'registry' }, JSON.parse(made).refreshToken)
}

export async function openid(bench: Bench): Promise<Prepared> {
  const settings = { AUTH_ISSUER: 'http://127.0.0.1', AUTH_LIMIT_FACTOR: '1000' }
  const { service, world, send, env } = await serviceOn(bench, 1000, 4, settings)
  const create = ['services', 'create', 'tool', '--redirect-uri', uri, '--local', '--json']
  const made = execFileSync(process.execPath, [join(root, 'dist/cli/main.js'), ...create], { env })
  const tool = { client_id: 'tool', client_secret: JSON.parse(made.toString()).key }
  const { username, token } = world.holders[0]!
  const scope = 'openid profile email roles groups offline_access'
  const asked = new URLSearchParams({ client_id: 'tool', redirect_uri: uri, response_type: 'code', scope })
  const cookie = { headers: { cookie: `auth-session=${await signIn(send, username)}` } }
  const codeOf = async () => /code=([^&]+)/.exec(await send(`/oauth/authorize?${asked}`, /\?code=/, cookie))![1]!
  const trade = (code: string) => exchange(send, { ...tool, grant_type: 'authorization_code', code, redirect_uri: uri })
  const codes: string[] = []
  const { access_token, refresh_token } = await trade(await codeOf())
  const requests: Record<string, () => Promise<unknown>> = {
    me: () => send('/users/me', /username/, bearer(token)),
    'authorize, of a stranger: the page': () => send(`/oauth/authorize?${asked}`, /<form/),
    'authorize, of a session: a code': codeOf,
    'token, of a code': () => trade(codes.pop()!),
    'token, of a refresh token': line(send, tool, refresh_token),
    userinfo: () => send('/oauth/userinfo', /"sub"/, bearer(access_token)),
    'token, of a refresh token of an app': await appLine(send, username),
  }
  const measured = ([name, request]: [string, () => Promise<unknown>]): [string, Segment] => [
    name,
    async scale => {
      const times = Math.ceil(300 * scale)
      if (name === 'token, of a code') for (let n = 0; n < times; n++) codes.push(await codeOf())
      const before = processorSeconds([service.pid])
      for (let n = 0; n < times; n++) await request()
      return { figures: { processor: ((processorSeconds([service.pid]) - before) * 1e6) / times } }
    },
  ]
  return {
    segments: Object.fromEntries(Object.entries(requests).map(measured)),
    rows: Object.keys(requests).map(label => ({ label, subject: label, baseline: 'me', figure: 'processor' })),
  }
}
