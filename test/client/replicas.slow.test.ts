/** One of two servers behind a gateway is killed while a verifier follows its revocations. */
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import { spawnGateway, spawnServer } from '../_helpers/apart.js'
import { startTestService } from '../_helpers/service.js'
import { outcome, revoke, verifierOf } from '../_helpers/verifiers.js'
import { waitForValue } from '../_helpers/wait.js'

test('when a server is killed no valid token is refused, and later revocations arrive', async t => {
  const service = await startTestService(t, { AUTH_LIMIT_FACTOR: '1000' })
  const { DATABASE_URL = '' } = service.env
  const servers = [await spawnServer(t, { DATABASE_URL }), await spawnServer(t, { DATABASE_URL })]
  const gateway = await spawnGateway(t, servers.map(({ grpc }) => grpc).join(','))
  const verifier = await verifierOf(t, service, { url: gateway.http })
  const valid = await service.signUp('ROLE_CLIENT')
  const revoked = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  t.is(await outcome(verifier, valid.token), 'signature')
  for (const [index, server] of servers.entries()) {
    // A killed server’s successor is there before the other one is killed.
    if (index === 1) await spawnServer(t, { DATABASE_URL, AUTH_GRPC_ADDRESS: servers[0]!.grpc })
    server.child.kill('SIGKILL')
    const { token } = revoked[index]!
    t.regex(await outcome(verifier, token), /signature|cache/)
    await revoke(service.http, token)
    const end = performance.now() + 3_000
    while (performance.now() < end) {
      t.is(await outcome(verifier, valid.token), 'cache')
      await sleep(20)
    }
    await waitForValue(() => outcome(verifier, token), 'INVALID_TOKEN')
  }
})
