/** The programs other than the service: their help and version, and what they run. */
import { execFile, spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import test from 'ava'
import { settingNames } from '../../server/process/settings.js'
import { programs, spawnGateway, spawnServer } from '../_helpers/apart.js'
import { writePems } from '../_helpers/certificates.js'
import { issue } from '../_helpers/over-tls.js'
import { freePort } from '../_helpers/relay.js'
import { createRequest, password } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
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

test('auth-server and auth-gateway together are the service, and auth-server has no HTTP port', async t => {
  const port = await freePort()
  const server = await spawnServer(t, { AUTH_HTTP_ADDRESS: `127.0.0.1:${port}` })
  t.notRegex(server.output(), /HTTP/)
  await t.throwsAsync(fetch(`http://127.0.0.1:${port}/healthz`))
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
  for (const [host, beyond] of [
    ['127.0.0.1', false],
    ['0.0.0.0', true],
  ] as const) {
    const env = { AUTH_TLS_CERT: cert, AUTH_TLS_KEY: key, AUTH_ADMIN_ADDRESS: `${host}:0` }
    const { output } = await spawnService(t, env)
    const warned = /"level":"warn".*AUTH_ADMIN_ADDRESS.*private network.*client certificates/.test(output())
    t.is(warned, beyond && Number.parseInt(process.versions.node, 10) < 24, output())
  }
})
