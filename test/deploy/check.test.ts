/** deploy/check.sh: missing tools, and tools that report faults. */
import { execFileSync, spawnSync } from 'node:child_process'
import { symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import test, { type ExecutionContext } from 'ava'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

const script = fileURLToPath(new URL('../../../deploy/check.sh', import.meta.url))

/** Programs of every system that the script uses. */
const common = ['bash', 'cat', 'cp', 'dirname', 'env', 'grep', 'mkdir', 'mktemp', 'rm', 'sed']

/** Runs the script with only these programs in PATH; `tools` are shell scripts by name. */
async function run(t: ExecutionContext, tools: Record<string, string> = {}, ...given: string[]) {
  const folder = await temporaryFolder(t)
  for (const name of common)
    symlinkSync(execFileSync('sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).trim(), join(folder, name))
  for (const [name, text] of Object.entries(tools))
    writeFileSync(join(folder, name), `#!/usr/bin/env bash\n${text}\n`, { mode: 0o755 })
  const { status, stdout } = spawnSync('bash', [script, ...given], { env: { PATH: folder }, encoding: 'utf8' })
  return { status, lines: stdout.trim().split('\n') }
}

test('a missing tool is named, and its check is never reported as passed', async t => {
  const { status, lines } = await run(t)
  t.is(lines.at(-1), '0 passed, 0 failed, 14 not run')
  for (const line of lines.slice(0, -1)) t.regex(line, /^not run {2}.+: there is no [\w-]+$/)
  t.is(status, 0)
  t.is((await run(t, {}, '--all')).status, 1)
})

test('a fault or a warning fails a check, with the output of its tool, and one that lacks a second tool isn’t run', async t => {
  const { status, lines } = await run(t, {
    hadolint: 'echo "$@: use a tag"; exit 3',
    shellcheck: 'exit 0',
    kubeconform: 'exit 0',
    'systemd-analyze': 'echo "Unknown key"',
    node: '',
  })
  t.is(status, 1)
  for (const line of [
    'FAILED   Dockerfile (hadolint)',
    '         Dockerfile: use a tag',
    'passed   these scripts (shellcheck)',
    'not run  Helm chart (kubeconform): there is no helm',
    'FAILED   systemd units (systemd-analyze verify)',
  ])
    t.true(lines.includes(line), line)
  t.is(lines.at(-1), '2 passed, 2 failed, 10 not run')
})
