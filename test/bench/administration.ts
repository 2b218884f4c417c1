/** The cost of lists of users for administrators, with few and many users. */
import { createClient } from '@connectrpc/connect'
import { createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { freePort } from '../_helpers/relay.js'
import type { Prepared, Row, Segment } from './measure.js'
import { password } from './operations.js'
import { startLoad } from './processes.js'
import { underLoad } from './segments.js'
import { type Bench, serviceOn } from './world.js'

/** The operations, and how much longer they may take among 1,000,000 users. */
const lists = [
  { operation: 'user list', goal: { most: 2 } },
  { operation: 'second page', goal: { most: 2 } },
  { operation: 'text search', goal: { most: 2 } },
  { operation: 'common word', goal: { most: 2 } },
] as const

/** Lists and searches through Administration over gRPC, at 1,000 and at 1,000,000 users. */
export async function administration(bench: Bench): Promise<Prepared> {
  const both = [await listsOf(bench, 1000), await listsOf(bench, 1_000_000)]
  const load = startLoad()
  const segments: Record<string, Segment> = {}
  const rows: Row[] = []
  for (const { operation, goal } of lists) {
    const [baseline, subject] = both.map(({ service, world, port }) => {
      const name = `${operation}, ${world.population} users`
      const job = { world, endpoint: 'grpc', mix: { [operation]: 1 }, connections: 4, seconds: 2 } as const
      segments[name] = underLoad(load, [service], { ...job, port })
      return name
    }) as [string, string]
    const label = `${operation}, time at 1,000,000 ÷ at 1,000`
    rows.push({ label, subject, baseline, figure: 'time', goal })
  }
  return { segments, rows }
}

async function listsOf(bench: Bench, population: number) {
  const port = await freePort()
  const { service, world } = await serviceOn(bench, population, 4, { AUTH_ADMIN_ADDRESS: `127.0.0.1:${port}` })
  const baseUrl = `http://127.0.0.1:${port}`
  const sessionManager = new Http2SessionManager(baseUrl)
  const open = createClient(Administration, createGrpcTransport({ baseUrl, sessionManager }))
  const { token } = await open.signIn({ username: 'admin', password })
  const { nextPageToken } = await open.listUsers({}, { headers: { authorization: `Bearer ${token}` } })
  sessionManager.abort()
  return { service, port, world: { ...world, adminToken: token, pageToken: nextPageToken } }
}
