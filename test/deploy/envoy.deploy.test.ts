/** Envoy with the configuration of deploy/envoy, in front of a service. */
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import test from 'ava'
import { publicConnections, startEnvoy } from '../_helpers/envoy.js'
import { openHttp2 } from '../_helpers/http2.js'
import { waitFor } from '../_helpers/wait.js'
import { testFront } from './proxied.js'

const front = testFront(startEnvoy)

test.serial('connections beyond the limit are closed at once, and services keep theirs', async t => {
  const open = new Set<Socket>()
  let refused = 0
  t.teardown(async () => void [...open].map(socket => socket.destroy()))
  for (let index = 0; index < publicConnections + 20; index++) {
    const socket = connect(front.https.port, '127.0.0.1').on('error', () => {})
    open.add(socket)
    socket.on('close', () => {
      refused++
      open.delete(socket)
    })
    await once(socket, 'connect')
  }
  await waitFor(() => refused >= 20)
  await t.throwsAsync(openHttp2(front.https))
  const service = await openHttp2(front.grpc)
  service.close()
  t.true(refused <= 20 + 8, `${refused}`)
})
