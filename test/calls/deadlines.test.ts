/** The time limits of calls, independent of the deadline of the caller. */
import { mock } from 'node:test'
import type { DescMethodUnary, DescService, Message } from '@bufbuild/protobuf'
import { status } from '@grpc/grpc-js'
import test, { type ExecutionContext } from 'ava'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { startGrpcServer } from '../../server/calls/grpc.js'
import { createCalls, type Observe } from '../../server/calls/run.js'
import { createScheduler, noHashing, type Scheduler, schedulerLimits } from '../../server/limits/scheduler.js'
import { createLog } from '../../server/observability/log.js'
import { administrationPolicies } from '../../server/policy/administration.js'
import { forgotPasswordsPolicies } from '../../server/policy/forgotpasswords.js'
import type { Policy } from '../../server/policy/policy.js'
import { usersPolicies } from '../../server/policy/users.js'
import type { Call } from '../../server/requests/call.js'
import { openGrpc, refusalOf } from '../_helpers/grpc.js'
import { waitForValue } from '../_helpers/wait.js'

/** The policies of all RPCs. */
const policies: Record<string, Record<string, Policy>> = {
  [Users.typeName]: usersPolicies,
  [ForgotPasswords.typeName]: forgotPasswordsPolicies,
  [Administration.typeName]: administrationPolicies,
}

type Handle = (method: DescMethodUnary, request: Message, call: Call) => Promise<Record<string, unknown>>

/** A client of a server with one function as the handler of all RPCs. */
async function serverOf(
  t: ExecutionContext,
  services: readonly DescService[],
  handle: Handle,
  { scheduler, observe = () => {} }: { scheduler?: Scheduler; observe?: Observe } = {},
) {
  const log = createLog('silent')
  const rpcs = services.map(service => {
    const methods = service.methods as DescMethodUnary[]
    const runs = methods.map(method => {
      const policy = policies[service.typeName]![method.localName]!
      return [method, { policy, handle: (request: Message, call: Call) => handle(method, request, call) }] as const
    })
    return [service, runs] as const
  })
  const calls = createCalls({
    services: rpcs,
    ...(scheduler && { scheduler }),
    ready: async () => true,
    log,
    observe,
    refused() {},
  })
  const address = { host: '127.0.0.1', port: 0 }
  const server = await startGrpcServer(address, { calls, trustedProxies: [], gatewayNames: [] })
  const client = openGrpc(`127.0.0.1:${server.port}`)
  t.teardown(async () => {
    client.close()
    await server.close(0)
  })
  return client
}

const codeOf = (call: Promise<unknown>) =>
  call.then(
    () => 'OK',
    error => status[refusalOf(error).code],
  )

test('each call has 15 seconds, or more if it reads or changes much or waits for a mail server, or less if its caller asks for less', async t => {
  const services = [Users, ForgotPasswords, Administration]
  let left = 0
  const client = await serverOf(t, services, async (_method, _request, call) => {
    left = call.deadline - Date.now()
    return {}
  })
  const long: string[] = []
  for (const method of services.flatMap(service => service.methods as DescMethodUnary[])) {
    for (const options of [{}, { deadline: Date.now() + 3600_000 }]) {
      await client.call(method, {}, options)
      const limit = left > 30_000 ? 600_000 : left > 15_000 ? 30_000 : 15_000
      t.true(left > limit - 5_000 && left <= limit, `${method.name} ${left}`)
      if (limit > 15_000) long.push(`${method.name} ${limit}`)
    }
    await client.call(method, {}, { deadline: Date.now() + 10_000 })
    t.true(left > 0 && left <= 10_000, `${method.name} ${left}`)
  }
  const expected = [
    ...['SuspendUsers 30000', 'ResumeUsers 30000', 'IssueKeys 30000'],
    ...['EraseUser 600000', 'EraseUnactivatedUsers 600000', 'ExportUser 600000', 'LinkQuestion 600000'],
    ...['SendTestEmail 30000', 'StartImport 600000', 'ImportBatch 600000', 'FinishImport 600000'],
    ...['VerifyAuditLog 600000', 'Diagnose 600000'],
  ]
  t.is(long.join(), expected.flatMap(name => [name, name]).join())
})

test('a call that waits in the scheduler never starts once it is canceled or past its deadline, is counted as such, and the next one starts', async t => {
  // One call at a time.
  const none = { networkShares: [0, 0, 0], burst: 0, slots: 1 }
  const scheduler = createScheduler({ ...schedulerLimits, ...none }, noHashing)
  const worked: string[] = []
  let end = () => {}
  const ended = new Promise<void>(resolve => {
    end = resolve
  })
  const handle: Handle = async (_method, request) => {
    worked.push((request as unknown as { username: string }).username)
    await ended
    return {}
  }
  const outcomes: string[] = []
  const observe: Observe = (_method, outcome) => void outcomes.push(outcome)
  const client = await serverOf(t, [Users], handle, { scheduler, observe })
  const ask = (username: string, options = {}) =>
    codeOf(client.call(Users.method.existsByUsername, { username }, options))
  const waiting = (count: number) => waitForValue(() => scheduler.stats().waiting, count)
  const working = ask('working')
  await waitForValue(() => worked.length, 1)
  let cancel = () => {}
  const leaving = ask('leaving', { started: (call: { cancel(): void }) => (cancel = () => call.cancel()) })
  await waiting(1)
  const late = ask('late', { deadline: Date.now() + 5_000 })
  await waiting(2)
  const next = ask('next')
  await waiting(3)
  cancel()
  t.deepEqual(await Promise.all([leaving, late]), ['CANCELLED', 'DEADLINE_EXCEEDED'])
  await waiting(1)
  t.deepEqual(outcomes, ['CANCELLED', 'DEADLINE_EXCEEDED'])
  end()
  t.deepEqual(await Promise.all([working, next]), ['OK', 'OK'])
  t.deepEqual(worked, ['working', 'next'])
})

test.serial('a call without a deadline is refused when its time limit has passed', async t => {
  let arrive = () => {}
  const arrived = new Promise<void>(resolve => {
    arrive = resolve
  })
  const client = await serverOf(t, [Users], async method => {
    if (method !== Users.method.getMe) return {}
    arrive()
    return new Promise(() => {})
  })
  // Connects.
  await client.call(Users.method.getKeys, {})
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  let code: string | undefined
  const call = codeOf(client.call(Users.method.getMe, {})).then(found => (code = found))
  await arrived
  mock.timers.tick(14_000)
  await client.call(Users.method.getKeys, {})
  t.is(code, undefined)
  mock.timers.tick(1_000)
  t.is(await call, 'DEADLINE_EXCEEDED')
})
