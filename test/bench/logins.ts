/** Logins, which are mostly hashing: at full speed, beside light calls, and too many. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Prepared, Row, Segment } from './measure.js'
import { startBaseline, startLoad } from './processes.js'
import { bcrypt, type Load, settled, underLoad } from './segments.js'
import { type Bench, serviceOn } from './world.js'

/** Logins of 200 clients at as many addresses, and `me` of others. */
function loginSegments(
  { load, lightLoad }: { load: Load; lightLoad: Load },
  { service, world }: Awaited<ReturnType<typeof serviceOn>>,
  seconds = 4,
) {
  const common = { endpoint: 'http', port: service.http } as const
  const crowd = { ...world, accounts: world.accounts.slice(0, 400), addresses: 200 }
  // Until then 200 logins start while none ends.
  const lead = 1.5
  const storm = (seconds: number) =>
    underLoad(load, [service], { ...common, world: crowd, mix: { login: 1 }, connections: 200, seconds, lead })
  const me = underLoad(lightLoad, [service], {
    ...common,
    world,
    mix: { me: 1 },
    connections: 64,
    rate: 50,
    seconds: 20,
  })
  const meBeside: Segment = async scale => {
    const logins = storm(20)(scale)
    await sleep(lead * 1000 * scale)
    const sample = await me(scale)
    const { figures, errors } = await logins
    return {
      ...sample,
      figures: { ...sample.figures, perSecond: figures.perSecond! },
      errors: { ...sample.errors, ...errors },
    }
  }
  return {
    me,
    storm,
    logins: settled(storm(seconds)),
    meBeside: settled(meBeside),
  }
}

/** Everything about logins at cost 10, and the plain figures at cost 12. */
export async function logins(bench: Bench): Promise<Prepared> {
  const baseline = await startBaseline('bcrypt')
  const loads = { load: startLoad(), lightLoad: startLoad() }
  const ten = await serviceOn(bench, 1000, 10)
  const twelve = await serviceOn(bench, 1000, 12)
  const at10 = loginSegments(loads, ten)
  const at12 = loginSegments(loads, twelve, 7)

  /** Logins a second, as last measured. */
  let capacity = 30
  const measured: Segment = async scale => {
    const sample = await at10.logins(scale)
    capacity = sample.figures.perSecond!
    return sample
  }
  /** Milliseconds that a caller waits. */
  const deadline = 2000
  /** So many times the capacity, from 20 addresses over gRPC. */
  const timesCapacity = (times: number) => ({
    world: { ...ten.world, addresses: 20 },
    endpoint: 'grpc' as const,
    port: ten.service.grpc,
    connections: 100,
    rate: Math.max(1, Math.round(times * capacity)),
    seconds: 6,
  })
  const overload: Segment = scale =>
    underLoad(loads.load, [ten.service], { ...timesCapacity(5), mix: { login: 1 }, deadline })(scale)
  /** The calls of `overload` cost time even when they are refused, and so does their client: `me` instead of the refused ones. */
  const besideCalls: Segment = async scale => {
    const calls = { ...timesCapacity(4), mix: { me: 1 } }
    const logins = at10.storm(calls.seconds - 1.5)(scale)
    const [sample, { errors }] = await Promise.all([logins, underLoad(loads.lightLoad, [ten.service], calls)(scale)])
    return { ...sample, errors: { ...sample.errors, ...errors } }
  }
  const beside = (cost: 10 | 12): Row[] => {
    const row = { subject: `me beside logins ${cost}` }
    const p99 = { ...row, label: `me beside 200 logins, cost ${cost}`, baseline: 'me alone', figure: 'p99' }
    const perSecond = { ...row, label: `logins beside me, cost ${cost}`, baseline: `logins ${cost}` }
    return [
      { ...p99, goal: { most: 2 } },
      { ...perSecond, figure: 'perSecond', goal: { least: 0.95 } },
    ]
  }
  return {
    segments: {
      'me alone': at10.me,
      'bcrypt 10': bcrypt(baseline, 10, 4),
      'logins 10': measured,
      'me beside logins 10': at10.meBeside,
      overload: settled(overload),
      'logins beside calls': settled(besideCalls),
      'bcrypt 12': bcrypt(baseline, 12, 6),
      'logins 12': at12.logins,
      'me beside logins 12': at12.meBeside,
    },
    rows: [
      ...([10, 12] as const).map(
        (cost): Row => ({
          label: `logins, cost ${cost} ÷ bare bcrypt`,
          subject: `logins ${cost}`,
          baseline: `bcrypt ${cost}`,
          figure: 'perSecond',
          goal: { least: cost === 10 ? 0.93 : 0.95 },
        }),
      ),
      ...beside(10),
      ...beside(12),
      {
        label: 'goodput at 5 times the capacity',
        subject: 'overload',
        baseline: 'logins 10',
        figure: 'perSecond',
      },
      {
        label: 'goodput ÷ logins beside as many calls',
        subject: 'overload',
        baseline: 'logins beside calls',
        figure: 'perSecond',
        goal: { least: 0.9 },
      },
      { label: 'refusals then', subject: 'overload', figure: 'refusal p99', goal: { most: deadline } },
      { label: 'logins then past their deadline', subject: 'overload', figure: 'late', goal: { most: 0 } },
    ],
  }
}
