/** Two servers behind a load balancer that asks `/readyz`, as in production. */
import { spawn, spawnSync } from 'node:child_process'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'ava'
import { freshDatabase } from '../_helpers/database.js'
import { login, readsOf, writesOf } from '../_helpers/load.js'
import { freePort } from '../_helpers/relay.js'
import { createRequest } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'

const installed = spawnSync('haproxy', ['-v']).status === 0

;(installed ? test : test.skip)(
  'during a rolling restart of two servers behind HAProxy, which asks /readyz, no call fails',
  async t => {
    const DATABASE_URL = await freshDatabase(t)
    const ports = [await freePort(), await freePort()] as const
    const own = await freePort()
    const folder = await temporaryFolder(t)
    await writeFile(
      join(folder, 'haproxy.cfg'),
      `defaults
  mode http
  timeout connect 2s
  timeout client 30s
  timeout server 30s
  option httpchk GET /readyz
  timeout check 2s
  default-server check inter 1s fall 3 rise 1
frontend http
  bind 127.0.0.1:${own}
  default_backend servers
backend servers
${ports.map(port => `  server at${port} 127.0.0.1:${port}`).join('\n')}
`,
    )
    const proxy = spawn('haproxy', ['-db', '-f', join(folder, 'haproxy.cfg')], { stdio: 'ignore' })
    t.teardown(() => void proxy.kill())
    const start = (port: number) => {
      const env = {
        DATABASE_URL,
        AUTH_DRAIN: '',
        AUTH_HTTP_ADDRESS: `127.0.0.1:${port}`,
        AUTH_ISSUER: 'http://auth.test',
      }
      return spawnService(t, { ...env, AUTH_TRUSTED_PROXIES: '127.0.0.1', AUTH_LIMIT_FACTOR: '1000' })
    }
    const servers = [await start(ports[0]), await start(ports[1])]
    const request = createRequest(`http://127.0.0.1:${own}`)
    const token = await login(request)
    const [reads, writes] = [readsOf(t, request, token), writesOf(t, request)]
    for (const [index, port] of ports.entries()) {
      await Promise.all([reads.more(50), writes.more(20)])
      servers[index]!.child.kill('SIGTERM')
      t.is(await servers[index]!.ended, 0)
      servers[index] = await start(port)
      await Promise.all([reads.more(50), writes.more(20)])
    }
    await Promise.all([reads.end(), writes.end()])
    t.log(`reads: ${reads.summary()}; sign-ups: ${writes.summary()}`)
    t.deepEqual([...new Set([...reads.statuses, ...writes.statuses])], [200])
  },
)
