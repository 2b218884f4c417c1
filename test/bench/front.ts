/** What a change costs: `me`, VerifyToken and logins in this build and in another one, in turn. */
import type { Prepared, Row, Segment } from './measure.js'
import { root, startBaseline, startLoad } from './processes.js'
import { portOf, settled, underLoad } from './segments.js'
import { type Bench, serviceOn } from './world.js'

const jobs = {
  'me, 16 connections': { endpoint: 'http', mix: { me: 1 }, connections: 16, seconds: 2 },
  'me, 128 connections': { endpoint: 'http', mix: { me: 1 }, connections: 128, seconds: 2 },
  'VerifyToken, 16 connections': { endpoint: 'grpc', mix: { verify: 1 }, connections: 16, seconds: 2 },
  'logins of 16 clients, cost 10': { endpoint: 'http', mix: { login: 1 }, connections: 16, seconds: 4 },
} as const

export async function front(bench: Bench): Promise<Prepared> {
  const builds = { 'this build': root, ...(bench.against !== undefined && { 'the other build': bench.against }) }
  const segments: Record<string, Segment> = {}
  const rows: Row[] = []
  const load = startLoad()
  const on = await Promise.all(
    Object.entries(builds).map(async ([name, folder]) => ({ name, ...(await serviceOn(bench, 1000, 10, { folder })) })),
  )
  const baseline = await startBaseline('http', { url: on[0]!.url })
  for (const [what, job] of Object.entries(jobs)) {
    for (const { name, service, world } of on) {
      const given = { ...job, world: { ...world, addresses: 200 }, port: portOf(service, job.endpoint) }
      segments[`${what}, ${name}`] = settled(underLoad(load, [service], given))
    }
    const [subject, other] = on.map(({ name }) => `${what}, ${name}`) as [string, string?]
    const row = other
      ? { label: `${what}, this build ÷ the other`, subject, baseline: other }
      : { label: what, subject, baseline: 'node:http' }
    rows.push({ ...row, figure: 'perSecond' }, { ...row, figure: 'processor' })
  }
  const plain = { ...jobs['me, 16 connections'], world: on[0]!.world, port: baseline.port }
  segments['node:http'] = underLoad(load, [baseline], plain)
  return { segments, rows }
}
