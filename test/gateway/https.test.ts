/** TLS on every port: what is spoken, with whom, and what becomes of files that are replaced. */
import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { mkdtemp, rename, rm, writeFile } from 'node:fs/promises'
import { connect as connectHttp2 } from 'node:http2'
import { Agent, get } from 'node:https'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type ConnectionOptions, connect, type TLSSocket } from 'node:tls'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { credentials } from '@grpc/grpc-js'
import test, { type ExecutionContext } from 'ava'
import { createListener, type Request, type Response } from '../../gateway/listener.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { followCertificates } from '../../server/certificates.js'
import { createLog } from '../../server/log.js'
import { spawnGateway, spawnServer } from '../_helpers/apart.js'
import { type Authority, createAuthority, writePems } from '../_helpers/certificates.js'
import { openGrpc } from '../_helpers/grpc.js'
import { waitFor, within } from '../_helpers/patience.js'
import { openRaw } from '../_helpers/raw.js'
import { createRequest, password } from '../_helpers/service.js'

const authority = createAuthority('Authority')
const ca = authority.certificate
const run = promisify(execFile)
const root = fileURLToPath(new URL('../../..', import.meta.url))

/** A certificate for this machine, and for servers by a name. */
const issue = (by: Authority = authority, until?: Date) =>
  by.issue({
    name: 'auth',
    dnsNames: ['localhost', 'auth.example'],
    addresses: ['127.0.0.1'],
    ...(until && { until }),
  })

/** Server and gateway that know each other by certificates, with HTTPS in front and metrics over TLS. */
async function start(t: ExecutionContext) {
  const inner = await writePems(t, { ca, ...issue() })
  const own = await writePems(t, authority.issue({ name: 'auth-gateway' }))
  const outer = await writePems(t, issue())
  const server = await spawnServer(t, {
    AUTH_TLS_CERT: inner.cert,
    AUTH_TLS_KEY: inner.key,
    AUTH_TLS_CA: inner.ca,
  })
  const env = {
    AUTH_TLS_CERT: own.cert,
    AUTH_TLS_KEY: own.key,
    AUTH_TLS_CA: inner.ca,
    AUTH_HTTP_TLS_CERT: outer.cert,
    AUTH_HTTP_TLS_KEY: outer.key,
  }
  // Addresses don't tell under which name servers have their certificates.
  const gateway = await spawnGateway(t, server.grpc, { ...env, AUTH_SERVER_NAME: 'auth.example' })
  const { port } = new URL(gateway.http)
  return { server, gateway, port: Number(port), files: { inner, outer, own }, env }
}

/** Opens a TLS connection, and throws what it is refused for. */
async function openTls(t: ExecutionContext, port: number, options: ConnectionOptions = {}): Promise<TLSSocket> {
  const socket = connect({ port, host: '127.0.0.1', servername: 'localhost', ca, ...options })
  t.teardown(() => socket.destroy())
  await once(socket, 'secureConnect')
  return socket.on('error', () => {})
}

/** Serial number of the certificate that a port presents to whoever connects. */
async function serialAt(t: ExecutionContext, port: number, options?: ConnectionOptions): Promise<string> {
  const socket = await openTls(t, port, options)
  const { serialNumber } = socket.getPeerCertificate()
  socket.destroy()
  return serialNumber
}

/** Replaces a file at once, as whoever renews certificates does. */
async function replace(path: string, content: Buffer) {
  await writeFile(`${path}.new`, content)
  await rename(`${path}.new`, path)
}

test('HTTP/2 and HTTP/1.1 are spoken as ALPN settles, and nothing else, with TLS 1.2 or newer', async t => {
  const { gateway, port, server, files } = await start(t)
  t.regex(gateway.http, /^https:/)
  t.regex(server.metrics, /^https:/)
  const login = new URLSearchParams({ username: 'admin', password }).toString()
  for (const [flag, version] of [
    ['--http2', '2'],
    ['--http1.1', '1.1'],
  ] as const) {
    const show = ['-sS', flag, '--cacert', files.inner.ca, '-w', ' %{http_version} %{http_code}']
    const { stdout } = await run('curl', [...show, '-d', login, `https://localhost:${port}/users/login`])
    t.regex(stdout, new RegExp(`^\\S+\\.\\S+\\.\\S+ ${version} 200$`))
  }
  const { stdout } = await run('curl', ['-sS', '--cacert', files.inner.ca, server.metrics])
  t.regex(stdout, /^auth_calls_total/m)
  // Who can't verify it isn't served, nor is who speaks in clear text.
  await t.throwsAsync(run('curl', ['-sS', `https://localhost:${port}/healthz`]), { code: 60 })
  await t.throwsAsync(run('curl', ['-sS', `http://localhost:${port}/healthz`]))

  t.is((await openTls(t, port, { ALPNProtocols: ['http/1.1', 'h2'] })).alpnProtocol, 'h2')
  t.is((await openTls(t, port)).alpnProtocol, false)
  await t.throwsAsync(openTls(t, port, { ALPNProtocols: ['acme-tls/1'] }), { message: /no application protocol/ })
  const old = { minVersion: 'TLSv1', maxVersion: 'TLSv1.1', ciphers: 'DEFAULT@SECLEVEL=0' } as const
  const own = { ...issue(), servername: 'auth.example' }
  for (const [where, options] of [
    [port, {}],
    [Number(new URL(`http://${server.grpc}`).port), own],
    [Number(new URL(server.metrics).port), {}],
  ] as const) {
    t.is((await openTls(t, where, { ...options, maxVersion: 'TLSv1.2' })).getProtocol(), 'TLSv1.2')
    t.is((await openTls(t, where, options)).getProtocol(), 'TLSv1.3')
    await t.throwsAsync(openTls(t, where, { ...options, ...old }), { message: /protocol version/ })
  }
})

test('gateway and server refuse each other without the right certificate and name', async t => {
  const { server, files, env } = await start(t)
  const foreign = createAuthority('Authority')
  const stranger = await writePems(t, foreign.issue({ name: 'auth-gateway' }))
  const other = await writePems(t, { ca: foreign.certificate })
  const name = { AUTH_SERVER_NAME: 'auth.example' }
  const { AUTH_TLS_CERT: _, AUTH_TLS_KEY: __, ...nobody } = env
  for (const [what, given, status] of [
    ['the right ones', { ...env, ...name }, 200],
    ['none of its own', { ...nobody, ...name }, 503],
    ['a foreign one of its own', { ...env, ...name, AUTH_TLS_CERT: stranger.cert, AUTH_TLS_KEY: stranger.key }, 503],
    ['another authority for the server’s', { ...env, ...name, AUTH_TLS_CA: other.ca }, 503],
    ['another name for the server', { ...env, AUTH_SERVER_NAME: 'elsewhere.example' }, 503],
    ['no TLS', { AUTH_HTTP_TLS_CERT: env.AUTH_HTTP_TLS_CERT, AUTH_HTTP_TLS_KEY: env.AUTH_HTTP_TLS_KEY }, 503],
  ] as const) {
    const { http, child } = await spawnGateway(t, server.grpc, given as Record<string, string>)
    const show = ['-sS', '--cacert', files.inner.ca, '-o', '/dev/null', '-w', '%{http_code}', '--retry', '0']
    const { stdout } = await run('curl', [...show, `${http}/forgotpasswords/findallforgotpasswordquestions`])
    t.is(Number(stdout), status, what)
    child.kill('SIGKILL')
  }
})

test('certificates that are replaced count for new connections, on every port, and those before live on', async t => {
  const { server, port, files } = await start(t)
  const ports = {
    https: [port, {}],
    grpc: [Number(new URL(`http://${server.grpc}`).port), issue()],
    metrics: [Number(new URL(server.metrics).port), {}],
  } as const
  const serials = async () => {
    const all = Object.values(ports).map(([where, options]) => serialAt(t, where, options))
    return Promise.all(all)
  }
  const before = await serials()

  const session = connectHttp2(`https://localhost:${port}`, { ca })
  t.teardown(() => session.destroy())
  const agent = new Agent({ keepAlive: true, maxSockets: 1, ca })
  t.teardown(() => agent.destroy())
  const { key, cert } = authority.issue({ name: 'some-app' })
  const grpc = openGrpc(server.grpc, credentials.createSsl(ca, key, cert))
  t.teardown(() => grpc.close())
  const used: unknown[] = []
  const useAll = async () => {
    const stream = session.request({ ':path': '/healthz' })
    const [headers] = await once(stream.resume(), 'response')
    t.is(headers[':status'], 200)
    const [response] = await once(get(`https://localhost:${port}/healthz`, { agent }), 'response')
    t.is(response.statusCode, 200)
    used.push(response.socket)
    await once(response.resume(), 'end')
    await grpc.call(Users.method.existsByUsername, { username: 'x' })
  }
  await useAll()

  for (const { cert, key } of [files.inner, files.outer]) {
    const next = issue()
    // The key alone doesn't fit; nobody is refused meanwhile.
    await replace(key, next.key)
    await useAll()
    await replace(cert, next.cert)
  }
  const after = await waitFor(async () => {
    const now = await serials()
    return now.every((serial, index) => serial !== before[index]) && now
  })
  t.is(after[1], after[2])
  t.not(after[0], after[1])
  await useAll()
  t.is(used.at(-1), used[0])
})

test('a certificate that can’t be used is told once and leaves the one before; one that is mended counts', async t => {
  const { server, gateway, port, files } = await start(t)
  const before = await serialAt(t, port)
  const { key } = issue()
  await replace(files.outer.cert, Buffer.from('-----BEGIN CERTIFICATE-----\nbroken\n-----END CERTIFICATE-----\n'))
  await replace(files.inner.key, key)
  await Promise.all(
    [gateway, server].map(program => waitFor(() => program.output().includes('certificates can’t be used'))),
  )
  // Each round takes a look at all files.
  for (const round of [1, 2]) {
    const next = authority.issue({ name: 'auth-gateway' })
    await replace(files.own.key, next.key)
    await replace(files.own.cert, next.cert)
    await waitFor(() => gateway.output().split('certificates were replaced').length > round)
  }
  t.is(await serialAt(t, port), before)
  const mended = issue()
  await replace(files.outer.key, mended.key)
  await replace(files.outer.cert, mended.cert)
  await waitFor(async () => (await serialAt(t, port)) !== before)
  t.is(gateway.output().split('certificates can’t be used').length, 2)
  t.true(server.alive())
  for (const { output } of [gateway, server]) {
    t.false(output().includes('PRIVATE KEY'))
    t.regex(output(), /"level":"error".*certificates can’t be used/)
  }
})

test('gateway and server take new certificates of a new authority without a restart', async t => {
  const { server, gateway, files } = await start(t)
  const ask = async () => {
    const show = ['-sS', '--cacert', files.outer.cert, '-o', '/dev/null', '-w', '%{http_code}']
    const url = `${gateway.http}/forgotpasswords/findallforgotpasswordquestions`
    return (await run('curl', ['-k', ...show, url])).stdout
  }
  t.is(await ask(), '200')
  const next = createAuthority('Next authority')
  // Both authorities for a while, then certificates of the new one.
  await replace(files.inner.ca, Buffer.concat([ca, next.certificate]))
  const told = (what: typeof server | typeof gateway) => what.output().split('certificates were replaced').length - 1
  await waitFor(() => told(server) >= 1 && told(gateway) >= 1)
  const [inner, own] = [issue(next), next.issue({ name: 'auth-gateway' })]
  await replace(files.inner.key, inner.key)
  await replace(files.inner.cert, inner.cert)
  await replace(files.own.key, own.key)
  await replace(files.own.cert, own.cert)
  await waitFor(() => told(server) >= 2 && told(gateway) >= 2)
  await replace(files.inner.ca, next.certificate)
  await waitFor(() => told(server) >= 3 && told(gateway) >= 3)
  // Also over a connection that begins now.
  server.child.kill('SIGSTOP')
  t.is(await ask(), '503')
  server.child.kill('SIGCONT')
  await waitFor(async () => (await ask()) === '200')
  const old = openGrpc(server.grpc, credentials.createSsl(next.certificate, ...keyAndCert(authority)))
  t.teardown(() => old.close())
  await t.throwsAsync(old.call(Users.method.existsByUsername, { username: 'x' }, { deadline: Date.now() + 3000 }))
})

function keyAndCert(by: Authority): [Buffer, Buffer] {
  const { key, cert } = by.issue({ name: 'auth-gateway' })
  return [key, cert]
}

test('the certificates that docs/processes.md shows how to make serve gateway and server', async t => {
  const [, script = ''] = /```sh\n(new\(\).*?)```/s.exec(readFileSync(join(root, 'docs/processes.md'), 'utf8')) ?? []
  const cwd = await mkdtemp(join(tmpdir(), 'auth-test-'))
  t.teardown(() => rm(cwd, { recursive: true, force: true }))
  await run('bash', ['-ec', script], { cwd })
  const tls = (name: string) => ({
    AUTH_TLS_CERT: join(cwd, `${name}.pem`),
    AUTH_TLS_KEY: join(cwd, `${name}.key`),
    AUTH_TLS_CA: join(cwd, 'ca.pem'),
  })
  const server = await spawnServer(t, tls('auth-server'))
  const { http } = await spawnGateway(t, server.grpc, { ...tls('auth-gateway'), AUTH_SERVER_NAME: 'auth-server' })
  t.is((await createRequest(http)('POST', '/users/login', { body: { username: 'admin', password } })).status, 200)
})

test('a handshake that isn’t done in time is cut, and one that nobody ends doesn’t keep a port from closing', async t => {
  const certificates = followCertificates(await writePems(t, issue()), createLog('silent'))
  t.teardown(() => certificates.stop())
  const open = async (headersTimeout: number) => {
    const limits = { headersTimeout, requestTimeout: 3_600_000 }
    const answer = (_: Request, response: Response) => void response.end()
    const listener = createListener({ host: '127.0.0.1', port: 0 }, answer, limits, {
      secure: certificates.secure,
    })
    t.teardown(() => listener.close(0))
    return { listener, port: (await listener.listen()).port }
  }
  const hello = Buffer.from([0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00])
  const quick = await open(200)
  const [silent, slow] = [await openRaw(quick.port), await openRaw(quick.port)]
  slow.write(hello)
  t.true(await within(30_000, Promise.all([silent.end(), slow.end()])))
  const patient = await open(3_600_000)
  const held = await openRaw(patient.port)
  held.write(hello)
  t.true(await within(30_000, patient.listener.close(3_600_000)))
})

test('a certificate that ends within two weeks is told', async t => {
  const lines: string[] = []
  const log = createLog('warn', line => lines.push(line))
  for (const [days, told] of [
    [13, 1],
    [15, 0],
    [-1, 1],
  ] as const) {
    lines.length = 0
    const until = new Date(Date.now() + days * 86_400_000)
    followCertificates(await writePems(t, issue(authority, until)), log).stop()
    t.is(lines.length, told, String(days))
  }
})
