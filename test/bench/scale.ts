/** A large registry: what calls, imports and starts cost beside one of 1,000 users, and what its upkeep takes. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createClient } from '@connectrpc/connect'
import { createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node'
import { generateIdentity, identityToRecipient } from 'age-encryption'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { openRegistry } from '../../server/models/define-models.js'
import { createLog } from '../../server/observability/log.js'
import { readSettings } from '../../server/process/settings.js'
import { freePort } from '../_helpers/relay.js'
import { serviceKey } from '../_helpers/service-key.js'
import { nextVersion } from '../_helpers/versions.js'
import { createClient as createRawClient } from './clients.js'
import type { Prepared, Row, Sample, Segment } from './measure.js'
import { formOf, type Operation, password, usernameOf, type World } from './operations.js'
import { organizationKey } from './population.js'
import { memory, processorSeconds, runAdmin, startLoad } from './processes.js'
import { type Load, portOf, underLoad } from './segments.js'
import { type Bench, query, serviceOn } from './world.js'

type Registry = Awaited<ReturnType<typeof open>>

/** An operation, with its endpoint, what it changes in the world, and the name of the one at 1,000 users to compare with. */
interface Comparison {
  readonly operation: Operation
  readonly endpoint?: 'grpc' | 'connect' | 'lists'
  readonly world?: (registry: Registry) => Partial<World>
  readonly as?: string
}

const lists = ({ administration }: Registry) => administration
const named = (name: number) => (registry: Registry) => ({ ...lists(registry), name })
const within = (organization: 'greatest' | 'usual', name: number) => (registry: Registry) => ({
  institution: registry.institutions[organization],
  name,
})

const comparisons: Readonly<Record<string, Comparison>> = {
  login: { operation: 'login' },
  me: { operation: 'me' },
  VerifyToken: { operation: 'verify', endpoint: 'grpc' },
  'look-up': { operation: 'look-up' },
  'sign-up': { operation: 'sign-up', world: () => ({ series: series++ }) },
  'list of users': { operation: 'user list', endpoint: 'lists', world: lists },
  'second page': { operation: 'second page', endpoint: 'lists', world: lists },
  'users of the last day': { operation: 'recent users', endpoint: 'lists', world: lists },
  'search for a user': { operation: 'search', endpoint: 'lists', world: lists },
  'search for a name of 1/2': { operation: 'name search', endpoint: 'lists', world: named(0) },
  'search for a name of 1/16': { operation: 'name search', endpoint: 'lists', world: named(3) },
  // Too few have it in the small registry.
  'search for a name of 1/256': {
    operation: 'name search',
    endpoint: 'lists',
    world: named(7),
    as: 'search for a name of 1/16',
  },
  members: { operation: 'members', world: within('usual', 0) },
  'members by a name': { operation: 'member search', world: within('usual', 2) },
  'members of a tenth': { operation: 'members', world: within('greatest', 0) },
  'members of a tenth by a name': { operation: 'member search', world: within('greatest', 1) },
  'changes, a page': { operation: 'changes', endpoint: 'connect', world: ({ feed }) => ({ feed }) },
  'changes, from now': { operation: 'snapshot', endpoint: 'connect', world: ({ feed }) => ({ feed }) },
}

/** Of sign-ups and imports, so that a kept registry gets further names. */
let series = Math.floor(Date.now() / 10_000) % 9_000

const goal = { most: 1.25 }

const greatest = ({ users = 10_000_000 }: Bench) => users

export async function scale(bench: Bench): Promise<Prepared> {
  const few = await open(bench, 1_000)
  const many = await open(bench, greatest(bench))
  const load = startLoad()
  const segments: Record<string, Segment> = {}
  const rows: Row[] = []
  /** A segment for each registry, and the ratios of these figures. */
  const compare = (label: string, figures: readonly string[], segment: (of: Registry) => Segment, as = label) => {
    segments[`${label}, few`] = segment(few)
    segments[`${label}, many`] = segment(many)
    for (const [index, figure] of figures.entries()) {
      const row = { label, subject: `${label}, many`, baseline: `${as}, few`, figure }
      rows.push(index === 0 ? { ...row, goal } : row)
    }
  }
  for (const [label, { as, ...comparison }] of Object.entries(comparisons))
    compare(label, ['time', 'processor', 'sessions'], of => calls(load, of, comparison), as)
  compare('import of 10,000 users', ['seconds', 'busy', 'memory'], of => importing(bench, of))
  compare('start', ['seconds', 'busy'], starting)
  compare('memory of the service', ['memory'], ({ service }) => async () => ({
    figures: { memory: memory(service.pid) },
  }))
  return { segments, rows }
}

/** A registry with a listener for administrators, two institutions, and a service that reads the feed. */
async function open(bench: Bench, population: number) {
  const port = await freePort()
  const opened = await serviceOn(bench, population, 4, {
    name: `registry_${population}`,
    AUTH_ADMIN_ADDRESS: `127.0.0.1:${port}`,
    AUTH_LIMIT_FACTOR: '1000',
  })
  const baseUrl = `http://127.0.0.1:${port}`
  const sessionManager = new Http2SessionManager(baseUrl)
  const api = createClient(Administration, createGrpcTransport({ baseUrl, sessionManager }))
  const { token } = await api.signIn({ username: 'admin', password })
  const { nextPageToken } = await api.listUsers({}, { headers: { authorization: `Bearer ${token}` } })
  sessionManager.abort()

  const unique = Date.now().toString(36)
  const registry = await openRegistry(readSettings(opened.env), { log: createLog('silent'), connections: 1 })
  await registry.masterKey.load()
  const key = await serviceKey({ registry }, ['tokens.watch', 'users.watch'], `bench-${unique}`)
  // The first event that was made with the population.
  const { id, hash } = (
    await query(
      opened.url,
      `SELECT id, encode(hash, 'hex') AS hash FROM audit_events
        WHERE at < now() - interval '200 days' ORDER BY id LIMIT 1`,
    )
  )[0]!
  await registry.close()

  const client = createRawClient({ endpoint: 'http', port: opened.service.http, connections: 1 })
  const post = async (path: string, content: object, token?: string) => {
    const body = Buffer.from(JSON.stringify(content))
    const wire = { method: 'POST', path: `/users/${path}`, contentType: 'application/json', body } as const
    const answer = await client.send({ ...wire, ...(token && { token }), expected: '', refusable: false })
    if (answer.status !== 200) throw new Error(`${path}: ${answer.status} ${answer.body}`)
    return answer.body.toString()
  }
  const institutionOf = async (organization: number) => {
    const username = `instituicao ${unique} ${organization}`
    const token = await post('signup', formOf(username, username, { roles: ['ROLE_INSTITUTION'] }))
    await post('activate', { username, activationkey: organizationKey(organization) }, token)
    return post('login', { username, password })
  }
  // Imports are into the second one.
  const institutions = { greatest: await institutionOf(1), usual: await institutionOf(3) }
  client.close()
  const administration = { adminToken: token, pageToken: nextPageToken }
  return { ...opened, port, administration, institutions, feed: { key, cursor: `${id}:${hash}` } }
}

/** Calls, with the processor time of PostgreSQL for each. */
function calls(load: Load, registry: Registry, { operation, endpoint, world }: Comparison): Segment {
  const { service, url, port } = registry
  return scale => {
    const protocol = endpoint === 'lists' ? 'grpc' : (endpoint ?? 'http')
    const job = {
      world: { ...registry.world, ...world?.(registry) },
      endpoint: protocol,
      port: endpoint === 'lists' ? port : portOf(service, protocol),
      mix: { [operation]: 1 },
      connections: 8,
      seconds: 2,
    } as const
    return underLoad(load, [service], job, url)(scale)
  }
}

/** An import of a file by the command. */
function importing({ folder }: Bench, { env }: Registry): Segment {
  return async () => {
    const first = series++ * 10_000
    const lines = Array.from({ length: 10_000 }, (_, index) => {
      const number = first + index
      const cells = [usernameOf(number, 31), `Importada ${number}`, `importada${number}@example.org`]
      return `${cells.join(',')},SP,Bauru,true,ROLE_CLIENT,true,2`
    })
    const file = join(folder, 'import.csv')
    const header = 'username,nickname,email,state,city,termsofusage,role,active,organization_id'
    await writeFile(file, [header, ...lines, ''].join('\n'))
    const { figures, stdout } = await runAdmin(['users', 'import', file, '--json'], env)
    if (JSON.parse(stdout).created !== lines.length) throw new Error(`rows are missing: ${stdout}`)
    return { figures }
  }
}

/** A start on the existing database, until it is ready. */
function starting({ again }: Registry): Segment {
  return async () => {
    const begun = performance.now()
    const { stop, http, pid } = await again({ AUTH_ADMIN_ADDRESS: 'off' })
    if ((await fetch(`http://127.0.0.1:${http}/readyz`)).status !== 200) throw new Error('the service isn’t ready')
    const figures = { seconds: (performance.now() - begun) / 1000, busy: processorSeconds([pid]) }
    await stop()
    return { figures }
  }
}

/** What an operator does with the large registry, beside clients who log in. */
export async function upkeep(bench: Bench): Promise<Prepared> {
  const { folder, server } = bench
  const { service, world, env, url } = await open(bench, greatest(bench))
  const load = startLoad()
  const segments: Record<string, Segment> = {}
  const rows: Row[] = []
  const logins = async (seconds: number) => {
    const job = { world, endpoint: 'http', port: service.http, mix: { login: 1 }, connections: 4, seconds } as const
    return load.ask(job)
  }
  /** Logins in windows of 2 s until some work ends. */
  const beside = async (work: () => ReturnType<typeof runAdmin>): Promise<Sample> => {
    let over = false
    const run = work().finally(() => {
      over = true
    })
    const windows: number[] = []
    const failed: Record<string, number> = {}
    do {
      const { perSecond, lost, errors } = await logins(2)
      windows.push(perSecond)
      for (const [what, count] of Object.entries({ ...lost, ...errors })) failed[what] = (failed[what] ?? 0) + count
    } while (!over)
    const { figures } = await run
    const perSecond = windows.reduce((sum, each) => sum + each) / windows.length
    const note = `${windows.length} windows; ${JSON.stringify(failed)}`
    return { figures: { ...figures, perSecond, least: Math.min(...windows) }, note }
  }
  const add = (label: string, work: () => ReturnType<typeof runAdmin>) => {
    segments[label] = () => beside(work)
    for (const figure of ['seconds', 'busy', 'memory']) rows.push({ label, subject: label, figure })
    rows.push({ label: `logins beside ${label} ÷ without`, subject: label, baseline: 'logins', figure: 'perSecond' })
    rows.push({ label: 'in the worst 2 s', subject: label, figure: 'least' })
  }
  segments.logins = async () => ({ figures: { perSecond: (await logins(10)).perSecond } })
  const file = join(folder, 'registry.age')
  // A passphrase would take 256 MB.
  const identity = await generateIdentity()
  const identityFile = join(folder, 'backup.key')
  await writeFile(identityFile, identity, { mode: 0o600 })
  const recipient = await identityToRecipient(identity)
  add('backup', () => runAdmin(['backup', file, '--recipient', recipient, '--json'], env))
  add('restore', async () => {
    const target = new URL(url)
    target.pathname = '/restored'
    await query(server, 'CREATE DATABASE restored')
    const args = ['restore', file, '--identity', identityFile, '--json']
    return runAdmin(args, { ...env, DATABASE_URL: target.href }).finally(() => query(server, 'DROP DATABASE restored'))
  })
  add('audit verify', () => runAdmin(['audit', 'verify', '--json'], env))
  const column = 'ALTER TABLE users ADD COLUMN next text;\n'
  const index = 'CREATE INDEX users_next ON users (state, id);\n'
  const migrations = { 'of a column': column, 'of an index': index, 'of both': column + index }
  for (const [what, text] of Object.entries(migrations)) {
    add(`a migration ${what}`, async () => {
      const ends: (() => unknown)[] = []
      const version = await nextVersion({ teardown: end => void ends.push(end) }, `-- expand\n${text}`)
      try {
        return await runAdmin(['migrate', 'up', '--json'], env, version)
      } finally {
        await query(url, `ALTER TABLE users DROP COLUMN IF EXISTS next; DROP INDEX IF EXISTS users_next`)
        await query(url, `DELETE FROM migrations WHERE name LIKE '9999-%'`)
        for (const end of ends) await end()
      }
    })
  }
  return { segments, rows, rounds: 1 }
}
