import { readdirSync } from 'node:fs'

/** The compiler leaves what it wrote for tests that are gone. */
const tests = readdirSync('test', { recursive: true }).filter(name => name.endsWith('.test.ts'))

export default {
  files: tests.map(name => `dist/test/${name.replace(/ts$/, 'js')}`),
  concurrency: 4,
  timeout: '3m',
  workerThreads: false,
}
