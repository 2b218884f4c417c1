/** A large registry: what calls and starts cost beside one of 1,000 users. */
import { createClient } from '@connectrpc/connect'
import { createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import type { Prepared, Row, Segment } from './measure.js'
import { type Operation, password, type World } from './operations.js'
import { memory, startLoad } from './processes.js'
import { type Load, portOf, underLoad } from './segments.js'
import { type Bench, serviceOn } from './world.js'

type Registry = Awaited<ReturnType<typeof open>>

/** An operation, with its endpoint, what it changes in the world, and the name of the one at 1,000 users to compare with. */
interface Comparison {
  readonly operation: Operation
  readonly endpoint?: 'grpc' | 'lists'
  readonly world?: (registry: Registry) => Partial<World>
  readonly as?: string
}

const lists = ({ administration }: Registry) => administration
const named = (name: number) => (registry: Registry) => ({ ...lists(registry), name })
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
}

/** Of sign-ups, so that a kept registry gets further names. */
let series = Math.floor(Date.now() / 10_000) % 9_000

const goal = { most: 1.25 }

export async function scale(bench: Bench): Promise<Prepared> {
  const few = await open(bench, 1_000)
  const many = await open(bench, bench.users ?? 10_000_000)
  const load = startLoad()
  const segments: Record<string, Segment> = {}
  const rows: Row[] = []
  /** A segment for each registry, and the ratio of a figure. */
  const compare = (label: string, figure: string, segment: (of: Registry) => Segment, as = label) => {
    segments[`${label}, few`] = segment(few)
    segments[`${label}, many`] = segment(many)
    rows.push({ label, subject: `${label}, many`, baseline: `${as}, few`, figure, goal })
  }
  for (const [label, { as, ...comparison }] of Object.entries(comparisons))
    compare(label, 'time', of => calls(load, of, comparison), as)
  compare('start', 'seconds', starting)
  compare('memory of the service', 'memory', ({ service }) => async () => ({
    figures: { memory: memory(service.pid) },
  }))
  return { segments, rows }
}

/** A registry with a listener for administrators. */
async function open(bench: Bench, population: number) {
  const opened = await serviceOn(bench, population, 4, {
    name: `registry_${population}`,
    AUTH_ADMIN_ADDRESS: '127.0.0.1:0',
    AUTH_LIMIT_FACTOR: '1000',
  })
  const baseUrl = `http://127.0.0.1:${opened.service.admin}`
  const sessionManager = new Http2SessionManager(baseUrl)
  const api = createClient(Administration, createGrpcTransport({ baseUrl, sessionManager }))
  const { token } = await api.signIn({ username: 'admin', password })
  const { nextPageToken } = await api.listUsers({}, { headers: { authorization: `Bearer ${token}` } })
  sessionManager.abort()

  const administration = { adminToken: token, pageToken: nextPageToken }
  return { ...opened, administration }
}

function calls(load: Load, registry: Registry, { operation, endpoint, world }: Comparison): Segment {
  const { service } = registry
  return scale => {
    const protocol = endpoint === 'lists' ? 'grpc' : (endpoint ?? 'http')
    const job = {
      world: { ...registry.world, ...world?.(registry) },
      endpoint: protocol,
      port: endpoint === 'lists' ? service.admin : portOf(service, protocol),
      operation,
      connections: 8,
      seconds: 2,
    } as const
    return underLoad(load, [service], job)(scale)
  }
}

/** A start on the existing database, until it is ready. */
function starting({ again }: Registry): Segment {
  return async () => {
    const begun = performance.now()
    const { stop, http } = await again({ AUTH_ADMIN_ADDRESS: 'off' })
    if ((await fetch(`http://127.0.0.1:${http}/readyz`)).status !== 200) throw new Error('the service isn’t ready')
    const figures = { seconds: (performance.now() - begun) / 1000 }
    await stop()
    return { figures }
  }
}
