/** Starts the processes of the benchmark and measures their resources. */
import { type ChildProcess, fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { FloodPlan } from './flood.js'
import type { Job, Report } from './load.js'

/** The folder of package.json. */
export const root = fileURLToPath(new URL('.', import.meta.resolve('#package')))

const running = new Set<ChildProcess>()

/** A process that was started. */
export interface Process {
  readonly pid: number
  /** Sends SIGTERM and waits until it has ended. */
  stop(): Promise<void>
}

/** A running service: its ports, of which that of administrators is NaN if it has none, and whether it still runs. */
export type ServiceProcess = Awaited<ReturnType<typeof startService>>

/** A process that answers messages of its parent. */
interface Answering<Message, Answer> extends Process {
  /** Sends a message and waits for the answer. */
  ask(message: Message): Promise<Answer>
}

/** The environment of every process of the service, to which scenarios add. */
const common = {
  PATH: process.env.PATH,
  AUTH_GRPC_ADDRESS: '127.0.0.1:0',
  AUTH_HTTP_ADDRESS: '127.0.0.1:0',
  AUTH_METRICS_ADDRESS: '127.0.0.1:0',
  AUTH_ADMIN_ADDRESS: 'off',
  AUTH_ISSUER: 'http://auth.bench',
  AUTH_DRAIN: '0',
}

/** Node's flags of `npm start`, for everything that is measured. */
const flags = (() => {
  const { scripts } = JSON.parse(readFileSync(`${root}/package.json`, 'utf8'))
  return (scripts.start as string).split(' ').filter(word => word.startsWith('--'))
})()

/**
 * Starts the service as `npm start` does, built in `folder`, and waits until it logs its addresses. Its log has its usual
 * cost, and is discarded.
 */
export async function startService(env: Record<string, string>, folder: string) {
  const child = startProgram(join(folder, 'dist/server/main.js'), env, 'ignore')
  const said = await say(child, /gRPC .*:(\d+)\nHTTP .*:(\d+)\nmetrics .*:(\d+).*\n(?:issuer .*\n)?(?:login .*:(\d+))?/)
  const [grpc, http, metrics, admin] = said.slice(1).map(Number) as [number, number, number, number]
  return { ...handle(child), grpc, http, metrics, admin, alive: () => alive(child) }
}

/** Starts a gateway in front of the server at this gRPC port. */
export async function startGateway(port: number) {
  const child = startProgram(join(root, 'dist/gateway/main.js'), { AUTH_SERVER_URL: `127.0.0.1:${port}` }, 'pipe')
  const said = await say(child, /http:\/\/[\d.]+:(\d+)/)
  return { ...handle(child), http: Number(said[1]) }
}

function startProgram(main: string, env: Record<string, string>, stdout: 'ignore' | 'pipe'): ChildProcess {
  const stdio = ['ignore', stdout, 'pipe'] as const
  return track(spawn(process.execPath, [...flags, main], { env: { ...common, ...env }, stdio: [...stdio] }))
}

/** Starts a baseline: with the URL of its database, or the port of the gRPC baseline for `hop`. */
export async function startBaseline(kind: 'http' | 'grpc' | 'hop' | 'bcrypt', argument: string | number = '') {
  const child = forkModule('baselines.js', [kind, String(argument)], flags)
  const [{ port }] = (await once(child, 'message')) as [{ port: number }]
  return { ...answering<{ cost: number; seconds: number }, { perSecond: number }>(child), port }
}

/** A process that generates load. */
export type Load = Answering<Job, Report>

/** Starts a process that generates load. */
export function startLoad(): Load {
  return answering(forkModule('load.js'))
}

/** Starts a process that floods: it gets a plan first, then `go`. */
export function startFlood(): Answering<FloodPlan | 'go', object> {
  return answering(forkModule('flood.js'))
}

/** Ends all processes that still run. */
export async function stopAll(): Promise<void> {
  await Promise.all([...running].map(child => handle(child).stop()))
}

/** Processor time of processes so far, all threads, in seconds. */
export function processorSeconds(pids: readonly number[]): number {
  return pids.reduce((sum, pid) => {
    const fields = readFileSync(`/proc/${pid}/stat`, 'latin1').split(') ')[1]!.split(' ')
    return sum + (Number(fields[11]) + Number(fields[12])) / 100
  }, 0)
}

/** Resident memory of a process in MB (10⁶ bytes). */
export function memory(pid: number): number {
  const status = readFileSync(`/proc/${pid}/status`, 'latin1')
  return (Number(/VmRSS:\s+(\d+)/.exec(status)?.[1]) * 1024) / 1e6
}

/** The maximum memory of a service over so many seconds, in MB. */
export async function mostMemory({ pid, alive }: ServiceProcess, seconds: number): Promise<number> {
  const end = performance.now() + seconds * 1000
  let most = 0
  while (performance.now() < end && alive()) {
    most = Math.max(most, memory(pid))
    await sleep(100)
  }
  return most
}

function forkModule(name: string, args: string[] = [], execArgv: string[] = []): ChildProcess {
  const path = fileURLToPath(new URL(name, import.meta.url))
  return track(fork(path, args, { env: { PATH: process.env.PATH }, execArgv, serialization: 'advanced' }))
}

const alive = ({ exitCode, signalCode }: ChildProcess) => exitCode === null && signalCode === null

function track(child: ChildProcess): ChildProcess {
  running.add(child)
  child.once('exit', () => running.delete(child))
  return child
}

function handle(child: ChildProcess): Process {
  return {
    pid: child.pid!,
    async stop() {
      if (!alive(child)) return
      const ended = once(child, 'exit')
      child.kill('SIGTERM')
      await ended
    },
  }
}

function answering<Message extends object | string, Answer>(child: ChildProcess): Answering<Message, Answer> {
  return {
    ...handle(child),
    ask: message =>
      new Promise((resolve, reject) => {
        const ended = () => reject(new Error('A process of the benchmark has ended.'))
        child.once('exit', ended).once('message', (answer: Answer & { failed?: string }) => {
          child.off('exit', ended)
          if (answer.failed) reject(new Error(answer.failed))
          else resolve(answer)
        })
        child.send(message)
      }),
  }
}

/** Waits until either output of a process matches; throws with its output if it ends before. */
function say(child: ChildProcess, expected: RegExp): Promise<RegExpExecArray> {
  return new Promise((resolve, reject) => {
    let said = ''
    const read = (chunk: Buffer) => {
      said += chunk
      const match = expected.exec(said)
      if (!match) return
      // Later output is discarded.
      for (const output of [child.stdout, child.stderr]) output?.off('data', read).resume()
      resolve(match)
    }
    child.stdout?.on('data', read)
    child.stderr?.on('data', read)
    child.once('exit', code => reject(new Error(`A process of the benchmark ended with ${code}: ${said.slice(-2000)}`)))
  })
}
