/**
 * The process of an attacker: it sends a flood as fast as its limits permit, and ignores Retry-After. Its parent sends a
 * `FloodPlan`, gets an answer when it is ready, sends `go`, and gets another one when the flood has ended.
 */
import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Answer, createClient, readAnswer } from './clients.js'
import { type FloodName, floodOf, type Kept, type Origin, type Own, type Source } from './floods.js'
import { addressIn, formOf, forwardedOf } from './operations.js'

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

/** The limit of open files, minus a reserve. */
const mostConnections = openFiles() - 500

/** Sends the flood that was prepared. */
let send: () => Promise<void>
process.on('message', async (message: FloodPlan | 'go') => {
  const work = message === 'go' ? send() : prepare(message)
  process.send?.(await work.then(() => ({})).catch(error => ({ failed: String(error?.stack ?? error) })))
})
// The parent has gone.
process.once('disconnect', () => process.exit())

async function prepare(plan: FloodPlan): Promise<void> {
  const planned = floodOf(plan.flood)
  const own = planned.accounts ? await signUp(plan) : []
  // It makes names unique to each flood.
  let number = Date.now() * 1000
  const attacker = { own, victims: plan.victims, serial: () => number++ }
  send = async () => {
    const throttle = setInterval(createThrottle(), 5)
    const sources = (line: number) => planned.source(attacker, line)
    await ('perSecond' in planned ? visit(plan, planned.perSecond, sources(0)) : fill(plan, planned, sources))
    clearInterval(throttle)
  }
}

async function signUp({ port, origin, network }: FloodPlan): Promise<Own[]> {
  const client = createClient({ endpoint: 'http', port, connections: 2 })
  const series = `${process.pid} ${Date.now()}`
  const address = addressIn(network, 0)
  const one = async (number: number): Promise<Own> => {
    const username = `agressor ${series} ${number}`
    const body = Buffer.from(JSON.stringify(formOf(username, username)))
    const wire = { method: 'POST', path: '/users/signup', address, contentType: 'application/json', body } as const
    const forwarded = origin === '48' && { forwardedFor: forwardedOf(address) }
    const answer = await client.send({ ...wire, ...forwarded, expected: '', refusable: true })
    if (answer.status !== 200) throw new Error(`sign-up: ${answer.status} ${answer.body}`)
    return { username, token: answer.body.toString() }
  }
  const all = await Promise.all(Array.from({ length: accounts }, (_, number) => one(number)))
  client.close()
  return all
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

/** Counts the responses on a connection; returns the last one and their number. */
function createReader(socket: Socket): (chunk: Buffer) => { last: Answer | undefined; count: number } {
  let received: Buffer = Buffer.alloc(0)
  return chunk => {
    received = received.length === 0 ? chunk : Buffer.concat([received, chunk])
    let last: Answer | undefined
    let count = 0
    try {
      for (let read = readAnswer(received); read; read = readAnswer(received)) {
        received = received.subarray(read.length)
        last = read.answer
        count++
      }
    } catch {
      // An answer without a length is the last one.
      socket.destroy()
    }
    return { last, count }
  }
}

/** Keeps a connection full of requests, and reconnects if it was closed. Returns what hangs up. */
function keep(plan: FloodPlan, { depth, every, unread }: Kept, source: Source, from: number): () => void {
  let over = false
  let socket: Socket
  let batch: NodeJS.Timeout | undefined
  const most = plan.origin === '48' ? 1 : depth
  const connectAnew = () => {
    if (over) return
    socket = dial(plan)
    let inFlight = 0
    let last: Answer | undefined
    const send = () => {
      const requests: Buffer[] = []
      for (; inFlight < most && !over; inFlight++) {
        const request = source.next(last)
        if (!request) break
        requests.push(outgoing(plan, request))
      }
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
        const answered = read(chunk)
        last = answered.last ?? last
        inFlight -= answered.count
        if (every === undefined || inFlight === 0) sendNext()
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
async function fill(plan: FloodPlan, flood: Kept, sources: (line: number) => Source): Promise<void> {
  const from = performance.now()
  const wanted = plan.origin === '48' ? flood.connections * flood.depth : flood.connections
  const lines: (() => void)[] = []
  for (let line = 0; line < Math.min(wanted, mostConnections); line++) {
    lines.push(keep(plan, flood, sources(line), from))
    if (lines.length % atOnce.connections === 0) await sleep(atOnce.pause)
  }
  await sleep(from + plan.seconds * 1000 - performance.now())
  for (const hangUp of lines) hangUp()
}

/** Sends so many requests a second, each over a separate connection. */
async function visit(plan: FloodPlan, perSecond: number, source: Source): Promise<void> {
  const begun = performance.now()
  let sent = 0
  const timer = setInterval(() => {
    for (; sent < ((performance.now() - begun) / 1000) * perSecond; sent++) {
      const socket = dial(plan)
      const read = createReader(socket)
      socket.on('connect', () => socket.write(outgoing(plan, source.next()!)))
      socket.on('data', chunk => void (read(chunk).count > 0 && socket.destroy()))
    }
  }, 5)
  await sleep(plan.seconds * 1000)
  clearInterval(timer)
}

/** Node.js raises its limit to the maximum of the system. */
function openFiles(): number {
  const report = process.report.getReport() as { userLimits?: { open_files?: { soft: number | 'unlimited' } } }
  return Number(report.userLimits?.open_files?.soft ?? 1024) || Number.POSITIVE_INFINITY
}
