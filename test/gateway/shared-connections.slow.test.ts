/** All clients of a separate gateway share its connections to the server: what one client does ends no call of another. */
import { Agent, request as send } from 'node:http'
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import { spawnGateway, spawnServer } from '../_helpers/apart.js'
import { login, readsOf } from '../_helpers/load.js'
import { createRequest, password, startTestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'

/** Milliseconds of each attack. */
const duration = 6_000

/** A client at an address of its own. */
interface Attacker {
  readonly http: string
  readonly address: string
  /** Of a service that watches changes, and where its polls begin. */
  readonly key: string
  readonly cursor: string
  readonly signal: AbortSignal
}

/** Sends a request and reads its answer; resolves without one where the connection ends. */
function post(
  { http, address, key }: Attacker,
  path: string,
  body: object,
  headers = {},
  agent?: Agent,
): Promise<void> {
  return new Promise(resolve => {
    const options = {
      method: 'POST',
      localAddress: address,
      agent,
      headers: { authorization: `Bearer ${key}`, ...headers },
    }
    const request = send(`${http}${path}`, options, response => response.resume().on('end', resolve))
    request.setHeader('content-type', 'application/json')
    request.on('error', () => resolve()).end(JSON.stringify(body))
  })
}

/** Runs clients that each repeat a call. */
function repeat(attacker: Attacker, clients: number, call: (index: number, agent: Agent) => Promise<void>): void {
  const one = async (index: number) => {
    const agent = new Agent({ keepAlive: true })
    while (!attacker.signal.aborted) await call(index, agent)
    agent.destroy()
  }
  for (let index = 0; index < clients; index++) void one(index)
}

/** Does something so many times a second. */
function each(perSecond: number, { signal }: Attacker, work: (index: number) => void): void {
  let index = 0
  const timer = setInterval(() => work(index++), 1000 / perSecond)
  signal.addEventListener('abort', () => clearInterval(timer))
}

const someone = (index: number) => ({ username: `nobody ${index}`, password: 'not the password' })

const attacks: Readonly<Record<string, (attacker: Attacker) => void>> = {
  '300 polls wait': attacker =>
    repeat(attacker, 300, (_, agent) =>
      post(
        attacker,
        '/auth.v1.Changes/Poll',
        { cursor: attacker.cursor, kinds: ['CHANGE_KIND_USERS'], wait: '5s' },
        {},
        agent,
      ),
    ),
  '250 clients of one network log in': attacker =>
    repeat(attacker, 250, (index, agent) => post(attacker, '/users/login', someone(index), {}, agent)),
  '250 clients of as many networks log in': attacker =>
    repeat(attacker, 250, (index, agent) =>
      post({ ...attacker, address: `127.40.${index}.1` }, '/users/login', someone(index), {}, agent),
    ),
  '100 clients a second hang up': attacker =>
    each(100, attacker, index => {
      const body = JSON.stringify(someone(index))
      const { hostname: host, port } = new URL(attacker.http)
      const socket = connect({ host, port: Number(port), localAddress: attacker.address }).on('error', () => {})
      socket.write('POST /users/login HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n')
      socket.write(`content-length: ${body.length}\r\n\r\n${body}`)
      setTimeout(() => socket.destroy(), 20)
    }),
  '350 deadlines a second pass': attacker =>
    each(350, attacker, index => {
      void post(attacker, '/auth.v1.Users/Login', someone(index), { 'connect-timeout-ms': '15' })
    }),
  'lists have 2,000 wrong items': attacker =>
    each(10, attacker, () => {
      const answers = Array.from({ length: 2_000 }, (_, index) => index)
      void post(attacker, '/forgotpasswords/loginbyusernameandanswers', { username: 'admin', answers })
    }),
}

test('while a client attacks, logins and reads of others succeed, and the gateway is ready', async t => {
  const service = await startTestService(t, { AUTH_LIMIT_FACTOR: '1000' })
  const { DATABASE_URL = '' } = service.env
  const server = await spawnServer(t, { DATABASE_URL, AUTH_BCRYPT_COST: '9' })
  // Attackers are their own senders.
  const gateway = await spawnGateway(t, server.grpc, { AUTH_TRUSTED_PROXIES: '127.0.0.1' })
  const key = await serviceKey(service, ['users.watch'])
  const request = createRequest(gateway.http)
  const body = { kinds: ['CHANGE_KIND_USERS'] }
  const { cursor } = (await request('POST', '/auth.v1.Changes/Poll', { token: key, body })).json
  const token = await login(request)
  for (const [name, attack] of Object.entries(attacks)) {
    const over = new AbortController()
    t.teardown(() => over.abort())
    attack({ http: gateway.http, address: '127.30.0.1', key, cursor, signal: over.signal })
    await sleep(500)
    const reads = readsOf(t, request, token)
    const statuses = await others(request)
    await reads.end()
    over.abort()
    t.log(`${name}: reads ${reads.summary()}`)
    t.deepEqual([...new Set(reads.statuses)], [200], name)
    t.deepEqual([...new Set(statuses)], [200], name)
    // Polls and hashes that were begun end.
    await sleep(5_000)
  }
})

/** Logs in, and asks whether the gateway is ready. */
async function others(request: ReturnType<typeof createRequest>): Promise<number[]> {
  const statuses: number[] = []
  for (const end = performance.now() + duration; performance.now() < end; await sleep(200)) {
    const body = { username: 'admin', password }
    // As clients do, they ask again where the service is busy.
    statuses.push((await request('POST', '/users/login', { body })).status)
    statuses.push((await request('GET', '/readyz')).status)
  }
  return statuses
}
