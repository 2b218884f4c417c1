import test from 'ava'
import type { Clock } from './clock.js'
import { serviceWithClock, startTestService, type TestService, teardownOfFile } from './service.js'

/**
 * Services on one database for all tests of the calling file, available once the tests run. With `clocked` they have one
 * clock, which is stopped.
 */
export function replicasForFile(count: number, { clocked = false } = {}): readonly TestService[] {
  const replicas = Array.from({ length: count }, () => ({}) as TestService & { clock?: Clock })
  const hooks = teardownOfFile()
  // Serial, so that they run before the hooks of the file.
  test.serial.before(async () => {
    const [first, ...others] = replicas
    Object.assign(first!, await (clocked ? serviceWithClock(hooks) : startTestService(hooks)))
    const { env, clock } = first!
    for (const other of others) {
      const shared = { DATABASE_URL: env.DATABASE_URL! }
      Object.assign(other, await startTestService(hooks, shared, clock && { clock }))
    }
  })
  return replicas
}
