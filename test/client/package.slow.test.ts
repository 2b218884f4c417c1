/** The package installs alone, in a new project that follows its README, with types for each module resolution. */
import { execFileSync, spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { cp, mkdir, readdir, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'ava'
import { node24In } from '../_helpers/node24.js'
import { freePort } from '../_helpers/relay.js'
import { startTestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { root } from '../_helpers/versions.js'
import { waitFor } from '../_helpers/wait.js'

const readme = readFileSync(join(root, 'proto/client/README.md'), 'utf8')
const blockOf = (language: string) => new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\`$`, 'ms').exec(readme)![1]!

/** Packs the client without the sources’ folder of output, which other tests use. */
async function pack(folder: string): Promise<string> {
  const run = (command: string, args: string[]) => execFileSync(command, args, { cwd: root, stdio: 'pipe' })
  const staged = join(folder, 'staged')
  await mkdir(staged)
  run(process.execPath, [
    join(root, 'node_modules/typescript/bin/tsc'),
    '-p',
    'proto/client',
    '--outDir',
    `${staged}/lib`,
  ])
  for (const file of ['proto/client/package.json', 'proto/client/README.md', 'LICENSE'])
    await cp(join(root, file), join(staged, file.split('/').at(-1)!))
  run('npm', ['pack', staged, '--pack-destination', folder])
  return join(folder, (await readdir(folder)).find(name => name.endsWith('.tgz'))!)
}

const everyEntry = `
import { createRegistry, type UsersChange } from 'auth-registry-client'
import { requireToken as connect, verifiedKey } from 'auth-registry-client/connect'
import { requireToken as fastifyHook, verifiedOf } from 'auth-registry-client/fastify'
import { createVerifier, type Verified, VerifyError } from 'auth-registry-client/verify'
import { fastify } from 'fastify'
export const verifier = createVerifier({ url: '', key: '', issuer: '', audience: '' })
export const app = fastify()
app.addHook('onRequest', fastifyHook(verifier))
app.get('/', async request => verifiedOf(request).claims.sub)
export const verified: Promise<Verified> = verifier.verify('')
export const watch = createRegistry({ url: '', key: '' }).watchUsers((change: UsersChange) => console.log(change.ids))
export const more = [connect(verifier), verifiedKey, VerifyError]
`

test('a new project that follows the README verifies tokens, and has types', async t => {
  // Installs packages.
  t.timeout(600_000)
  const folder = await temporaryFolder(t)
  const TARBALL = await pack(folder)
  const project = join(folder, 'grades')
  const env = { ...process.env, TARBALL }
  execFileSync('sh', ['-ec', blockOf('sh')], { cwd: folder, env, stdio: 'pipe' })
  const installed = await readdir(join(project, 'node_modules'))
  for (const name of ['@grpc', '@types', 'fastify', 'auth-registry']) t.false(installed.includes(name), name)
  await writeFile(join(project, 'server.js'), blockOf('js'))

  const service = await startTestService(t, { AUTH_LIMIT_FACTOR: '1000' })
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const { providerKey: activationkey } = await service.institution(await service.organization())
  await service.request('POST', '/users/activate', { token, query: { username, activationkey } })
  const active = await service.login(username)
  const AUTH_KEY = await serviceKey(service, ['tokens.verify', 'tokens.watch'])
  const settings = { AUTH_URL: service.http, AUTH_KEY, AUTH_ISSUER: 'http://auth.test' }
  const npm = (...args: string[]) => execFileSync('npm', args, { cwd: project, env, stdio: 'pipe' })
  for (const node of [process.execPath, await node24In(folder)]) {
    const port = await freePort()
    const server = spawn(node, ['server.js'], { cwd: project, env: { ...env, ...settings, PORT: String(port) } })
    let output = ''
    for (const stream of [server.stdout, server.stderr]) stream.on('data', chunk => (output += chunk))
    t.teardown(() => void server.kill('SIGKILL'))
    await waitFor(
      () => output.includes('ready'),
      () => output,
    )
    const get = (authorization?: string) =>
      fetch(`http://127.0.0.1:${port}/grades`, { headers: authorization ? { authorization } : {} })
    t.is((await get()).status, 401)
    t.is((await get('Bearer x')).status, 401)
    t.is((await get(`Bearer ${token}`)).status, 403)
    const answer = await get(`Bearer ${active}`)
    t.deepEqual([answer.status, ((await answer.json()) as { role: string }).role], [200, 'ROLE_CLIENT'])
    server.kill('SIGTERM')
  }

  // Only their types matter, so their `engines` don't.
  npm('install', '--no-save', '--force', 'typescript@5.9', '@types/node@20', '@types/express', 'fastify')
  await rm(join(project, 'server.js'))
  await writeFile(join(project, 'server.ts'), blockOf('js'))
  await writeFile(join(project, 'entries.ts'), everyEntry)
  for (const [module, resolution] of [
    ['node16', 'node16'],
    ['esnext', 'bundler'],
  ] as const) {
    const options = ['--noEmit', '--strict', '--target', 'es2022', '--module', module, '--moduleResolution', resolution]
    const tsc = () => npm('exec', 'tsc', '--', ...options, 'server.ts', 'entries.ts')
    t.notThrows(tsc, resolution)
  }
})
