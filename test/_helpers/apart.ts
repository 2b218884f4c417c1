/** `auth-server` and `auth-gateway` as separate processes. */
import { fileURLToPath } from 'node:url'
import type { Teardown } from './database.js'
import { launch, type Program, serviceEnv } from './spawned.js'
import { waitFor } from './wait.js'

const programOf = (path: string) => fileURLToPath(new URL(`../../${path}`, import.meta.url))

/** Main modules of the programs. */
export const programs = { server: programOf('server/main.js'), gateway: programOf('gateway/main.js') }

/** A server without a gateway. */
export interface ServerProcess extends Program {
  /** host:port */
  readonly grpc: string
  /** URL of its metrics. */
  readonly metrics: string
  readonly databaseUrl: string
}

/** Starts an `auth-server` without an HTTP port unless one is given, on a new database unless one is given, or its program of another version; it ends with the test. */
export async function spawnServer(
  t: Teardown,
  env: Record<string, string> = {},
  program = programs.server,
): Promise<ServerProcess> {
  const all = await serviceEnv(t, {
    AUTH_HTTP_ADDRESS: 'off',
    AUTH_METRICS_ADDRESS: '127.0.0.1:0',
    AUTH_LIMIT_FACTOR: '1000',
    ...env,
  })
  const launched = launch(t, all, { program })
  const [, grpc = '', metrics = ''] = await said(launched, /gRPC +(\S+:\d+)\n(?:HTTP .*\n)?metrics +(\S+)\n/)
  return { ...launched, grpc, metrics, databaseUrl: all.DATABASE_URL! }
}

/** Starts an `auth-gateway` in front of a target; it ends with the test. */
export async function spawnGateway(t: Teardown, target: string, env: Record<string, string> = {}) {
  const all = {
    AUTH_HTTP_ADDRESS: '127.0.0.1:0',
    AUTH_METRICS_ADDRESS: '127.0.0.1:0',
    AUTH_TRUSTED_PROXIES: '127.0.0.1',
    AUTH_LIMIT_FACTOR: '1000',
    ...env,
  }
  const program = launch(t, { AUTH_SERVER_URL: target, ...all }, { program: programs.gateway })
  const [, http = '', metrics = ''] = await said(program, /HTTP +(\S+)\nmetrics +(\S+)\n/)
  return { ...program, http, metrics }
}

/** Waits until the output of a program matches. */
function said(program: Program, pattern: RegExp): Promise<RegExpExecArray> {
  return waitFor(() => {
    if (!program.alive()) throw new Error(`it ended: ${program.output()}`)
    return pattern.exec(program.output()) ?? undefined
  }, program.output)
}
