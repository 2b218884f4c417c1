/** The package installs alone, in a new project that follows its README, with types for each module resolution. */
import { execFile, execFileSync, spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { cp, mkdir, readdir, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import test from 'ava'
import { node24In } from '../_helpers/node24.js'
import { freePort } from '../_helpers/relay.js'
import { password, startTestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { root } from '../_helpers/versions.js'
import { waitFor } from '../_helpers/wait.js'

const readme = readFileSync(join(root, 'proto/client/README.md'), 'utf8')
const clients = readFileSync(join(root, 'docs/clients.md'), 'utf8')
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
import { createSession, type Session, SessionError } from 'auth-registry-client/session'
import { createVerifier, type Verified, VerifyError } from 'auth-registry-client/verify'
import { fastify } from 'fastify'
export const verifier = createVerifier({ url: '', key: '', issuer: '', audience: '' })
export const app = fastify()
app.addHook('onRequest', fastifyHook(verifier))
app.get('/', async request => verifiedOf(request).claims.sub)
export const verified: Promise<Verified> = verifier.verify('')
export const watch = createRegistry({ url: '', key: '' }).watchUsers((change: UsersChange) => console.log(change.ids))
export const session: Session = createSession({ url: '', store: {} as Storage })
export const more = [connect(verifier), verifiedKey, VerifyError, SessionError]
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

const app = `
import { createSession } from 'auth-registry-client/session'
const [, , url, username, password] = globalThis.process.argv
const session = createSession({ url })
await session.signIn({ username, password })
console.log((await (await session.fetch(url + '/users/me')).json()).username)
`

const axiosApp = `
import axios from 'axios'
import { create } from 'apisauce'
import { createSession } from 'auth-registry-client/session'
import { withSession } from './axios.js'
const [, , url, key, ...users] = process.argv
for (const username of users) {
  const session = createSession({ url })
  const form = { username, nickname: username, password: 'capivara no rio 7', state: 'SP', city: 'Palmas', termsofusage: true }
  await session.signUp({ ...form, roles: ['ROLE_CLIENT'] })
  const sauce = create({ baseURL: url })
  const api = username === users[0] ? axios.create({ baseURL: url }) : sauce.axiosInstance
  withSession(api, session, [url])
  const activated = await api.post('/users/activate', { username, activationkey: key })
  console.log(JSON.stringify(activated.data))
  const refused = await api.post('/users/activate', { username, activationkey: key }).catch(error => error)
  console.log(refused.response.data.reason, refused instanceof Error)
  // As a token that ends while the session sleeps.
  const valid = session.token
  let given = 0
  session.token = refused => (refused || ++given > 1 ? valid(refused) : Promise.resolve('x.y.z'))
  console.log((await api.get('/users/me')).data.username, given)
  const elsewhere = await api.get(url.replace('127.0.0.1', 'localhost') + '/users/me').catch(error => error.response.status)
  console.log(elsewhere)
}
`

test('bundles of esbuild, Rollup and Vite sign in, and axios and apisauce do with the interceptors of the documents', async t => {
  // Installs packages.
  t.timeout(600_000)
  const folder = await temporaryFolder(t)
  const tarball = await pack(folder)
  const project = join(folder, 'app')
  await mkdir(project)
  await writeFile(join(project, 'package.json'), '{ "type": "module" }')
  // The service is in this process.
  const run = async (command: string, ...args: string[]) =>
    (await promisify(execFile)(command, args, { cwd: project })).stdout
  const tools = [
    'rollup@4',
    '@rollup/plugin-node-resolve@16',
    'vite@7',
    'axios@1',
    'apisauce@3',
    'typescript@5.9',
    '@types/node@20',
  ]
  await run('npm', 'install', '--silent', '--no-audit', '--no-fund', tarball, ...tools)
  const service = await startTestService(t, { AUTH_LIMIT_FACTOR: '1000' })
  const { username } = await service.signUp('ROLE_CLIENT')
  await writeFile(join(project, 'app.js'), app)
  await writeFile(
    join(project, 'vite.config.js'),
    "export default { build: { lib: { entry: 'app.js', formats: ['es'], fileName: 'vite' }, outDir: 'vite' } }",
  )
  await run(
    join(root, 'node_modules/.bin/esbuild'),
    'app.js',
    '--bundle',
    '--platform=browser',
    '--format=esm',
    '--outfile=esbuild.js',
  )
  await run(
    'npx',
    'rollup',
    'app.js',
    '--plugin',
    'node-resolve={browser: true}',
    '--format',
    'es',
    '--file',
    'rollup.js',
  )
  await run('npx', 'vite', 'build')
  for (const bundle of ['esbuild.js', 'rollup.js', 'vite/vite.js'])
    t.is(await run(process.execPath, bundle, service.http, username, password), `${username}\n`, bundle)

  await writeFile(join(project, 'axios.ts'), clients.match(/^```ts\n([^`]*AxiosInstance.*?)^```$/ms)![1]!)
  await run('npx', 'tsc', '--strict', '--target', 'es2022', '--module', 'nodenext', '--lib', 'es2023,dom', 'axios.ts')
  await writeFile(join(project, 'main.js'), axiosApp)
  const { providerKey } = await service.institution(await service.organization())
  const digits = ['11987650001', '11987650002']
  const output = await run(process.execPath, 'main.js', service.http, providerKey, ...digits)
  t.is(output, digits.map(each => `"${each}"\nACTIVATION_REFUSED true\n${each} 2\n403\n`).join(''))
})
