/** Invalid bytes: random ones, HTTP/2 frames in any order, HTTP/1.1 requests with faults. */
import { randomBytes, randomInt } from 'node:crypto'
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'

/** The bytes of one connection, piece by piece. */
export type Noise = () => readonly Buffer[]

/** A random number from `least` to `most`. */
const between = (least: number, most: number) => randomInt(least, most + 1)
const oneOf = <T>(values: readonly T[]): T => values[randomInt(values.length)]!
const several = <T>(least: number, most: number, make: () => T) => Array.from({ length: between(least, most) }, make)

/** The kinds by name. */
export const noises: Readonly<Record<string, Noise>> = {
  'random bytes': () => several(1, 4, () => randomBytes(between(1, 4096))),
  'frames of HTTP/2': () => [preface, settings, ...several(1, 40, frame)],
  'broken HTTP/1.1': () => several(1, 6, () => damaged(oneOf(requests))),
}

const preface = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n')
const settings = frameOf(4, 0, 0, Buffer.alloc(0))

function frameOf(type: number, flags: number, stream: number, payload: Buffer, length = payload.length): Buffer {
  const header = Buffer.alloc(9)
  header.writeUIntBE(length, 0, 3)
  header.writeUInt8(type, 3)
  header.writeUInt8(flags, 4)
  header.writeUInt32BE(stream, 5)
  return Buffer.concat([header, payload])
}

/** Header fields in HPACK: a POST over http, from the static table alone, and a path as gRPC has it. */
const fields = Buffer.concat([
  Buffer.from([0x83, 0x86, 0x04, 0x05]),
  Buffer.from('/a.B/'),
  Buffer.from([0x41, 0x01, 0x61]),
])

/** Frames that are valid by themselves, in a random order, and some that are entirely invalid. */
function frame(): Buffer {
  const stream = oneOf([0, 1, 3, 5, 7, 2, between(0, 2 ** 31 - 1)])
  const number = Buffer.alloc(4)
  number.writeUInt32BE(randomInt(2 ** 32 - 1))
  return oneOf([
    () => frameOf(0, oneOf([0, 1, 8, 9]), stream, randomBytes(between(0, 300))),
    () => frameOf(1, oneOf([0, 1, 4, 5, 0x24, 0x2d]), stream, fields),
    () => frameOf(1, 5, stream, randomBytes(between(0, 60))),
    () => frameOf(2, 0, stream, randomBytes(5)),
    () => frameOf(3, 0, stream, number),
    () => frameOf(4, oneOf([0, 1]), 0, randomBytes(6 * between(0, 3))),
    () => frameOf(6, oneOf([0, 1]), 0, randomBytes(8)),
    () => frameOf(7, 0, 0, Buffer.concat([number, Buffer.alloc(4)])),
    () => frameOf(8, 0, stream, number),
    () => frameOf(9, oneOf([0, 4]), stream, fields),
    () => frameOf(between(0, 255), between(0, 255), stream, randomBytes(between(0, 40))),
    () => frameOf(between(0, 12), between(0, 255), stream, randomBytes(between(0, 40)), between(0, 2 ** 24 - 1)),
  ])()
}

const json = '{"username":"ana","password":"cavalo"}'
const requests = [
  'GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n',
  'OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n',
  'GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n',
  `POST /users/login HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: ${json.length}\r\n\r\n${json}`,
  `POST /users/login HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n${json.length.toString(16)}\r\n${json}\r\n0\r\n\r\n`,
  'POST /users/login HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n',
  'GET /users/me HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n',
  'CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n',
]

/** Lines that conflict with the others of a request. */
const strayLines = [
  'Content-Length: 5',
  'Content-Length: -1',
  'Content-Length: 99999999999999999999',
  'Transfer-Encoding: chunked',
  'Transfer-Encoding: gzip, chunked',
  'Upgrade: websocket',
  ' folded',
  'Name : value',
  ': empty',
  `X: ${'x'.repeat(17_000)}`,
  'Connection: close',
  'Trailer: x',
]

function damaged(request: string): Buffer {
  const bytes = Buffer.from(request)
  return oneOf([
    () => bytes,
    () => bytes.subarray(0, between(1, bytes.length)),
    () => {
      for (let count = between(1, 5); count > 0; count--) bytes[randomInt(bytes.length)] = randomInt(256)
      return bytes
    },
    () => Buffer.from(request.replace('\r\n', `\r\n${oneOf(strayLines)}\r\n`)),
    () => Buffer.from(request.replaceAll('\r\n', oneOf(['\n', '\r', '\r\r\n', '\0\r\n']))),
    () => Buffer.concat([bytes, randomBytes(between(1, 200))]),
    () => Buffer.concat(several(2, 30, () => bytes)),
  ])()
}

/**
 * Sends different noise to a port of this machine over many concurrent connections, while `goOn` returns true. Some are
 * closed at once, some midway, some when the server has closed or been silent. Returns the number of connections.
 */
export async function makeNoise(port: number, make: Noise, goOn: () => boolean): Promise<number> {
  let connections = 0
  async function line() {
    while (goOn()) {
      connections++
      await sendNoise(port, make())
    }
  }
  await Promise.all(Array.from({ length: 24 }, line))
  return connections
}

async function sendNoise(port: number, pieces: readonly Buffer[]): Promise<void> {
  const socket = connect(port, '127.0.0.1')
  const closed = new Promise<void>(resolve => socket.on('error', () => {}).once('close', () => resolve()))
  socket.resume()
  const left = between(0, 3 * pieces.length)
  for (const [index, piece] of pieces.entries()) {
    if (socket.destroyed || index === left) break
    socket.write(piece)
    if (randomInt(4) === 0) await sleep(1)
  }
  await Promise.race([closed, sleep(oneOf([0, 5, 100]))])
  socket.destroy()
  await closed
}
