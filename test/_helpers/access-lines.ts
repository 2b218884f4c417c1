/** Access lines of separate processes, and the gateway as one of them. */
import { fileURLToPath } from 'node:url'
import type { Teardown } from './database.js'
import { launch, type Program } from './spawned.js'
import { waitFor } from './wait.js'

/** The fields of a line. */
export type Line = Readonly<Record<string, unknown>>

/** What a program has logged so far, one JSON object a line. */
export function linesOf(program: Program): Line[] {
  return program
    .output()
    .split('\n')
    .filter(line => line.startsWith('{') && line.endsWith('}'))
    .map(line => JSON.parse(line))
}

/** The access lines of a request, once there is one. */
export function accessOf(program: Program, requestId: string): Promise<Line[]> {
  return waitFor(() => {
    const lines = accessLines(program).filter(line => line.requestId === requestId)
    return lines.length > 0 ? lines : undefined
  }, program.output)
}

/** All access lines so far: of calls, and of requests that no RPC answered. */
export function accessLines(program: Program): Line[] {
  return linesOf(program).filter(({ msg }) => msg === 'call' || msg === 'request')
}

const main = fileURLToPath(new URL('../../gateway/main.js', import.meta.url))

/** Starts a gateway in front of a gRPC target. */
export async function launchGateway(
  t: Teardown,
  target: string,
  { env = {}, flags = [] }: { env?: Record<string, string>; flags?: readonly string[] } = {},
): Promise<Program & { readonly http: string }> {
  const settings = { AUTH_SERVER_URL: target, AUTH_HTTP_ADDRESS: '127.0.0.1:0', AUTH_TRUSTED_PROXIES: '127.0.0.1' }
  const program = launch(
    t,
    { ...settings, AUTH_METRICS_ADDRESS: 'off', AUTH_DRAIN: '0', ...env },
    { program: main, flags },
  )
  const http = await waitFor(() => /HTTP +(http:\S+)/.exec(program.output())?.[1], program.output)
  return { ...program, http }
}
