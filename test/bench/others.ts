/** The other clients of a service during a flood: their requests, and the responses. */
import { get } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { createClient, judge, pauseAfter } from './clients.js'
import type { Job, Report } from './load.js'
import { p99, type Sample, sumOf } from './measure.js'
import { addressIn, type Operation, type World, wireOf } from './operations.js'
import { mostMemory, processorSeconds, type ServiceProcess, startLoad } from './processes.js'

/** Numbers of networks 127.n.0.0. Those that are new in each window repeat after 20. */
const networks = { known: 10, newcomers: 20, owners: 40, administrators: 60, me: 96 }

/** `me` a second. */
const rate = 50

/** Milliseconds that a client waits for an answer; a `me` that never gets one counts with them. */
const longestWait = 15_000

/**
 * Prepares all of them. The first 1,000 accounts of the world are known to attackers, and of these the first eight log in
 * all the time.
 */
export function createOthers(given: World) {
  const world = { ...given, meFrom: addressIn(networks.me, 0) }
  const known = { ...world, accounts: world.accounts.slice(0, 8), addresses: 8, network: networks.known }
  const [logins, light] = [startLoad(), startLoad()]
  let windows = 0
  const at = ({ http }: ServiceProcess) => ({ endpoint: 'http', port: http }) as const
  const me = { world, operation: 'me', connections: 64, rate } as const

  return {
    /** Afterwards the accounts of known users know their addresses, and what runs often has been compiled. */
    async warmUp(service: ServiceProcess): Promise<void> {
      const steps = Array<Operation>(5).fill('login')
      const { left } = await visit(at(service), known, steps, Array<number>(8).fill(0), 60)
      if (left > 0) throw new Error('It took more than a minute to log in five times: this machine is too busy.')
      await light.ask({ ...at(service), world, operation: 'me', connections: 16, seconds: 1 })
    },

    /** Measures for so many seconds. New clients come from networks without earlier requests. */
    async measure(service: ServiceProcess, seconds: number): Promise<Sample> {
      const turn = windows++ % 20
      const firstOwner = 1000 + 3 * turn
      const http = at(service)
      /** Three users one after the other, each from its address in the network. */
      const three = (on: Where, network: number, steps: readonly Operation[]) => {
        const accounts = world.accounts.slice(firstOwner, firstOwner + 3)
        const theirs = { ...world, network: network + turn, addresses: 3, series: windows, accounts }
        return visit(on, theirs, steps, [0.1 * seconds, 0.3 * seconds, 0.5 * seconds], seconds)
      }
      const [login, asked, came, returned, administered, probes, most] = await Promise.all([
        logins.ask({ ...http, world: known, operation: 'login', connections: 8, seconds }),
        light.ask({ ...http, ...me, seconds }),
        three(http, networks.newcomers, ['sign-up', 'first login']),
        three(http, networks.owners, ['login']),
        three({ endpoint: 'grpc', port: service.admin }, networks.administrators, ['administrator sign-in']),
        probe(service.metrics, seconds),
        mostMemory(service, seconds),
      ])
      const waits = waitsOf(asked, rate * seconds)
      return {
        figures: {
          perSecond: login.perSecond,
          'me p99': p99(waits),
          'slowest me': Math.max(...waits),
          'newcomers left out': came.left,
          'owners left out': returned.left,
          'administrators left out': administered.left,
          probes,
          memory: most,
        },
        errors: sumOf([login, asked, came, returned, administered].map(({ errors }) => errors)),
      }
    },

    /** Returns how long the slowest `me` of so many seconds took, in ms. */
    async slowest(service: ServiceProcess, seconds: number): Promise<number> {
      return Math.max(...waitsOf(await light.ask({ ...at(service), ...me, seconds }), rate * seconds))
    },

    /** Waits until the service is idle and answers `me` at once, at most a minute. */
    async calm(service: ServiceProcess): Promise<void> {
      for (let turn = 0; turn < 60; turn++) {
        const before = processorSeconds([service.pid])
        await sleep(500)
        const busy = processorSeconds([service.pid]) - before > 0.05
        const waits = waitsOf(await light.ask({ ...at(service), ...me, rate: 20, seconds: 0.5 }), 10)
        if (!busy && Math.max(...waits) < 50) return
      }
    },
  }
}

type Where = Pick<Job, 'endpoint' | 'port'>

/**
 * Users who arrive after so many seconds, and take one step after the other, each until it succeeds; after a refusal they wait
 * for Retry-After. Returns how many weren't done after `seconds`, and the other answers, by kind.
 */
async function visit(on: Where, world: World, steps: readonly Operation[], arrivals: number[], seconds: number) {
  const client = createClient({ ...on, connections: 1 })
  const [start, end] = [performance.now(), performance.now() + seconds * 1000]
  const errors: Record<string, number> = {}
  let left = arrivals.length
  async function stay(after: number, index: number) {
    await sleep(start + after * 1000 - performance.now())
    for (const step of steps) {
      const wire = wireOf(step, on.endpoint, index, world)
      for (;;) {
        if (performance.now() > end) return
        const answer = await client.send(wire).catch((error: Error) => error)
        const kind = answer instanceof Error ? 'late' : judge(on.endpoint, wire, answer)
        if (kind === 'right') break
        if (kind !== 'refused' && kind !== 'late') errors[kind] = (errors[kind] ?? 0) + 1
        await sleep(pauseAfter(answer, end))
      }
    }
    left--
  }
  await Promise.race([Promise.all(arrivals.map(stay)), sleep(seconds * 1000)])
  client.close()
  return { left, errors }
}

/** How long each `me` of an open loop took, in ms; one that was refused or lost took as long as a client waits. */
function waitsOf({ latencies }: Report, asked: number): number[] {
  const missing = Math.max(0, Math.round(asked) - latencies.length)
  return [...latencies, ...Array<number>(missing).fill(longestWait)]
}

/** Probes as an orchestrator does, each over a new connection. Returns how many got no 200 within a second. */
async function probe(port: number, seconds: number): Promise<number> {
  const ask = () =>
    new Promise<boolean>(resolve => {
      const options = { port, host: '127.0.0.1', path: '/healthz', agent: false, signal: AbortSignal.timeout(1_000) }
      get(options, answer => answer.resume().on('end', () => resolve(answer.statusCode === 200)))
        .on('error', () => {})
        .on('close', () => resolve(false))
    })
  const asked: Promise<boolean>[] = []
  const from = performance.now()
  for (let after = 0; after < seconds * 1000; after += 300) {
    await sleep(from + after - performance.now())
    asked.push(ask())
  }
  return (await Promise.all(asked)).filter(answered => !answered).length
}
