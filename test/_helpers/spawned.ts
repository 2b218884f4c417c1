/** The service as a separate process, with all its output. */
import { type ChildProcess, spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import type { Teardown } from './database.js'
import { databaseFor } from './installed.js'
import { keepLog } from './logged.js'
import { password } from './service.js'
import { temporaryFolder } from './temporary-folder.js'
import { waitFor } from './wait.js'

const main = fileURLToPath(new URL('../../server/main.js', import.meta.url))

/** A program in another process. */
export interface Program {
  readonly child: ChildProcess
  readonly pid: number
  /** How it ended: its exit code, or the signal that ended it. */
  readonly ended: Promise<number | NodeJS.Signals | null>
  /** Everything it has written so far, to both outputs. */
  output(): string
  /** Whether it still runs. */
  alive(): boolean
}

/** A service in another process. */
export interface Spawned extends Program {
  /** The URL of its gateway. */
  readonly http: string
  /** host:port */
  readonly grpc: string
  readonly databaseUrl: string
  /** Its data folder. */
  readonly dataDir: string
}

/** How a program is started. */
interface Launch {
  /** Its main module; by default that of the service. */
  readonly program?: string
  /** Flags of Node.js. */
  readonly flags?: readonly string[]
  /** A shell command that runs before the program, such as `ulimit -f 0`. */
  readonly before?: string
}

/** Starts a program of the project with only these settings; it is killed when the test ends. */
export function launch(
  t: Teardown,
  env: Record<string, string>,
  { program = main, flags = [], before = ':' }: Launch = {},
): Program {
  const child = spawn('sh', ['-c', `${before} && exec "$0" "$@"`, process.execPath, ...flags, program], {
    env: { PATH: process.env.PATH, HOME: process.env.HOME, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', chunk => {
      output += chunk
      keepLog(String(chunk))
    })
  }
  const ended = new Promise<number | NodeJS.Signals | null>(resolve =>
    child.once('close', (code, signal) => resolve(signal ?? code)),
  )
  t.teardown(async () => {
    child.kill('SIGKILL')
    await ended
  })
  return {
    child,
    pid: child.pid!,
    ended,
    output: () => output,
    alive: () => child.exitCode === null && child.signalCode === null,
  }
}

/** Settings of a service on a new database, or on the one given (`DATABASE_URL`; empty for an embedded one). */
export async function serviceEnv(t: Teardown, env: Record<string, string> = {}): Promise<Record<string, string>> {
  const dataDir = await temporaryFolder(t)
  return {
    DATABASE_URL: env.DATABASE_URL ?? (await databaseFor(t, env)),
    ...(env.DATABASE_URL !== '' && { AUTH_MASTER_KEY: Buffer.alloc(32, 7).toString('base64') }),
    AUTH_DATA_DIR: dataDir,
    AUTH_GRPC_ADDRESS: '127.0.0.1:0',
    AUTH_HTTP_ADDRESS: '127.0.0.1:0',
    AUTH_METRICS_ADDRESS: 'off',
    AUTH_ADMIN_ADDRESS: 'off',
    AUTH_BCRYPT_COST: '4',
    AUTH_ADMIN_PASSWORD: password,
    AUTH_TRUSTED_PROXIES: '127.0.0.1',
    AUTH_DRAIN: '0',
    ...env,
  }
}

/** Starts `node dist/server/main.js` and waits until it logs its addresses; it is stopped when the test ends. */
export async function spawnService(
  t: Teardown,
  env: Record<string, string> = {},
  options: Launch = {},
): Promise<Spawned> {
  const all = await serviceEnv(t, env)
  const program = launch(t, all, options)
  t.teardown(async () => void (await signalUntilEnded(program, 'SIGINT')))
  const { DATABASE_URL: databaseUrl = '', AUTH_DATA_DIR: dataDir = '' } = all
  return { ...program, databaseUrl, dataDir, ...(await addressesOf(program)) }
}

/** Sends a signal repeatedly until the program has ended. Returns how it ended. */
export async function signalUntilEnded(
  { child, ended }: Program,
  signal: NodeJS.Signals,
): Promise<Awaited<Program['ended']>> {
  child.kill(signal)
  const again = setInterval(() => child.kill(signal), 1_500)
  return ended.finally(() => clearInterval(again))
}

/** The addresses of a starting service, once it logs them. */
export async function addressesOf(program: Program): Promise<{ grpc: string; http: string }> {
  return waitFor(() => {
    const grpc = /gRPC +(\S+:\d+)/.exec(program.output())?.[1]
    const http = /HTTP +(http:\S+)/.exec(program.output())?.[1]
    if (!program.alive()) throw new Error(`the service ended: ${program.output()}`)
    return grpc && http ? { grpc, http } : undefined
  }, program.output)
}
