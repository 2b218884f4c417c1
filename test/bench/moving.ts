/** Import of a database of the older implementation: rows a second, memory, and costs of the large registry afterwards. */
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { createReadStream, createWriteStream, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { createClient } from '@connectrpc/connect'
import { createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node'
import pg from 'pg'
import { from, to } from 'pg-copy-streams'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import {
  answerOf,
  isListed,
  makePredecessor,
  organizationKey,
  passwordOf,
  providerKey,
  usernameOf,
} from '../_helpers/predecessor.js'
import { freePort } from '../_helpers/relay.js'
import type { Prepared, Row, Segment } from './measure.js'
import { password, type World } from './operations.js'
import { root, startLoad, startService } from './processes.js'
import { underLoad } from './segments.js'
import { type Bench, masterKey, serviceOn } from './world.js'

/** Users of the source. */
const population = 1_000_000

/** Tables whose rows an import writes for users. */
const tables = ['users', 'provider_keys', 'answers', 'unmatched_answers'] as const

/** Cost of hashes. */
const cost = 12

const operations = ['me', 'refresh', 'look-up', 'verify'] as const
const lists = ['user list', 'second page', 'text search'] as const

/** The import of `population` users, and a registry of 1,000 to compare with. */
export async function moving(bench: Bench): Promise<Prepared> {
  const small = await opened(bench, 1_000)
  const there = await makeDatabase(bench, 'there')
  await makePredecessor(there, population)
  const here = await makeDatabase(bench, 'here')
  const port = await freePort()
  const env = {
    DATABASE_URL: here,
    AUTH_DATA_DIR: bench.folder,
    AUTH_MASTER_KEY: masterKey.toString('base64'),
    AUTH_ADMIN_PASSWORD: password,
    // As in production: the service hashes imported answers meanwhile.
    AUTH_BCRYPT_COST: String(cost),
    AUTH_COMPATIBILITY: 'predecessor',
    AUTH_ADMIN_ADDRESS: `127.0.0.1:${port}`,
  }
  // Installs the registry.
  await (await startService(env)).stop()
  const imported = await moveIn(there, env)
  const bare = await copyBare(here, join(bench.folder, 'bare'))
  await checkpoint(here)
  const service = await startService(env)
  await check(`http://127.0.0.1:${service.http}`)
  const large = {
    service,
    port,
    again: () => startService({ ...env, AUTH_ADMIN_ADDRESS: 'off' }),
    ...(await worldOf(service.http, port)),
  }

  let noted = 0
  const load = startLoad()
  const segments: Record<string, Segment> = {
    import: async () => ({ figures: imported.figures, ...(noted++ === 0 && { note: imported.note }) }),
    'bare COPY': async () => ({ figures: { perSecond: bare } }),
  }
  const rows: Row[] = [
    {
      label: 'users imported a second ÷ by bare COPY',
      subject: 'import',
      baseline: 'bare COPY',
      figure: 'perSecond',
      goal: { least: 0.1 },
    },
    { label: 'most memory of the import', subject: 'import', figure: 'memory', goal: { most: 300 } },
  ]
  const compare = (operation: (typeof operations)[number] | (typeof lists)[number]) => {
    const isList = (lists as readonly string[]).includes(operation)
    const names = [small, large].map(({ service, port, world }) => {
      const name = `${operation}, ${world.population} users`
      const grpc = isList || operation === 'verify'
      const at = isList ? port : grpc ? service.grpc : service.http
      const job = {
        endpoint: grpc ? 'grpc' : 'http',
        mix: { [operation]: 1 },
        connections: isList ? 4 : 16,
        seconds: 2,
      } as const
      const token = isList ? world.administrationToken : world.adminToken
      segments[name] = underLoad(load, [service], { ...job, world: { ...world, adminToken: token }, port: at })
      return name
    }) as [string, string]
    const label = `${operation}, time after moving in ÷ at 1,000 users`
    rows.push({ label, subject: names[1], baseline: names[0], figure: 'time', goal: { most: 1.25 } })
  }
  for (const operation of [...operations, ...lists]) compare(operation)
  const start =
    (again: typeof small.again): Segment =>
    async () => {
      const begun = performance.now()
      const { stop, http } = await again()
      if ((await fetch(`http://127.0.0.1:${http}/readyz`)).status !== 200) throw new Error('the service isn’t ready')
      const seconds = (performance.now() - begun) / 1000
      await stop()
      return { figures: { seconds } }
    }
  segments['start, large'] = start(large.again)
  segments['start, small'] = start(small.again)
  rows.push({
    label: 'start ÷ at 1,000 users',
    subject: 'start, large',
    baseline: 'start, small',
    figure: 'seconds',
    goal: { most: 1.25 },
  })
  return { segments, rows }
}

/** A registry of `count` users, with a listener for administrators. */
async function opened(bench: Bench, count: number) {
  const port = await freePort()
  const { service, world, again } = await serviceOn(bench, count, cost, { AUTH_ADMIN_ADDRESS: `127.0.0.1:${port}` })
  const people = Array.from({ length: count }, (_, index) => index + 1).map(person)
  return {
    service,
    port,
    again: () => again({ AUTH_ADMIN_ADDRESS: 'off' }),
    world: { ...world, people, ...(await session(port)) },
  }
}

/** A user to look up and to search for. */
function person(id: number) {
  return { username: usernameOf(id), text: `5511${900_000_000 + id}` }
}

async function session(port: number) {
  const baseUrl = `http://127.0.0.1:${port}`
  const sessionManager = new Http2SessionManager(baseUrl)
  const api = createClient(Administration, createGrpcTransport({ baseUrl, sessionManager }))
  const { token } = await api.signIn({ username: 'admin', password })
  const { nextPageToken } = await api.listUsers({}, { headers: { authorization: `Bearer ${token}` } })
  sessionManager.abort()
  return { administrationToken: token, pageToken: nextPageToken }
}

/** Ids of active users without an oddity, spread over the table. */
function plain(count: number, fits = (_id: number) => true): number[] {
  const found: number[] = []
  for (let index = 1; found.length < count; index++) {
    const id = ((index * 7_919) % population) + 1
    if (
      id > 1 &&
      id % 4 > 0 &&
      !isListed(id) &&
      ![6, 13, 14, 57].includes(id % 100) &&
      ![9].includes(id % 5000) &&
      fits(id)
    )
      found.push(id)
  }
  return found
}

async function worldOf(http: number, port: number): Promise<{ world: World & { administrationToken: string } }> {
  const request = createRequest(`http://127.0.0.1:${http}`)
  const login = async (username: string, secret: string) => {
    const { status, text } = await request('POST', '/users/login', { query: { username, password: secret } })
    if (status !== 200) throw new Error(`login: ${status} ${text}`)
    return { username, token: text }
  }
  const holders: World['holders'][number][] = []
  for (const id of plain(20)) holders.push(await login(usernameOf(id), passwordOf(id)))
  return {
    world: {
      population,
      holders,
      adminToken: (await login('admin', password)).token,
      accounts: [],
      addresses: 1,
      network: 10,
      series: 0,
      people: plain(1_000).map(person),
      listed: 'Pessoa 5',
      ...(await session(port)),
    },
  }
}

/** Imports, and returns users a second and the most memory of the process, in MB. */
async function moveIn(there: string, env: Record<string, string>) {
  const args = ['import', 'database', there, '--json', '--yes', '--reason', 'benchmark', '--on-collision', 'suffix']
  const begun = performance.now()
  const child = spawn(process.execPath, [join(root, 'dist/cli/main.js'), ...args], {
    env: { PATH: process.env.PATH, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  let [stdout, memory] = ['', 0]
  child.stdout.on('data', chunk => {
    stdout += chunk
  })
  const timer = setInterval(() => {
    try {
      const status = readFileSync(`/proc/${child.pid}/status`, 'latin1')
      memory = (Number(/VmHWM:\s+(\d+)/.exec(status)?.[1]) * 1024) / 1e6
    } catch {}
  }, 200)
  const [code] = await once(child, 'close')
  clearInterval(timer)
  const seconds = (performance.now() - begun) / 1000
  if (code !== 0) throw new Error(`the import ended with ${code}: ${stdout.slice(-2000)}`)
  const { created, updated, unchanged, rejected, listed } = JSON.parse(stdout)
  if (created + updated + unchanged + rejected !== population) throw new Error(`rows are missing: ${stdout}`)
  const note = `${created} created, ${unchanged} unchanged, ${rejected} rejected in ${Math.round(seconds)} s; ${JSON.stringify(listed)}`
  return { figures: { perSecond: population / seconds, memory }, note }
}

/** Copies the same rows into copies of the tables with their indexes, and returns users a second. */
async function copyBare(url: string, file: string): Promise<number> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  await client.query(
    'SET statement_timeout = 0; SET transaction_timeout = 0; SET idle_in_transaction_session_timeout = 0',
  )
  let seconds = 0
  for (const table of tables) {
    await pipeline(client.query(to(`COPY ${table} TO STDOUT`)), createWriteStream(file))
    await client.query(`CREATE TABLE bare_${table} (LIKE ${table} INCLUDING ALL)`)
    const begun = performance.now()
    await pipeline(createReadStream(file), client.query(from(`COPY bare_${table} FROM STDIN`)))
    seconds += (performance.now() - begun) / 1000
    await client.query(`DROP TABLE bare_${table}`)
  }
  await client.end()
  return population / seconds
}

/** Sends requests to a gateway. */
function createRequest(http: string) {
  return async (
    method: string,
    path: string,
    {
      query,
      body,
      token,
      headers,
    }: { query?: Record<string, string>; body?: object; token?: string; headers?: object } = {},
  ) => {
    const search = query ? `?${new URLSearchParams(query)}` : ''
    const response = await fetch(`${http}${path}${search}`, {
      method,
      headers: {
        ...(body && { 'content-type': 'application/json' }),
        ...(token && { authorization: `Bearer ${token}` }),
        ...headers,
      },
      ...(body && { body: JSON.stringify(body) }),
    })
    return { status: response.status, text: await response.text() }
  }
}

/** Passwords, answers, activation keys and provider keys of 100 users work. */
async function check(http: string): Promise<void> {
  const request = createRequest(http)
  const must = async (what: string, answer: ReturnType<typeof request>) => {
    const { status, text } = await answer
    if (status !== 200) throw new Error(`${what}: ${status} ${text}`)
    return text
  }
  const signUp = (role: string) => {
    const name = randomBytes(12).toString('hex')
    const body = {
      username: name,
      nickname: name,
      password,
      state: 'SP',
      city: 'Lins',
      termsofusage: true,
      roles: [role],
    }
    return must('sign-up', request('POST', '/users/signup', { body })).then(token => ({ name, token }))
  }
  const headers = (index: number) => ({ 'x-forwarded-for': `10.0.${index}.1` })
  for (const [index, id] of plain(100).entries())
    await must(
      `login ${id}`,
      request('POST', '/users/login', {
        query: { username: usernameOf(id), password: passwordOf(id) },
        headers: headers(index),
      }),
    )
  for (const id of plain(100, id => id % 2 === 1)) {
    const answers = [1, 3].map(question => ({
      forgotpasswordquestionsid: String(question),
      usersid: 1,
      answer: answerOf(id, question),
    }))
    const query = { username: usernameOf(id) }
    await must(
      `answers of ${id}`,
      request('POST', '/forgotpasswords/loginbyusernameandanswers', { query, body: answers }),
    )
  }
  // Others have no membership, or are of an inactive organization.
  const active = (id: number) => id % 20 === 2 && id % 5 > 0 && (1 + (id % 207)) % 5 !== 2
  for (const id of plain(100, active)) {
    const { name, token } = await signUp('ROLE_CLIENT')
    await must(
      `provider key of ${id}`,
      request('POST', '/users/activate', { token, query: { username: name, activationkey: providerKey(id) } }),
    )
  }
  for (let id = 1; id <= 207; id++) {
    // Others are inactive at the source.
    if (id % 5 === 2) continue
    const { name, token } = await signUp('ROLE_INSTITUTION')
    await must(
      `key of organization ${id}`,
      request('POST', '/users/activate', { token, query: { username: name, activationkey: organizationKey(id) } }),
    )
  }
}

async function makeDatabase({ server }: Bench, what: string): Promise<string> {
  const name = `moving_${what}_${randomBytes(4).toString('hex')}`
  const client = new pg.Client({ connectionString: server })
  await client.connect()
  await client.query(`CREATE DATABASE ${name} TEMPLATE template0`)
  await client.end()
  const url = new URL(server)
  url.pathname = `/${name}`
  return url.href
}

async function checkpoint(url: string): Promise<void> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  await client.query('SET statement_timeout = 0; SET transaction_timeout = 0')
  await client.query('VACUUM ANALYZE')
  await client.query('CHECKPOINT')
  await client.end()
}
