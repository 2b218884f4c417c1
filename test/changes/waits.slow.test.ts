/** Calls that wait for changes: what ends them, and their costs. */
import { setTimeout as sleep } from 'node:timers/promises'
import { create } from '@bufbuild/protobuf'
import test, { type ExecutionContext } from 'ava'
import { ChangeKind, type Changes, PollRequestSchema } from '../../proto/gen/auth/v1/changes_pb.js'
import type { Handler as HandlerOf, ServiceContext } from '../../server/calls/context.js'
import { createFeedReader, type FeedReader } from '../../server/changes/feed-reader.js'
import { poll as pollOf } from '../../server/changes/poll.js'
import { spawnGateway } from '../_helpers/apart.js'
import { freshDatabase, installed } from '../_helpers/database.js'
import { grpcOf, refusalOf } from '../_helpers/grpc.js'
import { scrape } from '../_helpers/metrics.js'
import { startRelay } from '../_helpers/relay.js'
import { createRequest, serviceForFile, startTestService, type TestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'
import { pollWith, readPages } from '../_helpers/watcher.js'

type Handler = HandlerOf<typeof Changes.method.poll, ServiceContext>

const kinds = [ChangeKind.USERS]

const shared = serviceForFile(() => ({ AUTH_METRICS_ADDRESS: '127.0.0.1:0' }))

/** A watcher of a service that is at the end of the feed. */
async function open(t: ExecutionContext, service = shared) {
  const client = grpcOf(t, service.grpc)
  const key = await serviceKey(service, ['users.watch'])
  const poll = pollWith(client, key)
  const { cursor } = (await readPages(poll, { kinds })).at(-1)!
  return { service, key, poll, cursor }
}

const waiting = async (service: TestService) => (await scrape(service)).value('auth_feed_waiting')

test('a waiting call that its client cancels is released, and logged and counted as CANCELLED, over gRPC and Connect', async t => {
  const lines: Record<string, unknown>[] = []
  const onLine = (line: string) => void lines.push(JSON.parse(line))
  const env = { AUTH_METRICS_ADDRESS: '127.0.0.1:0' }
  const { service, key, poll, cursor } = await open(t, await startTestService(t, env, { onLine }))
  const gone = new AbortController()
  const started = (call: { cancel(): void }) => gone.signal.addEventListener('abort', () => call.cancel())
  const overConnect = () =>
    fetch(`${service.http}/auth.v1.Changes/Poll`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ cursor, kinds: ['CHANGE_KIND_USERS'], wait: '10s' }),
      signal: gone.signal,
    })
  const calls = [poll({ cursor, kinds, ms: 10_000 }, { once: true, started }), overConnect()]
  const all = Promise.all(calls.map(call => (call as Promise<unknown>).catch(() => 'gone')))
  await waitForValue(() => waiting(service), 2)
  const left = performance.now()
  gone.abort()
  await waitForValue(() => waiting(service), 0)
  t.true(performance.now() - left < 8_000)
  t.deepEqual(await all, ['gone', 'gone'])
  const logged = () =>
    lines
      .filter(({ msg, rpc }) => msg === 'call' && rpc === 'Poll')
      .map(({ endpoint, status, reason }) => `${endpoint} ${status} ${reason}`)
      .filter(line => line.includes('CANCELLED'))
      .sort()
  await waitForValue(logged, ['grpc CANCELLED undefined', 'http CANCELLED undefined'])
  t.is((await scrape(service)).value('auth_calls_total', { rpc: 'Poll', outcome: 'CANCELLED' }), 2)
})

test.serial('waiting calls occupy no place in the scheduler', async t => {
  const { service, key, poll, cursor } = await open(t)
  const http = () =>
    service.request('POST', '/auth.v1.Changes/Poll', {
      token: key,
      body: { cursor, kinds: ['CHANGE_KIND_USERS'], wait: '10s' },
    })
  // Each kind would occupy all 32 places.
  const all = Promise.all([
    ...Array.from({ length: 33 }, () => poll({ cursor, kinds, ms: 10_000 })),
    ...Array.from({ length: 33 }, http),
  ])
  await waitForValue(() => waiting(service), 66)
  const { value } = await scrape(service)
  t.is(value('auth_requests', { state: 'running' }), 0)
  t.is((await service.request('GET', '/users/me', { token: await service.adminToken() })).status, 200)
  // Ends them.
  await service.signUp('ROLE_CLIENT')
  for (const { status } of (await all).slice(33) as { status: number }[]) t.is(status, 200)
})

test('waiting calls don’t delay a stop', async t => {
  const { service, poll, cursor } = await open(t, await startTestService(t, { AUTH_METRICS_ADDRESS: '127.0.0.1:0' }))
  const all = Promise.all(Array.from({ length: 5 }, () => poll({ cursor, kinds, ms: 10_000 }, { once: true })))
  await waitForValue(() => waiting(service), 5)
  const from = performance.now()
  await service.service.stop()
  t.true(performance.now() - from < 6_000)
  t.is((await all).length, 5)
})

test('while the database is unavailable, polls end with UNAVAILABLE in time, and continue afterwards', async t => {
  const url = await freshDatabase(t, { from: installed })
  const relay = await startRelay(t, url)
  const env = { DATABASE_URL: relay.url, AUTH_METRICS_ADDRESS: '127.0.0.1:0' }
  // Its keys stay cached.
  const at = Date.now()
  const service = await startTestService(t, env, { clock: { now: () => at } })
  const { poll, cursor } = await open(t, service)
  const endOf = async (ms: number) =>
    refusalOf(await t.throwsAsync(poll({ cursor, kinds, ms }, { once: true }))).info?.reason
  const ends: string[] = []
  const begun = endOf(5_000).then(reason => ends.push(`begun before: ${reason}`))
  await waitForValue(() => waiting(service), 1)
  relay.goDark()
  await sleep(500)
  const later = endOf(200).then(reason => ends.push(`begun later: ${reason}`))
  await Promise.all([begun, later])
  // Before an unanswered statement does.
  t.deepEqual(ends, ['begun later: UNAVAILABLE', 'begun before: UNAVAILABLE'])
  relay.lightUp()
  const restart = await waitFor(async () => {
    const answer = await poll({ cursor, kinds }, { once: true }).catch(() => undefined)
    return answer && { restart: answer.restart }
  })
  t.deepEqual(restart, { restart: 0 })
})

test.serial('a separate gateway forwards polls, and answers them at once when it drains', async t => {
  const { service, key, cursor } = await open(t)
  const gateway = await spawnGateway(t, service.grpc, { AUTH_DRAIN: '5s' })
  const request = createRequest(gateway.http)
  const ask = async (from: string) => {
    const body = { cursor: from, kinds: ['CHANGE_KIND_USERS'], wait: '10s' }
    const { status, json } = await request('POST', '/auth.v1.Changes/Poll', { token: key, body, once: true })
    return { status, ...json }
  }
  const first = ask(cursor)
  await waitForValue(() => waiting(service), 1)
  await service.signUp('ROLE_CLIENT')
  const { status, userIds, cursor: next } = await first
  t.deepEqual([status, userIds.length], [200, 1])

  // A machine that stalls for half a second misses one deadline.
  const patient = () => ask(next).then(answer => (answer.status === 200 ? answer : ask(next)))
  const waits = Array.from({ length: 5 }, patient)
  await waitForValue(() => waiting(service), 5)
  const from = performance.now()
  gateway.child.kill('SIGTERM')
  for (const { status, cursor: end, asOf, restart, userIds } of await Promise.all(waits))
    t.deepEqual([status, !!end, !!asOf, restart, userIds], [200, true, true, undefined, undefined])
  t.is((await patient()).status, 200)
  // Within the drain; the polls would wait for 10 s.
  t.true(performance.now() - from < 5_000)
  t.is(await gateway.ended, 0)
  t.true(performance.now() - from < 10_000)
})

test('at most 2,000 calls of one service wait at a server', async t => {
  const head = { id: 1, hash: 'ab' }
  const now = new Date()
  const recent = { head, asOf: now, now, links: [head], changes: [], readAt: Number.POSITIVE_INFINITY }
  let release = () => {}
  const released = new Promise<void>(resolve => {
    release = resolve
  })
  const wait = () => released.then(() => recent)
  const feedReader: FeedReader = { latest: async () => recent, wait, waiting: () => 0, closed: false, close() {} }
  const handle = pollOf({ feedReader, changeFeed: undefined as never }) as Handler
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

test('all calls together read the end of the feed at most five times a second', async t => {
  const head = { id: 1, hash: 'ab' }
  const now = new Date()
  let statements = 0
  const feedReader = createFeedReader({
    async tail() {
      statements++
      return { head, asOf: now, now, links: [], changes: [] }
    },
  })
  t.teardown(() => feedReader.close())
  const caller = { gone: false }
  const end = performance.now() + 1_500
  const watch = async () => {
    while (performance.now() < end)
      await feedReader.wait(await feedReader.latest(), { wants: () => true, ms: 50, caller })
  }
  await Promise.all(Array.from({ length: 100 }, watch))
  t.true(statements >= 2 && statements <= 9, String(statements))
})

// The last one with this service.
test.serial('a draining server answers waiting calls, and refuses new waits', async t => {
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
