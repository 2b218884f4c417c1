/** One of two servers behind a load balancer is killed while a verifier follows its revocations. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Verifier } from '../../proto/client/verify.js'
import { spawnServer } from '../_helpers/apart.js'
import { freePorts, startHaproxy, withBalancer } from '../_helpers/haproxy.js'
import { startTestService } from '../_helpers/service.js'
import { outcome, revoke, verifierOf } from '../_helpers/verifiers.js'
import { waitForValue } from '../_helpers/wait.js'

withBalancer('when a server is killed no valid token is refused, and later revocations arrive', async t => {
  const service = await startTestService(t, { AUTH_LIMIT_FACTOR: '1000' })
  const { DATABASE_URL = '' } = service.env
  const ports = [await freePorts(), await freePorts()] as const
  const start = ({ env }: (typeof ports)[number]) => spawnServer(t, { DATABASE_URL, ...env })
  const servers = [await start(ports[0]), await start(ports[1])]
  const { http: url } = await startHaproxy(t, ports)
  // Their polls wait at both servers.
  const verifiers: Verifier[] = []
  for (let number = 0; number < 4; number++) verifiers.push(await verifierOf(t, service, { url }))
  const outcomes = (token: string) => Promise.all(verifiers.map(verifier => outcome(verifier, token)))
  const all = (value: string) => verifiers.map(() => value)
  const valid = await service.institution(await service.organization())
  const revoked = [
    await service.institution(await service.organization()),
    await service.institution(await service.organization()),
  ]
  t.deepEqual(await outcomes(valid.token), all('signature'))
  for (const [index, server] of servers.entries()) {
    // A killed server is replaced before the other one is killed.
    if (index === 1) await start(ports[0])
    server.child.kill('SIGKILL')
    const { token } = revoked[index]!
    t.deepEqual(await outcomes(token), all('signature'))
    await revoke(service.http, token)
    const end = performance.now() + 3_000
    while (performance.now() < end) {
      t.deepEqual(await outcomes(valid.token), all('cache'))
      await sleep(20)
    }
    await waitForValue(() => outcomes(token), all('INVALID_TOKEN'))
  }
})
