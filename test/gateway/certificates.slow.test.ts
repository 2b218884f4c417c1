/** Certificates that are replaced while gateway and server run. */
import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { rename, writeFile } from 'node:fs/promises'
import { Agent, get } from 'node:https'
import type { ConnectionOptions } from 'node:tls'
import { promisify } from 'node:util'
import { credentials } from '@grpc/grpc-js'
import test, { type ExecutionContext } from 'ava'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { type Authority, createAuthority } from '../_helpers/certificates.js'
import { grpcOf } from '../_helpers/grpc.js'
import { authority, ca, issue, openTls, startOverTls } from '../_helpers/over-tls.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

const run = promisify(execFile)

/** Serial number of the certificate that a port presents. */
async function serialAt(t: ExecutionContext, port: number, options?: ConnectionOptions): Promise<string> {
  const socket = await openTls(t, port, options)
  const { serialNumber } = socket.getPeerCertificate()
  socket.destroy()
  return serialNumber
}

/** Replaces a file atomically, as tools that renew certificates do. */
async function replace(path: string, content: Buffer) {
  await writeFile(`${path}.new`, content)
  await rename(`${path}.new`, path)
}

test('replaced certificates apply to new connections on every port, and earlier connections stay open', async t => {
  const { server, port, files } = await startOverTls(t)
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

  const agent = new Agent({ keepAlive: true, maxSockets: 1, ca })
  t.teardown(() => agent.destroy())
  const { key, cert } = authority.issue({ name: 'some-app' })
  const grpc = grpcOf(t, server.grpc, credentials.createSsl(ca, key, cert))
  const used: unknown[] = []
  const useAll = async () => {
    const [response] = await once(get(`https://localhost:${port}/healthz`, { agent }), 'response')
    t.is(response.statusCode, 200)
    used.push(response.socket)
    await once(response.resume(), 'end')
    await grpc.call(Users.method.existsByUsername, { username: 'x' })
  }
  await useAll()

  for (const { cert, key } of [files.inner, files.outer]) {
    const next = issue()
    // The key alone doesn't match; clients are still served in the meantime.
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

test('an unusable certificate is logged once and leaves the previous one in use; a corrected one applies', async t => {
  const { server, gateway, port, files } = await startOverTls(t)
  const before = await serialAt(t, port)
  const { key } = issue()
  await replace(files.outer.cert, Buffer.from('-----BEGIN CERTIFICATE-----\nbroken\n-----END CERTIFICATE-----\n'))
  await replace(files.inner.key, key)
  await Promise.all(
    [gateway, server].map(program => waitFor(() => program.output().includes('certificates can’t be used'))),
  )
  // Each round checks all files.
  for (const round of [1, 2]) {
    const next = authority.issue({ name: 'auth-gateway' })
    await replace(files.own.key, next.key)
    await replace(files.own.cert, next.cert)
    await waitForValue(
      () => gateway.output().split('certificates were replaced'),
      value => value.length > round,
    )
  }
  t.is(await serialAt(t, port), before)
  const mended = issue()
  await replace(files.outer.key, mended.key)
  await replace(files.outer.cert, mended.cert)
  await waitForValue(
    () => serialAt(t, port),
    value => value !== before,
  )
  for (const [program, why] of [
    [gateway, `AUTH_HTTP_TLS_CERT, ${files.outer.cert}: ERR_`],
    [server, 'AUTH_TLS_CERT, AUTH_TLS_KEY: certificate and key don’t belong together'],
  ] as const) {
    const lines = program
      .output()
      .match(/^.*certificates can’t be used.*$/gm)!
      .map(line => JSON.parse(line))
    t.is(lines.length, 1)
    t.true(lines[0].why.startsWith(why), lines[0].why)
    t.is(lines[0].err, undefined)
  }
  t.true(server.alive())
  for (const { output } of [gateway, server]) {
    t.false(output().includes('PRIVATE KEY'))
    t.regex(output(), /"level":"error".*certificates can’t be used/)
  }
})

test('gateway and server take new certificates of a new authority without a restart', async t => {
  const { server, gateway, files } = await startOverTls(t)
  const ask = async () => {
    const show = ['-sS', '--cacert', files.outer.cert, '-o', '/dev/null', '-w', '%{http_code}']
    const url = `${gateway.http}/forgotpasswords/findallforgotpasswordquestions`
    return (await run('curl', ['-k', ...show, url])).stdout
  }
  t.is(await ask(), '200')
  const next = createAuthority('Next authority')
  // First both authorities, then certificates of the new one.
  await replace(files.inner.ca, Buffer.concat([ca, next.certificate]))
  const replaced = (what: typeof server | typeof gateway) =>
    what.output().split('certificates were replaced').length - 1
  await waitFor(() => replaced(server) >= 1 && replaced(gateway) >= 1)
  const [inner, own] = [issue(next), next.issue({ name: 'auth-gateway' })]
  await replace(files.inner.key, inner.key)
  await replace(files.inner.cert, inner.cert)
  await replace(files.own.key, own.key)
  await replace(files.own.cert, own.cert)
  await waitFor(() => replaced(server) >= 2 && replaced(gateway) >= 2)
  await replace(files.inner.ca, next.certificate)
  await waitFor(() => replaced(server) >= 3 && replaced(gateway) >= 3)
  // Also over a new connection.
  server.child.kill('SIGSTOP')
  t.is(await ask(), '503')
  server.child.kill('SIGCONT')
  await waitForValue(ask, '200')
  const old = grpcOf(t, server.grpc, credentials.createSsl(next.certificate, ...keyAndCert(authority)))
  await t.throwsAsync(old.call(Users.method.existsByUsername, { username: 'x' }, { deadline: Date.now() + 3000 }))
})

function keyAndCert(by: Authority): [Buffer, Buffer] {
  const { key, cert } = by.issue({ name: 'auth-gateway' })
  return [key, cert]
}
