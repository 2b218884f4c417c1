/** Who is let in with which token by verifiers that know nothing of this registry, and by its own package. */
import test from 'ava'
import * as oauth from 'oauth4webapi'
import { allowInsecureRequests, ClientSecretBasic, Configuration, tokenIntrospection } from 'openid-client'
import { openSignedIn } from '../_helpers/administration.js'
import { password, serviceForFile, teardownOfFile } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { forge } from '../_helpers/tokens.js'
import { outcome, verifierOf } from '../_helpers/verifiers.js'
import { waitForValue } from '../_helpers/wait.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))
const hooks = teardownOfFile()

const issuer = 'http://auth.test'

/** A token of everybody. */
async function tokens() {
  const { activationkey } = await service.organization()
  const activate = async () => {
    const { username, token } = await service.signUp('ROLE_INSTITUTION')
    await service.request('POST', '/users/activate', { token, query: { username, activationkey } })
    return { username, before: token, whole: await service.login(username, password) }
  }
  const [active, other] = [await activate(), await activate()]
  await (await openSignedIn(hooks, service)).suspendUser({ user: other.username })
  const now = Math.floor(Date.now() / 1000)
  return {
    'a stranger who signed up as ROLE_ADMIN': (await service.signUp('ROLE_ADMIN')).token,
    'from before the activation': active.before,
    activated: active.whole,
    refreshed: (await service.request('GET', '/users/refresh', { token: active.before })).text,
    suspended: other.whole,
    expired: await forge(service, active.whole, { iat: now - 4000, auth_time: now - 4000, exp: now - 400 }),
  }
}

/** The words that verifiers answer with; without a call, a suspension isn't seen. */
const table = `
                                        oauth4webapi  introspection  package  registry
a stranger who signed up as ROLE_ADMIN  refused       inactive       403      200
from before the activation              refused       inactive       403      200
activated                               accepted      active         200      200
refreshed                               accepted      active         200      200
suspended                               accepted      inactive       401      500
expired                                 refused       inactive       401      500
`

test('who is let in with which token', async t => {
  const server: oauth.AuthorizationServer = {
    issuer,
    jwks_uri: `${service.http}/.well-known/jwks.json`,
    introspection_endpoint: `${service.http}/introspect`,
  }
  const key = await serviceKey(service, ['tokens.verify'])
  const configuration = new Configuration(server, 'grades', undefined, ClientSecretBasic(key))
  allowInsecureRequests(configuration)
  const verifier = await verifierOf(t, service)
  const seen = {
    async oauth4webapi(token: string) {
      const request = new Request('http://grades.test/', { headers: { authorization: `Bearer ${token}` } })
      const options = { [oauth.allowInsecureRequests]: true }
      const validate = oauth.validateJwtAccessToken(server, request, 'work-packages', options)
      return validate.then(
        () => 'accepted',
        () => 'refused',
      )
    },
    introspection: async (token: string) =>
      (await tokenIntrospection(configuration, token)).active ? 'active' : 'inactive',
    async package(token: string) {
      const words: Record<string, string> = { INVALID_TOKEN: '401', NOT_ACTIVATED: '403', signature: '200' }
      return words[await outcome(verifier, token)]
    },
    registry: async (token: string) => String((await service.request('GET', '/users/me', { token })).status),
  }
  const lines = ['']
  const head = Object.keys(seen)
  const given = await tokens()
  // It learns of the suspension by the feed.
  await waitForValue(() => outcome(verifier, given.suspended), 'INVALID_TOKEN')
  for (const [who, token] of Object.entries(given)) {
    const words = [who]
    for (const ask of Object.values(seen)) words.push(String(await ask(token)))
    lines.push(words.join('  '))
  }
  const squeezed = table
    .trim()
    .split('\n')
    .map(line => line.trim().split(/ {2,}/).join('  '))
  t.deepEqual(squeezed.shift()?.split('  '), head)
  t.deepEqual(lines.slice(1), squeezed)
})
