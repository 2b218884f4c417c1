/** HAProxy with the file of deploy/haproxy, before services of this machine. */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Teardown } from './database.js'
import { freePort } from './relay.js'
import { temporaryFolder } from './temporary-folder.js'
import { testWith } from './tools.js'
import { waitFor } from './wait.js'

const example = new URL('../../../deploy/haproxy/auth-registry.cfg', import.meta.url)

/** A test that needs the program. */
export const withBalancer = testWith('haproxy', spawnSync('haproxy', ['-v']).status === 0)

/** The ports of a service behind the balancer. */
export interface Ports {
  readonly http: number
  readonly grpc: number
  readonly metrics: number
}

/** Ports for a service, which it keeps when it starts again, and the settings that choose them. */
export async function freePorts(): Promise<Ports & { readonly env: Record<string, string> }> {
  const [http, grpc, metrics] = [await freePort(), await freePort(), await freePort()]
  const env = {
    AUTH_HTTP_ADDRESS: `127.0.0.1:${http}`,
    AUTH_GRPC_ADDRESS: `127.0.0.1:${grpc}`,
    AUTH_METRICS_ADDRESS: `127.0.0.1:${metrics}`,
    AUTH_TRUSTED_PROXIES: '127.0.0.1',
  }
  return { http, grpc, metrics, env }
}

/**
 * Starts HAProxy before two services, without TLS and without its limits, since all clients of a test have one address. Resolves
 * once it forwards requests. `http` is its URL, `grpc` its host:port.
 */
export async function startHaproxy(t: Teardown, [first, second]: readonly [Ports, Ports]) {
  const [redirect, http, grpc] = [await freePort(), await freePort(), await freePort()]
  const replacements: readonly (readonly [string | RegExp, string])[] = [
    [':80\n', `127.0.0.1:${redirect}\n`],
    [/:443 ssl .*/, `127.0.0.1:${http}`],
    [/:50443 ssl .*/, `127.0.0.1:${grpc} proto h2`],
    [/.*sc0_\w+ gt .*\n/g, ''],
    [/^ +http-request set-header X-Forwarded-For .*\n/gm, ''],
    ...[first, second].flatMap((ports, index): (readonly [RegExp, string])[] => [
      [new RegExp(`(auth${index + 1}:.*check port )9090`, 'g'), `$1${ports.metrics}`],
      [new RegExp(`auth${index + 1}:8080`, 'g'), `127.0.0.1:${ports.http}`],
      [new RegExp(`auth${index + 1}:50051`, 'g'), `127.0.0.1:${ports.grpc}`],
    ]),
  ]
  let text = await readFile(example, 'utf8')
  for (const [from, to] of replacements) {
    const adapted = text.replace(from, to)
    if (adapted === text) throw new Error(`${example.pathname} lacks ${from}`)
    text = adapted
  }
  const file = join(await temporaryFolder(t), 'haproxy.cfg')
  await writeFile(file, text)
  const child = spawn('haproxy', ['-q', '-f', file], { stdio: 'ignore' })
  const ended = once(child, 'exit')
  t.teardown(async () => {
    child.kill('SIGKILL')
    await ended
  })
  const url = `http://127.0.0.1:${http}`
  await waitFor(async () => (await fetch(`${url}/healthz`).catch(() => undefined))?.status === 200)
  return { http: url, grpc: `127.0.0.1:${grpc}` }
}
