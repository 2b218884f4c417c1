/** deploy/healthcheck.mjs, the health check of the image, against a service. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import test from 'ava'
import { createAuthority, writePems } from '../_helpers/certificates.js'
import type { Teardown } from '../_helpers/database.js'
import { freePort } from '../_helpers/relay.js'
import { startTestService, type TestService } from '../_helpers/service.js'
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

/** It fails after 4 s, which a busy machine may need. */
const healthy = (env: Record<string, string>) => waitForValue(async () => (await check(env)).code, 0)

async function certificates(t: Teardown): Promise<Record<string, string>> {
  const authority = createAuthority('Authority')
  const files = await writePems(t, { ca: authority.certificate, ...authority.issue({ name: 'auth-server' }) })
  return { AUTH_TLS_CERT: files.cert, AUTH_TLS_KEY: files.key, AUTH_TLS_CA: files.ca }
}

/** The address of a service's metrics, as in its setting. */
const metricsOf = ({ service }: TestService) => `0.0.0.0:${service.addresses.metrics!.port}`

test('a ready process is healthy, and a stopping one is not', async t => {
  const service = await startTestService(t, { AUTH_METRICS_ADDRESS: '127.0.0.1:0' })
  const env = { AUTH_METRICS_ADDRESS: metricsOf(service) }
  await t.notThrowsAsync(healthy(env))
  service.service.drain()
  t.is((await check(env)).code, 1)
})

test('a process with a certificate is asked over TLS, without a client certificate', async t => {
  const tls = await certificates(t)
  const service = await startTestService(t, { ...tls, AUTH_METRICS_ADDRESS: '127.0.0.1:0' })
  const env = { ...tls, AUTH_METRICS_ADDRESS: metricsOf(service) }
  await t.notThrowsAsync(healthy(env))
  t.deepEqual(await check(env), { code: 0, said: '' })
  service.service.drain()
  t.is((await check(env)).code, 1)
})

test('without a listener the check fails, and without metrics it says so', async t => {
  t.deepEqual(await check({ AUTH_METRICS_ADDRESS: `127.0.0.1:${await freePort()}` }), { code: 1, said: '' })
  const { code, said } = await check({ AUTH_METRICS_ADDRESS: 'off' })
  t.is(code, 1)
  t.regex(said, /AUTH_METRICS_ADDRESS is off/)
})
