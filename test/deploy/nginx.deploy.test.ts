/** nginx with the configuration of deploy/nginx, in front of a service. */
import test from 'ava'
import { type Http2Client, openHttp2 } from '../_helpers/http2.js'
import { addressHeader, startNginx } from '../_helpers/nginx.js'
import { waitFor } from '../_helpers/wait.js'
import { testFront } from './proxied.js'

const front = testFront(startNginx)

const hex = (value: number) => value.toString(16)
const holders: Record<string, [limit: number, addressOf: (index: number) => string]> = {
  'an IPv4 address': [2500, () => '198.51.100.7'],
  'a /24': [5000, index => `192.0.2.${index % 256}`],
  'an IPv6 /64': [2500, index => `2001:db8:0:1::${hex(index + 1)}`],
  'a /48': [5000, index => `2001:db8:2:${hex(index)}::1`],
}
for (const [name, [limit, addressOf]] of Object.entries(holders)) {
  test.serial(`${name} has ${limit} requests in progress at most, and others are served meanwhile`, async t => {
    const beyond = 100
    const clients: Http2Client[] = []
    t.teardown(async () => void clients.map(client => client.close()))
    let refused = 0
    for (let index = 0; index < limit + beyond; index++) {
      if (index % 32 === 0) clients.push(await openHttp2(front.https))
      const stream = clients.at(-1)!.hold('/users/login', { [addressHeader]: addressOf(index) })
      stream.on('error', () => {})
      stream.on('response', headers => {
        if (headers[':status'] === 429) refused++
        else t.fail(`${headers[':status']}`)
      })
    }
    await waitFor(
      () => refused >= beyond,
      () => refused,
    )
    const other = await openHttp2(front.https)
    clients.push(other)
    t.is((await other.ask('GET', '/healthz', { headers: { [addressHeader]: '198.51.101.1' } })).status, 200)
    t.is(refused, beyond)
  })
}
