/** A draining service is not ready, and keeps serving clients that haven’t noticed. */
import { createRouterTransport } from '@connectrpc/connect'
import test from 'ava'
import { Health, HealthCheckResponse_ServingStatus } from '../../proto/gen/grpc/health/v1/health_pb.js'
import { openGateway } from '../_helpers/gateway.js'
import { openGrpc } from '../_helpers/grpc.js'
import { refused } from '../_helpers/problem.js'
import { startTestService } from '../_helpers/service.js'

test('a draining service is not ready, over HTTP and gRPC, and everything else works', async t => {
  const { request, service, grpc, login } = await startTestService(t)
  const client = openGrpc(grpc)
  t.teardown(async () => client.close())
  const serving = async () => (await client.call(Health.method.check, {})).status
  t.is((await request('GET', '/readyz')).status, 200)
  t.is(await serving(), HealthCheckResponse_ServingStatus.SERVING)
  service.drain()
  const answer = await request('GET', '/readyz', { once: true })
  refused(t, answer, 503, 'UNAVAILABLE')
  t.is(answer.headers.get('retry-after'), '1')
  t.is(await serving(), HealthCheckResponse_ServingStatus.NOT_SERVING)
  t.is((await request('GET', '/healthz')).status, 200)
  t.truthy(await login('admin'))
})

test('a draining gateway is not ready, although the servers behind it are', async t => {
  const { SERVING } = HealthCheckResponse_ServingStatus
  const transport = createRouterTransport(router => {
    router.rpc(Health.method.check, () => ({ status: SERVING }))
  })
  const { request, gateway } = await openGateway(t, {}, { transport })
  t.is((await request('GET', '/readyz')).status, 200)
  gateway.drain()
  refused(t, await request('GET', '/readyz'), 503, 'UNAVAILABLE')
  t.is((await request('GET', '/healthz')).status, 200)
})
