// A hash thread: takes one job at a time and answers with its result.
import { getPriority, setPriority } from 'node:os'
import { parentPort } from 'node:worker_threads'
import bcrypt from 'bcrypt'
import type { CompareJob, Job } from './threads.js'

/** Leaves other calls alone, and keeps a share of a machine whose cores are busy with other work. */
const niceness = 5

// Elsewhere than on Linux the niceness would be that of the whole process.
if (process.platform === 'linux') {
  try {
    setPriority(0, Math.max(niceness, getPriority(0)))
  } catch {
    // A sandbox may forbid it; hashing works all the same.
  }
}

parentPort?.on('message', (job: Job) => {
  const result: string | boolean = job.kind === 'hash' ? bcrypt.hashSync(job.text, job.cost) : compare(job)
  parentPort?.postMessage(result)
})

function compare({ text, hash, cost }: CompareJob): boolean {
  const data = typeof text === 'string' ? text : Buffer.from(text)
  if (hash === undefined) {
    bcrypt.compareSync(data, dummyHash(cost))
    return false
  }
  if (bcrypt.compareSync(data, hash)) return true
  // A weaker hash is done sooner. Costs c, c, c+1, … n-1 add up to cost n, so every failure takes the same time.
  for (let spent = Number(hash.slice(4, 6)); spent < cost; spent++) bcrypt.compareSync(data, dummyHash(spent))
  return false
}

/** A well-formed hash that no known text has. */
function dummyHash(cost: number): string {
  return `$2b$${String(cost).padStart(2, '0')}$${'a'.repeat(53)}`
}
