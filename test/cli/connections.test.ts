/** Errors of `auth-admin` for a server that it can't use: the URL, the cause, and the remedy. */
import { execFile } from 'node:child_process'
import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { createServer as createHttp } from 'node:http'
import { constants, createServer as createHttp2, createSecureServer } from 'node:http2'
import { createServer as createHttps } from 'node:https'
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import { formatAddress } from '../../server/process/settings.js'
import { createAuthority, writePems } from '../_helpers/certificates.js'
import { installedRegistry, openTerminal, program, runCli, spawnCli } from '../_helpers/cli.js'
import { freePort } from '../_helpers/relay.js'
import { password, serviceForFile, startTestService } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', AUTH_METRICS_ADDRESS: '127.0.0.1:0' }))
const authority = createAuthority('Known')
const issue = (dnsNames: string[], until?: Date) => authority.issue({ name: 'auth', dnsNames, ...(until && { until }) })

/** Port of a server that stops with the test. */
async function listen(t: ExecutionContext, server: Server): Promise<number> {
  const sockets = new Set<Socket>()
  server.on('connection', socket => sockets.add(socket.on('error', () => {})))
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    server.close()
    for (const socket of sockets) socket.destroy()
  })
  return (server.address() as AddressInfo).port
}

/** A command in a context named `prod`, with a session, at a URL; nothing else is set. */
async function inContext(t: ExecutionContext, url: string, ca?: string, settings: Record<string, string> = {}) {
  const config = await temporaryFolder(t)
  const tokenFile = join(config, 'token')
  await writeFile(tokenFile, 'token', { mode: 0o600 })
  const contexts = { current: 'prod', contexts: { prod: { url, ...(ca && { ca }), tokenFile } } }
  await mkdir(join(config, 'auth-admin'))
  await writeFile(join(config, 'auth-admin', 'contexts.json'), JSON.stringify(contexts))
  return (...args: string[]) =>
    runCli({ ...settings, XDG_CONFIG_HOME: config, AUTH_DATA_DIR: join(config, 'none') }, args)
}

/** Runs a command at a URL: it ends with `code` and one sentence, which names the context, the URL and what matches. */
async function says(t: ExecutionContext, url: string, code: number, pattern: RegExp, ca?: string) {
  const run = await inContext(t, url, ca)
  const { stderr, ...rest } = await run('users', 'list')
  t.regex(stderr, pattern)
  t.deepEqual({ code: rest.code, stdout: rest.stdout }, { code, stdout: '' }, stderr)
  t.true(stderr.startsWith(`error: Context prod (${url})`), stderr)
  t.regex(stderr, /^error: [^\n]+\n$/)
  t.notRegex(stderr, /DATABASE_URL|ERR_|Protocol error/)
  return stderr
}

test('an unreachable server and an unknown host give exit code 7', async t => {
  await says(t, `http://127.0.0.1:${await freePort()}`, 7, /can’t be reached: connection refused\. Check the address/)
  await says(t, 'https://nowhere.invalid:50052', 7, /can’t be reached: (there is no host nowhere\.invalid|EAI_AGAIN)/)
})

test('a connection to a wrong port of the service is reported with the right port and the command that uses it', async t => {
  const { grpc, http, metrics } = service.service.addresses
  const fix = /AUTH_ADMIN_ADDRESS, by default port 50052.*`auth-admin login http:\/\/127\.0\.0\.1:50052 --context prod`/
  for (const [address, what] of [
    [metrics!, /speaks HTTP\/1\.1, as the HTTP gateway and the metrics do/],
    [http!, /speaks HTTP\/1\.1, as the HTTP gateway and the metrics do/],
    [grpc, /another gRPC listener, such as the public one \(AUTH_GRPC_ADDRESS\)/],
  ] as const) {
    t.regex(await says(t, `http://${formatAddress(address)}`, 1, fix), what)
  }
})

test('where the settings of the shell have another port of Administration, hints name it', async t => {
  const { http } = service.service.addresses
  const url = `http://${formatAddress(http!)}`
  const run = await inContext(t, url, undefined, { AUTH_ADMIN_ADDRESS: '0.0.0.0:61052' })
  const { code, stderr } = await run('users', 'list')
  t.is(code, 1)
  t.regex(stderr, /AUTH_ADMIN_ADDRESS, here port 61052.*`auth-admin login http:\/\/127\.0\.0\.1:61052 --context prod`/)
  t.notRegex(stderr, /50052/)
})

test('a failed login reports the URL and what answers there', async t => {
  const run = await inContext(t, 'http://127.0.0.1:1')
  const url = `http://${formatAddress(service.service.addresses.metrics!)}`
  const file = join(await mkdtemp(join(tmpdir(), 'auth-contexts-')), 'password')
  t.teardown(() => rm(join(file, '..'), { recursive: true, force: true }))
  await writeFile(file, password)
  const { code, stderr } = await run('login', url, '--username', 'admin', '--password-file', file)
  t.is(code, 1)
  t.true(stderr.startsWith(`error: ${url} is not the administration listener`), stderr)
})

test('at a terminal, login checks the server before it asks for a password', async t => {
  const config = await temporaryFolder(t)
  const { grpc, admin } = service.service.addresses
  for (const [url, code, said] of [
    [`http://127.0.0.1:${await freePort()}`, 7, 'connection refused'],
    [`http://${formatAddress(grpc)}`, 1, 'is not the administration listener'],
    [`https://${formatAddress(admin!)}`, 1, 'doesn’t speak TLS'],
  ] as const) {
    const terminal = openTerminal({ XDG_CONFIG_HOME: config }, ['login', url])
    t.is(await terminal.ended, code, terminal.screen())
    t.true(terminal.screen().startsWith('error: '), terminal.screen())
    t.true(terminal.screen().includes(said), terminal.screen())
  }
})

test('a server without HTTP/2 is reported without a stack trace', async t => {
  const talker = createServer(socket => socket.write('SSH-2.0-OpenSSH_9.6\r\n'))
  await says(t, `http://127.0.0.1:${await listen(t, talker)}`, 1, /it doesn’t speak HTTP\/2/)
  const closer = createServer(socket => socket.destroy())
  await says(t, `http://127.0.0.1:${await listen(t, closer)}`, 7, /closed the connection/)
  const html = createHttp((_request, response) => response.end('<html>'))
  await says(t, `http://127.0.0.1:${await listen(t, html)}`, 1, /speaks HTTP\/1\.1/)
})

test('if a server closes the connection during a call, the error says so, and doesn’t suspect a wrong server', async t => {
  for (const code of [constants.NGHTTP2_NO_ERROR, constants.NGHTTP2_INTERNAL_ERROR]) {
    const server = createHttp2().on('stream', ({ session }) => {
      session!.goaway(code)
      setTimeout(() => session!.destroy(), 50)
    })
    await says(t, `http://127.0.0.1:${await listen(t, server as unknown as Server)}`, 7, /closed the connection/)
  }
})

test('TLS on one side only is reported, for either side', async t => {
  const { cert, key } = issue(['localhost'])
  const encrypted = createSecureServer({ cert, key }).on('sessionError', () => {})
  const port = await listen(t, encrypted as unknown as Server)
  const toTls = new RegExp(
    `speaks TLS\\. Use https: \`auth-admin login https://127\\.0\\.0\\.1:${port} --context prod\``,
  )
  await says(t, `http://127.0.0.1:${port}`, 1, toTls)
  const clear = `https://${formatAddress(service.service.addresses.admin!)}`
  await says(t, clear, 1, /doesn’t speak TLS\. Check the port .*use http:\/\/127\.0\.0\.1:\d+\.\n/)
})

test('a certificate of an unknown authority, for another name, or expired is reported as such', async t => {
  const { ca } = await writePems(t, { ca: authority.certificate })
  const { ca: another } = await writePems(t, { ca: createAuthority('Another').certificate })
  const serve = async (dnsNames: string[], until?: Date) => {
    const server = createSecureServer(issue(dnsNames, until)).on('sessionError', () => {})
    return `https://localhost:${await listen(t, server as unknown as Server)}`
  }
  const good = await serve(['localhost'])
  const fix = new RegExp(`\`auth-admin login ${good} --context prod --ca FILE\``)
  t.regex(await says(t, good, 1, /authority that this system doesn’t trust/), fix)
  t.regex(await says(t, good, 1, /authority that isn’t in \//, another), fix)
  await says(
    t,
    await serve(['auth.example.org', 'auth.test']),
    1,
    /certificate for auth\.example\.org, auth\.test\. Use a URL with one of these names, or pass one: `auth-admin login https:\/\/localhost:\d+ --context prod --server-name NAME`/,
    ca,
  )
  await says(t, await serve(['localhost'], new Date(Date.now() - 86_400_000)), 1, /certificate that has expired/, ca)
})

test('--server-name verifies the certificate for another name than that of the URL, in all commands of the context', async t => {
  const { ca, ...own } = await writePems(t, { ca: authority.certificate, ...issue(['auth.example.org']) })
  const tls = { AUTH_TLS_CERT: own.cert, AUTH_TLS_KEY: own.key }
  const { service } = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0', ...tls })
  const url = `https://${formatAddress(service.addresses.admin!)}`
  const config = await temporaryFolder(t)
  const run = (...args: string[]) => runCli({ XDG_CONFIG_HOME: config }, args, `${password}\n`)
  const login = ['login', url, '--ca', ca, '--username', 'admin', '--password-file', '-', '--context', 'tls']
  const refused = await run(...login)
  t.is(refused.code, 1)
  t.regex(refused.stderr, /has a certificate for auth\.example\.org\..* --server-name NAME/)
  t.is((await run(...login, '--server-name', 'auth.example.com')).code, 1)
  t.is((await run(...login, '--server-name', '127.0.0.1')).code, 2)
  const right = await run(...login, '--server-name', 'auth.example.org')
  t.is(right.code, 0, right.stderr)
  t.is((await run('users', 'list')).code, 0)
  t.is(JSON.parse((await run('contexts', 'show', '--json')).stdout).serverName, 'auth.example.org')
  // A later sign-in keeps it.
  const again = await run('login', '--context', 'tls', '--password-file', '-')
  t.is(again.code, 0, again.stderr)
})

test('an HTTP/1.1 server with TLS is reported as such', async t => {
  const { ca } = await writePems(t, { ca: authority.certificate })
  const server = createHttps(issue(['localhost']), (_request, response) => response.end('<html>'))
  await says(t, `https://localhost:${await listen(t, server)}`, 1, /speaks HTTP\/1\.1/, ca)
})

test('files that can’t be read or written are reported without a stack trace', async t => {
  const run = await inContext(t, 'https://localhost:1')
  const folder = await temporaryFolder(t)
  const login = ['login', 'https://localhost:1', '--username', 'admin', '--password-file']
  for (const [args, pattern] of [
    [[...login, folder], /^error: The file of --password-file can’t be read \(EISDIR\)\.\n$/],
    [[...login, '-', '--ca', join(folder, 'none')], /^error: \/.*none can’t be read \(ENOENT\)\.\n$/],
    [
      ['users', 'set-password', 'ana', '--password-file', join(folder, 'none')],
      /--password-file can’t be read \(ENOENT\)/,
    ],
  ] as const) {
    const { code, stderr } = await run(...args)
    t.is(code, 1, stderr)
    t.regex(stderr, pattern)
  }
  const settings = await installedRegistry(t)
  const file = join(folder, 'registry.age')
  // Asynchronous, because other tests use servers of this process.
  const shell = (script: string, ...args: string[]) =>
    new Promise<{ status: number | null; stderr: string }>(resolve => {
      const env = { PATH: process.env.PATH, ...settings }
      const child = execFile('sh', ['-c', script, 'sh', process.execPath, program, ...args], { env }, (_, __, stderr) =>
        resolve({ status: child.exitCode, stderr }),
      )
      child.stdin!.on('error', () => {}).end('umas 16 letras ou mais')
    })
  const full = await shell('ulimit -f 1 && exec "$@"', 'backup', file, '--passphrase-file', '-')
  t.deepEqual([full.status, full.stderr], [1, 'error: The backup can’t be written (EFBIG).\n'])
  t.deepEqual(await readdir(folder), [])
  const output = await shell('exec "$@" >/dev/full', 'users', 'list', '--json')
  t.deepEqual([output.status, output.stderr], [1, 'error: Standard output can’t be written (ENOSPC).\n'])
  await writeFile(join(folder, 'auth-admin'), 'a file where a folder should be')
  const { code, stderr } = await spawnCli({ XDG_CONFIG_HOME: folder }, ['contexts', 'list'])
  t.is(code, 1)
  t.regex(stderr, /^error: \/.*contexts\.json can’t be read \(ENOTDIR\)\.\n$/)
})
