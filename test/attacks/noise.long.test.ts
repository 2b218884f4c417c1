/**
 * A minute of meaningless bytes on each port. At the public and metrics ports the process survives it,
 * with stable memory and no connection left; for ports in trusted networks the test only reports how the process ended.
 */

import { randomBytes, randomInt } from 'node:crypto'
import { createRequire } from 'node:module'
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import { scrape } from '../_helpers/metrics.js'
import { freePort } from '../_helpers/relay.js'
import { type Spawned, spawnService } from '../_helpers/spawned.js'
import { waitFor } from '../_helpers/wait.js'

/** The bytes of one connection, piece by piece. */
type Noise = () => readonly Buffer[]

/** A random number from `least` to `most`. */
const between = (least: number, most: number) => randomInt(least, most + 1)
const oneOf = <T>(values: readonly T[]): T => values[randomInt(values.length)]!
const several = <T>(least: number, most: number, make: () => T) => Array.from({ length: between(least, most) }, make)

/** The kinds by name. */
const noises: Readonly<Record<string, Noise>> = {
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
async function makeNoise(port: number, make: Noise, goOn: () => boolean): Promise<number> {
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

/** For each kind of noise; TEST_NOISE_SECONDS sets another time. */
const seconds = Number(process.env.TEST_NOISE_SECONDS ?? 60)

/** Those of `npm start`. */
const flags = (createRequire(import.meta.url)('#package').scripts.start as string).match(/--\S+/g) ?? []

const portOf = (url: string) => Number(new URL(url).port)

/** A service with metrics and Administration on separate ports. */
async function start(t: Parameters<typeof spawnService>[0]) {
  const [metrics, administration] = [await freePort(), await freePort()]
  const service = await spawnService(
    t,
    {
      AUTH_METRICS_ADDRESS: `127.0.0.1:${metrics}`,
      AUTH_ADMIN_ADDRESS: `127.0.0.1:${administration}`,
      // Otherwise each refusal is logged.
      AUTH_LOG_LEVEL: 'error',
    },
    { flags },
  )
  const gRPC = portOf(`http://${service.grpc}`)
  return { service, ports: { HTTP: portOf(service.http), metrics, gRPC, Administration: administration } }
}

/** The line of a process's output that says why it ended. */
function causeIn(output: string): string {
  return /^.*(?:Error|Assertion|FATAL|corrupt|free\(\)).*$/m.exec(output)?.[0].slice(0, 300) ?? 'without a word'
}

/** Sends noise for the given time, or until the process has ended. */
async function sendNoiseTo(service: Spawned, port: number, kind: keyof typeof noises) {
  const from = performance.now()
  const lasted = () => (performance.now() - from) / 1000
  const connections = await makeNoise(port, noises[kind]!, () => service.alive() && lasted() < seconds)
  return { connections, lasted: lasted() }
}

/** Resources of a process: megabytes of the heap and in all, and open files (sockets) where the system counts them. */
async function readUsage(metrics: number) {
  const { value } = await scrape(`http://127.0.0.1:${metrics}/metrics`)
  const megabytes = (name: string) => (value(name) ?? Number.NaN) / 2 ** 20
  return {
    heap: megabytes('nodejs_heap_size_used_bytes') + megabytes('nodejs_external_memory_bytes'),
    resident: megabytes('process_resident_memory_bytes'),
    files: value('process_open_fds') ?? 0,
  }
}

for (const port of ['HTTP', 'metrics'] as const) {
  for (const kind of Object.keys(noises)) {
    test.serial(
      `${kind} on the ${port} port: the process survives, serves other clients and leaks no memory or connection`,
      async t => {
        t.timeout(seconds * 1000 + 400_000)
        const { service, ports } = await start(t)
        const before = await readUsage(ports.metrics)
        const usages: (typeof before)[] = []
        let over = false
        t.teardown(() => {
          over = true
        })
        async function watch() {
          while (!over && service.alive()) {
            usages.push(await readUsage(ports.metrics))
            t.is((await fetch(`${service.http}/healthz`)).status, 200)
            await sleep((seconds * 1000) / 60)
          }
        }
        const watching = watch().catch(error => error)
        const { connections, lasted } = await sendNoiseTo(service, ports[port], kind)
        over = true
        const failed = await watching
        if (!service.alive()) t.fail(`it ended after ${lasted.toFixed(1)} s: ${causeIn(service.output())}`)
        t.is(failed, undefined)

        // The heap grows between two collections; only its size after one matters.
        const third = Math.floor(usages.length / 3)
        const floor = (part: typeof usages) => Math.round(Math.min(...part.map(({ heap }) => heap)))
        const [second, last] = [floor(usages.slice(third, 2 * third)), floor(usages.slice(-third))]
        const most = Math.round(Math.max(...usages.map(({ resident }) => resident)))
        t.log(`${connections} connections; ${second} MB in use in the second third of the time, ${last} MB in the last`)
        t.log(`at most ${most} MB in all, and ${Math.max(...usages.map(({ files }) => files))} files`)
        t.true(last - second < 25, `${second} MB, then ${last} MB`)

        const filesNow = async () => (await readUsage(ports.metrics)).files
        await waitFor(async () => (await filesNow()) < before.files + 40, filesNow)
        t.is(/"level":"(?:error|fatal)".*/.exec(service.output())?.[0], undefined)
      },
    )
  }
}

for (const port of ['gRPC', 'Administration'] as const) {
  test.serial(`HTTP/2 frames on the ${port} port: the test reports how the process ended`, async t => {
    t.timeout(seconds * 1000 + 120_000)
    const { service, ports } = await start(t)
    const { connections, lasted } = await sendNoiseTo(service, ports[port], 'frames of HTTP/2')
    const ended = service.alive() ? 'lives' : `ended with ${await service.ended}: ${causeIn(service.output())}`
    t.log(
      `Node.js ${process.version}: after ${lasted.toFixed(1)} s and ${connections} connections the process ${ended}`,
    )
    t.pass()
  })
}
