/**
 * The process of whoever floods: it sends the worst that it knows as fast as it can, and never waits as it is told. Its
 * parent sends a `FloodPlan`, gets an answer when all is ready, sends `go` and gets a `FloodReport` when it is over,
 * which `stop` makes it.
 */
import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Attacker, type Kind, type Own, type Source, sources } from './attacks.js'
import { type Answer, createClient, readAnswer } from './clients.js'
import { addressIn, formOf } from './operations.js'

/** A flood to make. */
export interface FloodPlan {
  readonly port: number
  /** Kinds of requests; several take turns. */
  readonly kinds: readonly Kind[]
  /** From so many addresses, 127.`network`.0.0 and the following ones. */
  readonly addresses: number
  readonly network: number
  /** Numbers of users to act upon. */
  readonly victims: readonly number[]
  /** How long at the most; `stop` ends it sooner. */
  readonly seconds: number
}

/** What a flood did. */
export interface FloodReport {
  /** Answers by status. */
  readonly answers: Readonly<Record<string, number>>
  /** Connections that the other side closed. */
  readonly cut: number
  /** Processor time of this process for each second. */
  readonly cores: number
}

/** Connections in all, at the least; an address has at least one. */
const fewestConnections = 40

/** Accounts of its own that it signs up beforehand, at the least; an address has at least two. */
const fewestAccounts = 20

/** Processor time that it may take, in cores: what it does to others must not be done by taking their processor. */
const share = 0.5

/** Seconds that a kind has before it is the next one's turn. */
const turn = 5

let prepared: { plan: FloodPlan; own: Own[][] } | undefined
let stop: AbortController
process.on('message', async (message: FloodPlan | 'go' | 'stop') => {
  if (message === 'stop') return stop.abort()
  const work = message === 'go' ? flood(prepared!.plan, prepared!.own) : prepare(message)
  process.send?.(await work.catch(error => ({ failed: String(error?.stack ?? error) })))
})
// The parent has gone.
process.once('disconnect', () => process.exit())

const series = `${process.pid} ${Date.now()}`

/** Signs up at each address. */
async function prepare(plan: FloodPlan): Promise<object> {
  const each = 2 * Math.ceil(fewestAccounts / 2 / plan.addresses)
  const client = createClient('http', plan.port, 2)
  const signUp = async (number: number): Promise<Own> => {
    const username = `agressor ${series} ${number}`
    const fields = { email: 'vitima@example.org', institution: 'Escola 1' }
    const role = number % 2 ? 'ROLE_CLIENT' : 'ROLE_INSTITUTION'
    const form = formOf(username, username, { ...fields, roles: [role] })
    const address = addressIn(plan.network, Math.floor(number / each))
    const body = Buffer.from(JSON.stringify(form))
    const wire = { method: 'POST', path: '/users/signup', address, contentType: 'application/json', body } as const
    for (;;) {
      const answer = await client.send({ ...wire, expected: '', refusable: true })
      if (answer.status === 200) return { username, token: answer.body.toString(), role }
      if (answer.retryAfter === undefined) throw new Error(`sign-up: ${answer.status} ${answer.body}`)
      await sleep(answer.retryAfter * 1000)
    }
  }
  const all = await Promise.all(Array.from({ length: plan.addresses * each }, (_, number) => signUp(number)))
  client.close()
  const own = Array.from({ length: plan.addresses }, (_, index) => all.slice(index * each, (index + 1) * each))
  prepared = { plan, own }
  return {}
}

async function flood(plan: FloodPlan, own: readonly Own[][]): Promise<FloodReport> {
  const answers: Record<string, number> = {}
  let cut = 0
  // Names made of it are new in each flood.
  let number = Date.now() * 1000
  const from = performance.now()
  const used = process.cpuUsage()
  const milliseconds = () => {
    const { user, system } = process.cpuUsage(used)
    return (user + system) / 1000
  }
  let [at, spent, ahead] = [0, 0, 0]
  const throttle = setInterval(() => {
    const [now, total] = [performance.now() - from, milliseconds()]
    // What wasn't used a moment ago may be used now, but not what wasn't used long ago.
    ahead = Math.max(-50, ahead + (total - spent) / share - (now - at))
    ;[at, spent] = [now, total]
    // The whole process sleeps; what comes meanwhile waits in the sockets.
    if (ahead > 0) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ahead)
  }, 5)

  /** Keeps a connection full of requests, and makes another where it was cut, until it is told to end. */
  function keep(localAddress: string, source: Source): () => void {
    let over = false
    let socket: Socket
    const dial = () => {
      if (over) return
      socket = connect({ port: plan.port, host: '127.0.0.1', localAddress, noDelay: true })
      let received: Buffer = Buffer.alloc(0)
      let underWay = 0
      let last: Answer | undefined
      const send = () => {
        socket.cork()
        for (; underWay < source.depth && !over; underWay++) socket.write(source.next(last))
        socket.uncork()
      }
      socket.on('connect', send)
      socket.on('data', chunk => {
        received = received.length === 0 ? chunk : Buffer.concat([received, chunk])
        for (let read = readAnswer(received); read; read = readAnswer(received)) {
          received = received.subarray(read.length)
          last = read.answer
          answers[last.status] = (answers[last.status] ?? 0) + 1
          underWay--
        }
        send()
      })
      socket.on('error', () => {})
      socket.on('close', () => {
        if (over) return
        cut++
        setTimeout(dial, 1)
      })
    }
    dial()
    return () => {
      over = true
      socket.destroy()
    }
  }

  stop = new AbortController()
  const end = from + plan.seconds * 1000
  for (let place = 0; performance.now() < end && !stop.signal.aborted; place++) {
    const kind = plan.kinds[place % plan.kinds.length]!
    const lines = Array.from({ length: Math.max(fewestConnections, plan.addresses) }, (_, index) => {
      const place = index % plan.addresses
      const attacker: Attacker = { own: own[place]!, victims: plan.victims, serial: () => number++ }
      return keep(addressIn(plan.network, place), sources[kind](attacker, index))
    })
    const left = end - performance.now()
    const length = plan.kinds.length === 1 ? left : Math.min(left, turn * 1000)
    await sleep(length, undefined, { signal: stop.signal }).catch(() => {})
    for (const hangUp of lines) hangUp()
  }
  clearInterval(throttle)
  return { answers, cut, cores: milliseconds() / (performance.now() - from) }
}
