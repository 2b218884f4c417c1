/** The programs of docs/examples. */
import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { root } from './versions.js'

/** The path of an example. */
export function example(name: string): string {
  return join(root, 'docs/examples', name)
}

/** Whether a command works on this machine, by its exit code. */
export function runs(command: string, ...args: string[]): boolean {
  return spawnSync(command, args).status === 0
}

/** The environment of a Go compiler: without inlining, optimization and C, its library compiles faster. */
export const goEnv = { ...process.env, GOFLAGS: "-mod=mod '-gcflags=all=-N -l'", CGO_ENABLED: '0' }
