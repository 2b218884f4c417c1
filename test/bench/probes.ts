/** Probes at a constant rate, each over a new connection, as those of an orchestrator. */
import { get } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'

/** Milliseconds between two probes, and the time limit of a response. */
const times = { interval: 300, limit: 1_000 }

/** A probe. */
interface Question {
  readonly port: number
  readonly path: string
}

/** Whether a probe over a separate connection gets a 200 in time. */
function ask(question: Question): Promise<boolean> {
  return new Promise(resolve => {
    const request = get({ ...question, host: '127.0.0.1', agent: false }, answer => {
      answer.resume().on('end', () => resolve(answer.statusCode === 200))
    })
    const late = setTimeout(() => request.destroy(), times.limit)
    request
      .on('error', () => {})
      .on('close', () => {
        clearTimeout(late)
        resolve(false)
      })
  })
}

/** Probes repeatedly for so many seconds. Returns the share of probes with a 200 in time. */
export async function askFor(seconds: number, question: Question): Promise<number> {
  const asked: Promise<boolean>[] = []
  const from = performance.now()
  for (let index = 0; index * times.interval < seconds * 1000; index++) {
    await sleep(from + index * times.interval - performance.now())
    asked.push(ask(question))
  }
  return (await Promise.all(asked)).filter(Boolean).length / asked.length
}
