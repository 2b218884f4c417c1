/** The service as a process of its own, with everything that it writes. */
import { spawn } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { freshDatabase, type Teardown } from './database.js'
import { keepLog } from './logged.js'
import { password } from './service.js'

const main = fileURLToPath(new URL('../../server/main.js', import.meta.url))

/** A service that runs elsewhere. */
export interface Spawned {
  /** Where its gateway is. */
  readonly http: string
  /** host:port */
  readonly grpc: string
  readonly databaseUrl: string
  readonly pid: number
  /** Everything it has written so far, to both outputs. */
  output(): string
  /** Whether it still runs. */
  alive(): boolean
}

/** Starts `node dist/server/main.js`; it is stopped when the test ends. */
export async function spawnService(t: Teardown, env: Record<string, string> = {}): Promise<Spawned> {
  const dataDir = await mkdtemp(join(tmpdir(), 'auth-test-'))
  const databaseUrl = await freshDatabase(t)
  const child = spawn(process.execPath, [main], {
    env: {
      PATH: process.env.PATH,
      HOME: process.env.HOME,
      DATABASE_URL: databaseUrl,
      AUTH_MASTER_KEY: Buffer.alloc(32, 7).toString('base64'),
      AUTH_DATA_DIR: dataDir,
      AUTH_GRPC_ADDRESS: '127.0.0.1:0',
      AUTH_HTTP_ADDRESS: '127.0.0.1:0',
      AUTH_METRICS_ADDRESS: 'off',
      AUTH_BCRYPT_COST: '4',
      AUTH_ADMIN_PASSWORD: password,
      AUTH_TRUSTED_PROXIES: '127.0.0.1',
      ...env,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let output = ''
  const exit = new Promise<void>(resolve => child.once('close', () => resolve()))
  t.teardown(async () => {
    child.kill('SIGTERM')
    await exit
    await rm(dataDir, { recursive: true, force: true })
  })
  const addresses = await new Promise<[string, string]>((resolve, reject) => {
    const read = (chunk: Buffer) => {
      output += chunk
      keepLog(String(chunk))
      const grpc = /gRPC +(\S+:\d+)/.exec(output)?.[1]
      const http = /HTTP +(http:\S+)/.exec(output)?.[1]
      if (grpc && http) resolve([grpc, http])
    }
    child.stdout.on('data', read)
    child.stderr.on('data', read)
    child.once('exit', code => reject(new Error(`the service ended with ${code}`)))
  })
  return {
    grpc: addresses[0],
    http: addresses[1],
    databaseUrl,
    pid: child.pid!,
    output: () => output,
    alive: () => child.exitCode === null && child.signalCode === null,
  }
}
