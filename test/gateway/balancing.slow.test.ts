/** A gateway in front of several servers: what its clients see when one dies, hangs or stops. */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer as createHttp2Server, type ServerHttp2Session } from 'node:http2'
import type { AddressInfo } from 'node:net'
import type { DescMethodUnary } from '@bufbuild/protobuf'
import { Code, type ConnectError } from '@connectrpc/connect'
import test, { type ExecutionContext } from 'ava'
import { createRemoteTransport } from '../../gateway/remote.js'
import { Changes } from '../../proto/gen/auth/v1/changes_pb.js'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { type ServerProcess, spawnGateway, spawnServer } from '../_helpers/apart.js'
import { freshDatabase } from '../_helpers/database.js'
import { startNames } from '../_helpers/names.js'
import { freePort } from '../_helpers/relay.js'
import { type Answer, createRequest, password, type TestService } from '../_helpers/service.js'
import { waitFor, within } from '../_helpers/wait.js'

/** Two servers on one database, a gateway that uses both, and a token. */
async function twoServers(t: ExecutionContext) {
  const DATABASE_URL = await freshDatabase(t)
  const servers = [await spawnServer(t, { DATABASE_URL }), await spawnServer(t, { DATABASE_URL })] as const
  const gateway = await spawnGateway(t, servers.map(({ grpc }) => grpc).join(','))
  const request = createRequest(gateway.http)
  const token = await login(request)
  await usesAll(request, token, servers)
  return { servers, request, token }
}

type Request = TestService['request']

async function login(request: Request): Promise<string> {
  const { status, text } = await request('POST', '/users/login', { body: { username: 'admin', password } })
  if (status !== 200) throw new Error(`${status} ${text}`)
  return text
}

/** How many calls a server has answered. */
async function callsOf({ metrics }: ServerProcess): Promise<number> {
  const text = await (await fetch(metrics)).text()
  return [...text.matchAll(/^auth_calls_total\{.*\} (\d+)$/gm)].reduce((sum, [, count]) => sum + Number(count), 0)
}

/** Waits until reads reach every one of the servers. */
async function usesAll(request: Request, token: string, servers: readonly ServerProcess[]): Promise<void> {
  const before = await Promise.all(servers.map(callsOf))
  await waitFor(async () => {
    await request('GET', '/users/me', { token })
    const now = await Promise.all(servers.map(callsOf))
    return now.every((count, index) => count > before[index]!)
  })
}

/** Repeats a call, 16 at a time, until `end` or the end of the test; `statuses` holds the status of each answer. */
function load(t: ExecutionContext, call: () => Promise<Answer>) {
  const statuses: number[] = []
  const reasons = new Set<string>()
  let slowest = 0
  let ended = false
  const one = async () => {
    while (!ended) {
      const from = performance.now()
      const { status, json } = await call()
      statuses.push(status)
      if (status !== 200) reasons.add(`${status} ${json?.reason}`)
      slowest = Math.max(slowest, performance.now() - from)
    }
  }
  const all = Promise.all(Array.from({ length: 16 }, one))
  const end = async () => {
    ended = true
    await all
  }
  t.teardown(end)
  return {
    statuses,
    /** What clients saw, in a sentence. */
    told: () =>
      `${statuses.length}, ${toldOf(statuses)} × 503 (${[...reasons]}), the slowest after ${(slowest / 1000).toFixed(1)} s`,
    /** Waits for so many answers more. */
    more: (count: number) => {
      const until = statuses.length + count
      return waitFor(
        () => statuses.length >= until,
        () => statuses.length,
      )
    },
    end,
  }
}

const readsOf = (t: ExecutionContext, request: Request, token: string) =>
  load(t, () => request('GET', '/users/me', { token, once: true }))
/** Sign-ups: writes that have nothing to do with each other. */
function writesOf(t: ExecutionContext, request: Request) {
  const fields = { password, state: 'CE', city: 'Crato', termsofusage: true, roles: ['ROLE_CLIENT'] }
  return load(t, () => {
    const body = { username: randomUUID(), nickname: randomUUID(), ...fields }
    return request('POST', '/users/signup', { body, once: true })
  })
}

const toldOf = (statuses: readonly number[]) => statuses.filter(status => status === 503).length

type Load = ReturnType<typeof load>

/** Asserts that every read was answered, and every write but for a few, which were told to try again. */
function fewTold(t: ExecutionContext, reads: Load, writes: Load) {
  t.log(`reads: ${reads.told()}; sign-ups: ${writes.told()}`)
  t.deepEqual([...new Set(reads.statuses)], [200])
  t.true(writes.statuses.every(status => status === 200 || status === 503))
  t.true(toldOf(writes.statuses) <= 16)
}

test.serial('one server is killed: no read fails, and only writes in progress there fail', async t => {
  const { servers, request, token } = await twoServers(t)
  const [reads, writes] = [readsOf(t, request, token), writesOf(t, request)]
  await Promise.all([reads.more(100), writes.more(50)])
  servers[0].child.kill('SIGKILL')
  await Promise.all([reads.more(300), writes.more(100)])
  await Promise.all([reads.end(), writes.end()])
  fewTold(t, reads, writes)
})

test.serial('one server hangs: no read fails, the server is soon avoided, and used again once it resumes', async t => {
  const { servers, request, token } = await twoServers(t)
  const [reads, writes] = [readsOf(t, request, token), writesOf(t, request)]
  await Promise.all([reads.more(100), writes.more(50)])
  servers[0].child.kill('SIGSTOP')
  t.teardown(() => servers[0].child.kill('SIGCONT'))
  await Promise.all([reads.more(300), writes.more(100)])
  await Promise.all([reads.end(), writes.end()])
  fewTold(t, reads, writes)
  // Through it each second one would take as long as a call may.
  const after = async () => {
    for (let index = 0; index < 20; index++)
      t.is((await request('GET', '/users/me', { token, once: true })).status, 200)
  }
  t.true(await within(30_000, after()))
  servers[0].child.kill('SIGCONT')
  await usesAll(request, token, servers)
})

test.serial('during a rolling restart of the servers no call fails, read or write', async t => {
  const DATABASE_URL = await freshDatabase(t)
  const ports = [await freePort(), await freePort()]
  const start = (port: number) => spawnServer(t, { DATABASE_URL, AUTH_GRPC_ADDRESS: `127.0.0.1:${port}` })
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
  t.log(`reads: ${reads.told()}; sign-ups: ${writes.told()}`)
  t.deepEqual([...new Set([...reads.statuses, ...writes.statuses])], [200])
})

test.serial('a DNS name stands for all its addresses, including those added after one is lost', async t => {
  const DATABASE_URL = await freshDatabase(t)
  const port = await freePort()
  const at = (host: string) => spawnServer(t, { DATABASE_URL, AUTH_GRPC_ADDRESS: `${host}:${port}` })
  const servers = [await at('127.0.0.1'), await at('127.0.0.2'), await at('127.0.0.3')] as const
  let addresses = ['127.0.0.1', '127.0.0.2']
  const names = await startNames(t, () => addresses)
  // Otherwise the operating system is asked for names, and none has two addresses everywhere.
  const asked = { GRPC_NODE_USE_ALTERNATIVE_RESOLVER: 'true' }
  const request = createRequest((await spawnGateway(t, `dns://${names.at}/auth.example:${port}`, asked)).http)
  const token = await login(request)
  await usesAll(request, token, servers.slice(0, 2))
  t.is(await callsOf(servers[2]), 0)
  addresses = ['127.0.0.2', '127.0.0.3']
  servers[0].child.kill('SIGKILL')
  await usesAll(request, token, servers.slice(1))
})

/** A server that breaks off every connection with the first call that it takes, `late` once it has begun to answer. */
async function breakingServer(t: ExecutionContext, late = false) {
  const paths: unknown[] = []
  const sessions = new Set<ServerHttp2Session>()
  const server = createHttp2Server()
  server.on('session', session => {
    sessions.add(session.on('error', () => {}))
  })
  server.on('stream', (stream, headers) => {
    stream.on('error', () => {})
    paths.push(headers[':path'])
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
    // With one server, which is away for a moment, the retry may find no server.
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
