/** The scenarios by name: segments that take turns within a round, and the ratios between them. */
import { setTimeout as sleep } from 'node:timers/promises'
import { front } from './front.js'
import { logins } from './logins.js'
import type { Prepared, Row, Segment } from './measure.js'
import { openid } from './openid.js'
import type { Endpoint, Operation } from './operations.js'
import { memory, mostMemory, startBaseline, startGateway, startLoad } from './processes.js'
import { scale } from './scale.js'
import { portOf, underLoad } from './segments.js'
import { type Bench, serviceOn } from './world.js'

/** Scenarios by their names for `--scenario`. */
export type Scenarios = Record<string, { about: string; prepare: (bench: Bench) => Promise<Prepared> }>

export const scenarios: Scenarios = {
  light: { about: 'light operations through each endpoint', prepare: light },
  gateway: { about: 'me through a gateway in a separate process', prepare: gateway },
  openid: { about: 'requests of OpenID Connect, one after the other', prepare: openid },
  logins: { about: 'logins, and me beside 64 and 200 of them', prepare: logins },
  front: { about: 'me, VerifyToken and logins, this build and another (--against) in turn', prepare: front },
  scale: { about: 'a registry of --users beside one of 1,000', prepare: scale },
  memory: { about: 'memory during --seconds of 240 me and 10 logins a second', prepare: memoryUnderLoad },
}

/** What runs if nothing is named. */
export const usual = ['light', 'gateway', 'openid', 'logins'] as const

async function light(bench: Bench): Promise<Prepared> {
  const { service, world, url } = await serviceOn(bench, 1000, 4)
  const baselines = { http: await startBaseline('http', url), grpc: await startBaseline('grpc', url) }
  const load = startLoad()
  const segments: Record<string, Segment> = {}
  const rows: Row[] = []
  /** A closed loop on the service and on its baseline; that of Connect is HTTP. */
  const add = (label: string, operation: Operation, endpoint: Endpoint, goal?: Row['goal']) => {
    const job = { world, operation, endpoint, connections: 16, seconds: 1 }
    const kind = endpoint === 'grpc' ? 'grpc' : 'http'
    const baseline = `baseline of ${operation}, ${kind}`
    segments[label] = underLoad(load, [service], { ...job, port: portOf(service, endpoint) })
    segments[baseline] ??= underLoad(load, [baselines[kind]], { ...job, port: baselines[kind].port })
    const row = { label, subject: label, baseline }
    rows.push({ ...row, figure: 'perSecond', ...(goal && { goal }) }, { ...row, figure: 'processor' })
  }
  for (const endpoint of ['http', 'grpc'] as const) add(`me over ${endpoint}`, 'me', endpoint, { least: 0.85 })
  add('me over connect', 'me', 'connect')
  add('VerifyToken over grpc', 'verify', 'grpc')
  return { segments, rows }
}

async function gateway(bench: Bench): Promise<Prepared> {
  const { service, world, url } = await serviceOn(bench, 1000, 4, { AUTH_TRUSTED_PROXIES: '127.0.0.1' })
  const front = await startGateway(service.grpc)
  const back = await startBaseline('grpc', url)
  const hop = await startBaseline('hop', back.port)
  const load = startLoad()
  const job = { world, endpoint: 'http', operation: 'me', connections: 16, seconds: 1.5 } as const
  const row = { label: 'me through a gateway process', subject: 'gateway', baseline: 'plain hop' }
  return {
    segments: {
      gateway: underLoad(load, [front, service], { ...job, port: front.http }),
      'plain hop': underLoad(load, [hop, back], { ...job, port: hop.port }),
    },
    rows: [
      { ...row, figure: 'perSecond', goal: { least: 0.9 } },
      { ...row, figure: 'processor' },
    ],
  }
}

async function memoryUnderLoad(bench: Bench): Promise<Prepared> {
  const { service, world, again } = await serviceOn(bench, 1000, 10, { AUTH_TOKEN_TTL: '2h' })
  const loads = [startLoad(), startLoad()] as const
  const busy: Segment = async scale => {
    const seconds = bench.seconds * scale
    const job = { world, endpoint: 'http', port: service.http, connections: 16, seconds } as const
    const [{ errors = {} }, logins, most] = await Promise.all([
      underLoad(loads[0], [service], { ...job, operation: 'me', rate: 240 })(1),
      underLoad(loads[1], [service], { ...job, operation: 'login', rate: 10 })(1),
      mostMemory(service, seconds),
    ])
    return { figures: { memory: most }, errors: { ...errors, ...logins.errors } }
  }
  const idle: Segment = async () => {
    const { pid, stop } = await again()
    await sleep(5000)
    const figures = { memory: memory(pid) }
    await stop()
    return { figures }
  }
  const rows = ['idle', 'under load, at most'].map(label => ({ label, subject: label, figure: 'memory' }))
  return { rounds: 1, segments: { idle, 'under load, at most': busy }, rows }
}
