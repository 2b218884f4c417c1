/**
 * Runs the tests against a separate PostgreSQL, searches the output of their services for secrets, each of which is a
 * failure, and ends with a line `N passed, N failed`. Arguments go to AVA: test files, as `test/…` or `dist/test/…`, and
 * options. `--slow` runs `*.slow.test.ts` instead, which flood the service, wait for real limits, kill processes, type at a
 * terminal, move whole registries, fill all tables or install packages; `--fast --slow` runs both; `--long` runs
 * `*.long.test.ts`, which repeat tests of others for longer; `--deploy` runs `*.deploy.test.ts`, which start the proxies of
 * deploy/ and which deploy/check.sh runs where these are installed.
 */
import { spawn } from 'node:child_process'
import { mkdir, mkdtemp, readdir, rm, statfs, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { stripVTControlCharacters } from 'node:util'
import { startEmbedded } from '../server/embedded/start.js'
import { makeTemplate } from './_helpers/database.js'
import { makeInstalled } from './_helpers/installed.js'
import { searchOutput } from './_helpers/secrets.js'

const ava = fileURLToPath(new URL('../../node_modules/ava/entrypoints/cli.mjs', import.meta.url))
const folder = fileURLToPath(new URL('.', import.meta.url))

const given = process.argv.slice(2)
const kinds = ['fast', 'slow', 'long', 'deploy']
const asked = kinds.filter(kind => given.includes(`--${kind}`))
const chosen = asked.length > 0 ? asked : ['fast']
const options = given
  .filter(argument => asked.every(kind => argument !== `--${kind}`))
  .map(argument => argument.replace(/^test\/(.+)\.ts$/, 'dist/test/$1.js'))
const files = options.some(argument => argument.includes('dist/')) ? [] : await testFiles()

const output = await mkdtemp(join(tmpdir(), 'auth-output-'))
const dataDir = await mkdtemp(join(await roomInMemory(), 'auth-test-'))
let outcome = { passed: 0, failed: 1 }
try {
  const log = { info() {}, warn: (text: string) => console.error(text) }
  const embedded = await startEmbedded({ dataDir, log, durable: false })
  try {
    process.env.TEST_DATABASE_URL = embedded.url
    await makeTemplate()
    await makeInstalled()
    outcome = await runAva()
  } finally {
    await embedded.stop()
  }
} catch (error) {
  console.error(error)
} finally {
  await rm(dataDir, { recursive: true, force: true })
}
const { found, bytes, planted } = await searchOutput(output)
await rm(output, { recursive: true, force: true })
console.log(
  `searched ${bytes} bytes of output for ${planted} planted secrets and what looks like one: found ${found.length}`,
)
for (const where of found) console.log(`✘ ${where}`)
outcome.failed += found.length
console.log(`${outcome.passed} passed, ${outcome.failed} failed`)
process.exitCode = outcome.failed > 0 ? 1 : 0

/** Linux's folder in memory if it has 2 GB: a file system on disk takes ten times as long to make hundreds of databases. */
async function roomInMemory(): Promise<string> {
  const { bavail = 0, bsize = 0 } = (await statfs('/dev/shm').catch(() => undefined)) ?? {}
  return bavail * bsize > 2 * 2 ** 30 ? '/dev/shm' : tmpdir()
}

/** All tests of the chosen kinds. */
async function testFiles(): Promise<string[]> {
  const names = await readdir(folder, { recursive: true })
  return names
    .filter(name => name.endsWith('.test.js'))
    .filter(name => chosen.includes(kinds.find(kind => name.endsWith(`.${kind}.test.js`)) ?? 'fast'))
    .map(name => `dist/test/${name.replaceAll('\\', '/')}`)
    .sort()
}

/** Runs AVA, shows its report, and counts: crashed files, timeouts and stray errors are failures too. */
async function runAva(): Promise<typeof outcome> {
  if (files.length === 0 && options.length === 0) return { passed: 0, failed: 0 }
  const color = process.stdout.isTTY ? ['--color'] : []
  const settings = ['--config', 'test/ava.config.mjs', ...color]
  // In memory as the database, if possible: on disk, a folder for each service takes a fiftieth of the whole time.
  const temporary = join(dataDir, 'tmp')
  await mkdir(temporary)
  const child = spawn(process.execPath, [ava, ...settings, ...options, ...files], {
    // Without the contexts of the user who runs the tests: commands work on the database itself.
    env: {
      ...process.env,
      TEST_OUTPUT: output,
      TMPDIR: temporary,
      NODE_ENV: 'test',
      XDG_CONFIG_HOME: join(dataDir, 'config'),
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let report = ''
  child.stderr.on('data', chunk => {
    report += chunk
    process.stderr.write(chunk)
  })
  const exit = new Promise<number | null>(resolve => child.once('close', resolve))
  // Ctrl-C reaches AVA as well; the database is stopped once AVA has ended.
  process.on('SIGINT', () => {}).on('SIGTERM', () => child.kill('SIGTERM'))

  let passed = 0
  let failed = 0
  let crashes = 0
  let strayErrors = 0
  for await (const line of createInterface({ input: child.stdout })) {
    console.log(line)
    report += `${line}\n`
    const plain = stripVTControlCharacters(line).trim()
    const count = Number.parseInt(plain.replace(/^✘ /, ''), 10)
    if (plain.startsWith('✔ ')) passed++
    else if (/^\d+ (tests?|hooks?) failed$|^\d+ tests? remained pending/.test(plain)) failed += count
    else if (/^✘ \d+ tests? remaining in /.test(plain)) failed += count
    else if (/^\d+ (uncaught exception|unhandled rejection)s?$/.test(plain)) strayErrors += count
    else if (/^✘ (.* exited |No tests found|Internal error|Exiting due to |Timed out|Couldn’t find)/.test(plain))
      crashes++
  }
  failed += Math.max(crashes, strayErrors)
  const code = await exit
  await writeFile(join(output, 'ava.report'), report)
  if (code !== 0 || passed === 0) failed = Math.max(failed, 1)
  return { passed, failed }
}
