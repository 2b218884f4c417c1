/** The package of a release: `npm pack` makes it, `npm install --global` installs it, and its programs work. */
import { execFileSync, spawn } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import { node24In } from '../_helpers/node24.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { root } from '../_helpers/versions.js'
import { waitFor } from '../_helpers/wait.js'

const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))
const npm = execFileSync('sh', ['-c', 'readlink -f "$(command -v npm)"'], { encoding: 'utf8' }).trim()
const registry = execFileSync('npm', ['config', 'get', 'registry'], { cwd: root, encoding: 'utf8' }).trim()

/** The environment of a new machine, with access to the package registry. */
const bare = {
  ...Object.fromEntries(Object.entries(process.env).filter(([name]) => /_proxy$|_ca_|_cert_/i.test(name))),
  npm_config_registry: registry,
}

/** Starts a program, and waits until its output matches. */
async function start(t: ExecutionContext, command: string, env: Record<string, string>, cwd: string, pattern: RegExp) {
  const child = spawn(command, { cwd, env, stdio: ['ignore', 'pipe', 'pipe'] })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', chunk => (output += chunk))
  const ended = new Promise<number | null>(resolve => child.once('close', resolve))
  t.teardown(async () => {
    child.kill('SIGTERM')
    await ended
  })
  const match = await waitFor(
    () => pattern.exec(output) ?? undefined,
    () => output,
  )
  const stop = () => {
    child.kill('SIGTERM')
    return ended
  }
  return { address: match[1]!, stop }
}

test('the package installs with an empty HOME on each version of Node.js, and its three programs work on the embedded database', async t => {
  // Installs packages.
  t.timeout(600_000)
  const folder = await temporaryFolder(t)
  // There is already a build for the tests.
  execFileSync('npm', ['pack', '--ignore-scripts', '--pack-destination', folder], { cwd: root, stdio: 'pipe' })
  const tarball = join(folder, `auth-registry-${version}.tgz`)
  const files = execFileSync('tar', ['-tzf', tarball], { encoding: 'utf8' }).trim().split('\n')
  t.deepEqual(
    files.filter(name => /\/(test|node_modules)\/|\.(ts|map)$/.test(name)),
    [],
  )

  for (const node of [process.execPath, await node24In(folder)]) {
    const name = execFileSync(node, ['--version'], { encoding: 'utf8' }).trim()
    const prefix = join(folder, name)
    const home = join(prefix, 'home')
    await mkdir(home, { recursive: true })
    const env = { ...bare, HOME: home, PATH: `${join(prefix, 'bin')}:${join(node, '..')}:/usr/bin:/bin` }
    execFileSync(node, [npm, 'install', '--global', '--prefix', prefix, tarball], { env, cwd: home, stdio: 'pipe' })
    for (const program of ['auth-admin', 'auth-gateway', 'auth-server'])
      t.is(execFileSync(program, ['--version'], { env, encoding: 'utf8' }), `${version}\n`, `${program} ${name}`)

    const settings = { ...env, AUTH_METRICS_ADDRESS: 'off', AUTH_BCRYPT_COST: '4' }
    const ports = { AUTH_GRPC_ADDRESS: '127.0.0.1:0', AUTH_ADMIN_ADDRESS: 'off' }
    const server = await start(t, 'auth-server', { ...settings, ...ports }, home, /^gRPC +(\S+)\n/m)
    const toServer = { AUTH_SERVER_URL: server.address, AUTH_HTTP_ADDRESS: '127.0.0.1:0' }
    const gateway = await start(t, 'auth-gateway', { ...settings, ...toServer }, home, /^HTTP +(\S+)\n/m)
    const password = readFileSync(join(home, '.auth/initial-admin-password'), 'utf8')
    const body = new URLSearchParams({ username: 'admin', password })
    const answer = await fetch(`${gateway.address}/users/login`, { method: 'POST', body })
    t.is(answer.status, 200, name)
    const paths = ['/docs', '/openapi/1.0.2.json', '/.well-known/jwks.json']
    for (const path of paths) t.is((await fetch(gateway.address + path)).status, 200, path)
    const list = ['organizations', 'create', '--name', 'Escola Azul', '--json']
    const organization = execFileSync('auth-admin', list, { env: settings, cwd: home, encoding: 'utf8' })
    t.is(JSON.parse(organization).name, 'Escola Azul', name)
    t.is(await gateway.stop(), 0, name)
    t.is(await server.stop(), 0, name)
    t.false(existsSync(join(home, '.auth/postgres/postmaster.pid')), name)
  }
})
