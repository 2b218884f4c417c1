/** One of two servers behind a gateway is killed while a verifier follows its revocations. */
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import type { Verifier } from '../../proto/client/verify.js'
import { spawnGateway, spawnServer } from '../_helpers/apart.js'
import { startTestService } from '../_helpers/service.js'
import { outcome, revoke, verifierOf } from '../_helpers/verifiers.js'
import { waitForValue } from '../_helpers/wait.js'

test('when a server is killed no valid token is refused, and later revocations arrive', async t => {
  const service = await startTestService(t, { AUTH_LIMIT_FACTOR: '1000' })
  const { DATABASE_URL = '' } = service.env
  const servers = [await spawnServer(t, { DATABASE_URL }), await spawnServer(t, { DATABASE_URL })]
  const gateway = await spawnGateway(t, servers.map(({ grpc }) => grpc).join(','))
  // Their polls wait at both servers.
  const verifiers: Verifier[] = []
  for (let number = 0; number < 4; number++) verifiers.push(await verifierOf(t, service, { url: gateway.http }))
  const outcomes = (token: string) => Promise.all(verifiers.map(verifier => outcome(verifier, token)))
  const all = (value: string) => verifiers.map(() => value)
  const valid = await service.signUp('ROLE_CLIENT')
  const revoked = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  t.deepEqual(await outcomes(valid.token), all('signature'))
  for (const [index, server] of servers.entries()) {
    // A killed server is replaced before the other one is killed.
    if (index === 1) await spawnServer(t, { DATABASE_URL, AUTH_GRPC_ADDRESS: servers[0]!.grpc })
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
