/** deploy/healthcheck.mjs, which an image and Kubernetes ask, against a service. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { type AddressInfo, connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createServer } from 'node:tls'
import { fileURLToPath } from 'node:url'
import test from 'ava'
import { createAuthority } from '../_helpers/certificates.js'
import type { Teardown } from '../_helpers/database.js'
import { waitFor } from '../_helpers/patience.js'
import { freePort } from '../_helpers/relay.js'
import { startTestService } from '../_helpers/service.js'

const program = fileURLToPath(new URL('../../../deploy/healthcheck.mjs', import.meta.url))

/** Its exit code, and what it says. */
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

/** It gives up after 4 s, which a busy machine may take. */
const healthy = (env: Record<string, string>) => waitFor(async () => (await check(env)).code === 0)

async function certificates(t: Teardown): Promise<Record<string, string>> {
  const authority = createAuthority('Authority')
  const { cert, key } = authority.issue({ name: 'auth-server', dnsNames: ['auth-server'] })
  const folder = await mkdtemp(join(tmpdir(), 'auth-test-'))
  t.teardown(() => rm(folder, { recursive: true, force: true }))
  const env: Record<string, string> = {}
  const contents = { AUTH_TLS_CERT: cert, AUTH_TLS_KEY: key, AUTH_TLS_CA: authority.certificate }
  for (const [name, content] of Object.entries(contents)) {
    env[name] = join(folder, name)
    await writeFile(env[name], content)
  }
  return env
}

test('a process that is ready is healthy, over HTTP and over gRPC, and one that is about to stop is not', async t => {
  const service = await startTestService(t)
  const http = { AUTH_HTTP_ADDRESS: service.http.replace('http://127.0.0.1', '0.0.0.0') }
  const grpc = { AUTH_HTTP_ADDRESS: 'off', AUTH_GRPC_ADDRESS: service.grpc.replace('127.0.0.1', '0.0.0.0') }
  t.true(await healthy(http))
  t.true(await healthy(grpc))
  service.service.drain()
  t.is((await check(http)).code, 1)
  t.is((await check(grpc)).code, 1)
})

test('a server without a gateway is asked over gRPC, though its settings name an address for HTTP', async t => {
  const service = await startTestService(t, { AUTH_HTTP_ADDRESS: 'off' })
  const env = {
    AUTH_HTTP_ADDRESS: `127.0.0.1:${await freePort()}`,
    AUTH_GRPC_ADDRESS: `127.0.0.1:${service.service.addresses.grpc.port}`,
  }
  t.true(await healthy(env))
  service.service.drain()
  t.is((await check(env)).code, 1)
})

test('a server that asks for certificates is asked with its own', async t => {
  const tls = await certificates(t)
  const { grpc } = await startTestService(t, tls)
  const env = { AUTH_HTTP_ADDRESS: 'off', AUTH_GRPC_ADDRESS: grpc }
  t.true(await healthy({ ...env, ...tls }))
  t.deepEqual((await check({ ...env, ...tls })).said, '')
  t.is((await check(env)).code, 1)
})

test('a gateway behind TLS on its own port is asked over TLS', async t => {
  const { AUTH_TLS_CERT = '', AUTH_TLS_KEY = '' } = await certificates(t)
  const service = await startTestService(t)
  const plain = Number(new URL(service.http).port)
  const files = { cert: readFileSync(AUTH_TLS_CERT), key: readFileSync(AUTH_TLS_KEY) }
  const front = createServer(files, socket => socket.pipe(connect(plain, '127.0.0.1')).pipe(socket)).listen(
    0,
    '127.0.0.1',
  )
  t.teardown(async () => void front.close())
  await once(front, 'listening')
  const env = { AUTH_HTTP_ADDRESS: `127.0.0.1:${(front.address() as AddressInfo).port}` }
  t.true(await healthy(env))
  service.service.drain()
  t.is((await check(env)).code, 1)
})

test('where nobody listens nobody is healthy', async t => {
  const nowhere = `127.0.0.1:${await freePort()}`
  t.is((await check({ AUTH_HTTP_ADDRESS: nowhere })).code, 1)
  t.is((await check({ AUTH_HTTP_ADDRESS: 'off', AUTH_GRPC_ADDRESS: nowhere })).code, 1)
})
