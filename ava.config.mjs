import { readdirSync } from 'node:fs'

/** The compiler leaves what it wrote for tests that are gone. */
const tests = readdirSync('test', { recursive: true }).filter(name => name.endsWith('.test.ts'))

export default {
  files: tests.map(name => `dist/test/${name.replace(/ts$/, 'js')}`),
  // One test of a file at a time, so that this is also the number of tests.
  serial: true,
  concurrency: 6,
  timeout: '3m',
  workerThreads: false,
}
