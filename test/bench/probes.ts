/** Probes at a constant rate, each over a new connection, as those of an orchestrator. */
import { get } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'

/** Milliseconds between two probes, and the time limit of a response. */
const times = { interval: 300, limit: 1_000 }

/** A probe. */
export interface Question {
  readonly port: number
  readonly path: string
  /** Its client address. */
  readonly localAddress?: string
  readonly headers?: Readonly<Record<string, string>>
}

/** Probes over a separate connection. Returns the status, or undefined without a response in time. */
export function ask(question: Question): Promise<number | undefined> {
  return new Promise(resolve => {
    const options = { ...question, host: '127.0.0.1', agent: false as const }
    const request = get(options, answer => {
      answer
        .resume()
        .on('end', () => resolve(answer.statusCode))
        .on('error', () => resolve(undefined))
    })
    request.on('error', () => resolve(undefined))
    const late = setTimeout(() => request.destroy(), times.limit)
    request.on('close', () => {
      clearTimeout(late)
      resolve(undefined)
    })
  })
}

/** Probes repeatedly for so many seconds. Returns the share of probes with a 200 in time. */
export async function askFor(seconds: number, question: (index: number) => Question): Promise<number> {
  const asked: Promise<number | undefined>[] = []
  const from = performance.now()
  for (let index = 0; index * times.interval < seconds * 1000; index++) {
    await sleep(from + index * times.interval - performance.now())
    asked.push(ask(question(index)))
  }
  const answered = (await Promise.all(asked)).filter(status => status === 200).length
  return answered / asked.length
}
