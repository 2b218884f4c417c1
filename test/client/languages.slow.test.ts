/** The programs of docs/verifying.md, where their languages are installed. */
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import test, { type ExecutionContext } from 'ava'
import { openLocal } from '../_helpers/administration.js'
import { temporaryFolder } from '../_helpers/backups.js'
import { startRelay } from '../_helpers/relay.js'
import { startTestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { createForger, headerOf, nowInSeconds } from '../_helpers/tokens.js'
import { revoke } from '../_helpers/verifiers.js'
import { root } from '../_helpers/versions.js'
import { waitFor } from '../_helpers/wait.js'

const guide = readFileSync(join(root, 'docs/verifying.md'), 'utf8')
const programOf = (language: string) => new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\`$`, 'ms').exec(guide)![1]!
const has = (command: string, ...args: string[]) => spawnSync(command, args).status === 0

/** Writes a program and installs what it needs; returns the command that runs it. */
const languages: Record<string, { there: boolean; make(folder: string): Promise<[string, ...string[]]> }> = {
  python: {
    there: has('python3', '-c', 'import sys, venv; sys.exit(sys.version_info < (3, 11))'),
    async make(folder) {
      await writeFile(join(folder, 'verify.py'), programOf('python'))
      execFileSync('python3', ['-m', 'venv', 'venv'], { cwd: folder, stdio: 'pipe' })
      execFileSync('venv/bin/pip', ['install', '--quiet', 'PyJWT[crypto]==2.10.1'], { cwd: folder, stdio: 'pipe' })
      return [join(folder, 'venv/bin/python'), join(folder, 'verify.py')]
    },
  },
  go: {
    there: has('go', 'version'),
    async make(folder) {
      await mkdir(join(folder, 'verify'))
      const cwd = join(folder, 'verify')
      await writeFile(join(cwd, 'main.go'), programOf('go'))
      const env = { ...process.env, GOFLAGS: '-mod=mod' }
      for (const args of [
        ['mod', 'init', 'verify'],
        ['get', 'github.com/golang-jwt/jwt/v5@v5.2.2'],
        ['vet', '.'],
        ['build', '-o', 'verify', '.'],
      ])
        execFileSync('go', args, { cwd, env, stdio: 'pipe' })
      return [join(cwd, 'verify')]
    },
  },
}

/** Sends a program one token after another. */
function dialogue(child: ChildProcess): (token: string) => Promise<string> {
  const answers: ((line: string) => void)[] = []
  createInterface({ input: child.stdout! }).on('line', line => answers.shift()?.(line))
  return token =>
    new Promise(resolve => {
      answers.push(resolve)
      child.stdin!.write(`${token}\n`)
    })
}

async function follows(t: ExecutionContext, make: (folder: string) => Promise<[string, ...string[]]>) {
  // Installs packages.
  t.timeout(600_000)
  // First, because compilers keep this process from answering.
  const [command, ...args] = await make(await temporaryFolder(t))
  const service = await startTestService(t, { AUTH_LIMIT_FACTOR: '1000' })
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const other = await service.signUp('ROLE_CLIENT')
  const relay = await startRelay(t, service.http)
  const child = spawn(command, args, {
    env: {
      PATH: process.env.PATH,
      AUTH_URL: `http://127.0.0.1:${relay.port}`,
      AUTH_KEY: await serviceKey(service, ['tokens.watch', 'tokens.verify']),
      AUTH_ISSUER: 'http://auth.test',
      AUTH_AUDIENCE: 'work-packages',
    },
    stdio: ['pipe', 'pipe', 'ignore'],
  })
  t.teardown(() => void child.kill('SIGKILL'))
  const ask = dialogue(child)
  await waitFor(async () => (await ask(token)).startsWith('valid'))
  const forged = await createForger(service, token)
  for (const [what, wrong] of Object.entries({
    'no token': 'x',
    expired: forged({ exp: nowInSeconds() - 2 }),
    issuer: forged({ iss: 'http://other.test' }),
    audience: forged({ aud: 'auth-admin' }),
    type: forged({}, { typ: 'JWT' }),
    key: forged({}, { kid: 'unknown' }),
    signature: `${token.slice(0, -8)}AAAAAAAA`,
  }))
    t.regex(await ask(wrong), /^invalid/, what)
  await revoke(service.http, token)
  const startedAt = performance.now()
  await waitFor(async () => (await ask(token)).startsWith('invalid'))
  t.true(performance.now() - startedAt < 5_000)
  const again = await service.login(username)
  t.regex(await ask(again), /^valid/)

  // The registry is away: what is known counts.
  relay.goDark()
  t.regex(await ask(again), /^valid/)
  t.regex(await ask(token), /^invalid/)
  relay.lightUp()
  await revoke(service.http, other.token)
  await waitFor(async () => (await ask(other.token)).startsWith('invalid'))

  const { kid } = headerOf(again)
  await (await openLocal(t, service, { reason: 'a test' })).retireSigningKey({ kid, confirm: kid })
  await waitFor(async () => (await ask(again)).startsWith('invalid'))
  const next = await service.login(username)
  await waitFor(async () => (await ask(next)).startsWith('valid'))
}

for (const [language, { there, make }] of Object.entries(languages)) {
  const title = `the program in ${language} verifies tokens offline and follows revocations`
  if (there) test.serial(title, t => follows(t, make))
  else test.skip(title, () => {})
}
