/** A connection ends by age, so that servers that start later also get calls. The test moves its clock. */
import { once } from 'node:events'
import { connect } from 'node:http2'
import { mock } from 'node:test'
import test from 'ava'
import { startGrpcServer } from '../../server/calls/grpc.js'

/** The maximum age of connections in milliseconds, and its jitter. */
const age = 10 * 60_000
const jitter = 0.1

test('a connection gets GOAWAY after 10 minutes, plus or minus one, however busy it is', async t => {
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const grpc = await startGrpcServer(
    { host: '127.0.0.1', port: 0 },
    {
      calls: { services: [], run: () => Promise.reject(new Error('no calls')) },
      trustedProxies: [],
      gatewayNames: [],
    },
  )
  t.teardown(() => grpc.close(0))
  const session = connect(`http://127.0.0.1:${grpc.port}`)
  t.teardown(() => session.destroy())
  let received: string | undefined
  session.on('goaway', (code, _, data) => {
    received ??= `${code} ${data}`
  })
  await once(session, 'remoteSettings')
  const step = 15_000
  let passed = 0
  while (received === undefined && passed < age * (1 + jitter)) {
    mock.timers.tick(step)
    passed += step
    // After this response, everything that the server sent before has arrived, including responses to its pings.
    await new Promise<void>(resolve => {
      if (!session.ping(() => resolve())) resolve()
    })
  }
  t.is(received, '0 max_age')
  t.true(passed >= age * (1 - jitter))
})
