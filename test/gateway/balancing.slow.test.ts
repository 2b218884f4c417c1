/** A gateway in front of several servers: what its clients see when one dies, hangs or stops. */

import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { createServer as createHttp2Server, type ServerHttp2Session } from 'node:http2'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { DescMethodUnary } from '@bufbuild/protobuf'
import { Code, type ConnectError } from '@connectrpc/connect'
import test, { type ExecutionContext } from 'ava'
import { createRemoteTransport } from '../../gateway/remote.js'
import { Changes } from '../../proto/gen/auth/v1/changes_pb.js'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { spawnGateway, spawnServer } from '../_helpers/apart.js'
import { freshDatabase, type Teardown } from '../_helpers/database.js'
import { callsOf, type Load, login, readsOf, retriesOf, usesAll, writesOf } from '../_helpers/load.js'
import { scrape } from '../_helpers/metrics.js'
import { freePort, startRelay } from '../_helpers/relay.js'
import { createRequest, startTestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { idOf } from '../_helpers/tokens.js'
import { waitFor, waitForValue, within } from '../_helpers/wait.js'

/** A DNS server (RFC 1035) that serves one name for the length of a test: it answers A queries for any name with the result of `addresses`, and others with an empty answer. */
async function startNames(t: Teardown, addresses: () => readonly string[]): Promise<{ readonly at: string }> {
  const socket = createSocket('udp4')
  socket.on('message', (query, { port, address }) => {
    // The name ends with an empty label; type and class follow.
    const end = query.indexOf(0, 12) + 5
    const question = query.subarray(12, end)
    const found = question.readUInt16BE(question.length - 4) === 1 ? addresses() : []
    const header = Buffer.from([query[0]!, query[1]!, 0x81, 0x80, 0, 1, 0, found.length, 0, 0, 0, 0])
    // The name is that of the question; the TTL is a second.
    const answers = found.map(ip => Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, ...ip.split('.').map(Number)]))
    socket.send(Buffer.concat([header, question, ...answers]), port, address)
  })
  await once(socket.bind(0, '127.0.0.1'), 'listening')
  t.teardown(async () => void socket.close())
  return { at: `127.0.0.1:${socket.address().port}` }
}

/** Two servers on one database, a gateway that uses both, and a token. */
async function twoServers(t: ExecutionContext) {
  const DATABASE_URL = await freshDatabase(t)
  const servers = [await spawnServer(t, { DATABASE_URL }), await spawnServer(t, { DATABASE_URL })] as const
  const gateway = await spawnGateway(t, servers.map(({ grpc }) => grpc).join(','))
  const request = createRequest(gateway.http)
  const token = await login(request)
  await usesAll(request, token, servers)
  return { servers, gateway, request, token }
}

/** Asserts that every read and nearly every write succeeded, and that the others got a 503. */
function fewRefused(t: ExecutionContext, reads: Load, writes: Load) {
  t.log(`reads: ${reads.summary()}; sign-ups: ${writes.summary()}`)
  t.deepEqual([...new Set(reads.statuses)], [200])
  t.true(writes.statuses.every(status => status === 200 || status === 503))
  t.true(retriesOf(writes.statuses) <= 16)
}

test.serial('one server is killed: no read fails, and only writes in progress there fail', async t => {
  const { servers, request, token } = await twoServers(t)
  const [reads, writes] = [readsOf(t, request, token), writesOf(t, request)]
  await Promise.all([reads.more(100), writes.more(50)])
  servers[0].child.kill('SIGKILL')
  await Promise.all([reads.more(300), writes.more(100)])
  await Promise.all([reads.end(), writes.end()])
  fewRefused(t, reads, writes)
})

test.serial('one server hangs: no read fails, the server is soon avoided, and used again once it resumes', async t => {
  const { servers, request, token } = await twoServers(t)
  const [reads, writes] = [readsOf(t, request, token), writesOf(t, request)]
  await Promise.all([reads.more(100), writes.more(50)])
  servers[0].child.kill('SIGSTOP')
  t.teardown(() => servers[0].child.kill('SIGCONT'))
  await Promise.all([reads.more(300), writes.more(100)])
  await Promise.all([reads.end(), writes.end()])
  fewRefused(t, reads, writes)
  // Reads don't wait until the connection is cut, after 6 s and more.
  t.true(reads.slowest() < 6_000)
  // Otherwise each second call would take until its time limit.
  const after = async () => {
    for (let index = 0; index < 20; index++)
      t.is((await request('GET', '/users/me', { token, once: true })).status, 200)
  }
  t.true(await within(30_000, after()))
  servers[0].child.kill('SIGCONT')
  await usesAll(request, token, servers)
})

test.serial('a gateway is ready while any server answers, and logs once which server is lost and back', async t => {
  const { servers, gateway, request, token } = await twoServers(t)
  const readyz = async (url: string) => (await fetch(new URL('/readyz', url))).status
  const stop = (index: 0 | 1, signal: 'SIGSTOP' | 'SIGCONT') => servers[index].child.kill(signal)
  t.teardown(() => [stop(0, 'SIGCONT'), stop(1, 'SIGCONT')])
  const logged = () =>
    [...gateway.output().matchAll(/^.*"server":.*$/gm)].map(([line]) => {
      const { level, server, msg } = JSON.parse(line)
      return [level, server, msg]
    })
  t.deepEqual(logged(), [])

  stop(0, 'SIGSTOP')
  // Longer than the time until the connection is closed and reopened.
  const statuses = new Set<number>()
  for (const end = performance.now() + 15_000; performance.now() < end; await sleep(100))
    for (const url of [gateway.metrics, gateway.http]) statuses.add(await readyz(url))
  t.deepEqual([...statuses], [200])
  const before = await callsOf(servers[1])
  for (let index = 0; index < 20; index++) t.is((await request('GET', '/users/me', { token, once: true })).status, 200)
  t.is((await callsOf(servers[1])) - before, 20)
  const lost = (index: 0 | 1, rest: string) => ['warn', servers[index].grpc, `a server is lost: ${rest}`]
  const first = lost(0, 'others get its calls')
  t.deepEqual(logged(), [first])

  stop(1, 'SIGSTOP')
  await waitForValue(() => readyz(gateway.metrics), 503)
  t.is(await readyz(gateway.http), 503)
  t.deepEqual(logged(), [first, lost(1, 'no other is ready')])

  stop(1, 'SIGCONT')
  await waitForValue(() => readyz(gateway.metrics), 200)
  stop(0, 'SIGCONT')
  await usesAll(request, token, servers)
  await waitForValue(() => logged().length, 4)
  const back = servers.map(({ grpc }) => ['info', grpc, 'a server is back']).sort()
  t.deepEqual(logged().slice(2).sort(), back)
})

test.serial('a server that reports not ready gets no calls while another is ready', async t => {
  const DATABASE_URL = await freshDatabase(t)
  const draining = await spawnServer(t, { DATABASE_URL, AUTH_DRAIN: '10m' })
  const other = await spawnServer(t, { DATABASE_URL })
  const gateway = await spawnGateway(t, `${draining.grpc},${other.grpc}`)
  const request = createRequest(gateway.http)
  const token = await login(request)
  await usesAll(request, token, [draining, other])
  draining.child.kill('SIGTERM')
  await waitFor(() => gateway.output().includes('a server is not ready'), gateway.output)
  const [before, after] = [await callsOf(draining), await callsOf(other)]
  for (let index = 0; index < 20; index++) t.is((await request('GET', '/users/me', { token, once: true })).status, 200)
  t.deepEqual([await callsOf(draining), await callsOf(other)], [before, after + 20])
  // It still serves calls if no other server is available.
  other.child.kill('SIGKILL')
  await other.ended
  t.is((await request('GET', '/users/me', { token })).status, 200)
  t.true((await callsOf(draining)) > before)
})

test.serial('one server loses its database: no call fails, and the gateway is ready', async t => {
  const DATABASE_URL = await freshDatabase(t)
  const relay = await startRelay(t, DATABASE_URL)
  const servers = [await spawnServer(t, { DATABASE_URL: relay.url }), await spawnServer(t, { DATABASE_URL })] as const
  const gateway = await spawnGateway(t, servers.map(({ grpc }) => grpc).join(','))
  const request = createRequest(gateway.http)
  const token = await login(request)
  await usesAll(request, token, servers)
  relay.goDark()
  await waitFor(() => servers[0].output().includes('not ready'), servers[0].output)
  const [reads, writes] = [readsOf(t, request, token), writesOf(t, request)]
  for (let index = 0; index < 10; index++) {
    t.is((await fetch(new URL('/readyz', gateway.metrics))).status, 200)
    await Promise.all([reads.more(20), writes.more(5)])
  }
  await Promise.all([reads.end(), writes.end()])
  t.log(`reads: ${reads.summary()}; sign-ups: ${writes.summary()}`)
  t.deepEqual([...new Set([...reads.statuses, ...writes.statuses])], [200])
  relay.lightUp()
  await usesAll(request, token, servers)
})

test.serial('during a rolling restart of the servers no call fails, read or write', async t => {
  const DATABASE_URL = await freshDatabase(t)
  const ports = [await freePort(), await freePort()]
  const start = (port: number) =>
    spawnServer(t, { DATABASE_URL, AUTH_DRAIN: '', AUTH_GRPC_ADDRESS: `127.0.0.1:${port}` })
  const servers = [await start(ports[0]!), await start(ports[1]!)]
  const request = createRequest((await spawnGateway(t, servers.map(({ grpc }) => grpc).join(','))).http)
  const token = await login(request)
  await usesAll(request, token, servers)
  const [reads, writes] = [readsOf(t, request, token), writesOf(t, request)]
  for (const [index, port] of ports.entries()) {
    await Promise.all([reads.more(50), writes.more(20)])
    servers[index]!.child.kill('SIGTERM')
    t.is(await servers[index]!.ended, 0)
    servers[index] = await start(port)
    await usesAll(request, token, servers)
  }
  await Promise.all([reads.end(), writes.end()])
  t.log(`reads: ${reads.summary()}; sign-ups: ${writes.summary()}`)
  t.deepEqual([...new Set([...reads.statuses, ...writes.statuses])], [200])
})

test.serial(
  'polls wait at each server, go on at another when theirs is killed, and are answered when theirs stops',
  async t => {
    const service = await startTestService(t, { AUTH_LIMIT_FACTOR: '1000' })
    const { DATABASE_URL = '' } = service.env
    const servers = [await spawnServer(t, { DATABASE_URL }), await spawnServer(t, { DATABASE_URL })] as const
    const gateway = await spawnGateway(t, servers.map(({ grpc }) => grpc).join(','))
    const request = createRequest(gateway.http)
    const token = await serviceKey(service, ['users.watch'])
    const poll = (cursor: string) =>
      request('POST', '/auth.v1.Changes/Poll', {
        token,
        body: { cursor, kinds: ['CHANGE_KIND_USERS'], wait: '10s' },
        once: true,
      })
    const waiting = (index: 0 | 1) => async () => (await scrape(servers[index].metrics)).value('auth_feed_waiting')
    let { cursor } = (await poll('')).json
    await usesAll(request, await login(request), servers)

    const first = Promise.all(Array.from({ length: 8 }, () => poll(cursor)))
    await waitForValue(waiting(0), 4)
    await waitForValue(waiting(1), 4)
    servers[0].child.kill('SIGKILL')
    await waitForValue(waiting(1), 8)
    const { token: changed } = await service.signUp('ROLE_CLIENT')
    for (const { status, json } of await first) {
      t.deepEqual([status, json.userIds], [200, [idOf(changed)]])
      cursor = json.cursor
    }

    const successor = await spawnServer(t, { DATABASE_URL, AUTH_GRPC_ADDRESS: servers[0].grpc })
    await usesAll(request, await login(request), [successor, servers[1]])
    const second = Array.from({ length: 8 }, () => poll(cursor))
    await waitForValue(waiting(1), 4)
    servers[1].child.kill('SIGTERM')
    const { status, json } = await Promise.race(second)
    t.deepEqual([status, json.restart, json.userIds], [200, undefined, undefined])
    t.is(await servers[1].ended, 0)
    await service.signUp('ROLE_CLIENT')
    for (const { status } of await Promise.all(second)) t.is(status, 200)
  },
)

test.serial('a DNS name refers to all its addresses, including those added after one is lost', async t => {
  const DATABASE_URL = await freshDatabase(t)
  const port = await freePort()
  const at = (host: string) => spawnServer(t, { DATABASE_URL, AUTH_GRPC_ADDRESS: `${host}:${port}` })
  const servers = [await at('127.0.0.1'), await at('127.0.0.2'), await at('127.0.0.3')] as const
  let addresses = ['127.0.0.1', '127.0.0.2']
  const names = await startNames(t, () => addresses)
  // Otherwise the operating system resolves names, and none has two addresses everywhere.
  const asked = { GRPC_NODE_USE_ALTERNATIVE_RESOLVER: 'true' }
  const request = createRequest((await spawnGateway(t, `dns://${names.at}/auth.example:${port}`, asked)).http)
  const token = await login(request)
  await usesAll(request, token, servers.slice(0, 2))
  t.is(await callsOf(servers[2]), 0)
  addresses = ['127.0.0.2', '127.0.0.3']
  servers[0].child.kill('SIGKILL')
  await usesAll(request, token, servers.slice(1))
})

/** A server that closes every connection at its first call, or with `late` once it has started to answer. */
async function breakingServer(t: ExecutionContext, late = false) {
  const paths: unknown[] = []
  const sessions = new Set<ServerHttp2Session>()
  const server = createHttp2Server()
  server.on('session', session => {
    sessions.add(session.on('error', () => {}))
  })
  server.on('stream', (stream, headers) => {
    stream.on('error', () => {})
    const path = headers[':path']!
    // Health checks get no response.
    if (path.startsWith('/grpc.health.v1.')) return
    paths.push(path)
    if (!late) return stream.session?.destroy()
    stream.respond({ ':status': 200, 'content-type': 'application/grpc' })
    setTimeout(() => stream.session?.destroy(), 100)
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.teardown(() => {
    server.close()
    for (const session of sessions) session.destroy()
  })
  return { paths, target: `127.0.0.1:${(server.address() as AddressInfo).port}` }
}

test('a call that may have taken effect is retried once, and only if it reads', async t => {
  const { paths, target } = await breakingServer(t)
  for (const rpc of [...Users.methods, ...ForgotPasswords.methods, ...Changes.methods] as DescMethodUnary[]) {
    const transport = createRemoteTransport({ target })
    paths.length = 0
    const call = transport.unary(rpc, undefined, 30_000, undefined, {})
    const error = await t.throwsAsync<ConnectError>(call)
    transport.close()
    t.is(error.code, Code.Unavailable, rpc.name)
    const isRead = /^(Get|BatchGet|List|Exists|FindAll|VerifyToken|Introspect|Poll)/.test(rpc.name)
    const path = `/${rpc.parent.typeName}/${rpc.name}`
    // With one server, which is unavailable for a moment, the retry may find no server.
    if (isRead) t.true(paths.length <= 2 && paths.every(each => each === path))
    else t.deepEqual(paths, [path])
  }
  for (const late of [false, true]) {
    const [one, two] = [await breakingServer(t, late), await breakingServer(t, late)]
    const transport = createRemoteTransport({ target: `ipv4:${one.target},${two.target}` })
    t.teardown(() => transport.close())
    await t.throwsAsync(transport.unary(Users.method.getMe, undefined, 30_000, undefined, {}))
    t.is(one.paths.length + two.paths.length, 2)
  }
})
