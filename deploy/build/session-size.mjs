/** Prints the size of the session client, its first argument, as an app ships it. test/client/session.test.ts limits it. */
import { gzipSync } from 'node:zlib'
import { buildSync } from 'esbuild'

const [, , entry] = process.argv
const options = { bundle: true, minify: true, write: false, format: 'esm', platform: 'browser' }
const [{ contents }] = buildSync({ entryPoints: [entry], ...options }).outputFiles
console.log(`auth-registry-client/session: ${gzipSync(contents).length} bytes, minified and gzipped`)
