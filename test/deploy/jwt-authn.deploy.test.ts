/** Envoy’s jwt_authn with the configuration of docs/verifying.md, in front of a service that shows what it gets. */
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import test from 'ava'
import { folderOf, startProxy } from '../_helpers/front.js'
import { freePort } from '../_helpers/relay.js'
import { startTestService } from '../_helpers/service.js'
import { claimsOf, createForger, nowInSeconds } from '../_helpers/tokens.js'
import { root } from '../_helpers/versions.js'
import { waitForValue } from '../_helpers/wait.js'

const guide = readFileSync(join(root, 'docs/verifying.md'), 'utf8')
const filters = /^## Envoy$.*?^```yaml\n(.*?)^```$/ms.exec(guide)![1]!

const cluster = (name: string, port: number | string) => `
    - name: ${name}
      type: STATIC
      load_assignment:
        cluster_name: ${name}
        endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: ${port} } } } }] }]`

/** A whole configuration around the filters. */
const bootstrap = (port: number, filters: string, service: number, gateway: string) => `
static_resources:
  listeners:
    - address: { socket_address: { address: 127.0.0.1, port_value: ${port} } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: public
                route_config:
                  virtual_hosts: [{ name: all, domains: ["*"], routes: [{ match: { prefix: / }, route: { cluster: service } }] }]
${filters.replace(/^(?=.)/gm, ' '.repeat(16))}
  clusters:${cluster('service', service)}${cluster('auth_gateway', gateway)}
`

test('Envoy accepts a valid token, passes its claims on, and refuses what isn’t one', async t => {
  const registry = await startTestService(t, { AUTH_ISSUER: 'https://auth.example.org' })
  const { token } = await registry.signUp('ROLE_CLIENT')
  const seen: (string | undefined)[] = []
  const service = createServer(({ headers }, response) => {
    seen.push(headers['x-jwt-payload'] as string | undefined)
    response.end(headers.authorization)
  })
  await new Promise<void>(resolve => service.listen(0, '127.0.0.1', resolve))
  t.teardown(() => void service.close())
  const port = await freePort()
  const keys = 'https://auth.example.org/.well-known/jwks.json'
  t.true(filters.includes(keys))
  const adapted = filters.replace(keys, keys.replace('https://auth.example.org', registry.http))
  const { port: here } = service.address() as AddressInfo
  const folder = await folderOf(t, { 'envoy.yaml': bootstrap(port, adapted, here, new URL(registry.http).port) })
  const options = ['--use-dynamic-base-id', '--concurrency', '1', '--log-level', 'warn']
  await startProxy(t, 'envoy', ['-c', `${folder}/envoy.yaml`, ...options], port)

  const get = (token?: string) =>
    fetch(`http://127.0.0.1:${port}/`, {
      headers: { ...(token && { authorization: `Bearer ${token}` }), 'x-jwt-payload': 'e30' },
    })
  const status = async (token?: string) => (await get(token)).status
  // It reads the keys when it starts.
  await waitForValue(() => status(token), 200)
  t.is(await (await get(token)).text(), `Bearer ${token}`)
  t.deepEqual(JSON.parse(Buffer.from(seen.at(-1)!, 'base64url').toString()), claimsOf(token))
  const forged = await createForger(registry, token)
  t.is(await status(forged({})), 200)
  const wrong = {
    'no token': undefined,
    'another signature': `${token.slice(0, -8)}AAAAAAAA`,
    'another issuer': forged({ iss: 'https://other.example.org' }),
    'another audience': forged({ aud: 'auth-admin' }),
    'an unknown key': forged({}, { kid: 'unknown' }),
    expired: forged({ exp: nowInSeconds() - 5 }),
  }
  const calls = seen.length
  for (const [what, token] of Object.entries(wrong)) t.true([401, 403].includes(await status(token)), what)
  t.is(seen.length, calls)
})
