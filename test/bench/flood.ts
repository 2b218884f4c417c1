/**
 * The process of an attacker: it sends a flood as fast as its limits permit, and ignores Retry-After. Its parent sends a
 * `FloodPlan`, gets an answer when it is ready, sends `go`, and gets another one when the flood has ended.
 */
import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { createClient, readAnswer } from './clients.js'
import { type Flood, type FloodName, floods, type Origin } from './floods.js'
import { addressIn, formOf } from './operations.js'

/** A flood to send. */
export interface FloodPlan {
  readonly port: number
  readonly flood: FloodName
  readonly origin: Origin
  /** Its address is 127.`network`.0.1, or behind a proxy there. */
  readonly network: number
  /** Numbers of users to act upon. */
  readonly victims: readonly number[]
  readonly seconds: number
}

/** Accounts that it signs up in advance. */
const accounts = 20

/** Processor time that it may use, in cores: it must not affect others by using their processor. */
const share = 0.5

/** Connections that are opened at once, and milliseconds until the next ones: SYN packets of more would be lost. */
const atOnce = { connections: 100, pause: 10 }

/** Sends the flood that was prepared. */
let send: () => Promise<void>
process.on('message', async (message: FloodPlan | 'go') => {
  const work = message === 'go' ? send() : prepare(message)
  process.send?.(await work.then(() => ({})).catch(error => ({ failed: String(error?.stack ?? error) })))
})
// The parent has gone.
process.once('disconnect', () => process.exit())

async function prepare(plan: FloodPlan): Promise<void> {
  const flood: Flood = floods[plan.flood]
  const tokens = flood.accounts ? await signUp(plan) : []
  // It makes names unique to each flood.
  let number = Date.now() * 1000
  const requests = (line: number) => flood.source({ tokens, victims: plan.victims, serial: () => number++ }, line)
  send = async () => {
    const throttle = setInterval(createThrottle(), 5)
    await (flood.perSecond ? visit(plan, flood.perSecond, requests(0)) : fill(plan, flood, requests))
    clearInterval(throttle)
  }
}

async function signUp({ port, network }: FloodPlan): Promise<string[]> {
  const client = createClient({ endpoint: 'http', port, connections: 2 })
  const address = addressIn(network, 0)
  const one = async (_: unknown, number: number) => {
    const username = `agressor ${process.pid} ${Date.now()} ${number}`
    const body = Buffer.from(JSON.stringify(formOf(username, username)))
    const wire = { path: '/users/signup', address, contentType: 'application/json', body }
    const answer = await client.send({ ...wire, expected: '', refusable: true })
    if (answer.status !== 200) throw new Error(`sign-up: ${answer.status} ${answer.body}`)
    return answer.body.toString()
  }
  const tokens = await Promise.all(Array.from({ length: accounts }, one))
  client.close()
  return tokens
}

/** Returns what has the whole process sleep while it has used more than its share; received bytes wait in the sockets. */
function createThrottle(): () => void {
  const from = performance.now()
  const used = process.cpuUsage()
  let [at, spent, ahead] = [0, 0, 0]
  return () => {
    const { user, system } = process.cpuUsage(used)
    const [now, total] = [performance.now() - from, (user + system) / 1000]
    // Unused time of the last moment may be used now, but no older one.
    ahead = Math.max(-50, ahead + (total - spent) / share - (now - at))
    ;[at, spent] = [now, total]
    if (ahead > 0) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ahead)
  }
}

function dial({ port, network }: FloodPlan): Socket {
  const options = { port, host: '127.0.0.1', localAddress: addressIn(network, 0), noDelay: true }
  return connect(options).on('error', () => {})
}

let requests = 0

/** A request as it is sent; behind a proxy from a unique /64. */
function outgoing({ origin, network }: FloodPlan, request: Buffer): Buffer {
  if (origin !== '48') return request
  const address = `2001:db8:${network}:${(requests++ & 0xffff).toString(16)}::1`
  const lineEnd = request.indexOf('\r\n') + 2
  const header = Buffer.from(`x-forwarded-for: ${address}\r\n`)
  return Buffer.concat([request.subarray(0, lineEnd), header, request.subarray(lineEnd)])
}

/** Counts the responses on a connection. */
function createReader(socket: Socket): (chunk: Buffer) => number {
  let received: Buffer = Buffer.alloc(0)
  return chunk => {
    received = received.length === 0 ? chunk : Buffer.concat([received, chunk])
    let count = 0
    try {
      for (let read = readAnswer(received); read; read = readAnswer(received)) {
        received = received.subarray(read.length)
        count++
      }
    } catch {
      // An answer without a length is the last one.
      socket.destroy()
    }
    return count
  }
}

/** Keeps a connection full of requests, and reconnects if it was closed. Returns what hangs up. */
function keep(plan: FloodPlan, { every, unread, once }: Flood, depth: number, next: () => Buffer, from: number) {
  let over = false
  let socket: Socket
  let batch: NodeJS.Timeout | undefined
  const connectAnew = () => {
    if (over) return
    socket = dial(plan)
    let inFlight = 0
    const send = () => {
      const requests: Buffer[] = []
      for (; inFlight < depth && !over; inFlight++) requests.push(outgoing(plan, next()))
      if (requests.length > 0) socket.write(Buffer.concat(requests))
    }
    const sendNext = () => {
      if (every === undefined) return send()
      const elapsed = performance.now() - from
      // The first when all connections are open.
      const first = 500
      batch = setTimeout(send, elapsed < first ? first - elapsed : every - ((elapsed - first) % every))
    }
    socket.on('connect', sendNext)
    const read = createReader(socket)
    if (unread) socket.pause()
    else
      socket.on('data', chunk => {
        inFlight -= read(chunk)
        if (!once && (every === undefined || inFlight === 0)) sendNext()
      })
    socket.on('close', () => {
      clearTimeout(batch)
      setTimeout(connectAnew, 1)
    })
  }
  connectAnew()
  return () => {
    over = true
    clearTimeout(batch)
    socket.destroy()
  }
}

/** Keeps as many connections as the flood has; a proxy has one for each request in flight. */
async function fill(plan: FloodPlan, flood: Flood, source: (line: number) => () => Buffer): Promise<void> {
  const from = performance.now()
  const { connections = 1, depth = 1 } = flood
  const [wanted, most] = plan.origin === '48' ? [connections * depth, 1] : [connections, depth]
  const lines: (() => void)[] = []
  while (lines.length < wanted) {
    lines.push(keep(plan, flood, most, source(lines.length), from))
    if (lines.length % atOnce.connections === 0) await sleep(atOnce.pause)
  }
  await sleep(from + plan.seconds * 1000 - performance.now())
  for (const hangUp of lines) hangUp()
}

/** Sends so many requests a second, each over a separate connection. */
async function visit(plan: FloodPlan, perSecond: number, next: () => Buffer): Promise<void> {
  const begun = performance.now()
  let sent = 0
  const timer = setInterval(() => {
    for (; sent < ((performance.now() - begun) / 1000) * perSecond; sent++) {
      const socket = dial(plan)
      const read = createReader(socket)
      socket.on('connect', () => socket.write(outgoing(plan, next())))
      socket.on('data', chunk => void (read(chunk) > 0 && socket.destroy()))
    }
  }, 5)
  await sleep(plan.seconds * 1000)
  clearInterval(timer)
}
