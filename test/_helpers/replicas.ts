import test from 'ava'
import { startTestService, type TestService } from './service.js'

/** Services on one database for all tests of the calling file; there once the tests run. */
export function replicasForFile(count: number, env: Record<string, string> = {}): readonly TestService[] {
  const replicas = Array.from({ length: count }, () => ({}) as TestService)
  const cleanUps: (() => Promise<void>)[] = []
  const hooks = { teardown: (work: () => Promise<void>) => void cleanUps.push(work) }
  // Serial, so that the hooks of the file find them running.
  test.serial.before(async () => {
    for (const [index, replica] of replicas.entries()) {
      const shared: Record<string, string> = index === 0 ? {} : { DATABASE_URL: replicas[0]!.env.DATABASE_URL! }
      Object.assign(replica, await startTestService(hooks, { ...env, ...shared }))
    }
  })
  test.after.always(async () => {
    for (const work of cleanUps.reverse()) await work()
  })
  return replicas
}
