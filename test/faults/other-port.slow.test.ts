/** The embedded PostgreSQL dies, and its port is taken before it restarts. */
import { readFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { join } from 'node:path'
import test from 'ava'
import { createRequest, password } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'
import { startWitness } from '../_helpers/witness.js'

test('an embedded database that restarts at another port is found there, for reads and writes', async t => {
  const service = await spawnService(t, { DATABASE_URL: '', AUTH_MASTER_KEY: '' })
  const request = createRequest(service.http)
  const login = () => request('POST', '/users/login', { query: { username: 'admin', password }, once: true })
  const token = (await login()).text
  const file = async () => (await readFile(join(service.dataDir, 'postgres/postmaster.pid'), 'utf8')).split('\n')
  const [pid, , , port] = await file()

  const witness = startWitness(t, { login, me: () => request('GET', '/users/me', { token, once: true }) })
  // The service restarts it at once, so the test freezes the service until the port is taken.
  process.kill(service.pid, 'SIGSTOP')
  process.kill(Number(pid), 'SIGKILL')
  const squatter = createServer(socket => socket.on('error', () => {}).destroy())
  t.teardown(() => void squatter.close())
  await waitFor(
    () =>
      new Promise<boolean>(resolve => {
        squatter.once('error', () => resolve(false)).listen(Number(port), '127.0.0.1', () => resolve(true))
      }),
  )
  process.kill(service.pid, 'SIGCONT')

  await waitForValue(async () => (await login()).status, 200)
  t.is((await request('GET', '/users/me', { token })).status, 200)
  t.is((await request('GET', '/readyz')).status, 200)
  t.not((await file())[3], port)
  t.log(await witness.stop())
})
