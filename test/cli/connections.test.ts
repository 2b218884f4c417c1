/** Errors of `auth-admin` for a server that it can't use: the URL, the cause, and the remedy. */
import { execFile } from 'node:child_process'
import { mkdir, readdir, writeFile } from 'node:fs/promises'
import { createServer as createHttp, type ServerResponse } from 'node:http'
import { constants, createServer as createHttp2, createSecureServer } from 'node:http2'
import { createServer as createHttps } from 'node:https'
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net'
import { join } from 'node:path'
import { Code, ConnectError, type ConnectRouter } from '@connectrpc/connect'
import { connectNodeAdapter } from '@connectrpc/connect-node'
import test, { type ExecutionContext } from 'ava'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { ErrorInfoSchema } from '../../proto/gen/google/rpc/error_details_pb.js'
import { formatAddress } from '../../server/process/settings.js'
import { createAuthority, writePems } from '../_helpers/certificates.js'
import { assertRefusals, installedRegistry, openTerminal, program, runCli, spawnCli } from '../_helpers/cli.js'
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
  await says(t, `http://127.0.0.1:${await freePort()}`, 7, /can’t be reached \(ECONNREFUSED\): check the address/)
  await says(t, 'https://nowhere.invalid:50052', 7, /can’t be reached \((ENOTFOUND|EAI_AGAIN)\)/)
})

/** What answers isn't the listener. */
const other =
  /doesn’t answer as the administration listener \(AUTH_ADMIN_ADDRESS, by default port 50052\): check port and scheme/

test('a wrong port of the service is reported with the right one, and the command that uses it', async t => {
  const { grpc, http, metrics } = service.service.addresses
  for (const address of [grpc, http!, metrics!]) {
    const url = `http://${formatAddress(address)}`
    t.regex(await says(t, url, 1, other), new RegExp(`run \`auth-admin login ${url} --context prod\``))
  }
  const login = await inContext(t, 'http://127.0.0.1:1')
  const file = join(await temporaryFolder(t), 'password')
  await writeFile(file, password)
  const url = `http://${formatAddress(metrics!)}`
  const { code, stderr } = await login('login', url, '--username', 'admin', '--password-file', file)
  t.is(code, 1)
  t.true(stderr.startsWith(`error: ${url} doesn’t answer as the administration listener`), stderr)
})

test('at a terminal, login checks the server before it asks for a password', async t => {
  const { grpc, admin } = service.service.addresses
  for (const [url, said] of Object.entries({
    [`http://127.0.0.1:${await freePort()}`]: 'ECONNREFUSED',
    [`http://${formatAddress(grpc)}`]: 'as the administration listener',
    [`https://${formatAddress(admin!)}`]: 'as the administration listener',
  })) {
    const terminal = openTerminal({ XDG_CONFIG_HOME: await temporaryFolder(t) }, ['login', url])
    t.is(await terminal.ended, said === 'ECONNREFUSED' ? 7 : 1, terminal.screen())
    t.true(terminal.screen().startsWith('error: '), terminal.screen())
    t.true(terminal.screen().includes(said), terminal.screen())
  }
})

test('a server without HTTP/2, or with TLS on one side only, is reported without a stack trace', async t => {
  const talker = createServer(socket => socket.write('SSH-2.0-OpenSSH_9.6\r\n'))
  await says(t, `http://127.0.0.1:${await listen(t, talker)}`, 1, other)
  const closer = createServer(socket => socket.destroy())
  await says(t, `http://127.0.0.1:${await listen(t, closer)}`, 7, /closed the connection/)
  const { ca } = await writePems(t, { ca: authority.certificate })
  const page = (_: unknown, response: ServerResponse) => void response.end('<html>')
  await says(t, `http://127.0.0.1:${await listen(t, createHttp(page))}`, 1, other)
  const encrypted = createHttps(issue(['localhost']), page)
  await says(t, `https://localhost:${await listen(t, encrypted)}`, 1, other, ca)
  await says(t, `https://${formatAddress(service.service.addresses.admin!)}`, 1, other)
  const port = await listen(t, createHttps(issue(['localhost']), page))
  await says(t, `http://127.0.0.1:${port}`, 7, /closed the connection: .* check port and scheme/)
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

test('a deadline that passed gives exit code 7, whether the service or a proxy before it says so', async t => {
  const byService = { desc: ErrorInfoSchema, value: { domain: 'auth.v1', reason: 'DEADLINE_EXCEEDED' } }
  for (const [details, sentence] of [
    [[byService], /^error: The deadline has passed\. Try again\.\n$/],
    [[], /^error: Context prod \(http:.*\) doesn’t answer now \(DeadlineExceeded: .*\): try again later\.\n$/],
  ] as const) {
    const listUsers = () => {
      throw new ConnectError('The deadline has passed. Try again.', Code.DeadlineExceeded, undefined, [...details])
    }
    const routes = (router: ConnectRouter) => void router.service(Administration, { listUsers })
    const server = createHttp2(connectNodeAdapter({ routes })) as unknown as Server
    const run = await inContext(t, `http://127.0.0.1:${await listen(t, server)}`)
    const { code, stderr } = await run('users', 'list')
    t.regex(stderr, sentence)
    t.is(code, 7)
  }
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
  t.regex(await says(t, good, 1, /from an unknown authority/), fix)
  t.regex(await says(t, good, 1, /from an unknown authority/, another), fix)
  const others =
    /certificate for auth\.example\.org, auth\.test: use a URL with this name, or pass one, `auth-admin login https:\/\/localhost:\d+ --context prod --server-name NAME`/
  await says(t, await serve(['auth.example.org', 'auth.test']), 1, others, ca)
  await says(
    t,
    await serve(['localhost'], new Date(Date.now() - 86_400_000)),
    1,
    /invalid certificate \(CERT_HAS_EXPIRED\): renew it/,
    ca,
  )
})

test('--server-name verifies the certificate for another name than that of the URL, in all commands of the context', async t => {
  const { ca, ...own } = await writePems(t, { ca: authority.certificate, ...issue(['auth.example.org']) })
  const tls = { AUTH_TLS_CERT: own.cert, AUTH_TLS_KEY: own.key }
  const { service } = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0', ...tls })
  const url = `https://${formatAddress(service.addresses.admin!)}`
  const config = await temporaryFolder(t)
  const run = (...args: string[]) => runCli({ XDG_CONFIG_HOME: config }, args, `${password}\n`)
  const login = ['login', url, '--ca', ca, '--username', 'admin', '--password-file', '-', '--context', 'tls']
  await assertRefusals(t, (...more) => run(...login, ...more), [
    [/has a certificate for auth\.example\.org: .* --server-name NAME/, 1],
    [/has a certificate for auth\.example\.org:/, 1, '--server-name', 'auth.example.com'],
    [/--server-name/, 2, '--server-name', '127.0.0.1'],
  ])
  const right = await run(...login, '--server-name', 'auth.example.org')
  t.is(right.code, 0, right.stderr)
  t.is((await run('users', 'list')).code, 0)
  t.is(JSON.parse((await run('contexts', '--json')).stdout).contexts[0].serverName, 'auth.example.org')
  // A later sign-in keeps it.
  const again = await run('login', '--context', 'tls', '--password-file', '-')
  t.is(again.code, 0, again.stderr)
})

test('files that can’t be read or written are reported without a stack trace', async t => {
  const folder = await temporaryFolder(t)
  const none = join(folder, 'none')
  const login = ['login', 'https://localhost:1', '--username', 'admin', '--password-file']
  await assertRefusals(t, await inContext(t, 'https://localhost:1'), [
    [/^error: The file of --password-file can’t be read \(EISDIR\)\.\n$/, 1, ...login, folder],
    [/^error: \/.*none can’t be read \(ENOENT\)\.\n$/, 1, ...login, '-', '--ca', none],
    [/--password-file can’t be read \(ENOENT\)/, 1, 'users', 'set-password', 'ana', '--password-file', none],
  ])
  const settings = await installedRegistry(t)
  // Asynchronous, because other tests use servers of this process.
  const shell = (script: string, ...args: string[]) =>
    new Promise<unknown>(resolve => {
      const env = { PATH: process.env.PATH, ...settings }
      const child = execFile('sh', ['-c', script, 'sh', process.execPath, program, ...args], { env }, (_, __, stderr) =>
        resolve([child.exitCode, stderr]),
      )
      child.stdin!.on('error', () => {}).end('umas 16 letras ou mais')
    })
  const full = await shell('ulimit -f 1 && exec "$@"', 'backup', join(folder, 'x.age'), '--passphrase-file', '-')
  t.deepEqual(full, [1, 'error: The backup can’t be written (EFBIG).\n'])
  t.deepEqual(await readdir(folder), [])
  const output = await shell('exec "$@" >/dev/full', 'users', 'list', '--json')
  t.deepEqual(output, [1, 'error: Standard output can’t be written (ENOSPC).\n'])
  await writeFile(join(folder, 'auth-admin'), 'a file where a folder should be')
  const run = (...args: string[]) => spawnCli({ XDG_CONFIG_HOME: folder }, args)
  await assertRefusals(t, run, [[/^error: \/.*contexts\.json can’t be read \(ENOTDIR\)\.\n$/, 1, 'contexts']])
})
