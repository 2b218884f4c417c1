/** Limits on the connections of clients' networks, and what closes a connection. */
import { setTimeout as sleep } from 'node:timers/promises'
import test, { type ExecutionContext } from 'ava'
import type { Request, Response } from '../../gateway/connection.js'
import { createListener } from '../../gateway/listener.js'
import { openRaw, type RawConnection } from '../_helpers/raw.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

type Options = NonNullable<Parameters<typeof createListener>[3]>

const answer = (_: Request, response: Response) => void response.end('ok')

/** Time limits that no test reaches. */
const patient = { headersTimeout: 3_600_000, requestTimeout: 3_600_000 }

async function open(
  t: ExecutionContext,
  limits: Parameters<typeof createListener>[2],
  { onRequest = answer, ...options }: Options & { onRequest?: Parameters<typeof createListener>[1] } = {},
) {
  const cut: string[] = []
  const onCut = (limit: string) => void cut.push(limit)
  const at = { host: '127.0.0.1', port: 0 }
  const listener = createListener(at, onRequest, { ...patient, ...limits }, { onCut, ...options })
  const { port } = await listener.listen()
  t.teardown(() => listener.close(0))
  const connect = async (from: string) => {
    const connection = await openRaw(port, { from })
    t.teardown(connection.destroy)
    return connection
  }
  return { listener, connect, cut }
}

const get = (path = '/') => `GET ${path} HTTP/1.1\r\nHost: a\r\n\r\n`

/** Sends a request and waits for its answer. */
async function use(connection: RawConnection) {
  const before = connection.text().length
  connection.write(get())
  await waitFor(() => connection.closed() || connection.text().slice(before).endsWith('ok'))
  if (connection.closed()) throw new Error('It was closed.')
}

/** Opens connections one after another, and uses each. */
async function openAll(connect: (from: string) => Promise<RawConnection>, addresses: readonly string[]) {
  const all: RawConnection[] = []
  for (const address of addresses) {
    const connection = await connect(address)
    await use(connection)
    all.push(connection)
  }
  return all
}

test('at the limit of an address its longest idle connection is closed for a new one', async t => {
  const { listener, connect, cut } = await open(t, { perAddress: 3 })
  const [other] = await openAll(connect, ['127.0.0.9'])
  const [first, second, third] = await openAll(connect, ['127.0.0.2', '127.0.0.2', '127.0.0.2'])
  await use(first!)
  t.deepEqual(cut, [])
  const fourth = await connect('127.0.0.2')
  await use(fourth)
  await second!.end()
  for (const connection of [other!, first!, third!, fourth]) await use(connection)
  t.deepEqual(cut, ['connections'])
  t.is(listener.connections(), 4)
})

test('a connection with a request in progress is closed for a new one only if all have one', async t => {
  const held: Response[] = []
  const onRequest = ({ url }: Request, response: Response) =>
    void (url === '/held' ? held.push(response) : response.end('ok'))
  const { connect } = await open(t, { perAddress: 2 }, { onRequest })
  const busy = await connect('127.0.0.2')
  busy.write(get('/held'))
  await waitForValue(() => held.length, 1)
  const [idle] = await openAll(connect, ['127.0.0.2'])
  const third = await connect('127.0.0.2')
  third.write(get('/held'))
  await idle!.end()
  await waitForValue(() => held.length, 2)
  const [fourth] = await openAll(connect, ['127.0.0.2'])
  await busy.end()
  void held[1]!.end('ok')
  await third.until(/ok$/)
  await use(fourth!)
  t.is(busy.text(), '')
})

test('at the limit of a /24 its longest idle connection is closed for a new one', async t => {
  const { connect, cut } = await open(t, { perAddress: 3, perNetwork: 4 })
  const [other] = await openAll(connect, ['127.0.1.2'])
  const all = await openAll(connect, ['127.0.0.2', '127.0.0.3', '127.0.0.3', '127.0.0.4', '127.0.0.5'])
  await all[0]!.end()
  for (const connection of [other!, ...all.slice(1)]) await use(connection)
  t.deepEqual(cut, ['connections'])
})

test('a closed connection doesn’t count towards the limit', async t => {
  const { listener, connect, cut } = await open(t, { perAddress: 2, perNetwork: 2 })
  for (let times = 0; times < 5; times++) {
    const [first, second] = await openAll(connect, ['127.0.0.2', '127.0.0.2'])
    first!.destroy()
    second!.destroy()
    await waitForValue(() => listener.connections(), 0)
  }
  t.deepEqual(cut, [])
})

test('connections beyond an address’s burst are refused before TLS, and other addresses aren’t affected', async t => {
  let secured = 0
  const secure: NonNullable<Options['secure']> = socket => {
    secured++
    return socket
  }
  const { connect, cut } = await open(t, { newAtOnce: 3, newPerSecond: 0.001 }, { secure })
  await openAll(connect, ['127.0.0.2', '127.0.0.2', '127.0.0.2'])
  const fourth = await connect('127.0.0.2')
  await fourth.end()
  t.is(fourth.text(), '')
  t.is(secured, 3)
  t.deepEqual(cut, ['connections'])
  await openAll(connect, ['127.0.0.3', '127.0.0.3', '127.0.0.3'])
})

test('an address opens a limited number of connections per second', async t => {
  const { connect, cut } = await open(t, { newAtOnce: 1, newPerSecond: 1 })
  let opened = 0
  const startedAt = performance.now()
  const again = async () => {
    const used = use(await connect('127.0.0.2'))
    opened += await used.then(() => 1).catch(() => 0)
    return opened
  }
  await waitForValue(again, 3)
  // The first at once, the others after a second each.
  t.true(performance.now() - startedAt > 1_900)
  t.true(cut.length > 0)
})

test('a trusted proxy is limited only by the total of connections', async t => {
  const { connect, cut } = await open(
    t,
    { perAddress: 1, perNetwork: 1, newAtOnce: 1, newPerSecond: 0.001, maxConnections: 6 },
    { isTrusted: address => address === '127.0.0.2' },
  )
  const proxied = await openAll(connect, Array(5).fill('127.0.0.2'))
  await openAll(connect, ['127.0.0.3'])
  for (const connection of proxied) await use(connection)
  t.deepEqual(cut, [])
  const beyond = await connect('127.0.0.2')
  await beyond.end()
  t.deepEqual(cut, ['connections'])
})

test('a client that doesn’t read its response is disconnected at the time limit, and one that reads gets all of it', async t => {
  const part = 'x'.repeat(100_000)
  const onRequest = async ({ url }: Request, response: Response) => {
    // Without a pause it exceeds all buffers.
    for (let parts = 0; parts < 60; parts++) {
      response.write(part)
      if (url === '/slowly') await sleep(25)
    }
    response.end('ok')
  }
  const { listener, connect, cut } = await open(t, { unreadTimeout: 1_000 }, { onRequest })
  const [unread, read] = [await connect('127.0.0.2'), await connect('127.0.0.3')]
  unread.pause()
  unread.write(get().repeat(5))
  read.write(get('/slowly'))
  await read.until(/ok\r\n/)
  t.true(read.text().length > 60 * part.length)
  await waitForValue(() => listener.connections(), 1)
  t.deepEqual(cut, ['unread'])
})

test('a client that reads none of many small responses is disconnected', async t => {
  const onRequest = (_: Request, response: Response) => void response.end(`${'x'.repeat(20_000)}ok`)
  const { listener, connect, cut } = await open(t, { unreadTimeout: 200 }, { onRequest })
  const [idle] = await openAll(connect, ['127.0.0.3'])
  const connection = await connect('127.0.0.2')
  connection.pause()
  connection.write(get().repeat(5_000))
  await waitFor(() => cut.length > 0, listener.connections)
  await use(idle!)
  t.is(listener.connections(), 1)
  t.deepEqual(cut, ['unread'])
})

/** An incomplete body. */
const unfinished = 'POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx'

for (const [what, before] of [
  ['alone', ''],
  ['sent ahead with others', get()],
] as const) {
  test(`a request ${what} whose body doesn’t arrive in time is answered with 408`, async t => {
    const onRequest = ({ method }: Request, response: Response) => void (method === 'GET' && response.end('ok'))
    const { connect } = await open(t, { headersTimeout: 200, requestTimeout: 200 }, { onRequest })
    const connection = await connect('127.0.0.2')
    connection.write(before + unfinished)
    await connection.end()
    t.regex(connection.text(), /HTTP\/1\.1 408 /)
  })
}

test('a body that continues after its request was answered is cut off in time', async t => {
  const { listener, connect } = await open(t, { headersTimeout: 200, requestTimeout: 200, lingerTimeout: 50 })
  const connection = await connect('127.0.0.2')
  connection.write('POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999\r\n\r\nx')
  await connection.until(/ok$/)
  const trickle = setInterval(() => connection.write('x'), 20)
  t.teardown(() => clearInterval(trickle))
  await waitForValue(() => listener.connections(), 0)
  t.pass()
})

for (const [what, behind, more] of [
  ['a request', '', unfinished.slice(0, 20)],
  ['the body of a request', unfinished, ''],
] as const) {
  test(`the time limit of ${what} that waits behind another request starts when it is read`, async t => {
    const held: Response[] = []
    const onRequest = (_: Request, response: Response) => void held.push(response)
    const { connect } = await open(t, { headersTimeout: 1_000, requestTimeout: 1_000 }, { onRequest })
    const connection = await connect('127.0.0.2')
    connection.write(get() + behind)
    await waitForValue(() => held.length, 1)
    connection.write(more)
    // The time limits of connections are checked twice a second.
    await sleep(2_000)
    t.false(connection.closed())
    held[0]!.end('ok')
    await connection.end()
    t.regex(connection.text(), /^HTTP\/1\.1 200 .*HTTP\/1\.1 408 /s)
  })
}

for (const [how, leave] of [
  ['resets its connection', ({ destroy }: RawConnection) => destroy()],
  ['says that nothing more comes', ({ finish }: RawConnection) => finish()],
] as const) {
  for (const [ahead, bytes] of [
    ['a few requests', 200],
    ['more than are parsed', 8_000],
  ] as const) {
    test(`when a client that pipelined ${ahead} ${how}, the request in progress is aborted, and no other starts`, async t => {
      const responses: Response[] = []
      const visited: Request[] = []
      const onRequest = (request: Request, response: Response) => {
        responses.push(response)
        response.on('close', () => void visited.push(request))
      }
      const { listener, connect } = await open(t, {}, { onRequest })
      const connection = await connect('127.0.0.2')
      connection.write(get().repeat(bytes / get().length))
      await waitForValue(() => responses.length, 1)
      await sleep(50)
      const { from } = responses[0]!.req
      // Of more, the end comes behind bytes that aren't read.
      leave(
        bytes > 16_384 && how !== 'resets its connection' ? { ...connection, finish: connection.destroy } : connection,
      )
      await waitFor(() => from.destroyed && visited.length === 1)
      t.true(from.signal.aborted)
      // A later response is discarded.
      responses[0]!.end('late')
      await sleep(50)
      t.is(responses.length, 1)
      t.is(visited.length, 1)
      t.is(listener.connections(), 0)
    })
  }
}
