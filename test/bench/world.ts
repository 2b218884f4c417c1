/** Services to measure, each on a separate database with many users, including those that the load uses. */
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { createClient } from './clients.js'
import { formOf, password, usernameOf, type World } from './operations.js'
import { fill, masterKey } from './population.js'
import { type ServiceProcess, startService } from './processes.js'

/** What scenarios share. */
export interface Bench {
  /** URL of the PostgreSQL in which databases are made. */
  readonly server: string
  /** The parent of folders that scenarios create. */
  readonly folder: string
  /** Seconds of a window beside a flood. */
  readonly seconds: number
  /** Users of the large registry. */
  readonly users?: number
  /** Cost of all hashes, unless a scenario sets another one. */
  readonly cost: number
  /** Another folder with a build of the service, to compare it with this one. */
  readonly against?: string
}

/** The user whose hashes all users share. */
const model = usernameOf(0, 19)

/**
 * Starts a service (`again` starts another one on the same database) with hashes of the cost on a database of active clients,
 * users 1 to `population` (a multiple of 20). The database is new, unless it has a name, under which it is found again.
 * `folder` is where the service was built, if not here.
 */
export async function serviceOn(
  bench: Bench,
  population: number,
  cost: number,
  { folder, name = `users_${randomBytes(6).toString('hex')}`, ...env }: Options = {},
): Promise<{
  service: ServiceProcess
  url: string
  world: World
  again: (more?: Record<string, string>) => Promise<ServiceProcess>
  /** Settings of the service. */
  env: Record<string, string>
}> {
  const url = new URL(bench.server)
  url.pathname = `/${name}`
  const marked = `SELECT FROM pg_database WHERE datname = '${name}' AND shobj_description(oid, 'pg_database') = 'filled'`
  const filled = (await query(bench.server, marked)).length > 0
  if (!filled) await query(bench.server, `CREATE DATABASE ${name}`)
  const all = {
    DATABASE_URL: url.href,
    AUTH_DATA_DIR: bench.folder,
    AUTH_MASTER_KEY: masterKey.toString('base64'),
    AUTH_ADMIN_PASSWORD: password,
    AUTH_BCRYPT_COST: String(cost),
    ...env,
  }
  const again = (more = {}) => startService({ ...all, ...more }, folder)
  const open = async () => {
    const service = await again()
    const client = createClient({ endpoint: 'http', port: service.http, connections: 1 })
    const request = async (path: string, content: object) => {
      const body = Buffer.from(JSON.stringify(content))
      const wire = { method: 'POST', path: `/users/${path}`, contentType: 'application/json', body } as const
      const answer = await client.send({ ...wire, expected: '', refusable: false })
      if (answer.status !== 200) throw new Error(`${path}: ${answer.status} ${answer.body}`)
      return answer.body.toString()
    }
    return { service, client, request }
  }
  if (!filled) {
    const { service, client, request } = await open()
    await request('signup', formOf(model, 'Modelo', { securityquestion: '1', securityanswer: 'Jacareí' }))
    client.close()
    await service.stop()
    await fill(url.href, model, population)
    await query(url.href, `COMMENT ON DATABASE ${name} IS 'filled'`)
  }

  const { service, client, request } = await open()
  const login = async (username: string) => ({ username, token: await request('login', { username, password }) })
  // They hold a token, and are spread evenly over the table.
  const count = cost < 10 ? 200 : 20
  const held = Array.from({ length: count }, (_, index) => Math.floor(((index + 1) * population) / count))
  const holders: World['holders'][number][] = []
  for (const number of held) holders.push(await login(usernameOf(number)))
  const size = Math.min(population, 10_000)
  const numbers = Array.from({ length: size }, (_, index) => 1 + Math.floor((index * population) / size))
  const accounts = numbers.filter(number => !held.includes(number))
  const world = {
    population,
    holders,
    adminToken: (await login('admin')).token,
    accounts,
    addresses: accounts.length,
    network: 10,
    series: 0,
  }
  client.close()
  return { service, url: url.href, world, again, env: all }
}

/** Options of `serviceOn`, and settings of the service. */
type Options = { readonly folder?: string; readonly name?: string } & Record<string, string>

/** Runs a statement, however long it takes. */
export async function query(url: string, text: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  // The service sets statement timeouts.
  await client.query('SET statement_timeout = 0; SET transaction_timeout = 0')
  try {
    return (await client.query(text)).rows
  } finally {
    await client.end()
  }
}
