import { createRouterTransport, type ServiceImpl, type Transport } from '@connectrpc/connect'
import type { ExecutionContext } from 'ava'
import { createGateway, type GatewayOptions, type gatewayLimits } from '../../gateway/http.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { createScheduler, noHashing, type Scheduler, schedulerLimits } from '../../server/limits/scheduler.js'
import { createRequest } from './service.js'

/** A gateway in front of a Users service that the test implements. */
export async function openGateway(
  t: ExecutionContext,
  users: Partial<ServiceImpl<typeof Users>>,
  {
    transport,
    scheduler,
    ...options
  }: {
    limits?: Partial<typeof gatewayLimits>
    scheduler?: Scheduler
    transport?: Transport
    registry?: GatewayOptions['registry']
    serviceOf?: GatewayOptions['serviceOf']
  } = {},
) {
  const log: { fields: Record<string, unknown>; message: string }[] = []
  const gateway = createGateway({
    scheduler: scheduler ?? createScheduler(schedulerLimits, noHashing),
    transport: transport ?? createRouterTransport(router => void router.service(Users, users)),
    address: { host: '127.0.0.1', port: 0 },
    settings: { defaultRevision: '1.0.2', trustedProxies: ['127.0.0.1'], corsOrigins: [], docs: 'on' },
    log: { error: (fields, message) => void log.push({ fields: { ...fields }, message }), info() {} },
    ...options,
  })
  const { port } = await gateway.listen()
  t.teardown(() => gateway.close(0))
  const send = createRequest(`http://127.0.0.1:${port}`, 'none')
  const request: typeof send = (method, path, options) => send(method, path, { once: true, ...options })
  const post = (rpc: string, headers: Record<string, string> = {}) =>
    request('POST', `/auth.v1.Users/${rpc}`, { body: {}, headers })
  return { port, request, post, log, gateway }
}
