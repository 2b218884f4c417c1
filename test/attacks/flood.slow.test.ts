/** Floods, from one process against a service in another, which has to serve its other clients meanwhile. */
import { connect as connectHttp2, constants } from 'node:http2'
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import { waitFor } from '../_helpers/patience.js'
import { sendRaw } from '../_helpers/raw.js'
import { password } from '../_helpers/service.js'
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

/** Whether somebody else is still served. */
async function stillServes(): Promise<boolean> {
  const { status } = await fetch(`${service.http}/healthz`)
  return service.alive() && status === 200
}

test.serial('hundreds of slow connections take nothing from the others', async t => {
  const slow = Array.from({ length: 300 }, (_, index) =>
    sendRaw(port(), [index % 2 ? 'GET /healthz HTTP/1.1\r\nHost: a\r\nX: ' : 'PRI'], { patience: 3000 }),
  )
  await sleep(300)
  const answers = await Promise.all(Array.from({ length: 20 }, () => stillServes()))
  t.true(answers.every(Boolean))
  await Promise.all(slow)
})

test.serial('a flood of HTTP/2 streams that are reset at once stops nobody else', async t => {
  const session = connectHttp2(service.http)
  session.on('error', () => {})
  t.teardown(() => session.destroy())
  const { maxConcurrentStreams } = await new Promise<{ maxConcurrentStreams?: number }>(resolve =>
    session.once('remoteSettings', resolve),
  )
  t.is(maxConcurrentStreams, 128)
  let cut = false
  session.once('goaway', () => {
    cut = true
  })
  session.once('close', () => {
    cut = true
  })
  let opened = 0
  for (; opened < 20_000 && !cut && !session.destroyed; opened++) {
    const stream = session.request({ ':path': '/users/login', ':method': 'POST' })
    stream.on('error', () => {})
    stream.close(constants.NGHTTP2_CANCEL)
    if (opened % 100 === 99) await sleep(1)
    if (opened % 2000 === 1999) t.true(await stillServes())
  }
  // Where the service gets little time, what cuts it off comes after the last of them.
  await waitFor(() => cut)
  t.true(await stillServes())
})

test.serial('a flood of HTTP/2 requests on one connection is served no more than 128 at a time', async t => {
  const session = connectHttp2(service.http)
  session.on('error', () => {})
  t.teardown(() => session.destroy())
  const body = JSON.stringify({ username: 'x', password })
  const answers = Array.from(
    { length: 400 },
    (_, index) =>
      new Promise<number>(resolve => {
        const stream = session.request({
          ':path': '/users/login',
          ':method': 'POST',
          'content-type': 'application/json',
          'x-forwarded-for': `10.2.${index % 250}.1`,
        })
        stream.on('response', headers => resolve(Number(headers[':status'])))
        stream.on('error', () => resolve(0))
        stream.end(body)
      }),
  )
  t.true(await stillServes())
  const counts = new Set(await Promise.all(answers))
  for (const status of counts) t.true([404, 429, 503, 0].includes(status), String(status))
  t.true(await stillServes())
})
