/** HAProxy in front of two PostgreSQL servers, as with Patroni; HAPROXY is the path of the program. */
import { spawn } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { ask, type Teardown } from './database.js'
import { freePort, withPort } from './relay.js'
import { waitFor } from './wait.js'

/** Starts it before the servers of these database URLs, and returns the URL of the one that is the primary. */
export async function startHaproxy(t: Teardown, databaseUrls: readonly string[]): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'auth-haproxy-'))
  const port = await freePort()
  const servers = await Promise.all(
    databaseUrls.map(
      async (url, index) => `server s${index} 127.0.0.1:${new URL(url).port} check port ${await answerChecks(t, url)}`,
    ),
  )
  const lines = [
    ...['defaults', 'mode tcp', 'timeout client 30m', 'timeout server 30m', 'timeout connect 1s', 'timeout check 1s'],
    ...['listen auth', `bind 127.0.0.1:${port}`, 'option httpchk GET /primary', 'http-check expect status 200'],
    'default-server inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions',
    ...servers,
  ]
  await writeFile(join(folder, 'cfg'), `${lines.join('\n')}\n`)
  const child = spawn(process.env.HAPROXY!, ['-db', '-f', join(folder, 'cfg')], { stdio: 'ignore' })
  const ended = new Promise(resolve => child.once('close', resolve))
  t.teardown(async () => {
    child.kill('SIGKILL')
    await ended
    await rm(folder, { recursive: true, force: true })
  })
  const url = withPort(databaseUrls[0]!, port)
  // It takes turns with all of them until it knows better.
  await waitFor(async () => (await isPrimary(url)) && (await isPrimary(url)))
  return url
}

/** Tells whether a server is the primary, as Patroni's `GET /primary` does. Returns the port. */
async function answerChecks(t: Teardown, databaseUrl: string): Promise<number> {
  const server = createServer(async (_, response) => {
    response.writeHead((await isPrimary(databaseUrl)) ? 200 : 503).end()
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(async () => {
    server.close()
    server.closeAllConnections()
  })
  return (server.address() as AddressInfo).port
}

function isPrimary(databaseUrl: string): Promise<boolean> {
  return ask(databaseUrl, 'SELECT pg_is_in_recovery() AS standby').then(
    ([row]) => row?.standby === false,
    () => false,
  )
}
