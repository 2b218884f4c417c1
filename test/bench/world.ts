/** Services to measure, each on a separate database with many users, including those that the load uses. */
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { formOf, password, usernameOf, type World } from './operations.js'
import { fill, masterKey } from './population.js'
import { root, type ServiceProcess, startService } from './processes.js'

/** What scenarios share. */
export interface Bench {
  /** URL of the PostgreSQL in which databases are made. */
  readonly server: string
  /** The parent of folders that scenarios create. */
  readonly folder: string
  /** Seconds of a window beside a flood, and of the load of `memory`. */
  readonly seconds: number
  /** Users of the large registry. */
  readonly users: number
  /** Another folder with a build of the service, to compare it with this one. */
  readonly against: string | undefined
}

/** Sends a request, of a form if there is one, and returns the place that it redirects to, and its body. */
export type Send = (path: string, expected: RegExp, init?: RequestInit & { form?: object }) => Promise<string>

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
  { folder = root, name = `users_${randomBytes(6).toString('hex')}`, ...env }: Options = {},
) {
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
  if (!filled) {
    const service = await again()
    const body = JSON.stringify(formOf(model, 'Modelo', { securityquestion: '1', securityanswer: 'Jacareí' }))
    const headers = { 'content-type': 'application/json' }
    await senderTo(service)('/users/signup', /^eyJ/, { method: 'POST', headers, body })
    await service.stop()
    await fill(url.href, model, population)
    await query(url.href, `COMMENT ON DATABASE ${name} IS 'filled'`)
  }

  const service = await again()
  const send = senderTo(service)
  // They hold a token, and are spread evenly over the table.
  const count = cost < 10 ? 200 : 20
  const held = Array.from({ length: count }, (_, index) => Math.floor(((index + 1) * population) / count))
  const holders: World['holders'][number][] = []
  for (const username of held.map(number => usernameOf(number))) {
    holders.push({ username, token: await send('/users/login', /^eyJ/, { form: { username, password } }) })
  }
  const size = Math.min(population, 10_000)
  const numbers = Array.from({ length: size }, (_, index) => 1 + Math.floor((index * population) / size))
  const accounts = numbers.filter(number => !held.includes(number))
  const world: World = { population, holders, accounts, addresses: accounts.length, network: 10, series: 0 }
  return { service, url: url.href, world, send, again, env: all }
}

function senderTo({ http }: ServiceProcess): Send {
  return async (path, expected, { form, ...init } = {}) => {
    const posted = form && { method: 'POST', body: new URLSearchParams({ ...form }) }
    const answer = await fetch(`http://127.0.0.1:${http}${path}`, { redirect: 'manual', ...init, ...posted })
    const content = `${answer.headers.get('location') ?? ''}${await answer.text()}`
    if (!expected.test(content)) throw new Error(`${path}: ${answer.status} ${content}`)
    return content
  }
}

/** Options of `serviceOn`, and settings of the service. */
type Options = { readonly folder?: string; readonly name?: string } & Record<string, string>

/** Runs a statement, however long it takes. */
async function query(url: string, text: string): Promise<Record<string, unknown>[]> {
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
