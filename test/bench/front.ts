/** What a change costs: `me`, VerifyToken and logins in this build and in another one, in turn. */
import type { Prepared, Row, Segment } from './measure.js'
import { startLoad } from './processes.js'
import { portOf, settled, underLoad } from './segments.js'
import { type Bench, serviceOn } from './world.js'

const jobs = {
  'me, 16 connections': { endpoint: 'http', operation: 'me', connections: 16, seconds: 2 },
  'me, 128 connections': { endpoint: 'http', operation: 'me', connections: 128, seconds: 2 },
  'VerifyToken, 16 connections': { endpoint: 'grpc', operation: 'verify', connections: 16, seconds: 2 },
  'logins of 16 clients, cost 10': { endpoint: 'http', operation: 'login', connections: 16, seconds: 4 },
} as const

export async function front(bench: Bench): Promise<Prepared> {
  if (bench.against === undefined) throw new Error('Name another checkout with its dist: --against FOLDER.')
  const segments: Record<string, Segment> = {}
  const rows: Row[] = []
  const load = startLoad()
  const on = [
    { name: 'this build', ...(await serviceOn(bench, 1000, 10)) },
    { name: 'the other build', ...(await serviceOn(bench, 1000, 10, { folder: bench.against })) },
  ]
  for (const [what, job] of Object.entries(jobs)) {
    for (const { name, service, world } of on) {
      const given = { ...job, world: { ...world, addresses: 200 }, port: portOf(service, job.endpoint) }
      segments[`${what}, ${name}`] = settled(underLoad(load, [service], given))
    }
    const [subject, baseline] = on.map(({ name }) => `${what}, ${name}`) as [string, string]
    const row = { label: `${what}, this build ÷ the other`, subject, baseline }
    rows.push({ ...row, figure: 'perSecond' }, { ...row, figure: 'processor' })
  }
  return { segments, rows }
}
