/** The scenarios without floods: segments that take turns within a round, and the ratios between them. */
import { front } from './front.js'
import type { Job } from './load.js'
import { logins } from './logins.js'
import type { Prepared, Row, Segment } from './measure.js'
import { openid } from './openid.js'
import type { Endpoint, Operation } from './operations.js'
import { startBaseline, startGateway, startLoad } from './processes.js'
import { scale } from './scale.js'
import { portOf, type Scenarios, underLoad } from './segments.js'
import { type Bench, serviceOn } from './world.js'

export const scenarios: Scenarios = {
  light: { about: 'light operations through each endpoint', prepare: light },
  front: {
    about: 'me, VerifyToken and logins, this build and another (--against) in turn',
    byDefault: false,
    prepare: front,
  },
  gateway: { about: 'me through a gateway in a separate process', prepare: gateway },
  scale: { about: 'a registry of --users (10,000,000) beside one of 1,000', byDefault: false, prepare: scale },
  openid: { about: 'requests of OpenID Connect, one after the other', prepare: openid },
  logins: { about: 'logins, and me beside 64 and 200 of them', prepare: logins },
}

async function light(bench: Bench): Promise<Prepared> {
  const { service, world, url } = await serviceOn(bench, 1000, 4)
  const baselines = { http: await startBaseline('http', { url }), grpc: await startBaseline('grpc', { url }) }
  const load = startLoad()
  const segments: Record<string, Segment> = {}
  const rows: Row[] = []
  /** One load on the service and on its baseline; that of Connect is HTTP. */
  const add = (
    label: string,
    operation: Operation,
    endpoint: Endpoint,
    part: Pick<Job, 'connections' | 'seconds' | 'rate'>,
    figures: readonly Pick<Row, 'figure' | 'goal'>[],
  ) => {
    const job = { world, operation, ...part }
    const kind = endpoint === 'grpc' ? 'grpc' : 'http'
    const baseline = `baseline of ${operation}, ${kind}, ${part.connections} connections, ${part.rate}`
    segments[label] = underLoad(load, [service], { ...job, endpoint, port: portOf(service, endpoint) })
    segments[baseline] ??= underLoad(load, [baselines[kind]], { ...job, endpoint, port: baselines[kind].port })
    for (const figure of figures) rows.push({ label, subject: label, baseline, ...figure })
  }
  const closed = { connections: 16, seconds: 1 }
  const rate = { figure: 'perSecond' }
  const processor = { figure: 'processor' }
  for (const endpoint of ['http', 'grpc'] as const) {
    add(`me over ${endpoint}`, 'me', endpoint, closed, [{ ...rate, goal: { least: 0.85 } }, processor])
  }
  add('me over connect', 'me', 'connect', closed, [rate, processor])
  add('VerifyToken over grpc', 'verify', 'grpc', closed, [rate, processor])
  return { segments, rows }
}

async function gateway(bench: Bench): Promise<Prepared> {
  const { service, world, url } = await serviceOn(bench, 1000, 4, { AUTH_TRUSTED_PROXIES: '127.0.0.1' })
  const front = await startGateway(service.grpc)
  const back = await startBaseline('grpc', { url })
  const hop = await startBaseline('hop', { grpc: back.port })
  const load = startLoad()
  const job = { world, endpoint: 'http', operation: 'me', connections: 16, seconds: 1.5 } as const
  const label = 'me through a gateway process'
  return {
    segments: {
      [label]: underLoad(load, [front, service], { ...job, port: front.http }),
      'plain hop': underLoad(load, [hop, back], { ...job, port: hop.port }),
    },
    rows: [
      { label, subject: label, baseline: 'plain hop', figure: 'perSecond', goal: { least: 0.9 } },
      { label, subject: label, baseline: 'plain hop', figure: 'processor' },
    ],
  }
}
