/**
 * A day of a registry in two hours: two processes of the service on one database, behind a load balancer that asks /readyz,
 * with half of the machine's capacity in logins, sign-ups, recovery, light calls and watchers of the feed, and meanwhile
 * what operators do.
 */
import { appendFileSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { create, fromBinary, toBinary } from '@bufbuild/protobuf'
import { durationFromMs } from '@bufbuild/protobuf/wkt'
import { generateX25519Identity, identityToRecipient } from 'age-encryption'
import PostalMime from 'postal-mime'
import { SMTPServer } from 'smtp-server'
import { ChangeKind, PollRequestSchema, PollResponseSchema } from '../../proto/gen/auth/v1/changes_pb.js'
import { freePort } from '../_helpers/relay.js'
import { type Client, createClient, head, judge } from './clients.js'
import { observeGrowth, short, warningsIn } from './growth.js'
import { type Prepared, percentile } from './measure.js'
import * as requests from './operations.js'
import { runAdmin, type ServiceProcess, startBaseline } from './processes.js'
import type { Scenarios } from './segments.js'
import { type Bench, serviceOn } from './world.js'

export const day: Scenarios = {
  day: { about: 'a day in two hours: what grows without end', byDefault: false, prepare },
}

/**
 * Calls a second for each hash a second that the machine can do. A newcomer, who signs up and logs in, and one who answers
 * questions take two hashes.
 */
const shares = {
  login: 0.18,
  'mistyped login': 0.02,
  newcomer: 0.03,
  recovery: 0.015,
  answers: 0.015,
  me: 1.5,
  refresh: 0.1,
  'look-up': 0.2,
  verify: 0.75,
}
const watchers = 200

/** A process of the service and the connections to it. */
interface Slot {
  readonly name: string
  readonly log: string
  readonly service: ServiceProcess
  readonly http: Client
  readonly grpc: Client
  ready: boolean
  stopping: boolean
}

async function prepare(bench: Bench): Promise<Prepared> {
  const measured = async () => (await startBaseline('bcrypt')).ask({ cost: bench.cost, seconds: 10 })
  const capacity = bench.capacity || (await measured()).perSecond
  return {
    rounds: 1,
    segments: { day: scale => run(bench, capacity, bench.minutes * 60 * scale) },
    rows: [
      { label: 'answers', subject: 'day', figure: 'answers' },
      { label: 'failed requests', subject: 'day', figure: 'failed', goal: { most: 0 } },
      { label: 'figures that grow without end', subject: 'day', figure: 'growing', goal: { most: 0 } },
    ],
  }
}

async function run(bench: Bench, capacity: number, seconds: number) {
  const mailbox = await openMailbox()
  const admin = `127.0.0.1:${await freePort()}`
  const launches = { a: { AUTH_ADMIN_ADDRESS: admin }, b: { AUTH_ADMIN_ADDRESS: 'off' } }
  const logOf = (name: 'a' | 'b') => join(bench.folder, `${name}.log`)
  const slotOf = (name: 'a' | 'b', service: ServiceProcess): Slot => ({
    name,
    log: logOf(name),
    service,
    http: createClient({ endpoint: 'http', port: service.http, connections: 64 }),
    grpc: createClient({ endpoint: 'grpc', port: service.grpc, connections: 400, timeout: 20_000 }),
    ready: true,
    stopping: false,
  })
  const settings = { SMTP_URL: mailbox.url, AUTH_TRUSTED_PROXIES: '127.0.0.0/8', AUTH_DRAIN: '5s', ...launches.a }
  const first = await serviceOn(bench, 12_000, bench.cost, { ...settings, BENCH_LOG: logOf('a') })
  const start = async (name: 'a' | 'b') =>
    slotOf(name, await first.again({ ...launches[name], BENCH_LOG: logOf(name) }))
  const slots = [slotOf('a', first.service), await start('b')]
  const growth = await observeGrowth(first.url)
  const { holders, accounts, ...others } = first.world
  const world = { ...others, holders: [...holders], accounts: accounts.slice(0, 5_000), series: 1 }
  const forgetful = { ...world, accounts: accounts.slice(5_000) }

  const env = { ...first.env, XDG_CONFIG_HOME: join(bench.folder, 'config') }
  const cli = async (args: readonly string[]) => (await runAdmin([...args, '--json'], env)).stdout
  const passwordFile = join(bench.folder, 'password')
  writeFileSync(passwordFile, requests.password, { mode: 0o600 })
  async function administer(...args: string[]): Promise<string> {
    await cli(['login', `http://${admin}`, '--username', 'admin', '--password-file', passwordFile])
    return cli(args)
  }

  const scopes = 'tokens.watch,users.watch'
  const { key } = JSON.parse(await administer('services', 'create', 'watcher', '--may', scopes))

  const begun = performance.now()
  const end = begun + seconds * 1000
  const isOver = () => performance.now() >= end
  const faults: Record<string, number> = {}
  const answers: Record<string, number> = {}
  const times: Record<string, number[]> = { me: [], login: [] }
  const sum = (counts: Record<string, number>) => Object.values(counts).reduce((all, number) => all + number, 0)
  const say = (text: string) => console.log(`${new Date().toISOString().slice(11, 19)} ${text}`)
  let [turn, inFlight, changes] = [0, 0, 0]
  function fault(what: string): undefined {
    faults[what] = (faults[what] ?? 0) + 1
    if (faults[what] <= 3) say(`FAULT ${what}`)
  }

  function slot(): Slot {
    const ready = slots.filter(each => each.ready)
    const these = ready.length > 0 ? ready : slots.filter(each => !each.stopping)
    return these[turn++ % these.length]!
  }
  /** Sends a request; undefined without the right answer. Late answers and documented refusals are no faults. */
  async function send(what: string, wire: requests.Wire, endpoint: 'http' | 'grpc' = 'http', client?: Client) {
    const from = performance.now()
    inFlight++
    const answer = await (client ?? slot()[endpoint]).send(wire).catch((error: Error) => error)
    inFlight--
    times[what]?.push(performance.now() - from)
    if (answer instanceof Error) return fault(`${what}: ${answer.message}`)
    answers[`${what} ${answer.status}`] = (answers[`${what} ${answer.status}`] ?? 0) + 1
    const kind = judge(endpoint, { ...wire, refusable: true }, answer)
    if (kind === 'right') return answer
    // A server that ends refuses calls that would wait.
    const ends = what === 'poll' && answer.status === 14
    return kind === 'refused' || kind === 'late' || ends ? undefined : fault(`${what}: ${kind}`)
  }
  /** A request that the load balancer forwards for a client. */
  const forwarded = (wire: requests.Wire, number: number) => {
    const client = wire.address ?? requests.addressIn(10, number % 5_000)
    return { ...wire, forwardedFor: requests.forwardedOf(client), address: '127.0.0.1' }
  }
  const operation = (name: requests.Operation, number: number, of: requests.World = world) =>
    send(name, forwarded(requests.wireOf(name, 'http', number, of), number))
  const post = (what: string, number: number, fields: object, token?: string) => {
    const wire = { method: 'POST', path: `/forgotpasswords/${what}`, expected: '', refusable: true } as const
    const body = { contentType: 'application/json', body: Buffer.from(JSON.stringify(fields)) }
    return send(what, forwarded({ ...wire, ...body, ...(token && { token }) }, number))
  }

  const works: Record<keyof typeof shares, (number: number) => Promise<unknown>> = {
    me: number => operation('me', number),
    refresh: number => operation('refresh', number),
    'look-up': number => operation('look-up', number),
    'mistyped login': number => operation('mistyped login', number),
    verify: number => send('verify', requests.wireOf('verify', 'grpc', number, world), 'grpc'),
    async login(number) {
      const wire = requests.wireOf('login', 'http', number, world)
      // Tokens last an hour.
      if (number % 1_000 === 0) {
        const body = Buffer.from(new URLSearchParams({ username: 'admin', password: requests.password }).toString())
        const answer = await send('login', forwarded({ ...wire, body }, number))
        if (answer) world.adminToken = answer.body.toString()
      }
      const answer = await send('login', forwarded(wire, number))
      if (!answer) return
      const username = requests.usernameOf(world.accounts[number % world.accounts.length]!)
      world.holders.push({ username, token: answer.body.toString() })
      if (world.holders.length > 200) world.holders.shift()
    },
    newcomer: async number => (await operation('sign-up', number)) && operation('first login', number),
    async recovery(number) {
      const account = forgetful.accounts[number % forgetful.accounts.length]!
      const key = mailbox.keyTo(requests.emailOf(account))
      if (!(await operation('recovery request', number, forgetful))) return
      const mailed = await Promise.race([key, sleep(120_000, undefined, { ref: false })])
      if (!mailed) return fault('no e-mail within 2 minutes')
      const username = requests.usernameOf(account)
      const answer = await post('loginbyusernameandkey', number, { username, key: mailed })
      const fields = { newPassword: requests.password }
      return answer && post('passwordupdatebyusername', number, fields, answer.body.toString())
    },
    answers(number) {
      const answers = [1, 2].map(id => ({ forgotpasswordquestionsid: id, answer: 'Jacareí' }))
      return post('loginbyusernameandanswers', number, { username: requests.usernameOf((number % 1_000) + 1), answers })
    },
  }
  /** Calls at a constant rate, whenever earlier calls end. */
  async function repeat(perSecond: number, work: (number: number) => Promise<unknown>) {
    const pending = new Set<Promise<unknown>>()
    for (let number = 0; !isOver(); number++) {
      const call = (async () => work(number))()
        .catch(error => fault(String(error.stack)))
        .finally(() => pending.delete(call))
      pending.add(call)
      await sleep(begun + ((number + 1) * 1000) / perSecond - performance.now())
    }
    await Promise.all(pending)
  }
  async function watch(token: string, kind: ChangeKind) {
    const wire = { method: 'POST', path: '/auth.v1.Changes/Poll', token, expected: '', refusable: true } as const
    for (let cursor = ''; !isOver(); ) {
      const request = create(PollRequestSchema, { cursor, kinds: [kind], wait: durationFromMs(10_000) })
      const answer = await send('poll', { ...wire, body: requests.frame(toBinary(PollRequestSchema, request)) }, 'grpc')
      if (answer) {
        const response = fromBinary(PollResponseSchema, answer.body.subarray(5))
        if (response.restart) fault(`poll: restart ${response.restart}`)
        changes += response.revocations.length + response.userIds.length
        cursor = response.cursor
      } else await sleep(1_000)
    }
  }
  /** A client that leaves in the middle of a request or before its answer, and one that comes. */
  async function comeAndGo(number: number) {
    const to = { port: slot().service.http, host: '127.0.0.1' }
    const wire = forwarded(requests.wireOf(number % 2 ? 'login' : 'me', 'http', number, world), number)
    const bytes = head(wire) + (wire.body?.toString() ?? '')
    const socket = connect(to).on('error', () => {})
    socket.write(number % 3 ? bytes : bytes.slice(0, bytes.length / 2))
    const newcomer = createClient({ endpoint: 'http', port: to.port, connections: 1 })
    const me = forwarded(requests.wireOf('me', 'http', number, world), number)
    await send('me on a new connection', me, 'http', newcomer)
    newcomer.close()
    await sleep((number % 7) * 10)
    socket.destroy()
  }

  async function restart(name: 'a' | 'b') {
    const place = slots.findIndex(each => each.name === name)
    const gone = slots[place]!
    gone.stopping = true
    await gone.service.stop()
    for (const client of [gone.http, gone.grpc]) client.close()
    const come = await start(name)
    come.ready = false
    slots[place] = come
    while (!come.ready && !isOver()) await sleep(500)
  }
  const csv = join(bench.folder, 'users.csv')
  const imported = Array.from({ length: Math.ceil((seconds * 20_000) / 7_200) }, (_, index) =>
    [requests.usernameOf(index, 31), `Importada ${index}`, 'SP', 'Lins', '1', 'ROLE_CLIENT'].join(),
  )
  writeFileSync(csv, `username,nickname,state,city,termsofusage,role\n${imported.join('\n')}\n`)
  const recipient = await identityToRecipient(await generateX25519Identity())
  const backup = ['backup', join(bench.folder, 'registry.age'), '--recipient', recipient]
  const events: [at: number, what: string, work: () => Promise<unknown>][] = [
    [0.2, `import of ${imported.length} rows`, () => administer('users', 'import', csv)],
    [0.3, 'restart of the first process', () => restart('a')],
    [0.35, 'restart of the second process', () => restart('b')],
    [0.6, 'rotation of the signing key', () => administer('keys', 'rotate', '--yes')],
    [0.7, 'backup', () => cli(backup)],
  ]
  async function operate() {
    for (const [at, what, work] of events) {
      await sleep(begun + at * seconds * 1000 - performance.now())
      const from = performance.now()
      await work().catch(error => fault(`${what}: ${error}`))
      say(`${what}: ${short((performance.now() - from) / 1000)} s`)
    }
  }
  async function balance() {
    while (!isOver()) {
      for (const each of slots) {
        const url = `http://127.0.0.1:${each.service.metrics}/readyz`
        const answer = await fetch(url, { signal: AbortSignal.timeout(5_000) }).catch(() => undefined)
        await answer?.body?.cancel()
        each.ready = answer?.status === 200
        if (!each.stopping && !each.service.alive()) fault(`process ${each.name} has ended`)
      }
      await sleep(1_000)
    }
  }
  async function observe() {
    const interval = Math.max(5, Math.min(60, seconds / 60)) * 1000
    const shown = ['answers a minute', 'failed', 'a memory MB', 'b memory MB', 'a processor s a minute', 'login p99 ms']
    while (!isOver()) {
      await sleep(Math.min(interval, end - performance.now()))
      const own: Record<string, number> = { 'requests in flight': inFlight, failed: sum(faults) }
      for (const [what, values] of Object.entries(times))
        for (const percent of [50, 99]) own[`${what} p${percent} ms`] = percentile(values, percent)
      for (const values of Object.values(times)) values.length = 0
      const counters = { answers: sum(answers), 'e-mails': mailbox.count() }
      const at = (performance.now() - begun) / (seconds * 1000)
      const figures = await growth.sample(at, slots, own, counters).catch(error => say(`no sample: ${error}`))
      if (!figures) continue
      appendFileSync('day.jsonl', `${JSON.stringify({ time: new Date().toISOString(), figures, answers, faults })}\n`)
      say(`${(at * seconds).toFixed()} s: ${shown.map(name => `${name} ${short(figures[name])}`).join(', ')}`)
    }
  }

  const rates = Object.entries(shares).map(([what, share]) => [what, share * capacity] as const)
  say(`${rates.map(([what, rate]) => `${what} ${short(rate)}`).join(', ')} a second; ${watchers} watchers`)
  await Promise.all([
    balance(),
    observe(),
    operate(),
    repeat(0.5, comeAndGo),
    ...rates.map(([what, rate]) => repeat(rate, works[what as keyof typeof shares])),
    ...Array.from({ length: watchers }, (_, index) =>
      watch(key, index % 2 ? ChangeKind.USERS : ChangeKind.REVOCATIONS),
    ),
  ])
  await sleep(5_000)
  const [{ left }] = await growth.query('SELECT count(*)::int AS left FROM emails')
  if (left > 0) fault(`${left} e-mails left`)
  const { lines, grown } = await growth.end()
  mailbox.close()
  const listed = (counts: Record<string, number>) =>
    Object.entries(counts).map(([what, number]) => `${number} × ${what}`)
  return {
    figures: { answers: sum(answers), failed: sum(faults), growing: grown.length },
    errors: faults,
    note: [
      ...lines,
      `${mailbox.count()} e-mails, ${changes} changes in the feed`,
      ...['Answers:', ...listed(answers)],
      ...['Warnings in the logs:', ...listed(warningsIn(slots.map(({ log }) => log)))],
    ].join('\n'),
  }
}

/** A mail server; `keyTo` is the recovery key in the next e-mail to an address. */
async function openMailbox() {
  const waiting = new Map<string, (key: string) => void>()
  let count = 0
  const server = new SMTPServer({
    authOptional: true,
    disabledCommands: ['STARTTLS', 'AUTH'],
    async onData(stream, { envelope }, answer) {
      const chunks: Buffer[] = []
      for await (const chunk of stream) chunks.push(chunk)
      const { text = '' } = await PostalMime.parse(Buffer.concat(chunks))
      const key = /: ([2-9A-HJ-NP-Z]{8})$/m.exec(text)?.[1]
      const to = envelope.rcptTo[0]!.address
      count++
      if (key) waiting.get(to)?.(key)
      if (key) waiting.delete(to)
      answer()
    },
  }).on('error', () => {})
  const port = await freePort()
  await new Promise<void>(done => server.listen(port, '127.0.0.1', done))
  return {
    url: `smtp://127.0.0.1:${port}`,
    count: () => count,
    keyTo: (address: string) => new Promise<string>(resolve => waiting.set(address, resolve)),
    close: () => server.close(() => {}),
  }
}
