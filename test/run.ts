/**
 * Runs AVA beside a PostgreSQL of its own, and searches the output of the services under test for secrets. Arguments go to AVA;
 * a test may be named by its source (`test/users/profile.test.ts`).
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createWriteStream } from 'node:fs'
import { mkdir, mkdtemp, rm, statfs } from 'node:fs/promises'
import { availableParallelism, loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { startEmbedded } from '../server/embedded/start.js'
import { makeTemplate } from './_helpers/database.js'
import { makeInstalled } from './_helpers/installed.js'
import { searchOutput } from './_helpers/secrets.js'

const ava = fileURLToPath(new URL('../../node_modules/ava/entrypoints/cli.mjs', import.meta.url))
const given = process.argv.slice(2).map(argument => argument.replace(/^test\/(.+)\.ts$/, 'dist/test/$1.js'))
const output = await mkdtemp(join(tmpdir(), 'auth-output-'))
const dataDir = await mkdtemp(join(await roomInMemory(), 'auth-test-'))
// Ctrl-C reaches AVA, too; PostgreSQL stops once AVA has ended.
process.on('SIGINT', () => {})
try {
  const log = { info() {}, warn: (text: string) => console.error(text) }
  const embedded = await startEmbedded({ dataDir, log, durable: false })
  try {
    process.env.TEST_DATABASE_URL = embedded.url
    await makeTemplate()
    await makeInstalled()
    process.exitCode = await runAva()
  } finally {
    await embedded.stop()
  }
} finally {
  await rm(dataDir, { recursive: true, force: true })
}
const { found, bytes, planted } = await searchOutput(output)
await rm(output, { recursive: true, force: true })
console.log(
  `# searched ${bytes} bytes of output for ${planted} planted secrets and what looks like one: found ${found.length}`,
)
for (const where of found) console.log(`not ok - ${where}`)
if (found.length > 0) {
  console.log(`# fail ${found.length}`)
  process.exitCode = 1
}
if (process.exitCode !== 0) console.log(`# load ${loadavg().map(Math.round)} on ${availableParallelism()} processors`)

/** Linux's folder in memory if it has 2 GB: a file system on disk takes ten times as long to make hundreds of databases. */
async function roomInMemory(): Promise<string> {
  const { bavail = 0, bsize = 0 } = (await statfs('/dev/shm').catch(() => undefined)) ?? {}
  return bavail * bsize > 2 * 2 ** 30 ? '/dev/shm' : tmpdir()
}

/** Runs AVA, shows its report, and returns its exit code. */
async function runAva(): Promise<number> {
  // In memory as the database, if possible: on disk, a folder for each service takes a fiftieth of the whole time.
  const temporary = join(dataDir, 'tmp')
  await mkdir(temporary)
  const child = spawn(process.execPath, [ava, ...(process.stdout.isTTY ? ['--color'] : []), ...given], {
    // Without the contexts of the user who runs the tests: commands work on the database itself.
    env: { ...process.env, TEST_OUTPUT: output, TMPDIR: temporary, XDG_CONFIG_HOME: join(dataDir, 'config') },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  process.once('SIGTERM', () => child.kill('SIGTERM'))
  const report = createWriteStream(join(output, 'ava.report'))
  for (const stream of ['stdout', 'stderr'] as const) {
    child[stream].pipe(process[stream])
    child[stream].pipe(report, { end: false })
  }
  const [code] = await once(child, 'close')
  await new Promise<void>(resolve => report.end(resolve))
  return code ?? 1
}
