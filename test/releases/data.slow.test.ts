/**
 * What releases leave behind: the data folder with its embedded database, and a backup. This version opens those of each release
 * in this folder; and the next one opens those of this version, before and after its migrations. `npm run
 * freeze:data` keeps those of this version here, 1.5 MB.
 */
import { execFile } from 'node:child_process'
import { readdirSync } from 'node:fs'
import { chown, cp, mkdir, readdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { brotliCompressSync, brotliDecompressSync, constants } from 'node:zlib'
import test, { type ExecutionContext } from 'ava'
import { chooseUser } from '../../server/embedded/programs.js'
import { done, newIdentity } from '../_helpers/backups.js'
import { freshDatabase } from '../_helpers/database.js'
import { createRequest, password, signUpForm } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { testWith } from '../_helpers/tools.js'
import { nextVersion, root, runVersion } from '../_helpers/versions.js'

const releases = join(root, 'test/releases')
const run = promisify(execFile)
const maxBuffer = 2 ** 30

/** Settings of a registry in a data folder, or in a database. */
const inFolder = (folder: string) => ({ DATABASE_URL: '', AUTH_DATA_DIR: join(folder, 'data') })

/** A service on it, of the version in another folder. */
async function open(t: ExecutionContext, env: Record<string, string>, version = root) {
  const service = await spawnService(t, env, { program: join(version, 'dist/server/main.js') })
  const request = createRequest(service.http)
  const post = async (path: string, options: Parameters<typeof request>[2]) => {
    const { status, text } = await request('POST', path, options)
    if (status !== 200) throw new Error(`${path}: ${status} ${text}`)
    return text
  }
  const stop = () => {
    service.child.kill('SIGTERM')
    return service.ended
  }
  return { request, post, stop }
}
type Opened = Awaited<ReturnType<typeof open>>

const answers = [1, 2].map(forgotpasswordquestionsid => ({ forgotpasswordquestionsid, answer: 'azul' }))
const login = (post: Opened['post'], username: string) => post('/users/login', { query: { username, password } })
const me = async ({ request }: Opened, token: string) => (await request('GET', '/users/me', { token })).json

/** Makes a data folder, a backup and its key in a folder, and `known.json` with what must be found there. */
async function make(t: ExecutionContext, folder: string): Promise<void> {
  const env = inFolder(folder)
  const admin = async (...args: string[]) => JSON.parse(done(await runVersion(root, env, [...args, '--json'])))
  await mkdir(env.AUTH_DATA_DIR, { mode: 0o700 })
  const service = await open(t, env)
  const { post } = service
  const named = ['--name', 'Defesa Civil', '--email', 'dc@example.org']
  const { activationkey } = await admin('organizations', 'create', ...named)
  const { key } = await admin('services', 'create', 'grades', '--may', 'tokens.verify', '--expires', '2999-01-01')
  const tokens: Record<string, string> = {}
  for (const [username, role] of [
    ['ana', 'ROLE_INSTITUTION'],
    ['bia', 'ROLE_CLIENT'],
  ] as const) {
    const token = await post('/users/signup', { body: signUpForm({ username, nickname: username, roles: [role] }) })
    for (const body of answers) await post('/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body })
    tokens[username] = token
  }
  await post('/users/activate', { token: tokens.ana!, query: { username: 'ana', activationkey } })
  const [ana, bia] = [await me(service, tokens.ana!), await me(service, tokens.bia!)]
  const { recipient, identity } = await newIdentity(folder)
  await cp(identity, join(folder, 'identity'))
  await admin('backup', join(folder, 'registry.age'), '--recipient', recipient)
  await service.stop()
  await writeFile(join(folder, 'known.json'), JSON.stringify({ activationkey, key, ana, bia }))
}

/** Everything in it works. */
async function works(t: ExecutionContext, folder: string, env: Record<string, string>, version = root): Promise<void> {
  const { activationkey, key, ana, bia } = JSON.parse(await readFile(join(folder, 'known.json'), 'utf8'))
  const service = await open(t, env, version)
  const { post } = service
  const token = await login(post, 'ana')
  t.like(await me(service, token), ana)
  const byAnswers = await post('/forgotpasswords/loginbyusernameandanswers', {
    query: { username: 'bia' },
    body: answers,
  })
  t.like(await me(service, byAnswers), bia)
  const { username } = signUpForm()
  const more = signUpForm({ username, roles: ['ROLE_INSTITUTION'] })
  const query = { username, activationkey }
  await post('/users/activate', { token: await post('/users/signup', { body: more }), query })
  const provided = { username: 'bia', activationkey: ana.providerActivationKey.activationkey }
  await post('/users/activate', { token: await login(post, 'bia'), query: provided })
  await login(post, 'admin')
  // A restore ends the keys of services.
  const verified = await service.request('POST', '/auth.v1.Users/VerifyToken', { token: key, body: { token } })
  if (env.DATABASE_URL === '') t.like(verified.json, { active: true })
  t.is(await service.stop(), 0)
  for (const command of [['audit', 'verify'], ['doctor']]) done(await runVersion(version, env, command))
}

/** A copy of what `make` made, because what opens it changes it. */
async function copy(t: ExecutionContext, folder: string): Promise<string> {
  const to = join(await temporaryFolder(t), 'copy')
  await run('cp', ['-a', folder, to])
  return to
}

/** The data folder works, and so does the backup in another database. */
async function opens(t: ExecutionContext, folder: string): Promise<void> {
  const mine = await copy(t, folder)
  await works(t, mine, inFolder(mine))
  const AUTH_MASTER_KEY = Buffer.alloc(32, 7).toString('base64')
  const env = { DATABASE_URL: await freshDatabase(t), AUTH_MASTER_KEY, AUTH_DATA_DIR: await temporaryFolder(t) }
  const [file, identity] = [join(folder, 'registry.age'), join(folder, 'identity')]
  done(await runVersion(root, env, ['restore', file, '--identity', identity]))
  await works(t, folder, env)
}

test('this version opens its own data and backup, and the next one its data, before and after its migrations', async t => {
  const folder = await temporaryFolder(t)
  await make(t, folder)
  if (process.env.RECORD_RELEASE) {
    const { version } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8'))
    const { stdout } = await run('tar', ['-C', folder, '-c', '.'], { encoding: 'buffer', maxBuffer })
    const params = {
      [constants.BROTLI_PARAM_LARGE_WINDOW]: 1,
      [constants.BROTLI_PARAM_LGWIN]: 26,
      [constants.BROTLI_PARAM_QUALITY]: 9,
    }
    await writeFile(join(releases, `${version}.tar.br`), brotliCompressSync(stdout, { params }))
    return t.pass()
  }
  await opens(t, folder)
  const env = inFolder(folder)
  const expand = '-- expand\nALTER TABLE users ADD COLUMN former_city text;\nUPDATE users SET former_city = city;'
  const contract = '-- contract\nALTER TABLE users DROP COLUMN former_city;'
  const next = await nextVersion(t, { '9998-next.sql': expand, '9999-last.sql': contract })
  const before = await copy(t, folder)
  await works(t, before, inFolder(before), next)
  const up = done(await runVersion(next, env, ['migrate', 'up', '--contract', '--json']))
  t.deepEqual(JSON.parse(up).migrations, ['9998-next.sql', '9999-last.sql'])
  await works(t, folder, env, next)
})

const kept = readdirSync(releases).filter(name => name.endsWith('.tar.br'))
for (const name of kept) {
  // The files of a cluster are those of its kind of machine.
  const here = process.platform === 'linux' && process.arch === 'x64'
  testWith('Linux on x64', here)(
    `this version opens the data and the backup of ${name.replace('.tar.br', '')}`,
    async t => {
      const folder = await temporaryFolder(t)
      const archive = brotliDecompressSync(await readFile(join(releases, name)), {
        params: { [constants.BROTLI_DECODER_PARAM_LARGE_WINDOW]: 1 },
        maxOutputLength: maxBuffer,
      })
      const unpacked = run('tar', ['-C', folder, '-x', '--no-same-owner'])
      unpacked.child.stdin!.end(archive)
      await unpacked
      const user = chooseUser('')
      const cluster = join(folder, 'data/postgres')
      if (user)
        for (const path of ['', ...(await readdir(cluster, { recursive: true }))])
          await chown(join(cluster, path), user.uid, user.gid)
      await opens(t, folder)
    },
  )
}
