// The program of a hash thread: computes one job at a time.
import { getPriority, setPriority } from 'node:os'
import bcrypt from 'bcrypt'
import type { CompareJob, Job, Result } from './threads.js'

/** Low enough to leave the cores to the main thread, high enough to make progress on a busy machine. */
const niceness = 5

// Only on Linux does each thread have its own niceness.
if (process.platform === 'linux') {
  try {
    setPriority(0, Math.max(niceness, getPriority(0)))
  } catch {
    // A sandbox may forbid this; hashing doesn't depend on it.
  }
}

export default function run(job: Job): Result {
  return job.kind === 'hash' ? bcrypt.hashSync(job.text, job.cost) : compare(job)
}

function compare({ text, hash, cost }: CompareJob): boolean {
  const data = typeof text === 'string' ? text : Buffer.from(text)
  if (hash === undefined) {
    bcrypt.compareSync(data, dummyHash(cost))
    return false
  }
  if (bcrypt.compareSync(data, hash)) return true
  // Every failure takes the time of `cost`, for any cost of the hash: the work of costs c, c, c+1, … n-1 adds up
  // to n.
  for (let spent = Number(hash.slice(4, 6)); spent < cost; spent++) bcrypt.compareSync(data, dummyHash(spent))
  return false
}

/** A well-formed hash of this cost that matches no known text. */
function dummyHash(cost: number): string {
  return `$2b$${String(cost).padStart(2, '0')}$${'a'.repeat(53)}`
}
