/** The programs: their help and version, their parts, and their ports. */
import { execFile, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { readdir } from 'node:fs/promises'
import { type AddressInfo, createServer } from 'node:net'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import test, { type ExecutionContext } from 'ava'
import { settingNames } from '../../server/process/settings.js'
import { programs, spawnGateway, spawnServer } from '../_helpers/apart.js'
import { writePems } from '../_helpers/certificates.js'
import { ask, freshDatabase } from '../_helpers/database.js'
import { issue } from '../_helpers/over-tls.js'
import { freePort } from '../_helpers/relay.js'
import { createRequest, password } from '../_helpers/service.js'
import { launch, serviceEnv, signalUntilEnded, spawnService } from '../_helpers/spawned.js'
import { claimsOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

const run = promisify(execFile)
const manifest = JSON.parse(readFileSync(fileURLToPath(new URL('../../../package.json', import.meta.url)), 'utf8'))

test('each program prints its version and the settings that it reads, and refuses other arguments', async t => {
  for (const [name, program] of [
    ['auth-server', programs.server],
    ['auth-gateway', programs.gateway],
  ] as const) {
    t.true(program.endsWith(manifest.bin[name]))
    t.regex(readFileSync(program, 'utf8'), /^#!\/usr\/bin\/env -S node /)
    const { stdout: help } = await run(process.execPath, [program, '--help'])
    t.true(help.startsWith(`${name}: `))
    const named = help.match(/\b(AUTH|DATABASE|SMTP)_[A-Z_]*[A-Z]\b(?!\*|_)/g) ?? []
    t.true(named.length > 8)
    for (const each of named) t.true(settingNames.includes(each), each)
    for (const line of help.split('\n')) t.true(line.length <= 120, line)
    t.is((await run(process.execPath, [program, '--version'])).stdout, `${manifest.version}\n`)
    for (const argument of ['--port', 'start']) {
      const { status, stderr } = spawnSync(process.execPath, [program, argument], { encoding: 'utf8' })
      t.is(status, 2)
      t.true(stderr.includes(argument))
      t.false(stderr.includes(' at '))
    }
  }
})

test('auth-server without an HTTP port and auth-gateway together are the service', async t => {
  const server = await spawnServer(t)
  t.notRegex(server.output(), /HTTP/)
  const gateway = await spawnGateway(t, server.grpc)
  const request = createRequest(gateway.http)
  await waitForValue(async () => (await request('GET', '/readyz', { once: true })).status, 200)
  t.is((await request('POST', '/users/login', { body: { username: 'admin', password } })).status, 200)
  for (const program of [gateway, server]) {
    program.child.kill('SIGTERM')
    t.is(await program.ended, 0)
  }
})

test('with Node.js before 24, exposing Administration beyond this machine logs a warning at the start', async t => {
  const { cert, key } = await writePems(t, issue())
  for (const host of ['127.0.0.1', '0.0.0.0']) {
    const env = { AUTH_TLS_CERT: cert, AUTH_TLS_KEY: key, AUTH_ADMIN_ADDRESS: `${host}:0` }
    const { output } = await spawnService(t, env)
    const warned = /"level":"warn".*AUTH_ADMIN_ADDRESS.*private network.*client certificates/.test(output())
    t.is(warned, host === '0.0.0.0' && Number.parseInt(process.versions.node, 10) < 24, output())
  }
})

/** An address that another program occupies. */
async function takenAddress(t: ExecutionContext): Promise<string> {
  const other = createServer().listen(0, '127.0.0.1')
  await once(other, 'listening')
  t.teardown(async () => void other.close())
  return `127.0.0.1:${(other.address() as AddressInfo).port}`
}

const inUse = (setting: string, address: string) =>
  `${setting}: ${address} is in use. Choose another address, or stop the program that uses it.\n`

test('a start on taken ports names the setting of each, and creates nothing', async t => {
  const settings = ['AUTH_GRPC_ADDRESS', 'AUTH_HTTP_ADDRESS', 'AUTH_METRICS_ADDRESS', 'AUTH_ADMIN_ADDRESS']
  const taken = await Promise.all(settings.map(async setting => [setting, await takenAddress(t)] as const))
  const env = await serviceEnv(t, { DATABASE_URL: '', AUTH_LOG_LEVEL: 'error', ...Object.fromEntries(taken) })
  for (const [program, lacks] of [
    [{}, []],
    [{ program: programs.gateway }, ['AUTH_GRPC_ADDRESS', 'AUTH_ADMIN_ADDRESS']],
  ] as const) {
    const { ended, output } = launch(t, env, program)
    t.is(await ended, 1)
    const named = taken.filter(([setting]) => !lacks.some(lack => lack === setting))
    t.is(output(), named.map(([setting, address]) => inUse(setting, address)).join(''))
  }
  t.deepEqual(await readdir(env.AUTH_DATA_DIR!), [])

  // TEST-NET-1 (RFC 5737): an address of no machine.
  const elsewhere = { ...env, AUTH_HTTP_ADDRESS: '192.0.2.1:80' }
  const { ended, output } = launch(t, elsewhere, { program: programs.gateway })
  t.is(await ended, 1)
  t.regex(output(), /^AUTH_HTTP_ADDRESS: 192\.0\.2\.1:80 can’t be opened \(E[A-Z]+\)\. Choose another address\.\n/)
})

test('after a first start on a taken port, the next one installs the registry with its own address', async t => {
  const DATABASE_URL = await freshDatabase(t, { from: 'template0' })
  const taken = await takenAddress(t)
  const env = await serviceEnv(t, { DATABASE_URL, AUTH_HTTP_ADDRESS: taken, AUTH_LOG_LEVEL: 'error' })
  const first = launch(t, env)
  t.is(await first.ended, 1)
  t.is(first.output(), inUse('AUTH_HTTP_ADDRESS', taken))

  const address = `127.0.0.1:${await freePort()}`
  const next = await spawnService(t, { DATABASE_URL, AUTH_HTTP_ADDRESS: address })
  const login = await createRequest(next.http)('POST', '/users/login', { body: { username: 'admin', password } })
  t.is(claimsOf(login.text).iss, `http://${address}`)
  t.notRegex(next.output(), /^issuer/m)
  // A registry keeps its issuer.
  const moved = await spawnService(t, { DATABASE_URL })
  t.regex(moved.output(), new RegExp(`^issuer   http://${address} \\(see auth-admin api GetIssuer\\)$`, 'm'))
})

// The modules that an idle process has loaded: none that only some calls need.

/** Modules that only calls need, each by one of its files. */
const brought: Record<string, RegExp> = {
  'a second protobuf library': /node_modules\/protobufjs\//,
  nodemailer: /\/nodemailer/,
  'the dictionary of passwords': /node_modules\/@zxcvbn-ts\//,
  bcrypt: /node_modules\/bcrypt\//,
  'a hash thread': /hash-thread\.js/,
}

test('an idle process after its first maintenance run has loaded no module that only some calls need', async t => {
  const DATABASE_URL = await freshDatabase(t)
  // The first start hashes the password of the administrator.
  await signalUntilEnded(await spawnService(t, { DATABASE_URL }), 'SIGINT')
  await ask(
    DATABASE_URL,
    `INSERT INTO refreshed_sessions (user_id, id, newest, ends_at) SELECT id, 'lapsed', 1, now() - interval '2 days' FROM users`,
  )
  const service = await spawnService(t, { DATABASE_URL, NODE_DEBUG: 'module,esm' })
  // Maintenance has run once this row is deleted.
  await waitForValue(() => ask(DATABASE_URL, `SELECT FROM refreshed_sessions WHERE id = 'lapsed'`), [])
  const loaded = () => Object.keys(brought).filter(what => brought[what]!.test(service.output()))
  const request = createRequest(service.http)
  t.is((await request('GET', '/readyz')).status, 200)
  t.deepEqual(loaded(), [])

  // Modules are loaded, and reported, when a call needs them.
  t.is((await request('POST', '/users/login', { body: { username: 'admin', password } })).status, 200)
  t.true(['a hash thread', 'bcrypt'].every(what => loaded().includes(what)))
})
