/** deploy/healthcheck.mjs, the health check of the image, against a service. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import test from 'ava'
import { createAuthority, writePems } from '../_helpers/certificates.js'
import { freePort } from '../_helpers/relay.js'
import { startTestService } from '../_helpers/service.js'
import { waitForValue } from '../_helpers/wait.js'

const program = fileURLToPath(new URL('../../../deploy/healthcheck.mjs', import.meta.url))

/** Its exit code and output. */
async function check(env: Record<string, string>): Promise<{ code: number; said: string }> {
  const child = spawn(process.execPath, [program], {
    env: { PATH: process.env.PATH, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let said = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', text => (said += text))
  const [code] = await once(child, 'close')
  return { code, said }
}

test('a ready process is healthy, over TLS without a client certificate if it has one, and a stopping one is not', async t => {
  const authority = createAuthority('Authority')
  const { cert, key, ca } = await writePems(t, {
    ca: authority.certificate,
    ...authority.issue({ name: 'auth-server' }),
  })
  for (const tls of [{}, { AUTH_TLS_CERT: cert, AUTH_TLS_KEY: key, AUTH_TLS_CA: ca }] as Record<string, string>[]) {
    const { service } = await startTestService(t, { ...tls, AUTH_METRICS_ADDRESS: '127.0.0.1:0' })
    const env = { ...tls, AUTH_METRICS_ADDRESS: `0.0.0.0:${service.addresses.metrics!.port}` }
    // It fails after 4 s, which a busy machine may need.
    await waitForValue(() => check(env), { code: 0, said: '' })
    service.drain()
    t.is((await check(env)).code, 1)
  }
})

test('without a listener the check fails, and without metrics it says so', async t => {
  t.deepEqual(await check({ AUTH_METRICS_ADDRESS: `127.0.0.1:${await freePort()}` }), { code: 1, said: '' })
  const { code, said } = await check({ AUTH_METRICS_ADDRESS: 'off' })
  t.is(code, 1)
  t.regex(said, /AUTH_METRICS_ADDRESS is off/)
})
