/** Floods from one process against a service in another, which must keep serving its other clients. */
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import { sendRaw } from '../_helpers/raw.js'
import { type Spawned, spawnService } from '../_helpers/spawned.js'

let service: Spawned
const cleanUps: (() => Promise<void>)[] = []
test.serial.before(async () => {
  service = await spawnService({ teardown: work => void cleanUps.push(work) }, { AUTH_LOG_LEVEL: 'error' })
})
test.after.always(async () => {
  for (const work of cleanUps.reverse()) await work()
})
const port = () => Number(new URL(service.http).port)

/** Whether another client is still served. */
async function stillServes(): Promise<boolean> {
  const { status } = await fetch(`${service.http}/healthz`)
  return service.alive() && status === 200
}

test.serial('hundreds of slow connections don’t block other clients', async t => {
  const slow = Array.from({ length: 300 }, (_, index) =>
    sendRaw(port(), [index % 2 ? 'GET /healthz HTTP/1.1\r\nHost: a\r\nX: ' : 'PRI'], { patience: 3000 }),
  )
  await sleep(300)
  const answers = await Promise.all(Array.from({ length: 20 }, () => stillServes()))
  t.true(answers.every(Boolean))
  await Promise.all(slow)
})
