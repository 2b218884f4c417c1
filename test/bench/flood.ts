/**
 * The process of an attacker: it sends a flood as fast as its limits permit, and ignores Retry-After. Its parent sends a
 * `FloodPlan`, gets an answer when it is ready, sends `go`, and gets a `FloodReport` when it has ended; `stop` ends it.
 */
import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Answer, createClient, readAnswer } from './clients.js'
import {
  type Attacker,
  type FloodName,
  floodOf,
  type Kept,
  type Origin,
  type Own,
  type Paced,
  type Source,
} from './floods.js'
import { addressIn, formOf, forwardedOf } from './operations.js'

/** A flood to send. */
export interface FloodPlan {
  readonly port: number
  readonly flood: FloodName
  readonly origin: Origin
  /** Its addresses are 127.`network`.0.1 and the following ones, or behind a proxy there. */
  readonly network: number
  /** Numbers of users to act upon. */
  readonly victims: readonly number[]
  /** The maximum duration; `stop` ends it sooner. */
  readonly seconds: number
}

/** The result of a flood. */
export interface FloodReport {
  /** Answers by status. */
  readonly answers: Readonly<Record<string, number>>
  /** Connections in all, the maximum of open ones, and those that the other side closed. */
  readonly made: number
  readonly open: number
  readonly cut: number
  /** How many could be open, if fewer than planned. */
  readonly limit?: number
  /** Processor time of this process for each second. */
  readonly cores: number
}

/** The minimum of accounts that it signs up in advance; an address has at least two. */
const fewestAccounts = 20

/** Processor time that it may use, in cores: it must not affect others by using their processor. */
const share = 0.5

/** Connections that are opened at once, and milliseconds until the next ones: SYN packets of more would be lost. */
const atOnce = { connections: 100, pause: 10 }

/** The limit of open files, minus a reserve. */
const mostConnections = openFiles() - 500

/** Milliseconds to find the connections that the other side has closed, if responses aren't read. */
const lookAround = 2_000

interface Prepared {
  readonly plan: FloodPlan
  /** One for each address. */
  readonly attackers: readonly Attacker[]
}

let prepared: Prepared
let stop: AbortController
process.on('message', async (message: FloodPlan | 'go' | 'stop') => {
  if (message === 'stop') return stop.abort()
  const work = message === 'go' ? flood(prepared) : prepare(message)
  process.send?.(await work.catch(error => ({ failed: String(error?.stack ?? error) })))
})
// The parent has gone.
process.once('disconnect', () => process.exit())

const addressesOf: Readonly<Record<Origin, number>> = { one: 1, 50: 50, 48: 1 }

/** Prepares each attacker. */
async function prepare(plan: FloodPlan): Promise<object> {
  const own = floodOf(plan.flood).accounts ? await signUp(plan) : []
  // It makes names unique to each flood.
  let number = Date.now() * 1000
  const attackers = Array.from({ length: addressesOf[plan.origin] }, (_, index) => {
    return { own: own[index] ?? [], victims: plan.victims, serial: () => number++ }
  })
  prepared = { plan, attackers }
  return {}
}

/** Signs up at each address. */
async function signUp({ port, origin, network }: FloodPlan): Promise<Own[][]> {
  const addresses = addressesOf[origin]
  const each = 2 * Math.ceil(fewestAccounts / 2 / addresses)
  const client = createClient({ endpoint: 'http', port, connections: 2 })
  const series = `${process.pid} ${Date.now()}`
  const one = async (number: number): Promise<Own> => {
    const username = `agressor ${series} ${number}`
    const body = Buffer.from(JSON.stringify(formOf(username, username)))
    const address = addressIn(network, Math.floor(number / each))
    const wire = { method: 'POST', path: '/users/signup', address, contentType: 'application/json', body } as const
    const forwarded = origin === '48' && { forwardedFor: forwardedOf(address) }
    for (;;) {
      const answer = await client.send({ ...wire, ...forwarded, expected: '', refusable: true })
      if (answer.status === 200) return { username, token: answer.body.toString() }
      if (answer.retryAfter === undefined) throw new Error(`sign-up: ${answer.status} ${answer.body}`)
      await sleep(answer.retryAfter * 1000)
    }
  }
  const all = await Promise.all(Array.from({ length: addresses * each }, (_, number) => one(number)))
  client.close()
  return Array.from({ length: addresses }, (_, index) => all.slice(index * each, (index + 1) * each))
}

async function flood({ plan, attackers }: Prepared): Promise<FloodReport> {
  const answers: Record<string, number> = {}
  let [made, open, most, cut, requests] = [0, 0, 0, 0, 0]
  let limit: number | undefined
  const from = performance.now()
  const used = process.cpuUsage()
  const milliseconds = () => {
    const { user, system } = process.cpuUsage(used)
    return (user + system) / 1000
  }
  let [at, spent, ahead] = [0, 0, 0]
  const throttle = setInterval(() => {
    const [now, total] = [performance.now() - from, milliseconds()]
    // Unused time of the last moment may be used now, but no older one.
    ahead = Math.max(-50, ahead + (total - spent) / share - (now - at))
    ;[at, spent] = [now, total]
    // The whole process sleeps; received bytes wait in the sockets.
    if (ahead > 0) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ahead)
  }, 5)

  function dial(place: number): Socket {
    const localAddress = addressIn(plan.network, place)
    const socket = connect({ port: plan.port, host: '127.0.0.1', localAddress, noDelay: true })
    socket.on('error', () => {})
    socket.once('connect', () => {
      made++
      most = Math.max(most, ++open)
      socket.once('close', () => open--)
    })
    return socket
  }

  /** A request as it is sent; behind a proxy from a unique /64. */
  function outgoing(request: Buffer): Buffer {
    if (plan.origin !== '48') return request
    const address = `2001:db8:${plan.network}:${(requests++ & 0xffff).toString(16)}::1`
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
          answers[last.status] = (answers[last.status] ?? 0) + 1
          count++
        }
      } catch {
        // An answer without a length is the last one.
        socket.destroy()
      }
      return { last, count }
    }
  }

  /** Keeps a connection full of requests, and reconnects if it was closed, until it is stopped. */
  function keep({ depth, every, unread }: Kept, place: number, source: Source) {
    let over = false
    let socket: Socket
    let batch: NodeJS.Timeout | undefined
    const connectAnew = () => {
      if (over) return
      socket = dial(place)
      let inFlight = 0
      let last: Answer | undefined
      const most = plan.origin === '48' ? 1 : depth
      const send = () => {
        const batch: Buffer[] = []
        for (; inFlight < most && !over; inFlight++) {
          const request = source.next(last)
          if (!request) break
          batch.push(outgoing(request))
        }
        if (batch.length > 0) socket.write(batch.length === 1 ? batch[0]! : Buffer.concat(batch))
      }
      const sendNextBatch = () => {
        const elapsed = performance.now() - from
        // The first when all connections are open.
        const first = 500
        const wait = elapsed < first ? first - elapsed : every! - ((elapsed - first) % every!)
        batch = setTimeout(send, wait)
      }
      socket.on('connect', every === undefined ? send : sendNextBatch)
      if (unread) {
        socket.pause()
      } else {
        const read = createReader(socket)
        socket.on('data', chunk => {
          const answered = read(chunk)
          last = answered.last ?? last
          inFlight -= answered.count
          if (every === undefined) send()
          else if (inFlight === 0) sendNextBatch()
        })
      }
      socket.on('close', () => {
        clearTimeout(batch)
        if (over) return
        cut++
        setTimeout(connectAnew, 1)
      })
    }
    connectAnew()
    return {
      /** Reads received bytes, which shows whether the other side has closed. It doesn't reconnect. */
      look() {
        over = true
        socket.once('close', () => cut++)
        socket.resume()
      },
      hangUp() {
        over = true
        socket.removeAllListeners('close').destroy()
      },
    }
  }

  /** Sends one request over a separate connection. */
  function visit(place: number, source: Source): void {
    const socket = dial(place)
    let answered = false
    const read = createReader(socket)
    socket.on('connect', () => socket.write(outgoing(source.next()!)))
    socket.on('data', chunk => {
      if (read(chunk).count === 0) return
      answered = true
      socket.destroy()
    })
    socket.on('close', () => {
      if (!answered) cut++
    })
  }

  async function runKept(flood: Kept, length: number): Promise<void> {
    const end = performance.now() + length
    const proxied = plan.origin === '48'
    const wanted = proxied ? flood.connections * flood.depth : Math.max(flood.connections, attackers.length)
    const count = Math.min(wanted, mostConnections)
    if (count < wanted) limit = count
    const lines: ReturnType<typeof keep>[] = []
    for (let index = 0; index < count && !stop.signal.aborted; index++) {
      const place = index % attackers.length
      lines.push(keep(flood, place, flood.source(attackers[place]!, index)))
      if (lines.length % atOnce.connections === 0) await sleep(atOnce.pause)
    }
    await untilStopped(end - performance.now())
    if (flood.unread) {
      for (const { look } of lines) look()
      await sleep(lookAround)
    }
    for (const { hangUp } of lines) hangUp()
  }

  async function runPaced(flood: Paced, length: number): Promise<void> {
    const sources = attackers.map((attacker, index) => flood.source(attacker, index))
    const begun = performance.now()
    let sent = 0
    const send = () => {
      for (; sent < ((performance.now() - begun) / 1000) * flood.perSecond; sent++) {
        const place = sent % attackers.length
        visit(place, sources[place]!)
      }
    }
    const timer = setInterval(send, 5)
    await untilStopped(length)
    clearInterval(timer)
  }

  stop = new AbortController()
  const planned = floodOf(plan.flood)
  const length = plan.seconds * 1000
  await ('perSecond' in planned ? runPaced(planned, length) : runKept(planned, length))
  clearInterval(throttle)
  const cores = milliseconds() / (performance.now() - from)
  return { answers, made, open: most, cut, cores, ...(limit !== undefined && { limit }) }
}

/** Node.js raises its limit to the maximum of the system. */
function openFiles(): number {
  const report = process.report.getReport() as { userLimits?: { open_files?: { soft: number | 'unlimited' } } }
  return Number(report.userLimits?.open_files?.soft ?? 1024) || Number.POSITIVE_INFINITY
}

async function untilStopped(milliseconds: number): Promise<void> {
  await sleep(Math.max(0, milliseconds), undefined, { signal: stop.signal }).catch(() => {})
}
