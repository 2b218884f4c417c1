/** Runs the OpenID Foundation's conformance suite against a service on a new database, over https. README.md explains it. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { createAuthority, writePems } from '../_helpers/certificates.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { configurationOf, type Plan, plans } from './plans.js'
import { start, stopAll } from './processes.js'
import { ask, buildSuite, connectSuite, jarOf, type Outcome, startSuite } from './suite.js'

const dist = fileURLToPath(new URL('../..', import.meta.url))
const { CONFORMANCE_SUITE: suiteFolder, CONFORMANCE_SUITE_GIT: gitDir } = process.env
const user = { username: 'conformance', password: 'a tool logs me in 1!', email: 'conformance@example.org' }

const cleanUps: (() => unknown)[] = []
const t = { teardown: (work: () => unknown) => void cleanUps.push(work) }

try {
  process.exitCode = await run()
} finally {
  await stopAll()
  for (const work of cleanUps) await work()
}

/** Runs the plans that the command line names, or all. Returns the exit code. */
async function run(): Promise<number> {
  if (!suiteFolder) throw new Error('Set CONFORMANCE_SUITE to the folder of the suite: see README.md.')
  if (!existsSync(jarOf(suiteFolder))) {
    if (!gitDir) throw new Error('The suite isn’t built. Set CONFORMANCE_SUITE_GIT to a git directory of it.')
    await buildSuite(gitDir, suiteFolder)
  }
  const authority = createAuthority('Conformance')
  const { cert, key } = await writePems(t, authority.issue({ name: 'localhost', dnsNames: ['localhost'] }))
  const issuer = `https://localhost:${await freePort()}`
  const base = `https://localhost:${await freePort()}`
  const suite = connectSuite(base, authority.certificate)
  const clients = await startService(issuer, base, { ca: authority.certificate, cert, key })
  await startSuite(suiteFolder, suite, { cert, key, database: await freePort() })

  const named = process.argv.slice(2)
  const chosen = plans.filter(({ name }) => named.length === 0 || named.includes(name))
  const results = await Promise.all(
    chosen.map(plan => suite.runPlan(plan, configurationOf(plan, { issuer, base, user, clients }))),
  )
  for (const [index, outcomes] of results.entries()) print(chosen[index]!, outcomes)
  return results.flat().some(({ result }) => result === 'FAILED') ? 1 : 0
}

/** Starts a service with its own database, and registers a user and the clients of the suite. Returns the clients. */
async function startService(issuer: string, base: string, tls: { ca: Buffer; cert: string; key: string }) {
  const dataDir = await temporaryFolder(t)
  const env = {
    AUTH_DATA_DIR: dataDir,
    AUTH_ISSUER: issuer,
    AUTH_HTTP_ADDRESS: new URL(issuer).host,
    AUTH_HTTP_TLS_CERT: tls.cert,
    AUTH_HTTP_TLS_KEY: tls.key,
    AUTH_GRPC_ADDRESS: '127.0.0.1:0',
    AUTH_ADMIN_ADDRESS: 'off',
    AUTH_METRICS_ADDRESS: 'off',
    AUTH_BCRYPT_COST: '4',
    AUTH_LIMIT_FACTOR: '100',
  }
  await start(process.execPath, [join(dist, 'server/main.js')], env, /HTTP +https:/)

  async function administer(args: readonly string[], input = ''): Promise<string> {
    const child = spawn(process.execPath, [join(dist, 'cli/main.js'), ...args, '--local', '--reason', 'conformance'], {
      env: { PATH: process.env.PATH, HOME: dataDir, ...env },
      stdio: ['pipe', 'pipe', 'inherit'],
    })
    child.stdin.end(input)
    const [output, [code]] = await Promise.all([text(child.stdout), once(child, 'close')])
    if (code !== 0) throw new Error(`auth-admin ${args.join(' ')} ended with ${code}.`)
    return output
  }

  const { username, password, email } = user
  const profile = ['--state', 'SP', '--city', 'Campinas', '--email', email, '--role', 'ROLE_CLIENT', '--active']
  await administer(['users', 'create', '--username', username, ...profile])
  // What was mailed comes back, which proves the e-mail address: tools get no other.
  await administer(['users', 'send-key', username])
  const mailed = { username, key: await keyIn(join(dataDir, 'mail')) }
  await ask(tls.ca, 'POST', `${issuer}/forgotpasswords/loginbyusernameandkey?${new URLSearchParams(mailed)}`)
  await administer(['users', 'set-password', username, '--password-file', '-'], password)
  const uris = plans.flatMap(({ alias }) => [
    ...['--redirect-uri', `${base}/test/a/${alias}/callback`],
    ...['--redirect-uri', `${base}/test/a/${alias}/callback?dummy1=lorem&dummy2=ipsum`],
    ...['--post-logout-uri', `${base}/test/a/${alias}/post_logout_redirect`],
  ])
  const clients = []
  for (const name of ['first', 'second']) {
    const { key } = JSON.parse(await administer(['services', 'create', name, ...uris, '--json']))
    clients.push({ client_id: name, client_secret: key as string })
  }
  return clients
}

/** The recovery key in a folder of e-mails, once it is there. */
async function keyIn(folder: string): Promise<string> {
  for (;;) {
    for (const name of await readdir(folder).catch(() => [])) {
      const [, key] = /: ([2-9A-HJ-NP-Z]{8})\r?$/m.exec(await readFile(join(folder, name), 'utf8')) ?? []
      if (key) return key
    }
    await sleep(200)
  }
}

/** A port without a listener. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  await new Promise(resolve => server.close(resolve))
  return typeof address === 'object' ? address!.port : 0
}

/** Prints the modules of a plan, and what each that didn't pass says. */
function print({ name }: Plan, outcomes: readonly Outcome[]): void {
  const counts = new Map<string, number>()
  for (const { result } of outcomes) counts.set(result, (counts.get(result) ?? 0) + 1)
  console.log(`\n${name}: ${[...counts].map(([result, count]) => `${count} ${result}`).join(', ')}\n`)
  for (const { module, result, conditions } of outcomes) {
    console.log(`${result.padEnd(8)} ${module}`)
    for (const condition of conditions) console.log(`         ${condition}`)
  }
}
