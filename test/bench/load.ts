/** The process that generates the load. Its parent sends a `Job` and gets a `Report`. */
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'
import { type Answer, type Client, createClient, judge, pauseAfter } from './clients.js'
import { type Endpoint, type Operation, type Wire, type World, wireOf } from './operations.js'

/** A load: a closed loop, or with `rate` an open one. */
export interface Job {
  readonly world: World
  readonly endpoint: Endpoint
  readonly port: number
  readonly operation: Operation
  /** Closed loop: so many clients, each with one request at a time. Otherwise: connections of an address at most. */
  readonly connections: number
  /** Requests a second, independent of earlier responses. */
  readonly rate?: number
  /** How long answers count. */
  readonly seconds: number
  /** Closed loop: seconds before these in which responses don't count, until as many calls end as start. */
  readonly lead?: number
}

/** The result. */
export interface Report {
  /** Right answers within the time, for each second of it. */
  readonly perSecond: number
  /** Right answers at any time. */
  readonly answers: number
  /**
   * ms, of an open loop's right answers from the scheduled time of each request. A closed loop has none: it sends less when
   * answers are slow, so its percentiles are too low.
   */
  readonly latencies: number[]
  /** Requests without an answer, by outcome. */
  readonly lost: Record<string, number>
  /** All other answers, by kind. */
  readonly errors: Record<string, number>
}

/** How long an open loop waits for answers after its last request, in ms. */
const lastWait = 15_000

if (isMainThread) {
  process.on('message', async (job: Job) => {
    const report = await run(job).catch(error => ({ failed: String(error?.stack ?? error) }))
    process.send?.(report)
  })
  // The parent has gone.
  process.once('disconnect', () => process.exit())
} else beat(workerData)

async function run(job: Job): Promise<Report> {
  const client = createClient(job)
  try {
    return await (job.rate === undefined ? closed(job, client) : open(job, job.rate, client))
  } finally {
    client.close()
  }
}

/** Each client sends its next request after the answer to its last; after a refusal it waits for Retry-After. */
async function closed(job: Job, client: Client): Promise<Report> {
  const lead = (job.lead ?? 0) * 1000
  const tally = createTally(job, performance.now() + lead)
  let over = false
  async function work(_: unknown, place: number) {
    for (let index = place; !over && performance.now() < tally.end; index += job.connections) {
      const wire = wireOf(job.operation, job.endpoint, index, job.world)
      const answer = await client.send(wire).catch((error: Error) => error)
      if (over) return
      if (tally.take(wire, answer) !== 'right') await sleep(pauseAfter(answer, tally.end))
    }
  }
  const workers = Promise.all(Array.from({ length: job.connections }, work))
  await Promise.race([workers, sleep(lead + job.seconds * 1000 + 250)])
  over = true
  return tally.report()
}

/** When requests are sent: ms since 1970, with fractions, and ms from one to the next. */
interface Beats {
  readonly start: number
  readonly interval: number
  readonly count: number
}

/**
 * Ticks at a constant rate, in a thread. It sleeps exactly until each tick; timers would be late, and polling in turns of the
 * event loop would take a core from the measured processes.
 */
function beat({ start, interval, count }: Beats): void {
  const never = new Int32Array(new SharedArrayBuffer(4))
  for (let beat = 0; beat < count; beat++) {
    const left = start + beat * interval - (performance.timeOrigin + performance.now())
    if (left > 0) Atomics.wait(never, 0, 0, left)
    parentPort?.postMessage(beat)
  }
}

/** Requests are sent on time, independent of earlier answers. */
async function open(job: Job, rate: number, client: Client): Promise<Report> {
  const interval = 1000 / rate
  const count = Math.round(rate * job.seconds)
  const start = performance.now() + 100
  const beats: Beats = { start: performance.timeOrigin + start, interval, count }
  const tally = createTally(job, start)
  const inFlight = new Set<number>()
  const metronome = new Worker(new URL(import.meta.url), { workerData: beats })
  metronome.on('message', (beat: number) => {
    const wire = wireOf(job.operation, job.endpoint, beat, job.world)
    const from = start + beat * interval
    inFlight.add(from)
    void client
      .send(wire)
      .catch((error: Error) => error)
      .then(answer => {
        inFlight.delete(from)
        tally.take(wire, answer, from)
      })
  })
  await once(metronome, 'exit')
  const end = performance.now() + lastWait
  while (inFlight.size > 0 && performance.now() < end) await sleep(5)
  tally.miss([...inFlight])
  return tally.report()
}

function createTally({ endpoint, seconds }: Job, start: number) {
  const latencies: number[] = []
  const lost: Record<string, number> = {}
  const errors: Record<string, number> = {}
  const end = start + seconds * 1000
  let [count, answers] = [0, 0]
  return {
    end,
    /** Counts an answer; `from` is the start of its latency, if that is meaningful. */
    take(wire: Wire, answer: Answer | Error, from?: number): string {
      const now = performance.now()
      if (answer instanceof Error) {
        lost[answer.message] = (lost[answer.message] ?? 0) + 1
        return 'lost'
      }
      const kind = judge(endpoint, wire, answer)
      if (kind === 'right') {
        answers++
        if (from !== undefined) latencies.push(now - from)
        if (now >= start && now <= end) count++
      } else if (kind !== 'late' && kind !== 'refused') errors[kind] = (errors[kind] ?? 0) + 1
      return kind
    },
    /** Counts unanswered requests, by when they were sent: they waited at least until now. */
    miss(sent: readonly number[]) {
      if (sent.length > 0) lost['no answer'] = sent.length
      for (const from of sent) latencies.push(performance.now() - from)
    },
    report: (): Report => ({ perSecond: count / seconds, answers, latencies, lost, errors }),
  }
}
