/** A connection ends by age, so that servers that came later get calls, too. Its clock is one that the test turns. */
import { once } from 'node:events'
import { connect } from 'node:http2'
import { mock } from 'node:test'
import test from 'ava'
import { startGrpcServer } from '../../server/calls/grpc.js'

/** Milliseconds after which connections are told to end, and by how much that is scattered. */
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
  let told: string | undefined
  session.on('goaway', (code, _, data) => {
    told ??= `${code} ${data}`
  })
  await once(session, 'remoteSettings')
  const step = 15_000
  let passed = 0
  while (told === undefined && passed < age * (1 + jitter)) {
    mock.timers.tick(step)
    passed += step
    // What the server sent meanwhile has come once this is answered, and the answers to its pings went before.
    await new Promise<void>(resolve => {
      if (!session.ping(() => resolve())) resolve()
    })
  }
  t.is(told, '0 max_age')
  t.true(passed >= age * (1 - jitter))
})
