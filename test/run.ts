/**
 * Runs the tests against a PostgreSQL of their own and ends with a line `N passed, N failed`. Arguments go to AVA:
 * files (of dist) and options. `--long` in their place runs the long tests, `*.long.test.ts`.
 */
import { spawn } from 'node:child_process'
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { startEmbedded } from '../server/models/embedded.js'
import { makeTemplate } from './_helpers/database.js'

const ava = fileURLToPath(new URL('../../node_modules/ava/entrypoints/cli.mjs', import.meta.url))
const sources = fileURLToPath(new URL('../../test', import.meta.url))

const given = process.argv.slice(2)
const long = given.includes('--long')
const options = given.filter(argument => argument !== '--long')
const files = options.some(argument => argument.includes('dist/')) ? [] : await testFiles()

const dataDir = await mkdtemp(join(tmpdir(), 'auth-test-'))
let outcome = { passed: 0, failed: 1 }
try {
  const log = { info() {}, warn: (text: string) => console.error(text) }
  const embedded = await startEmbedded({ dataDir, log, durable: false })
  try {
    await makeTemplate(embedded.url)
    outcome = await runAva(embedded.url)
  } finally {
    await embedded.stop()
  }
} catch (error) {
  console.error(error)
} finally {
  await rm(dataDir, { recursive: true, force: true })
}
console.log(`${outcome.passed} passed, ${outcome.failed} failed`)
process.exitCode = outcome.failed > 0 ? 1 : 0

/** The compiled form of every test there is a source of: dist may hold some that are gone. */
async function testFiles(): Promise<string[]> {
  const names = await readdir(sources, { recursive: true })
  return names
    .filter(name => name.endsWith('.test.ts') && name.endsWith('.long.test.ts') === long)
    .map(name => `dist/test/${name.replaceAll('\\', '/').replace(/\.ts$/, '.js')}`)
    .sort()
}

/** Runs AVA, shows what it reports in TAP (https://testanything.org), and counts every failure, crashes included. */
async function runAva(server: string): Promise<typeof outcome> {
  if (files.length === 0 && options.length === 0) return { passed: 0, failed: 0 }
  const child = spawn(process.execPath, [ava, '--tap', ...options, ...files], {
    env: { ...process.env, TEST_DATABASE_URL: server, NODE_ENV: 'test' },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const exit = new Promise<number | null>(resolve => child.once('close', resolve))
  // Ctrl-C reaches AVA as well; the database is stopped once AVA has ended.
  process.on('SIGINT', () => {}).on('SIGTERM', () => child.kill('SIGTERM'))

  let passed = 0
  let failed = 0
  let reported = 0
  let finished = false
  for await (const line of createInterface({ input: child.stdout })) {
    const passes = /^ok \d+ - (.*)$/.exec(line)
    if (passes && !/ # (SKIP|TODO)/i.test(line)) passed++
    if (/^not ok /.test(line) && !/ # TODO/i.test(line)) failed++
    // Tests that never ended are in AVA's own sum only.
    const sum = /^# fail (\d+)/.exec(line)
    if (sum) {
      finished = true
      reported = Number(sum[1])
    }
    if (passes) console.log(`✔ ${passes[1]}`)
    else if (!/^(TAP version|1\.\.|# (tests|pass|fail|skip|todo) |\s*$)/.test(line)) console.log(line)
  }
  failed = Math.max(failed, reported)
  if ((await exit) !== 0 || !finished || passed === 0) failed = Math.max(failed, 1)
  return { passed, failed }
}
