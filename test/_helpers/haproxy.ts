/** HAProxy in front of several services, which it asks for `/readyz`. */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Teardown } from './database.js'
import { freePort } from './relay.js'
import { temporaryFolder } from './temporary-folder.js'
import { testWith } from './tools.js'
import { waitFor } from './wait.js'

/** A test that needs the program. */
export const withBalancer = testWith('haproxy', spawnSync('haproxy', ['-v']).status === 0)

/** Starts HAProxy in front of HTTP ports of this machine, and returns its URL once it forwards requests. */
export async function startHaproxy(t: Teardown, ports: readonly number[]): Promise<string> {
  const port = await freePort()
  const file = join(await temporaryFolder(t), 'haproxy.cfg')
  const servers = ports.map(each => `  server s${each} 127.0.0.1:${each} check inter 1s fall 2 rise 1`)
  await writeFile(
    file,
    `defaults
  mode http
  timeout connect 2s
  timeout client 30s
  timeout server 30s
  timeout check 2s
  retries 2
  option redispatch
frontend all
  bind 127.0.0.1:${port}
  default_backend services
backend services
  balance roundrobin
  option httpchk GET /readyz HTTP/1.1\\r\\nHost:\\ localhost
${servers.join('\n')}
`,
  )
  const child = spawn('haproxy', ['-q', '-f', file], { stdio: 'ignore' })
  const ended = once(child, 'exit')
  t.teardown(async () => {
    child.kill('SIGKILL')
    await ended
  })
  const url = `http://127.0.0.1:${port}`
  await waitFor(async () => (await fetch(`${url}/readyz`).catch(() => undefined))?.status === 200)
  return url
}
