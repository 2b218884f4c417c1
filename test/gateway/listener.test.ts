/**
 * The port itself: the limits of connections, and how it closes. Run on every supported version of Node.js, and
 * within TLS as well (listener-tls.test.ts).
 */
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { createSecureContext } from 'node:tls'
import test, { type ExecutionContext } from 'ava'
import fc from 'fast-check'
import type { Request, Response } from '../../gateway/connection.js'
import { createListener, type Listener, type Secure } from '../../gateway/listener.js'
import { secureSocket } from '../../server/process/certificates.js'
import { createAuthority } from '../_helpers/certificates.js'
import { openRaw, type RawConnection } from '../_helpers/raw.js'
import { waitFor, waitForValue, within } from '../_helpers/wait.js'

type Limits = Parameters<typeof createListener>[2]

const tls = process.env.TEST_LISTENER_TLS === 'on'
const { cert, key } = createAuthority('Authority').issue({ name: 'localhost' })
const secureContext = createSecureContext({ cert, key })
const secure: Secure = socket => secureSocket(socket, secureContext)

/** A port on which `onRequest` answers; it closes with the test. */
async function open(t: ExecutionContext, onRequest: (request: Request, response: Response) => void, limits?: Limits) {
  const listener = createListener({ host: '127.0.0.1', port: 0 }, onRequest, limits, tls ? { secure } : {})
  const { port } = await listener.listen()
  t.teardown(() => listener.close(0))
  return { listener, port }
}

async function connect(t: ExecutionContext, port: number): Promise<RawConnection> {
  const connection = await openRaw(port, { tls })
  t.teardown(connection.destroy)
  return connection
}

const statusesOf = (connection: RawConnection) =>
  [...connection.text().matchAll(/HTTP\/1\.1 (\d+)/g)].map(([, status]) => status)

/** Time limits that no test reaches. */
const patient = { headersTimeout: 3_600_000, requestTimeout: 3_600_000 }

const get = (path: string) => `GET ${path} HTTP/1.1\r\n\r\n`
const answer = (_: Request, response: Response) => void response.end('ok')

/** Whether a request on a new connection is answered. */
async function isServed(t: ExecutionContext, port: number): Promise<boolean> {
  const connection = await connect(t, port)
  connection.write(get('/'))
  return connection.until(/ok$/).then(Boolean, () => false)
}

/** Echoes each request a moment later, and counts the requests in progress. */
function echoing(delay: () => number) {
  const counts = { inFlight: 0, most: 0, answered: 0 }
  const onRequest = async (request: Request, response: Response) => {
    counts.most = Math.max(counts.most, ++counts.inFlight)
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk)
    await sleep(delay())
    counts.inFlight--
    counts.answered++
    response.end(`${request.method} ${request.url} ${Buffer.concat(chunks).toString('latin1')};`)
  }
  return { counts, onRequest: (request: Request, response: Response) => void onRequest(request, response) }
}

for (const [what, first, rest] of [
  ['a GET', get('/1'), ''],
  ['a POST', 'POST /1 HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody', ' body'],
  ['a chunked POST', 'POST /1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n', ' body'],
  [
    'a body that looks like requests',
    `POST /1 HTTP/1.1\r\nContent-Length: ${2 * get('/no').length + 4}\r\n\r\n\r\n\r\n${get('/no').repeat(2)}`,
    ` \r\n\r\n${get('/no').repeat(2)}`,
  ],
] as const) {
  test(`a request behind ${what} begins when the latter is answered, even if all of it came in one write`, async t => {
    const begun: string[] = []
    const held: (() => void)[] = []
    const { port } = await open(t, async (request, response) => {
      begun.push(request.url!)
      let body = ''
      for await (const chunk of request) body += chunk
      held.push(() => void response.end(`${request.url} ${body};`))
    })
    const connection = await connect(t, port)
    connection.write(first + get('/2') + get('/3'))
    for (const [index, path] of ['/1', '/2', '/3'].entries()) {
      await waitForValue(() => held.length, index + 1)
      await sleep(50)
      t.deepEqual(begun.slice(index), [path])
      held[index]!()
    }
    await connection.until(/\/3 ;/)
    const bodies = connection.text().split(/HTTP\/1\.1 200 OK\r\n(?:[^\r]+\r\n)+\r\n/)
    // Without a length they are chunked.
    t.deepEqual(
      bodies.slice(1).map(body => body.replace(/^[0-9a-f]+\r\n|\r\n0?\r?\n?\r?\n?$/g, '')),
      [`/1${rest || ' '};`, '/2 ;', '/3 ;'],
    )
  })
}

test('a request that is in progress is not followed by what its client sends meanwhile, however much', async t => {
  let begun = 0
  const held: Response[] = []
  const { port } = await open(t, (_, response) => {
    begun++
    held.push(response)
  })
  const connection = await connect(t, port)
  // 90 MB: more than all buffers on the way hold.
  const padding = `X: ${'x'.repeat(9000)}\r\n`
  connection.write(`GET / HTTP/1.1\r\n${padding}\r\n`.repeat(10_000))
  for (const expected of [1, 2]) {
    await waitForValue(() => begun, expected)
    await sleep(200)
    t.is(begun, expected)
    held.shift()!.end()
  }
  t.true(process.memoryUsage().external < 60_000_000)
})

test('pipelined requests in any fragmentation are parsed as if they came one by one', async t => {
  const { counts, onRequest } = echoing(() => Math.random() * 3)
  const { port } = await open(t, onRequest)
  const body = fc.string({ unit: fc.constantFrom('\n', '\r', 'a', ' '), maxLength: 300 })
  const message = fc.oneof(
    fc.constant({ bytes: get('/'), expected: 'GET / ;' }),
    body.map(text => ({
      bytes: `POST /l HTTP/1.1\r\nHost: a\r\nContent-Length: ${text.length}\r\n\r\n${text}`,
      expected: `POST /l ${text};`,
    })),
    body.map(text => ({
      bytes: `POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n${text && `${text.length.toString(16)}\r\n${text}\r\n`}0\r\n\r\n`,
      expected: `POST /c ${text};`,
    })),
  )
  const property = fc.asyncProperty(
    fc.array(message, { minLength: 1, maxLength: 120 }),
    fc.array(fc.integer({ min: 1, max: 4000 }), { minLength: 1, maxLength: 8 }),
    async (messages, sizes) => {
      counts.most = 0
      const connection = await openRaw(port, { tls })
      try {
        const bytes = messages.map(({ bytes }) => bytes).join('')
        for (let from = 0, turn = 0; from < bytes.length; turn++) {
          const size = sizes[turn % sizes.length]!
          connection.write(bytes.slice(from, from + size))
          from += size
          await sleep(0)
        }
        const bodies = () => [...connection.text().matchAll(/(?:GET|POST) \/[^;]*;/g)].map(([text]) => text)
        await waitFor(() => bodies().length >= messages.length || connection.closed())
        t.is(bodies().join(''), messages.map(({ expected }) => expected).join(''))
        t.is(counts.most, 1)
      } finally {
        connection.destroy()
      }
    },
  )
  await fc.assert(property, { numRuns: 60, endOnFailure: true })
})

/** Waits until a count is beyond a number and stands still, and returns it. */
async function standsStill(count: () => number, beyond: number): Promise<number> {
  let before = beyond
  await waitFor(async () => {
    if (count() === before) return before > beyond
    before = count()
    await sleep(200)
    return false
  })
  return before
}

test('no further requests are read from a client that reads no responses, and it gets all of them once it reads', async t => {
  let begun = 0
  const { port } = await open(t, (_, response) => {
    begun++
    response.end('x'.repeat(20_000))
  })
  const connection = await connect(t, port)
  connection.pause()
  // With so many lines few are parsed at a time: Node.js pauses even while more would fit.
  connection.write(`GET / HTTP/1.1\r\n${'A: b\r\n'.repeat(10)}\r\n`.repeat(5000))
  t.true((await standsStill(() => begun, 30)) < 5000, String(begun))
  connection.resume()
  await waitForValue(() => begun, 5000)
  await waitForValue(
    () => connection.text().length,
    value => value > 5000 * 20_000,
  )
})

test('a response in parts waits while its client reads nothing, and continues once it reads', async t => {
  const part = 'x'.repeat(100_000)
  let sent = 0
  const { port } = await open(t, async (_, response) => {
    for (; sent < 200; sent++) if (!response.write(part)) await once(response, 'drain')
    response.end('end')
  })
  const connection = await connect(t, port)
  connection.pause()
  connection.write(get('/'))
  t.true((await standsStill(() => sent, 0)) < 200, String(sent))
  connection.resume()
  await waitFor(() => connection.text().length > 200 * part.length && connection.text().endsWith('end\r\n0\r\n\r\n'))
})

test('bytes that aren’t a request are answered once, also after a request, and close the connection', async t => {
  const { port } = await open(t, answer)
  for (const [sent, statuses] of [
    ['GARBAGE\r\n\r\n', ['400']],
    [`${get('/')}GARBAGE\r\n\r\n${'more\r\n'.repeat(500)}`, ['200', '400']],
    [`${get('/')}GET / HTTP/1.1\r\n${'X-Some: thing\r\n'.repeat(3000)}`, ['200', '431']],
  ] as const) {
    const connection = await connect(t, port)
    connection.write(sent)
    await connection.end()
    t.deepEqual(statusesOf(connection), [...statuses])
    t.regex(
      connection.text(),
      /content-security-policy: default-src 'none'; base-uri 'none'; frame-ancestors 'none'\r\n/,
    )
    t.regex(connection.text(), /x-content-type-options: nosniff\r\n/)
  }
})

test('bytes that aren’t a request are answered after the requests before them', async t => {
  const held: Response[] = []
  const { port } = await open(t, (_, response) => void held.push(response))
  const connection = await connect(t, port)
  connection.write(`${get('/1')}${get('/2')}GARBAGE\r\n\r\n`)
  for (const count of [1, 2]) {
    await waitForValue(() => held.length, count)
    connection.write('more garbage\r\n\r\n')
    await sleep(50)
    t.is(statusesOf(connection).length, count - 1)
    held[count - 1]!.end('ok')
  }
  await connection.end()
  t.deepEqual(statusesOf(connection), ['200', '200', '400'])
})

test('an incomplete body gets an error response, after the responses before it', async t => {
  const broken = 'POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nnone\r\n'
  const { port } = await open(t, (request, response) => (request.method === 'GET' ? response.end('ok') : undefined))
  for (const [sent, statuses] of [
    [broken, ['400']],
    [get('/') + broken, ['200', '400']],
  ] as const) {
    const connection = await connect(t, port)
    connection.write(sent)
    await connection.end()
    t.deepEqual(statusesOf(connection), [...statuses])
  }
})

test('a connection beyond the limit is dropped, and a place is free once another one closes', async t => {
  const { port } = await open(t, answer, { maxConnections: 2 })
  const [first, second] = [await connect(t, port), await connect(t, port)]
  for (const connection of [first, second]) {
    connection.write(get('/'))
    await connection.until(/ok$/)
  }
  const third = await connect(t, port)
  third.write(get('/'))
  await third.end()
  t.is(third.text(), '')
  first.destroy()
  await waitFor(() => isServed(t, port))
})

test('a client that keeps a connection open after its bytes were refused is disconnected', async t => {
  const { port } = await open(t, answer, { ...patient, maxConnections: 1, lingerTimeout: 50 })
  const first = await connect(t, port)
  first.write('GARBAGE\r\n\r\n')
  await first.end()
  t.regex(first.text(), / 400 /)
  // It never closes its side.
  await waitFor(() => isServed(t, port))
})

test('a silent connection is closed without a response, one with a partial request with 408', async t => {
  const { port } = await open(t, answer, { headersTimeout: 6_000 })
  const statuses = ['', 'P', 'GET / HTTP/1.1\r\nHost'].map(async start => {
    const connection = await connect(t, port)
    connection.write(start)
    await connection.end()
    return statusesOf(connection)
  })
  t.deepEqual(await Promise.all(statuses), [[], ['408'], ['408']])
})

test('the HTTP/2 preface is not a request, and a method with the same first letters is', async t => {
  const { port } = await open(t, (request, response) => void response.end(`${request.method} ok`))
  for (const start of ['PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0', 'PRI * HTTP/1.1\r\nHost: a\r\n\r\n']) {
    const connection = await connect(t, port)
    connection.write(start)
    await connection.end()
    t.deepEqual(statusesOf(connection), ['400'])
    t.regex(connection.text(), /content-type: application\/problem\+json\r\n/)
    t.regex(connection.text(), /"reason":"MALFORMED_REQUEST"/)
  }
  for (const method of ['PUT', 'PATCH', 'POST', 'PROPFIND']) {
    const connection = await connect(t, port)
    for (const byte of `${method} / HTTP/1.1\r\n\r\n`) connection.write(byte)
    await connection.until(new RegExp(`${method} ok$`))
  }
})

test('an idle connection is closed after its time limit', async t => {
  const { port } = await open(t, answer, { keepAliveTimeout: 50 })
  const connection = await connect(t, port)
  connection.write(get('/'))
  await connection.until(/ok$/)
  t.false(connection.closed())
  await connection.end()
  t.pass()
})

/** Starts to close; throws if that takes as long as the time limit of idle connections or of requests. */
async function closes(t: ExecutionContext, listener: Listener): Promise<void> {
  t.true(await within(10_000, listener.close(60_000)), 'it did not close')
}

test('an error of a request or its response that has no listener doesn’t end the process', async t => {
  const { port } = await open(t, (request, response) => {
    for (const each of [request, response]) each.emit('error', new Error('gone'))
    response.end('ok')
  })
  t.true(await isServed(t, port))
})

test('bytes after a CONNECT request cause no internal error', async t => {
  const { port } = await open(t, answer)
  const leaving = await connect(t, port)
  leaving.write(`CONNECT a:1 HTTP/1.1\r\n\r\n${get('/').repeat(40)}`)
  await leaving.end()
  t.true(await isServed(t, port))
})

test('closing ends idle and silent connections, without waiting for their time limits', async t => {
  const { listener, port } = await open(t, answer, { ...patient, lingerTimeout: 50 })
  const [idle, silent] = [await connect(t, port), await connect(t, port)]
  idle.write(get('/'))
  await idle.until(/ok$/)
  await closes(t, listener)
  await Promise.all([idle.end(), silent.end()])
  t.is(silent.text(), '')
})

test('a request that is on its way over an idle or new connection when the port closes is answered, as the last one', async t => {
  const { listener, port } = await open(t, answer, { ...patient, lingerTimeout: 60_000 })
  const [idle, silent] = [await connect(t, port), await connect(t, port)]
  idle.write(get('/'))
  await idle.until(/ok$/)
  await waitForValue(listener.connections, 2)
  const closed = listener.close(60_000)
  t.false(await isServed(t, port).catch(() => false))
  for (const connection of [idle, silent]) connection.write(get('/'))
  t.true(await within(10_000, closed), 'it did not close')
  await Promise.all([idle.end(), silent.end()])
  t.deepEqual([statusesOf(idle), statusesOf(silent)], [['200', '200'], ['200']])
  for (const connection of [idle, silent]) t.regex(connection.text(), /\r\nconnection: close\r\n(.*\r\n)*\r\nok$/i)
})

test('closing lets the requests in progress end, and ends their connections without those behind them', async t => {
  const held: Response[] = []
  const { listener, port } = await open(t, (_, response) => void held.push(response))
  const [one, two] = [await connect(t, port), await connect(t, port)]
  one.write(get('/first'))
  two.write(get('/first') + get('/second'))
  await waitForValue(() => held.length, 2)
  const closed = listener.close(60_000)
  two.write(get('/third'))
  for (const response of held) response.end('ok')
  t.true(await within(10_000, closed), 'it did not close')
  await Promise.all([one.end(), two.end()])
  t.is(held.length, 2)
  // It tells the client that the others weren't processed (RFC 9112, 9.6).
  for (const connection of [one, two])
    t.regex(connection.text(), /^HTTP\/1\.1 200 OK\r\n(.*\r\n)*connection: close\r\n(.*\r\n)*\r\nok$/i)
})

test('closing ends a connection whose response has begun, once it is sent', async t => {
  const held: Response[] = []
  const { listener, port } = await open(t, (_, response) => {
    response.writeHead(200, { 'content-length': '2' }).write('o')
    held.push(response)
  })
  const connection = await connect(t, port)
  connection.write(get('/'))
  await connection.until(/o$/)
  const closed = listener.close(60_000)
  held[0]!.end('k')
  t.true(await within(10_000, closed), 'it did not close')
  await connection.end()
  t.regex(connection.text(), /ok$/)
})

test('closing cuts off requests that aren’t finished within the time limit', async t => {
  let left = 0
  const { listener, port } = await open(t, (_, response) => {
    left++
    response.once('close', () => left--)
  })
  const [stuck, endless] = [await connect(t, port), await connect(t, port)]
  stuck.write(get('/'))
  endless.write('POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nx')
  await waitForValue(() => left, 2)
  t.true(await within(10_000, listener.close(100)), 'it did not close')
  await waitForValue(() => left, 0)
  await Promise.all([stuck.end(), endless.end()])
  t.is(stuck.text() + endless.text(), '')
})

test('listening on a port in use is an error', async t => {
  const { port } = await open(t, answer)
  const second = createListener({ host: '127.0.0.1', port }, answer)
  await t.throwsAsync(second.listen(), { code: 'EADDRINUSE' })
})
