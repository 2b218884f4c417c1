/**
 * Follows README.md on a new machine: types its shell blocks as printed, in a fresh clone of this
 * checkout, with an empty home and an empty npm cache, and checks their output. Then ends the service by SIGTERM to npm
 * and by Ctrl-C, and checks for remaining processes. The default ports must be free. It reports as TAP.
 */
import assert from 'node:assert/strict'
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

const checkout = fileURLToPath(new URL('../..', import.meta.url))
const [startBlock = '', ...session] = [
  ...readFileSync(join(checkout, 'README.md'), 'utf8').matchAll(/^```sh\n(.*?)^```$/gms),
].map(([, block = '']) => block)

const token = /[\w-]+\.[\w-]+\.[\w-]+/
const uuid = /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/

/** The expected output of each block of a session, in order. */
const answers: readonly {
  readonly step: string
  check(output: string, exitCode: number, errors: string): void
}[] = [
  {
    step: 'sign-up gives a token, which reads the new user',
    check(output) {
      const { username, active, role } = JSON.parse(output)
      assert.deepEqual([username, active, role], ['(11)98765-4321', 0, 'ROLE_INSTITUTION'])
    },
  },
  {
    step: 'the key of an organization activates the user',
    check: output => assert.equal(output, '(11)98765-4321'),
  },
  {
    step: 'login gives a token, which reads the active user, its organization and its key',
    check(output) {
      const { active, partnerOrganization, providerActivationKey } = JSON.parse(output)
      assert.deepEqual([active, partnerOrganization.name], [1, 'Defesa Civil de São Paulo'])
      assert.match(providerActivationKey.activationkey, uuid)
    },
  },
  {
    step: 'a key sent by e-mail sets a new password, which logs in',
    check: output => assert.match(output, new RegExp(`^\\w{8}\\n${token.source}$`)),
  },
  {
    step: 'the user changes its profile and its username, which logs in',
    check: output => assert.match(output, new RegExp(`"city":"Campinas".*}${token.source}$`)),
  },
  {
    step: 'an app of few lines signs in, sends a request, and signs out',
    check(output) {
      assert.match(output, /^auth-registry-client\/session: [1-4]\d{3} bytes.*\nauth-registry-client-\S+\.tgz\n/)
      assert.match(output, /\nSIGNED_OUT\nana\.souza\n200\nSIGNED_OUT$/)
    },
  },
  {
    step: 'a key is created for a service, which starts',
    check: (output, exitCode) => assert.deepEqual([output, exitCode], ['', 0]),
  },
  {
    step: 'the service accepts the token, and refuses it after a suspension',
    check(output, _exitCode, errors) {
      assert.match(output, /^Hello, ana\.souza\.\n[\s\S]*\n401$/)
      assert.doesNotMatch(errors, /curl:/)
    },
  },
  {
    step: 'gRPC signs up, logs in and reads the user',
    check(output) {
      const [signedUp, read] = output.split(/(?<=^})\n/m).map(text => JSON.parse(text))
      assert.match(signedUp.token, token)
      assert.deepEqual([read.user.username, read.user.role], ['(21)98765-4321', 'ROLE_CLIENT'])
    },
  },
  {
    step: 'Connect refuses a wrong password, with the reason in clear text',
    check(_output, exitCode, errors) {
      // 8 times the gRPC code, UNAUTHENTICATED.
      assert.equal(exitCode, 8 * 16)
      assert.equal(JSON.parse(errors).details[0].debug.reason, 'INVALID_CREDENTIALS')
    },
  },
]

const folder = mkdtempSync(join(tmpdir(), 'auth-readme-'))
const clone = join(folder, 'clone')
/** The environment of a new machine, with access to the package registry. */
const env = {
  ...Object.fromEntries(Object.entries(process.env).filter(([name]) => /_proxy$|_ca_|_cert_/i.test(name))),
  PATH: process.env.PATH,
  HOME: join(folder, 'home'),
  npm_config_cache: join(folder, 'npm'),
  npm_config_registry: execFileSync('npm', ['config', 'get', 'registry'], { encoding: 'utf8' }).trim(),
}

let passed = 0
let failed = 0
async function step(title: string, work: () => unknown): Promise<void> {
  try {
    await work()
    passed++
    console.log(`ok - README › ${title}`)
  } catch (error) {
    failed++
    console.log(`not ok - README › ${title}\n  ${error}`)
  }
}

/** The descendants of a process, including itself. */
function family(ancestor: number): { pid: number; command: string }[] {
  const all = execFileSync('ps', ['-A', '-o', 'pid=,ppid=,args='], { encoding: 'utf8' })
    .split('\n')
    .map(line => /^ *(\d+) +(\d+) (.*)$/.exec(line) ?? [])
    .map(([, pid, parent, command = '']) => ({ pid: Number(pid), parent: Number(parent), command }))
  const from = (pid: number): typeof all =>
    all.filter(({ parent }) => parent === pid).flatMap(child => [child, ...from(child.pid)])
  return [...all.filter(({ pid }) => pid === ancestor), ...from(ancestor)]
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

/** Types a line that starts the service, and waits until it prints how to try it. */
async function start(line: string): Promise<ChildProcess & { pid: number }> {
  const shell = spawn('sh', ['-c', line], { cwd: clone, env, stdio: ['ignore', 'inherit', 'pipe'], detached: true })
  let said = ''
  await new Promise<void>((resolve, reject) => {
    shell.once('exit', () => reject(new Error('the service ended before it was ready')))
    shell.stderr.on('data', chunk => {
      process.stderr.write(chunk)
      said += chunk
      if (/^try /m.test(said)) resolve()
    })
  })
  return Object.assign(shell, { pid: shell.pid! })
}

/** Ends the service by a signal to npm or to all, and checks that every process that it started has ended. */
async function end(shell: ChildProcess & { pid: number }, signal: (npm: number) => void): Promise<void> {
  const started = family(shell.pid)
  const npm = started.find(({ command }) => command.startsWith('npm start'))
  assert.ok(npm && started.some(({ command }) => command.includes('postgres')), 'npm and PostgreSQL run')
  const closed = once(shell, 'exit')
  signal(npm.pid)
  await closed
  for (let left = 100; left > 0 && started.some(({ pid }) => isAlive(pid)); left--) await sleep(100)
  const survivors = started.filter(({ pid }) => isAlive(pid))
  for (const { pid } of survivors) process.kill(pid, 'SIGKILL')
  assert.deepEqual(survivors, [])
}

try {
  mkdirSync(env.HOME)
  execFileSync('git', ['clone', '--quiet', checkout, clone], { stdio: 'inherit' })

  const [startLine = ''] = startBlock.split('\n')
  let service = await start(startLine)
  // After each block its exit code, on a unique line of both outputs.
  const script = session
    .map(block => `${block}mark=$(printf '\\n=== %s' $?); echo "$mark"; echo "$mark" >&2\n`)
    .join('')
  const typing = spawn('sh', ['-c', script], { cwd: clone, env, stdio: ['ignore', 'pipe', 'pipe'] })
  const exit = once(typing, 'exit')
  const [outputs, errors] = await Promise.all(
    [typing.stdout, typing.stderr].map(async stream => (await text(stream)).split(/^=== (\d+)$/m)),
  )
  await exit
  process.stderr.write(errors!.join(''))
  await step('every block is checked', () => assert.equal(session.length, answers.length))
  for (const [index, { step: title, check }] of answers.entries()) {
    await step(title, () =>
      check((outputs![2 * index] ?? '').trim(), Number(outputs![2 * index + 1]), errors![2 * index] ?? ''),
    )
  }
  await step('SIGTERM to npm leaves nothing running', () => end(service, npm => process.kill(npm, 'SIGTERM')))
  service = await start('npm start')
  await step('Ctrl-C lets logins in progress end, and leaves no process running', async () => {
    const form = { username: 'admin', password: readFileSync(join(clone, '.auth/initial-admin-password'), 'utf8') }
    const logins = Array.from({ length: 4 }, async () => {
      const request = { method: 'POST', body: new URLSearchParams(form) }
      const answer = await fetch('http://127.0.0.1:8080/users/login', request)
      return answer.ok ? 'OK' : ((await answer.json()) as { reason: string }).reason
    })
    const ended = Promise.allSettled(logins)
    await Promise.race(logins)
    // The terminal sends Ctrl-C to every process of the group, and npm sends it on to what it runs.
    await end(service, () => process.kill(-service.pid, 'SIGINT'))
    const answers = (await ended).map(each => (each.status === 'fulfilled' ? each.value : String(each.reason)))
    // A busy machine may refuse a login that would take too long.
    assert.deepEqual(
      answers.filter(each => !['OK', 'OVERLOADED'].includes(each)),
      [],
    )
  })
} catch (error) {
  await step('the service starts', () => Promise.reject(error))
} finally {
  rmSync(folder, { recursive: true, force: true })
}
console.log(`# pass ${passed}\n# fail ${failed}`)
process.exitCode = failed > 0 ? 1 : 0
