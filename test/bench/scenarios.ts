/** What is measured: segments that take turns within a round, and the ratios between them. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Job, Report } from './load.js'
import type { Door, Operation, World } from './operations.js'
import {
  besideNeighbours,
  memory,
  type Process,
  processorSeconds,
  type ServiceProcess,
  startFloor,
  startGateway,
  startLoad,
  startService,
} from './processes.js'
import { createStarts } from './starts.js'
import { accountsOf, holdersOf, password, usernameOf } from './users.js'

/** What one turn of a segment measured. */
export interface Sample {
  readonly figures: Readonly<Record<string, number>>
  /** ms of every right answer. */
  readonly latencies?: readonly number[]
  /** ms of every refusal. */
  readonly refusals?: readonly number[]
  readonly errors?: Readonly<Record<string, number>>
}

/** Measures for `scale` times its usual length. */
export type Segment = (scale: number) => Promise<Sample>

/** A figure beside its floor, or by itself. */
export interface Row {
  readonly label: string
  readonly subject: string
  /** Segment to divide by; without one the figure stands for itself. */
  readonly floor?: string
  /** Name of a figure, or a percentile of all rounds together: `p99` of latencies, `refusal p99` of refusals. */
  readonly figure: string
  readonly goal?: { readonly least: number } | { readonly most: number }
}

/** A scenario that is ready to run. */
export interface Prepared {
  readonly segments: Readonly<Record<string, Segment>>
  readonly rows: readonly Row[]
  /** One round whatever was asked for. */
  readonly once?: boolean
}

/** What scenarios share. */
export interface Bench {
  /** URL of the database with so many users; made at the first call. */
  database(population: number): Promise<string>
  /** Where scenarios may put folders. */
  readonly folder: string
  readonly masterKey: Buffer
}

/** A scenario by its name for `--scenario`. */
export const scenarios: Record<
  string,
  { about: string; byDefault?: false; prepare: (bench: Bench) => Promise<Prepared> }
> = {
  light: { about: 'light operations through each door, 16 connections', prepare: light },
  connections: { about: 'me with 1, 16 and 128 connections, and at a constant rate', prepare: connections },
  gateway: { about: 'me through a gateway in a process of its own', prepare: gateway },
  users: { about: 'light operations at 1,000 and 1,000,000 users', prepare: users },
  'sign-up': { about: 'sign-ups through each door', prepare: signUp },
  mix: { about: '80% me, 15% refresh, 5% login; memory before and after', prepare: mix },
  logins: { about: 'logins, me beside logins, five times the capacity', prepare: logins },
  start: { about: 'start with an existing and a new data folder', prepare: start },
  'memory-long': { about: 'memory over 10 minutes of the mix', byDefault: false, prepare: memoryLong },
}

const doors: readonly Door[] = ['http', 'connect', 'grpc']

async function light(bench: Bench): Promise<Prepared> {
  const { service, world, url } = await serviceOn(bench, 1000, 4)
  const floors = { http: await startFloor('http', url), grpc: await startFloor('grpc', url) }
  const load = startLoad()
  const segments: Record<string, Segment> = {}
  const rows: Row[] = []
  const add = (operation: Operation, through: readonly Door[]) => {
    for (const door of through) {
      const floor = door === 'grpc' ? floors.grpc : floors.http
      const name = `${operation} ${door}`
      const floorName = `floor of ${operation} ${door === 'grpc' ? 'grpc' : 'http'}`
      const job = { world, mix: { [operation]: 1 }, connections: 16, seconds: 1 }
      segments[name] = segment(load, [service], { ...job, door, port: portOf(service, door) })
      segments[floorName] ??= segment(load, [floor], { ...job, door, port: floor.port })
      const least = operation === 'me' ? { http: 0.6, grpc: 0.85, connect: undefined }[door] : undefined
      const row = { label: `${operation} over ${door}`, subject: name, floor: floorName }
      rows.push({ ...row, figure: 'perSecond', ...(least && { goal: { least } }) })
      rows.push({ ...row, figure: 'processor' })
    }
  }
  for (const operation of ['me', 'refresh', 'look-up', 'exists'] as const) add(operation, doors)
  add('verify', ['grpc'])
  add('questions', ['http'])
  return { segments, rows }
}

async function connections(bench: Bench): Promise<Prepared> {
  const { service, world, url } = await serviceOn(bench, 1000, 4)
  const floor = await startFloor('http', url)
  const load = startLoad()
  const segments: Record<string, Segment> = {}
  const rows: Row[] = []
  const add = (label: string, part: Pick<Job, 'connections' | 'seconds' | 'rate'>, figures: readonly string[]) => {
    const job = { world, door: 'http', mix: { me: 1 }, ...part } as const
    segments[label] = segment(load, [service], { ...job, port: service.http })
    segments[`floor of ${label}`] = segment(load, [floor], { ...job, port: floor.port })
    for (const figure of figures) rows.push({ label, subject: label, floor: `floor of ${label}`, figure })
  }
  for (const count of [1, 16, 128]) {
    add(`me, ${count} connection${count > 1 ? 's' : ''}`, { connections: count, seconds: 1 }, ['perSecond', 'p99'])
  }
  add('me, 500 a second', { connections: 64, seconds: 2, rate: 500 }, ['p50', 'p99'])
  return { segments, rows }
}

async function gateway(bench: Bench): Promise<Prepared> {
  const { service, world, url } = await serviceOn(bench, 1000, 4)
  const front = await startGateway(service.grpc)
  const back = await startFloor('grpc', url)
  const hop = await startFloor('hop', '', String(back.port))
  const load = startLoad()
  const job = { world, door: 'http', mix: { me: 1 }, connections: 16, seconds: 1.5 } as const
  const label = 'me through a gateway process'
  return {
    segments: {
      [label]: segment(load, [front, service], { ...job, port: front.http }),
      'plain hop': segment(load, [hop, back], { ...job, port: hop.port }),
    },
    rows: [
      { label, subject: label, floor: 'plain hop', figure: 'perSecond', goal: { least: 0.9 } },
      { label, subject: label, floor: 'plain hop', figure: 'processor' },
    ],
  }
}

async function users(bench: Bench): Promise<Prepared> {
  const few = await serviceOn(bench, 1000, 4)
  const many = await serviceOn(bench, 1_000_000, 4)
  const load = startLoad()
  const segments: Record<string, Segment> = {}
  const rows: Row[] = []
  for (const operation of ['me', 'refresh', 'look-up', 'exists', 'verify', 'questions'] as const) {
    const door = operation === 'verify' ? 'grpc' : 'http'
    const names = [few, many].map(({ service, world }) => {
      const name = `${operation}, ${world.population} users`
      const job = { world, door, mix: { [operation]: 1 }, connections: 16, seconds: 1 } as const
      segments[name] = segment(load, [service], { ...job, port: portOf(service, door) })
      return name
    }) as [string, string]
    const row = { label: `${operation}, time at 1,000,000 ÷ at 1,000`, subject: names[1], floor: names[0] }
    rows.push({ ...row, figure: 'time', goal: { most: 1.15 } })
  }
  return { segments, rows }
}

async function signUp(bench: Bench): Promise<Prepared> {
  const { service, world } = await serviceOn(bench, 1000, 10)
  const floor = await startFloor('bcrypt')
  const load = startLoad()
  const segments: Record<string, Segment> = { 'bcrypt 10': bcrypt(floor, 10, 2) }
  const rows: Row[] = []
  for (const door of doors) {
    const name = `sign-up ${door}`
    // Each run needs names that nobody has.
    segments[name] = scale => {
      const job = { world: { ...world, series: series++ }, door, port: portOf(service, door), mix: { 'sign-up': 1 } }
      return segment(load, [service], { ...job, connections: 16, seconds: 2 })(scale)
    }
    rows.push({ label: `sign-up over ${door}, cost 10`, subject: name, floor: 'bcrypt 10', figure: 'perSecond' })
  }
  return { segments, rows }
}

let series = 1

async function mix(bench: Bench): Promise<Prepared> {
  const { service, world, url } = await serviceOn(bench, 1000, 10)
  const floor = await startFloor('http', url)
  const load = startLoad()
  const idle = memory(service.pid)
  const job = { world, door: 'http', mix: { me: 16, refresh: 3, login: 1 }, connections: 16, seconds: 3 } as const
  const withMemory =
    (run: Segment, { pid }: Process): Segment =>
    async scale => {
      const sample = await run(scale)
      return { ...sample, figures: { ...sample.figures, memory: memory(pid) } }
    }
  const label = 'mix, cost 10, 16 connections'
  return {
    segments: {
      mix: withMemory(segment(load, [service], { ...job, port: service.http }), service),
      'floor of mix': withMemory(segment(load, [floor], { ...job, port: floor.port }), floor),
      idle: async () => ({ figures: { memory: idle } }),
    },
    rows: [
      { label, subject: 'mix', floor: 'floor of mix', figure: 'perSecond' },
      { label: 'memory idle, MB', subject: 'idle', figure: 'memory' },
      { label: 'memory after the mix, MB', subject: 'mix', figure: 'memory', goal: { most: 180 } },
      { label: 'memory after the mix', subject: 'mix', floor: 'floor of mix', figure: 'memory' },
    ],
  }
}

async function logins(bench: Bench): Promise<Prepared> {
  const floor = await startFloor('bcrypt')
  const [load, lightLoad] = [startLoad(), startLoad()]
  const segments: Record<string, Segment> = {}
  const rows: Row[] = []
  /** Logins a second, as last measured at cost 10. */
  let capacity = 30

  for (const cost of [10, 12] as const) {
    const { service, world } = await serviceOn(bench, 1000, cost)
    const common = { world, door: 'http', port: service.http } as const
    const storm = async (seconds: number, scale: number) => {
      const job = { ...common, mix: { login: 1 }, connections: 200, seconds, lead: 1.5 * scale }
      const { figures, errors } = await segment(load, [service], job)(scale)
      return { figures: { ...figures, logins: figures.perSecond! }, errors: errors! }
    }
    const me = segment(lightLoad, [service], { ...common, mix: { me: 1 }, connections: 64, rate: 50, seconds: 20 })

    if (cost === 10) segments['me alone'] = me
    segments[`bcrypt ${cost}`] = bcrypt(floor, cost, cost === 10 ? 4 : 6)
    segments[`logins ${cost}`] = async scale => {
      const sample = await storm(cost === 10 ? 4 : 7, scale)
      if (cost === 10) capacity = sample.figures.logins
      return settled(sample)
    }
    segments[`me beside logins ${cost}`] = async scale => {
      const logins = storm(20, scale)
      // Only once all of them wait.
      await sleep(1500 * scale)
      const sample = await me(scale)
      const { figures, errors } = await logins
      return settled({
        ...sample,
        figures: { ...sample.figures, logins: figures.logins },
        errors: { ...sample.errors, ...errors },
      })
    }
    if (cost === 10) {
      segments['bcrypt 10 beside neighbours'] = scale => besideNeighbours(() => bcrypt(floor, 10, 5)(scale))
      // The first seconds, in which the threads of low priority starve, are part of it.
      segments['logins 10 beside neighbours'] = async scale =>
        settled(await besideNeighbours(() => storm(8, Math.max(scale, 0.5))))
      segments.overload = async scale => {
        const job = { world, door: 'grpc', port: service.grpc, mix: { login: 1 }, connections: 400 } as const
        const overload = { ...job, rate: Math.round(5 * capacity), seconds: 6, deadline: 2000 }
        return settled(await segment(load, [service], overload)(scale))
      }
    }
    const alone = { subject: `logins ${cost}`, floor: `bcrypt ${cost}` }
    const beside = { subject: `me beside logins ${cost}`, floor: `logins ${cost}` }
    rows.push(
      { ...alone, label: `logins, cost ${cost} ÷ bare bcrypt`, figure: 'perSecond', goal: { least: 0.95 } },
      {
        ...beside,
        label: `me beside 200 logins, cost ${cost}`,
        floor: 'me alone',
        figure: 'p99',
        goal: { most: 1.3 },
      },
      { ...beside, label: `logins beside me, cost ${cost}`, figure: 'logins', goal: { least: 0.95 } },
    )
  }
  const overload = { subject: 'overload' }
  rows.push(
    {
      label: 'logins beside a busy neighbour on each core ÷ bare bcrypt there',
      subject: 'logins 10 beside neighbours',
      floor: 'bcrypt 10 beside neighbours',
      figure: 'perSecond',
    },
    {
      ...overload,
      label: 'goodput at 5 times the capacity',
      floor: 'logins 10',
      figure: 'perSecond',
      goal: { least: 0.9 },
    },
    { ...overload, label: 'refusals then, p99 in ms', figure: 'refusal p99', goal: { most: 50 } },
    { ...overload, label: 'logins then past their deadline', figure: 'late', goal: { most: 0 } },
  )
  return { segments, rows }
}

/** Hashes that nobody waits for any more can't be stopped: the next segment begins when they are through. */
async function settled<T>(sample: T): Promise<T> {
  await sleep(600)
  return sample
}

async function start(bench: Bench): Promise<Prepared> {
  const starts = await createStarts(bench.folder)
  const timed =
    (work: () => Promise<number>): Segment =>
    async () => ({ figures: { seconds: await work() } })
  return {
    segments: {
      'existing folder': timed(starts.existing),
      'existing folder, PostgreSQL and node alone': timed(starts.existingFloor),
      'new folder': timed(starts.fresh),
      'new folder, PostgreSQL and node alone': timed(starts.freshFloor),
    },
    rows: [
      {
        label: 'ready, existing data folder',
        subject: 'existing folder',
        floor: 'existing folder, PostgreSQL and node alone',
        figure: 'seconds',
        goal: { most: 2.5 },
      },
      {
        label: 'ready, new data folder',
        subject: 'new folder',
        floor: 'new folder, PostgreSQL and node alone',
        figure: 'seconds',
      },
    ],
  }
}

async function memoryLong(bench: Bench): Promise<Prepared> {
  const { service, world } = await serviceOn(bench, 1000, 10)
  const load = startLoad()
  const job = {
    world,
    door: 'http',
    port: service.http,
    mix: { me: 16, refresh: 3, login: 1 },
    connections: 64,
  } as const
  return {
    once: true,
    segments: {
      'ten minutes': async scale => {
        const samples: number[] = []
        const timer = setInterval(() => samples.push(memory(service.pid)), 5000 * scale)
        const sample = await segment(load, [service], { ...job, rate: 300, seconds: 600 })(scale)
        clearInterval(timer)
        const third = Math.floor(samples.length / 3)
        const mean = (part: number[]) => part.reduce((sum, each) => sum + each, 0) / part.length
        const level = mean(samples.slice(-third)) / mean(samples.slice(third, 2 * third))
        return { ...sample, figures: { ...sample.figures, memory: Math.max(...samples), level } }
      },
    },
    rows: [
      { label: 'most memory in 10 minutes, MB', subject: 'ten minutes', figure: 'memory', goal: { most: 180 } },
      { label: 'last third ÷ second third', subject: 'ten minutes', figure: 'level', goal: { most: 1.05 } },
      { label: 'p99, ms', subject: 'ten minutes', figure: 'p99' },
    ],
  }
}

function portOf({ http, grpc }: ServiceProcess, door: Door): number {
  return door === 'grpc' ? grpc : http
}

const adminPassword = password

/** A service on a database of so many users, with whom the load is to know there. */
async function serviceOn(bench: Bench, population: number, cost: 4 | 10 | 12) {
  const url = await bench.database(population)
  const service = await startService({
    DATABASE_URL: url,
    AUTH_DATA_DIR: bench.folder,
    AUTH_MASTER_KEY: bench.masterKey.toString('base64'),
    AUTH_ADMIN_PASSWORD: adminPassword,
    AUTH_BCRYPT_COST: String(cost),
  })
  const accounts = accountsOf(population, cost === 12 ? 12 : 10).map(usernameOf)
  return { service, url, world: { ...(await holdersIn(bench, population)), accounts, series: 0 } satisfies World }
}

const known = new Map<number, Promise<Pick<World, 'population' | 'holders' | 'adminToken'>>>()

/** Signs in the administrator and everybody who is to hold a token, once for each database. */
async function holdersIn(bench: Bench, population: number) {
  const existing = known.get(population)
  if (existing) return existing
  const made = (async () => {
    const { http, stop } = await startService({
      DATABASE_URL: await bench.database(population),
      AUTH_DATA_DIR: bench.folder,
      AUTH_MASTER_KEY: bench.masterKey.toString('base64'),
      AUTH_ADMIN_PASSWORD: adminPassword,
      AUTH_BCRYPT_COST: '4',
    })
    const login = async (username: string, address: string) => {
      const body = new URLSearchParams({ username, password })
      const headers = { 'x-forwarded-for': address }
      const answer = await fetch(`http://127.0.0.1:${http}/users/login`, { method: 'POST', body, headers })
      if (!answer.ok) throw new Error(`${username} can’t log in: ${await answer.text()}`)
      return { username, token: await answer.text() }
    }
    const { token: adminToken } = await login('admin', '10.255.0.1')
    const holders: World['holders'][number][] = []
    for (const number of holdersOf(population)) holders.push(await login(usernameOf(number), '10.255.0.2'))
    await stop()
    return { population, holders, adminToken }
  })()
  known.set(population, made)
  return made
}

/** Measures a load on processes. */
function segment(load: { run(job: Job): Promise<Report> }, on: readonly Process[], job: Job): Segment {
  const pids = on.map(({ pid }) => pid)
  return async scale => {
    const before = processorSeconds(pids)
    const from = performance.now()
    const report = await load.run({ ...job, seconds: job.seconds * scale })
    const used = processorSeconds(pids) - before
    const { perSecond, count, late, latencies, refusals, errors } = report
    const figures = {
      perSecond,
      count,
      late,
      refused: refusals.length,
      time: 1e6 / perSecond,
      processor: (used * 1e6) / latencies.length,
      busy: (used * 1000) / (performance.now() - from),
    }
    return { figures, latencies, refusals, errors }
  }
}

function bcrypt(floor: { ask(message: object): Promise<unknown> }, cost: number, seconds: number): Segment {
  return async scale => ({
    figures: (await floor.ask({ cost, seconds: seconds * scale })) as { perSecond: number },
  })
}
