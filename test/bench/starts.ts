/** Start-up: the service with its embedded PostgreSQL, and as its floor the same PostgreSQL and `node -e 0` alone. */
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { chooseUser, findPrograms, startAs } from '../../server/embedded/programs.js'
import { startEmbedded } from '../../server/embedded/start.js'
import { startService } from './processes.js'

/** Each returns the seconds of one start, and has stopped everything again when it returns. */
export interface Starts {
  existing(): Promise<number>
  existingFloor(): Promise<number>
  fresh(): Promise<number>
  freshFloor(): Promise<number>
}

/** Prepares a data folder below `folder`. */
export async function createStarts(folder: string): Promise<Starts> {
  const dataDir = join(folder, 'existing')
  await mkdir(dataDir, { mode: 0o755 })
  const start = async (dir: string) => {
    const from = performance.now()
    const service = await startService({ AUTH_DATA_DIR: dir })
    const { status } = await fetch(`http://127.0.0.1:${service.http}/readyz`)
    const seconds = (performance.now() - from) / 1000
    if (status !== 200) throw new Error(`the service isn’t ready: ${status}`)
    await service.stop()
    return seconds
  }
  await start(dataDir)

  const inNewFolder = async (work: (dir: string) => Promise<number>) => {
    const dir = await mkdtemp(join(folder, 'new-'))
    try {
      return await work(dir)
    } finally {
      await rm(dir, { recursive: true, force: true })
    }
  }
  return {
    existing: () => start(dataDir),
    existingFloor: async () => bareNode() + (await barePostgres(dataDir)),
    fresh: () => inNewFolder(start),
    freshFloor: async () =>
      bareNode() +
      (await inNewFolder(async dir => {
        const from = performance.now()
        const { stop } = await startEmbedded({ dataDir: dir, log: { info() {}, warn() {} } })
        const seconds = (performance.now() - from) / 1000
        await stop()
        return seconds
      })),
  }
}

/** Seconds that `node -e 0` takes. */
function bareNode(): number {
  const from = performance.now()
  spawnSync(process.execPath, ['-e', '0'])
  return (performance.now() - from) / 1000
}

/** Seconds until the PostgreSQL of a folder is ready, started with the command of its last start. */
async function barePostgres(dataDir: string): Promise<number> {
  const folder = join(dataDir, 'postgres')
  const line = await readFile(join(folder, 'postmaster.opts'), 'utf8')
  const [program, ...args] = [...line.matchAll(/"([^"]*)"|(\S+)/g)].map(([, quoted, plain]) => quoted ?? plain!)
  const run = startAs(chooseUser(folder), await findPrograms(), dataDir, () => {})
  const from = performance.now()
  const child = run(program!, args, { cwd: folder, stdio: 'ignore' })
  const ended = once(child, 'exit')
  for (;;) {
    const status = await readFile(join(folder, 'postmaster.pid'), 'utf8').catch(() => '')
    if (status.split('\n')[7]?.trim() === 'ready') break
    if (child.exitCode !== null) throw new Error('PostgreSQL doesn’t start')
    await sleep(2)
  }
  const seconds = (performance.now() - from) / 1000
  child.kill('SIGINT')
  await ended
  return seconds
}
