/** nginx with the configuration of deploy/nginx, in front of a service. */

import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'ava'
import type { Teardown } from '../_helpers/database.js'
import { adapted, authority, type Front, folderOf, servername, startProxy } from '../_helpers/front.js'
import { type Http2Client, openHttp2 } from '../_helpers/http2.js'
import { freePort } from '../_helpers/relay.js'
import { spawnService } from '../_helpers/spawned.js'
import { waitFor } from '../_helpers/wait.js'
import { testFront } from './proxied.js'

/** Header by which a client at 127.0.0.1 sets its address, before nginx reads it. */
const addressHeader = 'x-test-address'

/** Starts it in front of a service on a separate database. */
async function startNginx(t: Teardown, divisor: number): Promise<Front> {
  const service = await spawnService(t)
  const { cert, key } = authority.issue({ name: servername, dnsNames: [servername, 'localhost'] })
  const folder = await folderOf(t, { 'auth.crt': cert, 'auth.key': key })
  const [http, https, grpc] = [await freePort(), await freePort(), await freePort()]
  const server = await adapted('nginx/auth-registry.conf', {
    '/etc/nginx/tls/': `${folder}/`,
    '/var/log/nginx/': `${folder}/`,
    '  listen [::]:80;\n': '',
    '  listen [::]:443 ssl http2;\n': '',
    'listen 80;': `listen 127.0.0.1:${http};`,
    'listen 443 ': `listen 127.0.0.1:${https} `,
    'listen 50443 ': `listen 127.0.0.1:${grpc} `,
    'rate=500r/s': `rate=${500 / divisor}r/s`,
    'rate=1500r/s': `rate=${1500 / divisor}r/s`,
    'burst=4000 ': `burst=${4000 / divisor} `,
    'burst=10000 ': `burst=${10_000 / divisor} `,
    'server 127.0.0.1:8080 ': `server ${new URL(service.http).host} `,
    'server 127.0.0.1:50051 ': `server ${service.grpc} `,
  })
  const paths = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(name => `${name}_temp_path ${folder}/${name};`)
  const around = [
    `daemon off; pid ${folder}/pid; error_log stderr crit;`,
    'worker_processes 2; worker_rlimit_nofile 16384; events { worker_connections 8192; }',
    `http { ${paths.join(' ')} set_real_ip_from 127.0.0.1; real_ip_header ${addressHeader};`,
    `include ${folder}/auth-registry.conf; }`,
  ]
  await writeFile(join(folder, 'auth-registry.conf'), server)
  await writeFile(join(folder, 'nginx.conf'), around.join('\n'))
  await startProxy(t, 'nginx', ['-p', folder, '-c', `${folder}/nginx.conf`, '-e', 'stderr'], https)
  const { certificate: ca } = authority
  return { https: { port: https, ca, servername }, grpc: { port: grpc, ca, servername }, service }
}

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
