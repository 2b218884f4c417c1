/** The programs of docs/examples that verify tokens, where their languages are installed. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { copyFile, mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { ExecutionContext } from 'ava'
import { build } from 'esbuild'
import { openLocal } from '../_helpers/administration.js'
import { example, goEnv, runs } from '../_helpers/examples.js'
import { startRelay } from '../_helpers/relay.js'
import { startTestService, type TestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { claimsOf, createForger, headerOf, nowInSeconds } from '../_helpers/tokens.js'
import { testWith } from '../_helpers/tools.js'
import { revoke } from '../_helpers/verifiers.js'
import { root } from '../_helpers/versions.js'
import { waitForValue } from '../_helpers/wait.js'

/** Installs what a program needs; returns the command that runs it. */
const languages: Record<string, { there: boolean; make(folder: string): Promise<[string, ...string[]]> }> = {
  TypeScript: {
    there: true,
    async make(folder) {
      // The client from its sources: package.slow.test.ts installs its package.
      const outfile = join(folder, 'verify.mjs')
      await build({
        entryPoints: [example('verify.ts')],
        outfile,
        bundle: true,
        format: 'esm',
        platform: 'node',
        alias: { 'auth-registry-client/verify': join(root, 'proto/client/verify.ts') },
        logLevel: 'error',
      })
      return [process.execPath, outfile]
    },
  },
  Python: {
    there: runs('python3', '-c', 'import sys, venv; sys.exit(sys.version_info < (3, 11))'),
    async make(folder) {
      execFileSync('python3', ['-m', 'venv', 'venv'], { cwd: folder, stdio: 'pipe' })
      execFileSync('venv/bin/pip', ['install', '--quiet', 'PyJWT[crypto]==2.10.1'], { cwd: folder, stdio: 'pipe' })
      return [join(folder, 'venv/bin/python'), example('verify.py')]
    },
  },
  Go: {
    there: runs('go', 'version'),
    async make(folder) {
      await mkdir(join(folder, 'verify'))
      const cwd = join(folder, 'verify')
      await copyFile(example('verify.go'), join(cwd, 'main.go'))
      for (const args of [
        ['mod', 'init', 'verify'],
        ['get', 'github.com/golang-jwt/jwt/v5@v5.2.2'],
        ['vet', '.'],
        ['build', '-o', 'verify', '.'],
      ])
        execFileSync('go', args, { cwd, env: goEnv, stdio: 'pipe' })
      return [join(cwd, 'verify')]
    },
  },
}

const encode = (part: unknown) => Buffer.from(JSON.stringify(part)).toString('base64url')

/** Tokens that a verifier must refuse, each for a different reason. */
async function invalidTokens(service: TestService, token: string): Promise<Record<string, string>> {
  const forged = await createForger(service, token)
  return {
    'no token': 'x',
    expired: forged({ exp: nowInSeconds() - 2 }),
    issuer: forged({ iss: 'http://other.test' }),
    audience: forged({ aud: 'auth-admin' }),
    'before activation': forged({ aud: claimsOf(token).iss, roles: [], active: false }),
    type: forged({}, { typ: 'JWT' }),
    algorithm: `${encode({ ...headerOf(token), alg: 'none' })}.${encode(claimsOf(token))}.`,
    key: forged({}, { kid: 'unknown' }),
    signature: `${token.slice(0, -8)}AAAAAAAA`,
  }
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
  // First, because compilers delay the responses of this process.
  const [command, ...args] = await make(await temporaryFolder(t))
  const service = await startTestService(t, { AUTH_LIMIT_FACTOR: '1000' })
  const { token, username } = await service.institution(await service.organization())
  const other = await service.institution(await service.organization())
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
  await waitForValue(
    () => ask(token),
    value => value.startsWith('valid'),
  )
  for (const [what, wrong] of Object.entries(await invalidTokens(service, token)))
    t.regex(await ask(wrong), /^invalid/, what)
  await revoke(service.http, token)
  const startedAt = performance.now()
  await waitForValue(
    () => ask(token),
    value => value.startsWith('invalid'),
  )
  // Less than a poll waits without a change.
  t.true(performance.now() - startedAt < 9_000)
  const again = await service.login(username)
  t.regex(await ask(again), /^valid/)

  // The registry is unavailable: the cached state applies.
  relay.goDark()
  t.regex(await ask(again), /^valid/)
  t.regex(await ask(token), /^invalid/)
  relay.lightUp()
  await revoke(service.http, other.token)
  await waitForValue(
    () => ask(other.token),
    value => value.startsWith('invalid'),
  )

  const { kid } = headerOf(again)
  await (await openLocal(t, service, { reason: 'a test' })).retireSigningKey({ kid, confirm: kid })
  await waitForValue(
    () => ask(again),
    value => value.startsWith('invalid'),
  )
  const next = await service.login(username)
  await waitForValue(
    () => ask(next),
    value => value.startsWith('valid'),
  )
}

for (const [language, { there, make }] of Object.entries(languages)) {
  const title = `the example in ${language} verifies tokens offline and follows revocations`
  testWith(language, there)(title, t => follows(t, make))
}

const inShell = ['curl', 'jq', 'openssl'].every(command =>
  runs(command, command === 'openssl' ? 'version' : '--version'),
)
testWith('curl, jq and openssl', inShell)('the example in shell verifies tokens offline', async t => {
  const service = await startTestService(t)
  const { token } = await service.institution(await service.organization())
  const child = spawn('sh', [example('verify.sh')], {
    env: { PATH: process.env.PATH, AUTH_URL: service.http, AUTH_ISSUER: 'http://auth.test' },
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  t.teardown(() => void child.kill('SIGKILL'))
  const ask = dialogue(child)
  t.is(await ask(token), `valid ${claimsOf(token).sub}`)
  for (const [what, wrong] of Object.entries(await invalidTokens(service, token)))
    t.regex(await ask(wrong), /^invalid/, what)
})
