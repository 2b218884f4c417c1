/** deploy/check.sh: missing tools, and tools that report faults. */
import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import test, { type ExecutionContext } from 'ava'

const script = fileURLToPath(new URL('../../../deploy/check.sh', import.meta.url))

/** Programs of every system that the script uses. */
const common = ['bash', 'cat', 'cp', 'dirname', 'env', 'grep', 'mkdir', 'mktemp', 'rm', 'sed']

/** Runs the script with only these programs in PATH; `tools` are shell scripts by name. */
function run(t: ExecutionContext, tools: Record<string, string> = {}, ...given: string[]) {
  const folder = mkdtempSync(join(tmpdir(), 'auth-check-'))
  t.teardown(() => rmSync(folder, { recursive: true, force: true }))
  for (const name of common)
    symlinkSync(execFileSync('sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).trim(), join(folder, name))
  for (const [name, text] of Object.entries(tools)) {
    writeFileSync(join(folder, name), `#!/usr/bin/env bash\n${text}\n`)
    chmodSync(join(folder, name), 0o755)
  }
  const { status, stdout } = spawnSync('bash', [script, ...given], { env: { PATH: folder }, encoding: 'utf8' })
  return { status, lines: stdout.trim().split('\n') }
}

test('a missing tool is named, and its check is never reported as passed', t => {
  const { status, lines } = run(t)
  t.is(lines.at(-1), '0 passed, 0 failed, 16 not run')
  for (const line of lines.slice(0, -1)) t.regex(line, /^not run {2}.+: there is no [\w-]+$/)
  t.is(status, 0)
  t.is(run(t, {}, '--all').status, 1)
})

test('a tool that reports a fault fails the check, and its output is shown', t => {
  const { status, lines } = run(t, { hadolint: 'echo "$@: use a tag"; exit 3', shellcheck: 'exit 0' })
  t.is(status, 1)
  t.true(lines.includes('FAILED   Dockerfile (hadolint)'))
  t.true(lines.includes('         Dockerfile: use a tag'))
  t.true(lines.includes('passed   these scripts (shellcheck)'))
  t.is(lines.at(-1), '1 passed, 1 failed, 14 not run')
})

test('a check that needs two tools is not run if either is missing', t => {
  const { status, lines } = run(t, { kubeconform: 'exit 0' })
  t.is(status, 0)
  t.true(lines.includes('not run  Helm chart (kubeconform): there is no helm'))
})

test('a warning from a tool that exits with 0 fails the check', t => {
  const said = run(t, {
    'systemd-analyze': 'echo "Unknown key"',
    node: '',
    envoy: 'echo "[1][warning][misc] Deprecated"',
    openssl: 'touch "$work"',
  })
  t.true(said.lines.includes('FAILED   systemd units (systemd-analyze verify)'))
  t.true(said.lines.includes('FAILED   Envoy example (envoy --mode validate)'))
  t.is(said.status, 1)
})
