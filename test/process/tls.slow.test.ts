/** Server and gateway over TLS, as docs/processes.md prints it: the commands are run in the order of the document. */
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import test, { type ExecutionContext } from 'ava'
import { freshDatabase } from '../_helpers/database.js'
import { keepLog } from '../_helpers/logged.js'
import { freePort } from '../_helpers/relay.js'
import { createRequest, password } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { claimsOf } from '../_helpers/tokens.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

const run = promisify(execFile)
const root = fileURLToPath(new URL('../../..', import.meta.url))
const [, chapter = ''] = readFileSync(join(root, 'docs/processes.md'), 'utf8').split(/^## TLS$/m)
const blocks = [...chapter.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, block = '']) => block)

/** Stands for an installed program; types the password, for which `login` prompts. */
const installed = (folder: string) => `#!/bin/sh
[ "$1" = login ] && set -- "$@" --username admin --password-file password
exec "${process.execPath}" "${join(root, 'dist', folder)}/main.js" "$@"
`
const programs = { 'auth-admin': 'cli', 'auth-server': 'server', 'auth-gateway': 'gateway' }

/** A folder in which the blocks run, with a registry of its own and free ports. */
async function place(t: ExecutionContext) {
  const cwd = await temporaryFolder(t)
  await mkdir(join(cwd, 'bin'))
  for (const [name, folder] of Object.entries(programs)) {
    await writeFile(join(cwd, 'bin', name), installed(folder), { mode: 0o755 })
  }
  await writeFile(join(cwd, 'password'), password, { mode: 0o600 })
  const ports = new Map<string, number>()
  for (const usual of ['50051', '50052', '9090', '9091', '8080']) ports.set(usual, await freePort())
  const env = {
    PATH: `${join(cwd, 'bin')}:${process.env.PATH}`,
    HOME: cwd,
    DATABASE_URL: await freshDatabase(t),
    AUTH_MASTER_KEY: Buffer.alloc(32, 7).toString('base64'),
    AUTH_DATA_DIR: join(cwd, 'data'),
    AUTH_BCRYPT_COST: '4',
    AUTH_ADMIN_PASSWORD: password,
    AUTH_ADMIN_ADDRESS: `127.0.0.1:${ports.get('50052')}`,
  }
  /** A block as printed, but for the ports and the addresses of the servers. */
  const printed = (block = '') =>
    block.replace(/10\.0\.0\.1:50051/, '127.0.0.1:50051').replace(/(?<=:)\d{4,5}\b/g, usual => String(ports.get(usual)))
  return {
    ports,
    cwd,
    /** Runs a block until it ends. */
    type: (block: string | undefined) => run('sh', ['-ec', printed(block)], { cwd, env }),
    /** Starts a program, whose metrics have a port of their own, until it says where they are. */
    async start(block: string | undefined, metrics: string) {
      const own = { ...env, AUTH_METRICS_ADDRESS: `127.0.0.1:${ports.get(metrics)}` }
      const child = spawn('sh', ['-ec', printed(block)], { cwd, env: own, detached: true })
      let output = ''
      for (const stream of [child.stdout, child.stderr])
        stream.on('data', chunk => {
          output += chunk
          keepLog(String(chunk))
        })
      const ended = once(child, 'close')
      t.teardown(async () => {
        if (child.exitCode === null) process.kill(-child.pid!, 'SIGKILL')
        await ended
      })
      await waitFor(
        () => {
          if (child.exitCode !== null) throw new Error(`it ended: ${output}`)
          return /^metrics +https:/m.test(output) || undefined
        },
        () => output,
      )
    },
  }
}

test('with the certificates and commands of docs/processes.md a user logs in, and an administrator reaches administration and metrics', async t => {
  const [certificates, server, gateway, checks, ...more] = blocks
  t.deepEqual(more, [])
  const { ports, cwd, type, start } = await place(t)
  await type(certificates)
  await start(server, '9090')
  await start(gateway, '9091')

  const request = createRequest(`http://127.0.0.1:${ports.get('8080')}`)
  await waitForValue(async () => (await request('GET', '/readyz', { once: true })).status, 200)
  const { status, text } = await request('POST', '/users/login', { body: { username: 'admin', password } })
  t.is(status, 200, text)
  t.is(claimsOf(text).iss, 'https://auth.example.org')

  const { stdout } = await type(checks)
  t.regex(stdout, /^You are signed in to 127\.0\.0\.1:\d+/m)
  t.regex(stdout, /^ok {7}certificate: The certificate of AUTH_TLS_CERT is valid until/m)
  t.regex(stdout, /^ok {7}database: PostgreSQL .* answers and accepts writes\.$/m)
  t.regex(stdout, /^auth_ready 1$/m)
  const ca = join(cwd, 'ca.pem')
  const { stdout: scraped } = await run('curl', [
    '-fsS',
    '--cacert',
    ca,
    `https://localhost:${ports.get('9091')}/metrics`,
  ])
  t.regex(scraped, /^auth_http_connections\{/m)
  const named = `auth-admin login https://localhost:50052 --ca ca.pem --server-name auth-server`
  t.regex((await type(named)).stdout, /^You are signed in to localhost:\d+/m)
})
