/** Services to measure, each on a separate database with many users, including those that the load uses. */
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { openDatabase } from '../../server/database/database.js'
import { createStoredKeys } from '../../server/models/data-key.js'
import { newActivationKey } from '../../server/models/organization.js'
import { createClient } from './clients.js'
import { formOf, password, usernameOf, type World } from './operations.js'
import { type ServiceProcess, startService } from './processes.js'

/** What scenarios share. */
export interface Bench {
  /** URL of the PostgreSQL in which databases are made. */
  readonly server: string
  /** The parent of folders that scenarios create. */
  readonly folder: string
  /** Seconds of a window beside a flood; a crowd and a school have other times in proportion. */
  readonly seconds: number
  /** Users of the school. */
  readonly users: number
  /** Cost of all hashes, unless a scenario sets another one. */
  readonly cost: number
  /** Minutes of a day. */
  readonly minutes: number
  /** Hashes a second of the machine in a day; 0 measures them. */
  readonly capacity: number
  /** Another folder with a build of the service, to compare it with this one. */
  readonly against?: string
}

/** How many users hold a token; they are spread evenly over the table. */
const holders = 20

/** The user whose hashes all users share. */
const model = usernameOf(0, 19)

export const masterKey = randomBytes(32)

/**
 * Starts a service (`again` starts another one on the same database) with hashes of the cost on a new database of active clients, users 1 to `population` (a multiple of
 * 20). `folder` is where it was built, if not here.
 */
export async function serviceOn(
  bench: Bench,
  population: number,
  cost: number,
  { folder, ...env }: { folder?: string } & Record<string, string> = {},
): Promise<{
  service: ServiceProcess
  url: string
  world: World
  again: (more?: Record<string, string>) => Promise<ServiceProcess>
  /** Settings of the service. */
  env: Record<string, string>
}> {
  const name = `users_${randomBytes(6).toString('hex')}`
  await query(bench.server, [[`CREATE DATABASE ${name}`]])
  const url = new URL(bench.server)
  url.pathname = `/${name}`
  const settings = {
    DATABASE_URL: url.href,
    AUTH_DATA_DIR: bench.folder,
    AUTH_MASTER_KEY: masterKey.toString('base64'),
    AUTH_ADMIN_PASSWORD: password,
    AUTH_BCRYPT_COST: String(cost),
  }
  const all = { ...settings, ...env }
  const again = (more = {}) => startService({ ...all, ...more }, folder)
  const service = await again()
  const tls = env.AUTH_HTTP_TLS_CERT !== undefined
  const client = createClient({ endpoint: 'http', port: service.http, tls, connections: 1 })
  const request = async (path: string, content: object) => {
    const body = Buffer.from(JSON.stringify(content))
    const wire = { method: 'POST', path: `/users/${path}`, contentType: 'application/json', body } as const
    const answer = await client.send({ ...wire, expected: '', refusable: false })
    if (answer.status !== 200) throw new Error(`${path}: ${answer.status} ${answer.body}`)
    return answer.body.toString()
  }
  await request('signup', formOf(model, 'Modelo', { securityquestion: '1', securityanswer: 'Jacareí' }))
  await fill(url.href, population)

  const login = async (username: string) => ({ username, token: await request('login', { username, password }) })
  const isHolder = (number: number) => number % (population / holders) === 0
  const numbers = Array.from({ length: Math.min(population, 10_000) }, (_, index) => index + 1)
  const accounts = numbers.filter(number => !isHolder(number))
  const held = Array.from({ length: holders }, (_, index) => usernameOf(((index + 1) * population) / holders))
  const logged: World['holders'][number][] = []
  for (const username of held) logged.push(await login(username))
  const world = {
    population,
    holders: logged,
    adminToken: (await login('admin')).token,
    accounts,
    addresses: accounts.length,
    network: 10,
    series: 0,
  }
  client.close()
  return { service, url: url.href, world, again, env: all }
}

/** Copies the model: names and e-mail address differ, and all users are active in one of 20 organizations. */
async function fill(url: string, population: number): Promise<void> {
  const database = openDatabase(url, 1)
  const keys = createStoredKeys(database, masterKey)
  await keys.load()
  await database.close()
  const organizations = Array.from({ length: 20 }, (_, index) => {
    const { digest, sealed } = newActivationKey(keys)
    return [
      `INSERT INTO organizations (id, name, name_key, email, activation_key_digest, activation_key_sealed)
       VALUES ($1, 'Escola ' || $1::int, 'escola ' || $1::int, 'escola' || $1::int || '@example.org', $2, $3)`,
      [index + 1, digest, sealed],
    ] as [string, unknown[]]
  })
  await query(url, [
    ...organizations,
    // An index of words is created many times faster at once than user by user.
    [`CREATE TEMP TABLE words AS SELECT pg_get_indexdef('users_words'::regclass) AS index`],
    ['DROP INDEX users_words'],
    [
      `INSERT INTO users SELECT copy.* FROM generate_series(1, $1::int) number,
        LATERAL (SELECT (900000000 + number)::text AS digits) d, users model,
        LATERAL jsonb_populate_record(model, jsonb_build_object('id', model.id + number,
          'username', '(11)' || left(digits, 5) || '-' || right(digits, 4), 'username_key', 'tel:+5511' || digits,
          'nickname', 'Pessoa ' || number, 'nickname_key', 'pessoa ' || number,
          'email', 'pessoa' || number || '@example.org', 'active', true, 'organization_id', number % 20 + 1)) copy
       WHERE model.nickname = 'Modelo'`,
      [population],
    ],
    ['DO $$ BEGIN EXECUTE (SELECT index FROM words); END $$'],
    [
      `INSERT INTO answers SELECT u.id, q.id, a.answer_hash FROM answers a, questions q, users u
       WHERE u.active AND u.id BETWEEN a.user_id + 1 AND a.user_id + 1000`,
    ],
    [`SELECT setval(pg_get_serial_sequence('users', 'id'), max(id)) FROM users`],
    // Here, so that it doesn't run during a measurement.
    ['VACUUM ANALYZE'],
    ['CHECKPOINT'],
  ])
}

async function query(url: string, statements: [text: string, values?: unknown[]][]): Promise<void> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  // The service sets statement timeouts.
  await client.query('SET statement_timeout = 0; SET transaction_timeout = 0')
  try {
    for (const [text, values] of statements) await client.query(text, values)
  } finally {
    await client.end()
  }
}
