/** Questions asked at a constant rate, each over a new connection, as an orchestrator's probes are. */
import { get } from 'node:http'
import { get as getTls } from 'node:https'
import { setTimeout as sleep } from 'node:timers/promises'

/** Milliseconds from one question to the next, and until an answer comes too late. */
const times = { interval: 300, limit: 1_000 }

/** A question. */
export interface Question {
  readonly port: number
  readonly path: string
  readonly tls?: boolean | undefined
  /** Where it comes from. */
  readonly localAddress?: string
  readonly headers?: Readonly<Record<string, string>>
}

/** Asks over a connection of its own; the status of the answer, undefined when none came in time. */
export function ask({ tls, ...question }: Question): Promise<number | undefined> {
  return new Promise(resolve => {
    const options = { ...question, host: '127.0.0.1', agent: false as const, rejectUnauthorized: false }
    const request = (tls ? getTls : get)(options, answer => {
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

/** Asks again and again for so many seconds; the share of questions that got a 200 in time. */
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
