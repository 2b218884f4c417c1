/** The cost of the gateway for `me` over HTTP, in this build and in another one, in turn. */
import type { Prepared, Row, Segment } from './measure.js'
import { root, startBaseline, startLoad } from './processes.js'
import { underLoad } from './segments.js'
import { type Bench, serviceOn } from './world.js'

/** `me` from one address, while no user logs in. */
export async function front(bench: Bench): Promise<Prepared> {
  const builds = { 'this build': root, ...(bench.against !== undefined && { 'the other build': bench.against }) }
  const segments: Record<string, Segment> = {}
  const rows: Row[] = []
  const load = startLoad()
  const on = await Promise.all(
    Object.entries(builds).map(async ([name, folder]) => ({ name, ...(await serviceOn(bench, 1000, 4, { folder })) })),
  )
  const baseline = await startBaseline('http', { url: on[0]!.url })
  for (const connections of [1, 16, 128]) {
    const job = { endpoint: 'http', mix: { me: 1 }, connections, seconds: 2 } as const
    const plain = `baseline, ${connections} connections`
    segments[plain] = underLoad(load, [baseline], { ...job, world: on[0]!.world, port: baseline.port })
    for (const { name, service, world } of on) {
      const label = `me, ${connections} connections, ${name}`
      segments[label] = underLoad(load, [service], { ...job, world, port: service.http })
      rows.push({ label: `${label} ÷ baseline`, subject: label, baseline: plain, figure: 'perSecond' })
      rows.push({ label: `${label} ÷ baseline`, subject: label, baseline: plain, figure: 'processor' })
    }
    const [one, other] = on.map(({ name }) => `me, ${connections} connections, ${name}`)
    if (other) {
      const row = { label: `me, ${connections} connections, this build ÷ the other`, subject: one!, baseline: other }
      rows.push({ ...row, figure: 'perSecond' }, { ...row, figure: 'processor' })
    }
  }
  return { segments, rows }
}
