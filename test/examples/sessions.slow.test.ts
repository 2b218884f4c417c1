/** The first session in each language of docs/examples that is installed. */
import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { build } from 'esbuild'
import { example, goEnv, runs } from '../_helpers/examples.js'
import { serviceForFile } from '../_helpers/service.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { testWith } from '../_helpers/tools.js'

const service = serviceForFile()

const run = promisify(execFile)

const languages: Record<string, { there: boolean; make(folder: string): Promise<[string, ...string[]]> }> = {
  curl: {
    there: runs('curl', '--version'),
    make: async () => ['sh', example('session.sh')],
  },
  TypeScript: {
    there: true,
    async make(folder) {
      const outfile = join(folder, 'session.mjs')
      await build({ entryPoints: [example('session.ts')], outfile, format: 'esm', logLevel: 'error' })
      return [process.execPath, outfile]
    },
  },
  Python: {
    there: runs('python3', '-c', 'import sys; sys.exit(sys.version_info < (3, 9))'),
    make: async () => ['python3', example('session.py')],
  },
  Go: {
    there: runs('go', 'version'),
    async make(folder) {
      await run('go', ['vet', example('session.go')], { env: goEnv })
      await run('go', ['build', '-o', join(folder, 'session'), example('session.go')], { env: goEnv })
      return [join(folder, 'session')]
    },
  },
}

for (const [language, { there, make }] of Object.entries(languages)) {
  const title = `the first session in ${language} signs up, activates, logs in, is refused, and logs out`
  testWith(language, there)(title, async t => {
    t.timeout(300_000)
    const [command, ...args] = await make(await temporaryFolder(t))
    const { activationkey } = await service.organization()
    const env = { PATH: process.env.PATH, AUTH_URL: service.http, ACTIVATION_KEY: activationkey }
    const { stdout } = await run(command, args, { env })
    t.is(
      stdout,
      `signed up: active 0
activated
logged in: active 1
refused: 404 INVALID_CREDENTIALS
logged out: 500 INVALID_TOKEN
`,
    )
    const { code } = await run(command, args, { env: { ...env, ACTIVATION_KEY: 'x' } }).then(
      () => ({ code: 0 }),
      (error: { code: number }) => error,
    )
    t.not(code, 0, 'a refused activation ends the program with an error')
  })
}
