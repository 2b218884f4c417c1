/** TLS on every port: protocols, certificates and names. */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import test from 'ava'
import type { Request, Response } from '../../gateway/connection.js'
import { createListener } from '../../gateway/listener.js'
import { createLog } from '../../server/observability/log.js'
import { followCertificates } from '../../server/process/certificates.js'
import { writePems } from '../_helpers/certificates.js'
import { authority, issue, openTls, startOverTls } from '../_helpers/over-tls.js'
import { openRaw } from '../_helpers/raw.js'
import { password } from '../_helpers/service.js'
import { within } from '../_helpers/wait.js'

const run = promisify(execFile)

test('the HTTPS port speaks only HTTP/1.1, with TLS 1.2 or newer', async t => {
  const { gateway, port, server, files } = await startOverTls(t)
  t.regex(gateway.http, /^https:/)
  t.regex(server.metrics, /^https:/)
  const login = new URLSearchParams({ username: 'admin', password }).toString()
  // A client that supports both uses the protocol of the port.
  for (const flag of ['--http2', '--http1.1']) {
    const show = ['-sS', flag, '--cacert', files.inner.ca, '-w', ' %{http_version} %{http_code}']
    const { stdout } = await run('curl', [...show, '-d', login, `https://localhost:${port}/users/login`])
    t.regex(stdout, /^\S+\.\S+\.\S+ 1\.1 200$/)
  }
  const { stdout } = await run('curl', ['-sS', '--cacert', files.inner.ca, server.metrics])
  t.regex(stdout, /^auth_calls_total/m)
  // A client that can't verify it isn't served, and neither is one without TLS.
  await t.throwsAsync(run('curl', ['-sS', `https://localhost:${port}/healthz`]), { code: 60 })
  await t.throwsAsync(run('curl', ['-sS', `http://localhost:${port}/healthz`]))

  t.is((await openTls(t, port, { ALPNProtocols: ['h2', 'http/1.1'] })).alpnProtocol, 'http/1.1')
  t.is((await openTls(t, port)).alpnProtocol, false)
  for (const protocol of ['h2', 'acme-tls/1'])
    await t.throwsAsync(openTls(t, port, { ALPNProtocols: [protocol] }), { message: /no application protocol/ })
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

test('a slow handshake is cut off, and an unfinished one doesn’t keep a port from closing', async t => {
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

test('a certificate that expires within two weeks is logged', async t => {
  const lines: string[] = []
  const log = createLog('warn', line => lines.push(line))
  for (const [days, count] of [
    [13, 1],
    [15, 0],
    [-1, 1],
  ] as const) {
    lines.length = 0
    const until = new Date(Date.now() + days * 86_400_000)
    followCertificates(await writePems(t, issue(authority, until)), log).stop()
    t.is(lines.length, count, String(days))
  }
})
