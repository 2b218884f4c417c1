/** Meaningless bytes on the gateway's port, in any fragmentation, from clients that leave at any moment. */
import { once } from 'node:events'
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import fc from 'fast-check'
import { spawnService } from '../_helpers/spawned.js'
import { waitForValue } from '../_helpers/wait.js'

/** Sends bytes in pieces, reads responses or not, and disconnects. */
interface Visit {
  readonly bytes: Buffer
  /** Where it is split, in thousandths of its length. */
  readonly cuts: readonly number[]
  readonly takes: boolean
  readonly stays: number
  readonly leaves: 'end' | 'destroy' | 'resetAndDestroy'
}

async function visit(port: number, { bytes, cuts, takes, stays, leaves }: Visit): Promise<void> {
  const socket = connect(port, '127.0.0.1').on('error', () => {})
  await once(socket, 'connect')
  if (takes) socket.resume()
  const ends = [...cuts.toSorted((a, b) => a - b).map(cut => Math.floor((bytes.length * cut) / 1000)), bytes.length]
  let sent = 0
  for (const end of ends) {
    if (socket.writable) socket.write(bytes.subarray(sent, end))
    sent = end
    await sleep(1)
  }
  await sleep(stays)
  socket[leaves]()
  socket.destroy()
}

const path = fc.constantFrom(
  ...['/users/login', '/users/me', '/auth.v1.Users/Login', '/healthz', '*', '//', '/%', 'http://a/b'],
)
const body = fc.constantFrom(
  ...['', '{', '{}', 'username=a', '5\r\nhello\r\n0\r\n\r\n', 'zz\r\n', '\0\0\0\0\x05hello', 'x'.repeat(9000)],
)
const header = fc.constantFrom(
  ...['Host: a', 'host:', 'Content-Length: 2', 'Content-Length: 99999999', 'Content-Length: -1', 'Expect: x'],
  ...['Transfer-Encoding: chunked', 'Transfer-Encoding: gzip, chunked', 'Content-Type: ;;', 'Expect: 100-continue'],
  ...['json', 'x-www-form-urlencoded', 'proto', 'grpc-web+proto'].map(type => `Content-Type: application/${type}`),
  ...['Connection: close', 'Connection: upgrade', 'Upgrade: h2c', 'X-Forwarded-For: x, 1.2.3.4', 'a\0b: c'],
  ...['Connect-Timeout-Ms: 1', 'Authorization: Bearer x'],
)
const method = fc.constantFrom('GET', 'POST', 'POST', 'POST', 'OPTIONS', 'HEAD', 'PRI', 'CONNECT', 'x y')
const version = fc.constantFrom('1.1', '1.1', '1.1', '1.0', '9')
const message = fc
  .tuple(method, path, version, fc.uniqueArray(header, { maxLength: 3 }), body)
  .map(([method, path, version, headers, body]) =>
    [`${method} ${path} HTTP/${version}`, ...headers, '', body].join('\r\n'),
  )

const bytes = fc.array(message, { minLength: 1, maxLength: 15 }).map(all => Buffer.from(all.join(''), 'latin1'))

/** Contents of frames of HTTP/2 by their type (RFC 9113, section 6): a request with all its headers, errors, its end. */
const types = { 0: '', 1: '\x82\x86\x84\x41\x01a', 3: '\0\0\0\x08', 4: '', 7: '\0'.repeat(8), 8: '\0\0\0\x01' }
const contents = fc.constantFrom(...Object.entries(types).map(([type, text]) => [Number(type), text] as const))
const nonsense = fc.tuple(fc.nat(10), fc.string({ unit: 'binary-ascii', maxLength: 60 }))

/** Frames of HTTP/2 after the client preface. */
const frames = fc
  .array(
    fc.record({
      frame: fc.oneof(contents, contents, contents, nonsense),
      flags: fc.constantFrom(0, 1, 4, 5),
      stream: fc.constantFrom(0, 1, 1, 3, 5),
    }),
    { minLength: 5, maxLength: 40 },
  )
  .map(all =>
    Buffer.from(
      'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0' +
        all
          .map(({ frame: [type, payload], flags, stream }) =>
            String.fromCharCode(0, 0, payload.length, type, flags, 0, 0, 0, stream).concat(payload),
          )
          .join(''),
      'latin1',
    ),
  )

const bytesOf = { requests: bytes, 'frames of HTTP/2': frames }

for (const [what, bytes] of Object.entries(bytesOf))
  test(`meaningless ${what} don’t end the process`, async t => {
    const service = await spawnService(t, { AUTH_LOG_LEVEL: 'error', AUTH_LIMIT_FACTOR: '1000' })
    const port = Number(new URL(service.http).port)
    const visits = fc.array(
      fc.record({
        bytes,
        cuts: fc.array(fc.nat(999), { maxLength: 3 }),
        takes: fc.boolean(),
        stays: fc.nat(10),
        leaves: fc.constantFrom('end', 'destroy', 'resetAndDestroy'),
      }),
      { minLength: 10, maxLength: 10 },
    )
    await fc.assert(
      fc.asyncProperty(visits, async all => {
        await Promise.all(all.map(each => visit(port, each)))
        t.true(service.alive(), service.output().slice(-2000))
      }),
      { numRuns: 100, endOnFailure: true },
    )
    await waitForValue(async () => (await fetch(`${service.http}/readyz`)).status, 200)
  })
