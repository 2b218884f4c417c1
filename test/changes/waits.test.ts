/** Calls that wait for changes: what ends them, and what they cost. */
import { setTimeout as sleep } from 'node:timers/promises'
import { create } from '@bufbuild/protobuf'
import test, { type ExecutionContext } from 'ava'
import { ChangeKind, type Changes, PollRequestSchema } from '../../proto/gen/auth/v1/changes_pb.js'
import type { Handler as HandlerOf } from '../../server/access/context.js'
import type { Hub } from '../../server/changes/hub.js'
import { poll as pollOf } from '../../server/changes/poll.js'
import type { changesPolicies } from '../../server/policy/changes.js'
import { spawnGateway } from '../_helpers/apart.js'
import { freshDatabase, installed } from '../_helpers/database.js'
import { openGrpc, refusalOf } from '../_helpers/grpc.js'
import { scrape } from '../_helpers/metrics.js'
import { startRelay } from '../_helpers/relay.js'
import { createRequest, startTestService, type TestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'
import { pollWith, readPages } from '../_helpers/watcher.js'

type Handler = HandlerOf<typeof Changes.method.poll, typeof changesPolicies.poll>

const kinds = [ChangeKind.USERS]

/** A service of its own, with a watcher that is at the end of the feed. */
async function open(t: ExecutionContext, env: Record<string, string> = {}) {
  const service = await startTestService(t, { AUTH_METRICS_ADDRESS: '127.0.0.1:0', ...env })
  const client = openGrpc(service.grpc)
  t.teardown(async () => client.close())
  const key = await serviceKey(service, ['users.watch'])
  const poll = pollWith(client, key)
  const { cursor } = (await readPages(poll, { kinds })).at(-1)!
  return { service, key, poll, cursor }
}

const waiting = async (service: TestService) => (await scrape(service)).value('auth_feed_waiting')

test('a client that leaves frees its wait, over gRPC and Connect', async t => {
  const { service, key, poll, cursor } = await open(t)
  const calls: { cancel(): void }[] = []
  const gone = new AbortController()
  const body = JSON.stringify({ cursor, kinds: ['CHANGE_KIND_USERS'], wait: '10s' })
  const all = [
    ...Array.from({ length: 5 }, () =>
      poll({ cursor, kinds, ms: 10_000 }, { once: true, started: call => void calls.push(call) }),
    ),
    ...Array.from({ length: 3 }, () =>
      fetch(`${service.http}/auth.v1.Changes/Poll`, {
        method: 'POST',
        headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
        body,
        signal: gone.signal,
      }),
    ),
  ].map(call => call.catch(() => 'gone'))
  await waitForValue(() => waiting(service), 8)
  const left = performance.now()
  for (const call of calls) call.cancel()
  gone.abort()
  await waitForValue(() => waiting(service), 0)
  t.true(performance.now() - left < 8_000)
  t.deepEqual(await Promise.all(all), Array(8).fill('gone'))
})

test('calls that wait hold no place in the scheduler', async t => {
  const { service, key, poll, cursor } = await open(t)
  const http = () =>
    service.request('POST', '/auth.v1.Changes/Poll', {
      token: key,
      body: { cursor, kinds: ['CHANGE_KIND_USERS'], wait: '10s' },
    })
  // Each kind of them would take all places, of which there are 32.
  const all = Promise.all([
    ...Array.from({ length: 33 }, () => poll({ cursor, kinds, ms: 10_000 })),
    ...Array.from({ length: 33 }, http),
  ])
  await waitForValue(() => waiting(service), 66)
  const { value } = await scrape(service)
  t.is(value('auth_requests', { state: 'running' }), 0)
  t.is((await service.request('GET', '/users/me', { token: await service.adminToken() })).status, 200)
  await all
})

test('a server that drains answers the calls that wait, and refuses to begin new waits', async t => {
  const { service, poll, cursor } = await open(t)
  const all = Promise.all(Array.from({ length: 5 }, () => poll({ cursor, kinds, ms: 10_000 })))
  await waitForValue(() => waiting(service), 5)
  const from = performance.now()
  service.service.drain()
  const answers = await all
  t.true(performance.now() - from < 5_000)
  for (const { cursor: next, restart, userIds } of answers) t.deepEqual([next !== '', restart, userIds], [true, 0, []])
  const refused = await t.throwsAsync(poll({ cursor: answers[0]!.cursor, kinds, ms: 10_000 }, { once: true }))
  t.like(refusalOf(refused), { info: { reason: 'UNAVAILABLE' }, retryInfo: { retryDelay: { seconds: 1n } } })
  t.is((await poll({ cursor: answers[0]!.cursor, kinds }, { once: true })).restart, 0)
})

test('a stop doesn’t wait for calls that wait', async t => {
  const { service, poll, cursor } = await open(t)
  const all = Promise.all(Array.from({ length: 5 }, () => poll({ cursor, kinds, ms: 10_000 }, { once: true })))
  await waitForValue(() => waiting(service), 5)
  const from = performance.now()
  await service.service.stop()
  t.true(performance.now() - from < 6_000)
  t.is((await all).length, 5)
})

test('while the database is away polls end as unavailable, and continue afterwards', async t => {
  const url = await freshDatabase(t, { from: installed })
  const relay = await startRelay(t, url)
  const { service, poll, cursor } = await open(t, { DATABASE_URL: relay.url })
  const late = poll({ cursor, kinds, ms: 5_000 }, { once: true })
  await waitForValue(() => waiting(service), 1)
  relay.goDark()
  const from = performance.now()
  t.is(refusalOf(await t.throwsAsync(late)).info?.reason, 'UNAVAILABLE')
  t.true(performance.now() - from < 8_000)
  // Another poll, which finds the database away, ends when its statement does.
  const next = await t.throwsAsync(poll({ cursor, kinds, ms: 1_000 }, { once: true }))
  t.true(['UNAVAILABLE', 'DEADLINE_EXCEEDED'].includes(refusalOf(next).info?.reason ?? ''))
  t.true(performance.now() - from < 20_000)
  relay.lightUp()
  const restart = await waitFor(async () => {
    const answer = await poll({ cursor, kinds }, { once: true }).catch(() => undefined)
    return answer && { restart: answer.restart }
  })
  t.deepEqual(restart, { restart: 0 })
})

test('a separate gateway passes polls on', async t => {
  const { service, key, cursor } = await open(t)
  const gateway = await spawnGateway(t, service.grpc)
  const request = createRequest(gateway.http)
  const ask = request('POST', '/auth.v1.Changes/Poll', {
    token: key,
    body: { cursor, kinds: ['CHANGE_KIND_USERS'], wait: '10s' },
  })
  await waitForValue(() => waiting(service), 1)
  await service.signUp('ROLE_CLIENT')
  const { status, json } = await ask
  t.is(status, 200)
  t.is(json.userIds.length, 1)
})

test('of one service at most 2,000 calls wait at a server', async t => {
  const head = { id: 1, hash: 'ab' }
  const now = new Date()
  const recent = { head, asOf: now, now, links: [head], changes: [], readAt: Number.POSITIVE_INFINITY }
  let release = () => {}
  const released = new Promise<void>(resolve => {
    release = resolve
  })
  const wait = () => released.then(() => recent)
  const hub: Hub = { latest: async () => recent, wait, waiting: () => 0, closed: false, close() {} }
  const handle = pollOf({ hub, changeFeed: undefined as never }) as Handler
  const begin = (name: string) =>
    handle(create(PollRequestSchema, { cursor: '1:ab', kinds, wait: { seconds: 1n } }), {
      call: { deadline: Date.now() + 60_000, signal: new AbortController().signal, gone: false } as never,
      service: { name, scopes: ['users.watch'] },
    })
  const all = Array.from({ length: 2_000 }, () => begin('grades'))
  await t.throwsAsync(begin('grades'), { message: 'Too many attempts. Try again later.' })
  const other = begin('alerts')
  await sleep(1_200)
  release()
  await Promise.all([...all, other])
  await t.notThrowsAsync(begin('grades'))
})
