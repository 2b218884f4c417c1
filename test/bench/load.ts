/** The process that makes the load. Its parent sends a `Job` and gets a `Report`. */
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { Worker } from 'node:worker_threads'
import { type Answer, type Client, createClient } from './clients.js'
import type { Beats } from './metronome.js'
import { type Door, type Operation, type Wire, type World, wireOf } from './operations.js'

/** A load to make. */
export interface Job {
  readonly world: World
  readonly door: Door
  readonly port: number
  /** Parts of the mix, in whole numbers. */
  readonly mix: Partial<Record<Operation, number>>
  /** Closed loop: so many clients, each with one request at a time. Open loop: connections at most. */
  readonly connections: number
  /** Requests a second that arrive whatever happens to those before; makes it an open loop. */
  readonly rate?: number
  readonly seconds: number
  /** Closed loop: seconds before these in which answers don't count, until as many calls end as begin. */
  readonly lead?: number
  /** Milliseconds after which nobody waits for an answer any more (gRPC). */
  readonly deadline?: number
}

/** What came of it. */
export interface Report {
  /** Right answers a second, from the start to the last of them within the time. */
  readonly perSecond: number
  /** Right answers. */
  readonly count: number
  /** Of each right answer, ms; in an open loop from the moment when its request was meant to go out. */
  readonly latencies: number[]
  /** Of each refusal for lack of capacity, ms, counted alike. */
  readonly refusals: number[]
  /** Requests that were neither answered in time nor refused. */
  readonly late: number
  /** Everything else, by what it was. */
  readonly errors: Record<string, number>
}

/** How long an open loop waits for answers after its last request, in ms. */
const patience = 15_000

process.on('message', async ({ job }: { job: Job }) => {
  const report = await run(job).catch(error => ({ failed: String(error?.stack ?? error) }))
  process.send?.(report)
})
// The parent has gone.
process.once('disconnect', () => process.exit())

async function run(job: Job): Promise<Report> {
  const client = createClient(job.door, job.port, job.connections, job.deadline)
  try {
    return await (job.rate === undefined ? closed(job, client) : open(job, job.rate, client))
  } finally {
    client.close()
  }
}

/** Each client sends its next request when it has the answer to its last; refused, it waits as it was told. */
async function closed(job: Job, client: Client): Promise<Report> {
  const lead = (job.lead ?? 0) * 1000
  const tally = createTally(job, performance.now() + lead)
  const next = createRequests(job)
  const end = tally.start + job.seconds * 1000
  let over = false
  async function work() {
    while (!over && performance.now() < end) {
      const wire = next()
      const from = performance.now()
      const answer = await client.send(wire).catch((error: Error) => error)
      if (over) return
      if (tally.take(wire, answer, from) === 'refused') {
        const after = answer instanceof Error ? undefined : answer.retryAfter
        await sleep(Math.min((after ?? 1) * 1000, Math.max(0, end - performance.now())))
      }
    }
  }
  const workers = Promise.all(Array.from({ length: job.connections }, work))
  await Promise.race([workers, sleep(lead + job.seconds * 1000 + 250)])
  over = true
  return tally.report()
}

/** Requests go out on time whatever became of those before. */
async function open(job: Job, rate: number, client: Client): Promise<Report> {
  const interval = 1000 / rate
  const count = Math.round(rate * job.seconds)
  const next = createRequests(job)
  const start = performance.now() + 100
  const beats: Beats = { start: performance.timeOrigin + start, interval, count }
  const tally = createTally(job, start)
  let settled = 0
  const metronome = new Worker(new URL('./metronome.js', import.meta.url), { workerData: beats })
  metronome.on('message', (beat: number) => {
    const wire = next()
    void client
      .send(wire)
      .catch((error: Error) => error)
      .then(answer => {
        settled++
        tally.take(wire, answer, start + beat * interval)
      })
  })
  await once(metronome, 'exit')
  const end = performance.now() + patience
  while (settled < count && performance.now() < end) await sleep(5)
  if (settled < count) tally.miss(count - settled)
  return tally.report()
}

/** Yields the requests of a mix in a fixed order in which each part is spread evenly. */
function createRequests({ mix, world, door }: Job): () => Wire {
  const parts = Object.entries(mix) as [Operation, number][]
  const total = parts.reduce((sum, [, part]) => sum + part, 0)
  const order = parts
    .flatMap(([operation, part]) =>
      Array.from({ length: part }, (_, index) => ({ operation, at: ((index + 0.5) * total) / part })),
    )
    .sort((a, b) => a.at - b.at)
  let sent = 0
  const each = new Map<Operation, number>()
  return () => {
    const { operation } = order[sent++ % order.length]!
    const index = each.get(operation) ?? 0
    each.set(operation, index + 1)
    return wireOf(operation, door, index, world)
  }
}

function createTally({ door, seconds, deadline = Number.POSITIVE_INFINITY }: Job, start: number) {
  const latencies: number[] = []
  const refusals: number[] = []
  const errors: Record<string, number> = {}
  let [count, last, late] = [0, 0, 0]
  const wrong = (what: string) => {
    errors[what] = (errors[what] ?? 0) + 1
  }
  return {
    start,
    take(wire: Wire, answer: Answer | Error, from: number): 'refused' | undefined {
      const now = performance.now()
      if (answer instanceof Error) return void wrong(answer.message)
      const kind = judge(door, wire, answer)
      if (kind === 'refused') {
        refusals.push(now - from)
        return kind
      }
      if (kind === 'late' || (kind === 'right' && now - from > deadline)) return void late++
      if (kind !== 'right') return void wrong(kind)
      if (now < start) return undefined
      latencies.push(now - from)
      if (now - start > seconds * 1000) return undefined
      count++
      last = now - start
    },
    miss(requests: number) {
      errors['no answer'] = requests
    },
    report: (): Report => ({
      perSecond: count === 0 ? 0 : (count * 1000) / last,
      count,
      latencies,
      refusals,
      late,
      errors,
    }),
  }
}

/** What an answer is: `right`, `refused`, `late`, or else what is wrong with it. */
function judge(door: Door, { path, expected }: Wire, { status, body, message = '' }: Answer): string {
  if (status === (door === 'grpc' ? 0 : 200)) {
    return body.includes(expected) ? 'right' : `wrong content of ${path.slice(0, 20)}`
  }
  const text = message || body.toString()
  if (text.includes('service is busy')) return 'refused'
  if (text.includes('come too late') || (door === 'grpc' && status === 4)) return 'late'
  return `${status} ${text.slice(0, 120)}`
}
