/** Import of a database of the older implementation: rows a second, and memory. */
import { randomBytes } from 'node:crypto'
import { createReadStream, createWriteStream } from 'node:fs'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import pg from 'pg'
import { from, to } from 'pg-copy-streams'
import {
  answerOf,
  isListed,
  makePredecessor,
  organizationKey,
  passwordOf,
  providerKey,
  usernameOf,
} from '../_helpers/predecessor.js'
import type { Prepared } from './measure.js'
import { password } from './operations.js'
import { masterKey } from './population.js'
import { runAdmin, startService } from './processes.js'
import { type Bench, query } from './world.js'

/** Users of the source. */
const population = 1_000_000

/** Tables whose rows an import writes for users. */
const tables = ['users', 'provider_keys', 'answers', 'unmatched_answers'] as const

/** Cost of hashes. */
const cost = 12

/** The import of `population` users. */
export async function moving(bench: Bench): Promise<Prepared> {
  const there = await makeDatabase(bench, 'there')
  await makePredecessor(there, population)
  const here = await makeDatabase(bench, 'here')
  const env = {
    DATABASE_URL: here,
    AUTH_DATA_DIR: bench.folder,
    AUTH_MASTER_KEY: masterKey.toString('base64'),
    AUTH_ADMIN_PASSWORD: password,
    // As in production: the service hashes imported answers meanwhile.
    AUTH_BCRYPT_COST: String(cost),
    AUTH_COMPATIBILITY: 'predecessor',
  }
  // Installs the registry.
  await (await startService(env)).stop()
  const imported = await moveIn(there, env)
  const bare = await copyBare(here, join(bench.folder, 'bare'))
  const { http } = await startService(env)
  await check(`http://127.0.0.1:${http}`)
  return {
    segments: {
      import: async () => imported,
      'bare COPY': async () => ({ figures: { perSecond: bare } }),
    },
    rows: [
      {
        label: 'users imported a second ÷ by bare COPY',
        subject: 'import',
        baseline: 'bare COPY',
        figure: 'perSecond',
        goal: { least: 0.1 },
      },
      { label: 'most memory of the import', subject: 'import', figure: 'memory', goal: { most: 300 } },
    ],
    rounds: 1,
  }
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

/** Imports, and returns users a second and the most memory of the process, in MB. */
async function moveIn(there: string, env: Record<string, string>) {
  const options = ['--json', '--yes', '--reason', 'benchmark', '--on-collision', 'suffix']
  const { stdout, figures } = await runAdmin(['import', 'database', there, ...options], env)
  const { created, updated, unchanged, rejected, listed } = JSON.parse(stdout)
  if (created + updated + unchanged + rejected !== population) throw new Error(`rows are missing: ${stdout}`)
  const note = `${created} created, ${unchanged} unchanged, ${rejected} rejected in ${Math.round(figures.seconds)} s; ${JSON.stringify(listed)}`
  return { figures: { ...figures, perSecond: population / figures.seconds }, note }
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
  const url = new URL(server)
  url.pathname = `/moving_${what}_${randomBytes(4).toString('hex')}`
  await query(server, `CREATE DATABASE ${url.pathname.slice(1)} TEMPLATE template0`)
  return url.href
}
