/** Starts the processes of the benchmark and measures what they use. */
import { type ChildProcess, fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'
import type { Job, Report } from './load.js'

const dist = new URL('../..', import.meta.url)
const running = new Set<ChildProcess>()

/** A process that was started. */
export interface Process {
  readonly pid: number
  /** Asks it to end (SIGTERM) and waits until it has. */
  stop(): Promise<void>
}

/** A running service. */
export interface ServiceProcess extends Process {
  readonly http: number
  readonly grpc: number
}

/** The environment that every process of the service gets, besides what a scenario adds. */
const common = {
  PATH: process.env.PATH,
  AUTH_GRPC_ADDRESS: '127.0.0.1:0',
  AUTH_HTTP_ADDRESS: '127.0.0.1:0',
  AUTH_METRICS_ADDRESS: '127.0.0.1:0',
  AUTH_ISSUER: 'http://auth.bench',
  AUTH_TRUSTED_PROXIES: '127.0.0.1',
}

/** Flags for Node that `npm start` has. */
const flags = (() => {
  const { scripts } = JSON.parse(readFileSync(new URL(import.meta.resolve('#package')), 'utf8'))
  return (scripts.start as string).split(' ').filter(word => word.startsWith('--'))
})()

/** Starts the service as `npm start` does and waits until it says where it is. */
export async function startService(env: Record<string, string>): Promise<ServiceProcess> {
  const main = fileURLToPath(new URL('server/main.js', dist))
  const child = track(
    spawn(process.execPath, [...flags, main], { env: { ...common, ...env }, stdio: ['ignore', 'ignore', 'pipe'] }),
  )
  const [, grpc, http] = await say(child, /gRPC +[\d.]+:(\d+)\nHTTP +http:\/\/[\d.]+:(\d+)/)
  return { ...handle(child), grpc: Number(grpc), http: Number(http) }
}

/** Starts a gateway in front of a gRPC port. */
export async function startGateway(grpc: number): Promise<Process & { http: number }> {
  const main = fileURLToPath(new URL('gateway/main.js', dist))
  const env = { ...common, AUTH_SERVER_URL: `127.0.0.1:${grpc}` }
  const child = track(spawn(process.execPath, [main], { env, stdio: ['ignore', 'pipe', 'pipe'] }))
  const [, http] = await say(child, /http:\/\/[\d.]+:(\d+)/)
  return { ...handle(child), http: Number(http) }
}

/** Starts a floor. */
export async function startFloor(
  kind: string,
  url = '',
  port = '',
): Promise<Process & { port: number; ask(message: object): Promise<unknown> }> {
  const child = forkModule('floors.js', [kind, String(port)], { DATABASE_URL: url })
  const [{ port: bound }] = await once(child, 'message')
  return {
    ...handle(child),
    port: bound,
    async ask(message) {
      child.send(message)
      return (await once(child, 'message'))[0]
    },
  }
}

/** Starts a process that makes load. */
export function startLoad(): Process & { run(job: Job): Promise<Report> } {
  const child = forkModule('load.js', [], {})
  return {
    ...handle(child),
    async run(job) {
      child.send({ job })
      const [answer] = await once(child, 'message')
      if (answer.failed) throw new Error(answer.failed)
      return answer
    },
  }
}

/** Keeps every core busy, at the priority of any other process, while `work` lasts. */
export async function besideNeighbours<T>(work: () => Promise<T>): Promise<T> {
  const neighbours = Array.from({ length: availableParallelism() }, () =>
    handle(track(spawn(process.execPath, ['-e', 'for (;;);'], { stdio: 'ignore' }))),
  )
  try {
    return await work()
  } finally {
    await Promise.all(neighbours.map(neighbour => neighbour.stop()))
  }
}

/** Ends whatever still runs. */
export async function stopAll(): Promise<void> {
  await Promise.all([...running].map(child => handle(child).stop()))
}

/** Processor time of processes so far, all threads, in seconds; NaN where the system doesn't tell. */
export function processorSeconds(pids: readonly number[]): number {
  if (process.platform !== 'linux') return Number.NaN
  return pids.reduce((sum, pid) => {
    const fields = readFileSync(`/proc/${pid}/stat`, 'latin1').split(') ')[1]!.split(' ')
    return sum + (Number(fields[11]) + Number(fields[12])) / 100
  }, 0)
}

/** Resident memory of a process in MB (10⁶ bytes); NaN where the system doesn't tell. */
export function memory(pid: number): number {
  if (process.platform !== 'linux') return Number.NaN
  return (Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'latin1'))?.[1]) * 1024) / 1e6
}

function forkModule(name: string, args: string[], env: Record<string, string>): ChildProcess {
  const path = fileURLToPath(new URL(name, import.meta.url))
  return track(fork(path, args, { env: { PATH: process.env.PATH, ...env }, serialization: 'advanced' }))
}

function track(child: ChildProcess): ChildProcess {
  running.add(child)
  child.once('exit', () => running.delete(child))
  return child
}

function handle(child: ChildProcess): Process {
  return {
    pid: child.pid!,
    async stop() {
      if (child.exitCode !== null || child.signalCode !== null) return
      const ended = once(child, 'exit')
      child.kill('SIGTERM')
      await ended
    },
  }
}

/** Waits for what a process is to say on either output; throws with what it said when it ends instead. */
function say(child: ChildProcess, expected: RegExp): Promise<RegExpExecArray> {
  return new Promise((resolve, reject) => {
    let said = ''
    const read = (chunk: Buffer) => {
      said += chunk
      const match = expected.exec(said)
      if (match) resolve(match)
    }
    child.stdout?.on('data', read)
    child.stderr?.on('data', read)
    child.once('exit', code => reject(new Error(`A process of the benchmark ended with ${code}: ${said.slice(-2000)}`)))
  })
}
