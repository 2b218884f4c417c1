/** Processes that share the embedded PostgreSQL of one folder. */
import { type ChildProcessByStdio, spawn } from 'node:child_process'
import type { Readable, Writable } from 'node:stream'
import { fileURLToPath } from 'node:url'
import type { ExecutionContext } from 'ava'
import { type Options, startEmbedded } from '../../server/embedded/start.js'

export type Member = ChildProcessByStdio<Writable, Readable, null>

const log = { info() {}, warn() {} }
export const start = (dataDir: string, options: Partial<Options> = {}) => startEmbedded({ dataDir, log, ...options })
const memberProgram = fileURLToPath(new URL('../_helpers/member.js', import.meta.url))

export function spawnMember(t: ExecutionContext, dataDir: string): Member {
  const member = spawn(process.execPath, [memberProgram, dataDir], { stdio: ['pipe', 'pipe', 'inherit'] })
  t.teardown(() => member.kill('SIGKILL'))
  return member
}

/** A process that takes the lock of a data folder, writes a line, and keeps the lock. */
export function spawnHolder(t: ExecutionContext, dataDir: string): Member {
  const holder = spawn(process.execPath, [memberProgram, dataDir, 'lock'], { stdio: ['pipe', 'pipe', 'inherit'] })
  t.teardown(() => holder.kill('SIGKILL'))
  return holder
}

export async function urlFrom(member: Member): Promise<string> {
  for await (const text of member.stdout.iterator({ destroyOnReturn: false })) return String(text).trim()
  throw new Error('the process ended without a database')
}

export function ended(member: Member): Promise<number | null> {
  return new Promise(resolve => member.once('exit', resolve))
}
