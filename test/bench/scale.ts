/** A large registry: what calls and starts cost beside one of 1,000 users. */
import { createClient } from '@connectrpc/connect'
import { createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import type { Prepared, Row, Segment } from './measure.js'
import { appLine } from './openid.js'
import { type Operation, password } from './operations.js'
import { memory, startLoad } from './processes.js'
import { underLoad } from './segments.js'
import { type Bench, serviceOn } from './world.js'

type Registry = Awaited<ReturnType<typeof open>>

/** The lists of Administration: the operation, the number of a name, and the list of the small registry to compare with. */
const lists: Readonly<Record<string, { operation: Operation; name?: number; as?: string }>> = {
  'users of the last day': { operation: 'recent users' },
  'search for a user': { operation: 'search' },
  'search for a name of 1/2': { operation: 'name search', name: 0 },
  'search for a name of 1/16': { operation: 'name search', name: 3 },
  // Too few have it in the small registry.
  'search for a name of 1/256': { operation: 'name search', name: 7, as: 'search for a name of 1/16' },
}

export async function scale(bench: Bench): Promise<Prepared> {
  const few = await open(bench, 1_000)
  const many = await open(bench, bench.users)
  const load = startLoad()
  const segments: Record<string, Segment> = {}
  const rows: Row[] = []
  /** A segment for each registry, and the ratio of a figure. */
  const compare = (label: string, figure: string, segment: (of: Registry) => Segment, as = label) => {
    segments[`${label}, few`] = segment(few)
    segments[`${label}, many`] = segment(many)
    rows.push({ label, subject: `${label}, many`, baseline: `${as}, few`, figure, goal: { most: 1.25 } })
  }
  const calls = { connections: 8, seconds: 2 }
  compare('login', 'time', ({ service, world }) => {
    return underLoad(load, [service], { ...calls, world, operation: 'login', endpoint: 'http', port: service.http })
  })
  compare('refresh token of an app', 'time', refreshing)
  for (const [label, { operation, name, as }] of Object.entries(lists)) {
    const segment = ({ service, world, adminToken }: Registry) => {
      const named = { ...world, adminToken, ...(name !== undefined && { name }) }
      return underLoad(load, [service], { ...calls, world: named, operation, endpoint: 'grpc', port: service.admin })
    }
    compare(label, 'time', segment, as)
  }
  compare('start', 'seconds', starting)
  compare('memory of the service', 'memory', ({ service }) => async () => ({
    figures: { memory: memory(service.pid) },
  }))
  return { segments, rows }
}

/** A registry with a listener for administrators, and a line of refresh tokens for each holder. */
async function open(bench: Bench, population: number) {
  const opened = await serviceOn(bench, population, 4, {
    name: `registry_${population}`,
    AUTH_ADMIN_ADDRESS: '127.0.0.1:0',
    AUTH_LIMIT_FACTOR: '1000',
  })
  const baseUrl = `http://127.0.0.1:${opened.service.admin}`
  const sessionManager = new Http2SessionManager(baseUrl)
  const api = createClient(Administration, createGrpcTransport({ baseUrl, sessionManager }))
  const { token: adminToken } = await api.signIn({ username: 'admin', password })
  sessionManager.abort()
  const refreshes: (() => Promise<void>)[] = []
  for (const { username } of opened.world.holders) refreshes.push(await appLine(opened.send, username))
  return { ...opened, adminToken, refreshes }
}

/** Exchanges the refresh tokens of lines all over the table, one after the other. */
function refreshing({ refreshes }: Registry): Segment {
  return async scale => {
    const times = Math.ceil(600 * scale)
    const begun = performance.now()
    for (let n = 0; n < times; n++) await refreshes[n % refreshes.length]!()
    return { figures: { time: ((performance.now() - begun) * 1000) / times } }
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
