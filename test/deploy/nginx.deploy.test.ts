/** nginx with the configuration of deploy/nginx, in front of a service. */
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { credentials } from '@grpc/grpc-js'
import test from 'ava'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { accessLines } from '../_helpers/access-lines.js'
import { createAuthority } from '../_helpers/certificates.js'
import { ask, type Teardown } from '../_helpers/database.js'
import { folderOf, startProxy } from '../_helpers/front.js'
import { grpcOf } from '../_helpers/grpc.js'
import { dial, type Http2Answer, type Http2Client, openHttp2, type Place } from '../_helpers/http2.js'
import { freePort } from '../_helpers/relay.js'
import { createRequest, password, signUpForm } from '../_helpers/service.js'
import { type Spawned, spawnService } from '../_helpers/spawned.js'
import { patience, waitFor, within } from '../_helpers/wait.js'

/** A proxy in front of a service. */
interface Front {
  /** For the public. */
  readonly https: Place
  /** For internal networks. */
  readonly grpc: Place
  readonly service: Spawned
}

/** Issues the certificates of one front and of the service behind it. */
const authority = createAuthority('Authority')

/** Name in the certificate that clients see. */
const servername = 'auth.example.org'

/** A file of deploy/ with each text replaced by another; throws if a text is missing. */
async function adapted(path: string, replacements: Readonly<Record<string, string>>): Promise<string> {
  let text = await readFile(new URL(`../../../deploy/${path}`, import.meta.url), 'utf8')
  for (const [from, to] of Object.entries(replacements)) {
    if (!text.includes(from)) throw new Error(`${path} lacks ${from}`)
    text = text.replaceAll(from, to)
  }
  return text
}

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

/** An address that a client claims to have. */
const claimed = { 'x-forwarded-for': '203.0.113.9', forwarded: 'for=203.0.113.9', 'x-real-ip': '203.0.113.9' }

/** Text in the refusals of the proxy, and in no response of the service. */
const limited = 'came from this network'

/** Networks of the calls that a service logged. */
const networksOf = ({ service }: Front) => new Set(accessLines(service).map(({ network }) => network))

/** Sends bytes over TLS, and returns the received bytes until the other side closes. */
async function sendOverTls(place: Place, text: string, address?: string): Promise<string> {
  const socket = dial(place, 'http/1.1', address)
  let answer = ''
  socket.on('data', chunk => (answer += chunk)).on('error', () => {})
  const closed = new Promise(resolve => socket.once('close', resolve))
  socket.write(text)
  await closed
  return answer
}

/** Divides the limits of a front for floods: a busy machine doesn't send faster than the files in deploy/ allow. */
const divisor = 10

const front = {} as Front
const flooded = {} as Front
const cleanUps: (() => Promise<void>)[] = []
const teardown = (work: () => Promise<void>) => void cleanUps.push(work)
test.serial.before(async () => {
  Object.assign(front, await startNginx({ teardown }, 1))
  Object.assign(flooded, await startNginx({ teardown }, divisor))
})
test.after.always(async () => {
  for (const work of cleanUps.reverse()) await work()
})

test.serial(
  'clients get HTTP/2 and HTTP/1.1, and count by their own address, regardless of forwarding headers that they send',
  async t => {
    const client = await openHttp2(front.https, '127.9.0.1')
    t.teardown(async () => client.close())
    t.is(client.session.remoteSettings.maxConcurrentStreams, 32)
    const signedUp = await client.ask('POST', '/users/signup', { headers: claimed, body: signUpForm() })
    t.is(signedUp.status, 200, signedUp.text)
    t.is(signedUp.headers['strict-transport-security'], 'max-age=31536000')
    const authorization = `Bearer ${signedUp.text}`
    t.is((await client.ask('GET', '/users/me', { headers: { ...claimed, authorization } })).status, 200)
    t.is((await client.ask('GET', '/readyz')).status, 404)

    const head = `GET /users/me HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.9\r\nAuthorization: ${authorization}\r\n`
    const answer = await sendOverTls(front.https, `${head}Connection: close\r\n\r\n`, '127.9.1.1')
    t.regex(answer, /^HTTP\/1\.1 200 /)
    const networks = await waitFor(() => networksOf(front).has('127.9.1.1') && networksOf(front))
    t.true(networks.has('127.9.0.1'))
    t.false(networks.has('203.0.113.9'))
  },
)

test.serial('services in internal networks call over gRPC, others don’t, and none claims an address', async t => {
  const { port, ca } = front.grpc
  const { session } = await openHttp2(front.grpc)
  t.is(session.remoteSettings.maxConcurrentStreams, 128)
  session.destroy()
  const client = grpcOf(t, `localhost:${port}`, credentials.createSsl(ca))
  const { keys } = await client.call(Users.method.getKeys, {}, { metadata: { 'x-forwarded-for': '203.0.113.10' } })
  t.true(keys.length > 0)
  const line = await waitFor(() => accessLines(front.service).find(({ rpc }) => String(rpc).endsWith('GetKeys')))
  t.is(line.network, '127.0.0.1')

  const outsider = openHttp2(front.grpc, '127.0.0.2').then(async foreign => {
    const headers = { 'content-type': 'application/grpc', te: 'trailers' }
    const { status } = await foreign.ask('POST', '/auth.v1.Users/GetKeys', { headers })
    foreign.close()
    return status
  })
  t.true([403, 'refused'].includes(await outsider.catch(() => 'refused')))
})

const flooders: Record<string, [burst: number, addressOf: (connection: number) => string]> = {
  'an address': [4000 / divisor, () => '127.21.0.1'],
  'a /24': [10_000 / divisor, connection => `127.22.0.${(connection % 250) + 1}`],
}
for (const [name, [burst, addressOf]] of Object.entries(flooders)) {
  test.serial(
    `a flood from ${name} is answered with 429 and Retry-After, and other clients aren’t affected`,
    async t => {
      const honest = await openHttp2(flooded.https, '127.20.0.1')
      t.teardown(async () => honest.close())
      const signedUp = await honest.ask('POST', '/users/signup', { body: signUpForm() })
      const headers = { authorization: `Bearer ${signedUp.text}` }
      const seen: number[] = []
      let flooding = true
      t.teardown(() => {
        flooding = false
      })
      const visit = async () => {
        while (flooding) {
          seen.push((await honest.ask('GET', '/users/me', { headers })).status)
          await sleep(20)
        }
      }
      const visiting = visit()
      const { answers, refused } = await flood(connection => openHttp2(flooded.https, addressOf(connection)), 4 * burst)
      flooding = false
      await visiting
      t.log(answers, { honest: seen.length })
      // Requests up to the burst passed, and faster ones after it didn't.
      t.true([...answers].reduce((sum, [status, count]) => sum + (status === 429 ? 0 : count), 0) >= burst)
      t.is(refused?.headers['retry-after'], '5')
      t.is(refused?.headers['content-type'], 'application/problem+json')
      t.is(JSON.parse(refused!.text).reason, 'TOO_MANY_ATTEMPTS')
      t.true(refused!.text.includes(limited))
      t.true(seen.length > 1)
      t.deepEqual(
        seen.filter(status => status !== 200),
        [],
      )
    },
  )
}

test.serial('2,000 users behind one address of a school all log in at once', async t => {
  const { username } = await addPupils(front, 2000)
  const browsers = await Promise.all(Array.from({ length: 100 }, () => openHttp2(front.https, '127.30.0.1')))
  t.teardown(async () => void browsers.map(browser => browser.close()))
  const answers = new Map<number, number>()
  let cut = 0
  const login = async (index: number) => {
    for (let times = 1; ; times++) {
      const body = { username: username(index), password }
      const { status, text } = await browsers[index % 100]!.ask('POST', '/users/login', { body })
      answers.set(status, (answers.get(status) ?? 0) + 1)
      if (text.includes(limited)) cut++
      if (status === 200 || times === patience) return status
      // The service has separate limits on requests in progress. Users try again after 4 s, as the file assumes.
      await sleep(4000)
    }
  }
  const last = await Promise.all(Array.from({ length: 2000 }, (_, index) => login(index)))
  t.log(answers)
  t.true(last.every(status => status === 200))
  t.is(cut, 0)
})

test.serial(
  'slow clients are disconnected, and headers and bodies beyond the limits of the service are refused',
  async t => {
    const slow = [
      sendOverTls(front.https, 'GET /users/me HTTP/1.1\r\nHost: a\r\nX: '),
      sendOverTls(front.https, 'POST /users/login HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{'),
    ]
    const header = `GET /users/me HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX: ${'x'.repeat(40_000)}\r\n\r\n`
    t.regex(await sendOverTls(front.https, header), /^HTTP\/1\.1 4(00|31) /)
    const body = `POST /users/login HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 200000\r\n\r\n${'x'.repeat(200_000)}`
    t.regex(await sendOverTls(front.https, body), /^HTTP\/1\.1 413 |^$/)
    t.true(await within(30_000, Promise.all(slow)))
    for (const answer of await Promise.all(slow)) t.regex(answer, /^$|^HTTP\/1\.1 408 /)
  },
)

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

/** Adds so many active users with the usual password, faster than by sign-up. */
async function addPupils({ service }: Front, count: number): Promise<{ username(index: number): string }> {
  const form = signUpForm()
  const { status, text } = await createRequest(service.http)('POST', '/users/signup', { body: form })
  if (status !== 200) throw new Error(text)
  await ask(
    service.databaseUrl,
    `INSERT INTO users SELECT copy.* FROM users model, generate_series(0, ${count - 1}) number,
      LATERAL jsonb_populate_record(model, jsonb_build_object('id', model.id + 1 + number, 'active', true,
        'username', 'aluno ' || number, 'username_key', 'aluno ' || number,
        'nickname', 'Aluno ' || number, 'nickname_key', 'aluno ' || number)) copy
     WHERE model.username = '${form.username}'`,
  )
  return { username: index => `aluno ${index}` }
}

/** Sends on 4 connections, with 32 requests each in progress, until 200 are refused with 429, or so many are answered. */
async function flood(open: (connection: number) => Promise<Http2Client>, most: number) {
  const answers = new Map<number, number>()
  let refused: Http2Answer | undefined
  let [connections, sent] = [0, 0]
  const done = () => (answers.get(429) ?? 0) >= 200 || sent >= most
  const ask = async (client: Http2Client) => {
    // Fewer on a connection than the burst of an address, whose limit would refuse a fast one before that of its /24.
    for (let times = 0; times < 12 && !done(); times++) {
      sent++
      const answer = await client.ask('GET', '/.well-known/jwks.json')
      answers.set(answer.status, (answers.get(answer.status) ?? 0) + 1)
      if (answer.status === 429) refused = answer
    }
  }
  const work = async () => {
    while (!done()) {
      const client = await open(connections++)
      await Promise.all(Array.from({ length: 32 }, () => ask(client)))
      client.close()
    }
  }
  await Promise.all(Array.from({ length: 4 }, work))
  return { answers, refused }
}
