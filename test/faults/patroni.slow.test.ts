/**
 * A cluster of deploy/patroni fails in several ways, under the load of two gateways with two servers. Needs `PATRONI`, the path of
 * its program, and etcd, HAProxy, PgBouncer and PostgreSQL.
 */
import { type ChildProcess, spawnSync } from 'node:child_process'
import { closeSync, existsSync, openSync, readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { chmod, chown, mkdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import test, { type ExecutionContext } from 'ava'
import { finish } from '../../server/embedded/cluster.js'
import { chooseUser, type Start, startAs } from '../../server/embedded/programs.js'
import { spawnGateway, spawnServer } from '../_helpers/apart.js'
import { createAuthority } from '../_helpers/certificates.js'
import { runCli } from '../_helpers/cli.js'
import { ask, type Teardown } from '../_helpers/database.js'
import { startProxy } from '../_helpers/front.js'
import { type Mailbox, openMailbox } from '../_helpers/mailbox.js'
import { freePort, type Relay, startRelay } from '../_helpers/relay.js'
import { type Answer, createRequest, password, type RequestOptions, signUpForm } from '../_helpers/service.js'
import { serviceEnv, spawnService } from '../_helpers/spawned.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { testWith } from '../_helpers/tools.js'
import { waitFor } from '../_helpers/wait.js'

/** Creates a fault, waits until the cluster has reacted, and returns what ends the fault. */
type Fault = (cluster: PatroniCluster, primary: PatroniNode) => Promise<() => void>

/** A fault after which another node is the primary. */
const failover =
  (create: (primary: PatroniNode) => unknown, end: (primary: PatroniNode) => void): Fault =>
  async ({ leader }, primary) => {
    await create(primary)
    await waitFor(async () => ![undefined, primary].includes(await leader()))
    return () => end(primary)
  }

/** A fault that restarts PostgreSQL of a node. */
async function restart({ startTime }: PatroniNode, create: () => unknown): Promise<() => void> {
  const before = await startTime()
  await create()
  await waitFor(async () => ![undefined, before].includes(await startTime().catch(() => undefined)))
  return () => {}
}

/**
 * Without a watchdog two primaries run. The former one acknowledges nothing, as its commits wait for the new one, but a process
 * that hasn't noticed yet reads from it.
 */
const unfenced = 'Patroni of the primary is frozen'

const faults: Record<string, Fault> = {
  'the node of the primary is killed': failover(
    primary => primary.signal('SIGKILL'),
    primary => primary.start(),
  ),
  'the node of the primary is frozen': failover(
    primary => primary.signal('SIGSTOP'),
    primary => primary.signal('SIGCONT'),
  ),
  [unfenced]: failover(
    primary => primary.signal('SIGSTOP', ['patroni']),
    primary => primary.signal('SIGCONT', ['patroni']),
  ),
  'the primary loses etcd': failover(
    ({ relay }) => relay.goDark(),
    ({ relay }) => relay.lightUp(),
  ),
  'a switchover is planned': failover(
    ({ name, call }) => call('POST', '/switchover', { leader: name }),
    () => {},
  ),
  'PostgreSQL of the primary is killed': (_, primary) =>
    restart(primary, () => primary.signal('SIGKILL', ['postgres'])),
  'the synchronous standby is frozen': async ({ find }) => {
    const synchronous = () => find(({ role }) => role === 'sync_standby')
    const standby = (await synchronous())!
    standby.signal('SIGSTOP')
    await waitFor(async () => ![undefined, standby].includes(await synchronous()))
    return () => standby.signal('SIGCONT')
  },
  'the synchronous standby is rebuilt': async cluster => {
    const standby = (await cluster.find(({ role }) => role === 'sync_standby'))!
    return restart(standby, () => standby.call('POST', '/reinitialize', { force: true }))
  },
}

/** Ends what `startAll` started. */
let stop = async () => {}
test.after.always(() => stop())

/** Ends the cluster before, and starts one, with two gateways before two servers on it. */
async function startAll() {
  await stop()
  const cleanUps: (() => Promise<void>)[] = []
  const t: Teardown = { teardown: work => void cleanUps.push(work) }
  stop = async () => {
    for (const work of cleanUps.splice(0).reverse()) await work()
  }
  const cluster = await startCluster(t)
  const mailbox = await openMailbox(t)
  const env = { DATABASE_URL: await cluster.startHaproxy(), SMTP_URL: mailbox.url, AUTH_LIMIT_FACTOR: '1000' }
  const servers = [await spawnServer(t, env), await spawnServer(t, env)]
  const gateways = await Promise.all(servers.map(async ({ grpc }) => (await spawnGateway(t, grpc)).http))
  return { cluster, mailbox, gateways, env: await serviceEnv(t, env) }
}

const missing = missingTools()
let started: ReturnType<typeof startAll> | undefined
for (const [name, create] of Object.entries(faults)) {
  const title = `${name}: no acknowledged write is lost or doubled`
  testWith(missing.join(', '), missing.length === 0)(title, async t => {
    t.timeout(900_000)
    started ??= startAll()
    const { cluster, mailbox, gateways, env } = await started
    await cluster.healthy()
    const primary = (await cluster.leader())!
    // It knows no other node, and believes in this one as long as it runs.
    const believer = await spawnService(t, { ...env, DATABASE_URL: cluster.pooledUrlOf(primary) })
    const ledger = startLedger(t, gateways)
    const other = startLedger(t, [believer.http], 2)
    const more = async (count: number) => {
      const until = ledger.times.length + count
      await waitFor(
        () => ledger.times.length > until,
        () => ledger.times.length,
      )
    }
    await more(200)
    await waitFor(() => other.times.length > 20)
    const known = (await verifyLog(t, env)).newest

    const from = performance.now()
    const end = await create(cluster, primary)
    await more(100)
    // Before the fault ends.
    await waitFor(
      () => ledger.streak() > 50,
      () => ledger.times.length,
    )
    end()
    await cluster.healthy()
    await more(100)
    await Promise.all([ledger.end(), other.end()])

    const now = (await cluster.leader())!
    const gap = ledger.gapSince(from)
    t.log(`${((gap.end - gap.begin) / 1000).toFixed(1)} s without an acknowledged write`)
    for (const each of [ledger, other]) t.log(each.summary(), each.answers)
    const wrong = ledger.wrong.at(-1)
    if (wrong)
      t.log(`${ledger.wrong.length} wrong answers, the last one after ${((wrong - gap.begin) / 1000).toFixed(1)} s`)
    // What it acknowledged before is compared with the new primary below.
    if (now !== primary)
      t.deepEqual(
        other.times.filter(time => time > gap.end),
        [],
      )
    await verifyLog(t, env, '--known', known)
    const url = cluster.urlOf(now)
    await emptyQueue(url)
    for (const each of [ledger, other]) {
      t.deepEqual(await each.compare(url, mailbox), [])
      if (name !== unfenced) t.deepEqual(each.wrong, [])
    }
    t.deepEqual(await ledger.passwordsLost(), [])
  })
}

/** Waits until the e-mails are sent: one in progress when its server lost the database is sent again after 90 s. */
async function emptyQueue(url: string): Promise<void> {
  const look = () => ask(url, `SELECT count(*)::int AS count, min(next_attempt_at) - now() AS wait FROM emails`)
  await waitFor(async () => (await look())[0]?.count === 0, look)
}

async function verifyLog(t: ExecutionContext, env: Record<string, string>, ...args: string[]) {
  const { code, stdout, stderr } = await runCli(env, ['audit', 'verify', '--json', ...args])
  t.is(code, 0, `${stdout}${stderr}`)
  return JSON.parse(stdout) as { newest: string }
}

/** What clients write, by the name of its event. */
type Write = 'user.sign-up' | 'session.login' | 'user.change-password'

/** The calls of one user. */
interface Life {
  readonly username: string
  readonly acknowledged: Write[]
  /** The write without an acknowledgment, after which its client gives up. */
  doubtful?: Write
}

/** Milliseconds between an answer and the next call. */
const pause = 50

const changed = 'tatu-canastra 12'

/**
 * Starts so many clients that sign up, log in and change their password, and one that reads, of each gateway; they end with `end`,
 * at the latest with the test. What was acknowledged must be in the database exactly once; of a call without an acknowledgment,
 * the effect may be there once. A token that an acknowledged change revoked is accepted by no server.
 */
function startLedger(t: Teardown, gateways: readonly string[], clients = 6) {
  const lives: Life[] = []
  /** When writes were acknowledged. */
  const times: number[] = []
  /** Statuses and reasons of all answers, also of reads. */
  const answers: Record<string, number> = {}
  /** When an answer was neither right nor a request to retry. */
  const wrong: number[] = []
  /** Users since then who finished. */
  let streak = 0
  let slowest = 0
  let ended = false
  const requests = gateways.map(http => createRequest(http))

  async function send(request: (typeof requests)[number], path: string, options: RequestOptions): Promise<Answer> {
    await sleep(pause)
    const from = performance.now()
    const answer = await request(path === '/users/me' ? 'GET' : 'POST', path, { ...options, once: true })
    slowest = Math.max(slowest, performance.now() - from)
    return answer
  }
  const count = ({ status, json }: Answer, expected: 200 | 'INVALID_TOKEN' = 200) => {
    if (json?.reason === expected) return
    const key = [status, json?.reason].filter(Boolean).join(' ')
    answers[key] = (answers[key] ?? 0) + 1
    if (status === 503 || status === expected) return
    wrong.push(performance.now())
    streak = 0
  }

  /** A user signs up, logs in, changes the password, and logs in again. */
  async function live(request: (typeof requests)[number]): Promise<void> {
    const form = signUpForm()
    const { username } = form
    const life: Life = { username, acknowledged: [] }
    lives.push(life)
    const write = async (kind: Write, path: string, options: RequestOptions) => {
      if (ended) return
      life.doubtful = kind
      const answer = await send(request, path, options)
      count(answer)
      if (answer.status !== 200) return
      delete life.doubtful
      life.acknowledged.push(kind)
      times.push(performance.now())
      return answer
    }
    const login = (secret: string) => write('session.login', '/users/login', { body: { username, password: secret } })

    if (!(await write('user.sign-up', '/users/signup', { body: { ...form, email: `${username}@example.org` } }))) return
    const token = (await login(password))?.text
    const change = { token, body: { newPassword: changed } }
    if (!token || !(await write('user.change-password', '/forgotpasswords/passwordupdatebyusername', change))) return
    count(await send(request, '/users/me', { token }), 'INVALID_TOKEN')
    if (await login(changed)) streak++
  }

  /** A user reads all the time, so that the connections for reads are never idle. */
  async function read(request: (typeof requests)[number]): Promise<void> {
    let token = ''
    while (!ended && !token) {
      const answer = await send(request, '/users/signup', { body: signUpForm() })
      if (answer.status === 200) token = answer.text
    }
    while (!ended) count(await send(request, '/users/me', { token }))
  }

  const all = Promise.all(
    requests.flatMap(request => [
      read(request),
      ...Array.from({ length: clients }, async () => {
        while (!ended) await live(request)
      }),
    ]),
  )
  const end = async () => {
    ended = true
    await all
  }
  t.teardown(end)

  return {
    answers,
    times,
    wrong,
    streak: () => streak,
    /** The longest time without an acknowledged write since a time of `performance.now()`: its begin and end. */
    gapSince(from: number): { begin: number; end: number } {
      const last = times.findLast(time => time <= from) ?? from
      const all = [last, ...times.filter(time => time > from)]
      return all
        .slice(1)
        .map((time, index) => ({ begin: all[index]!, end: time }))
        .reduce((longest, gap) => (gap.end - gap.begin > longest.end - longest.begin ? gap : longest), {
          begin: from,
          end: from,
        })
    },
    end,
    /**
     * Compares the ledger with a database, after the end: events of the audit log, passwords, and, with a mailbox, e-mails about
     * changed passwords, each once but for repeated deliveries with one Message-ID. Returns what was lost or doubled.
     */
    async compare(databaseUrl: string, mailbox?: Mailbox): Promise<string[]> {
      const rows = await ask(
        databaseUrl,
        `SELECT u.username, e.action, count(*)::int AS count
         FROM users u LEFT JOIN (SELECT action, outcome, subject_id FROM audit_events
           UNION ALL SELECT action, outcome, subject_id FROM audit_staged) e ON e.subject_id = u.id AND e.outcome = 'ok'
         GROUP BY 1, 2`,
      )
      const found = new Map(rows.map(({ username, action, count }) => [`${username} ${action}`, Number(count)]))
      const mails = new Map<string, Set<string>>()
      for (const { to, messageId } of mailbox?.emails ?? []) {
        const address = to?.[0]?.address ?? ''
        mails.set(address, (mails.get(address) ?? new Set()).add(messageId ?? ''))
      }
      const wrong: string[] = []
      const check = (what: string, sure: number, perhaps: number, count: number) => {
        if (count < sure || count > sure + perhaps) wrong.push(`${what}: ${sure} acknowledged, ${count} found`)
      }
      for (const { username, acknowledged, doubtful } of lives) {
        const sure = (write: Write) => acknowledged.filter(each => each === write).length
        const perhaps = (write: Write) => (doubtful === write ? 1 : 0)
        for (const write of ['user.sign-up', 'session.login', 'user.change-password'] as const)
          check(`${username} ${write}`, sure(write), perhaps(write), found.get(`${username} ${write}`) ?? 0)
        if (!mailbox) continue
        const change = 'user.change-password'
        check(`${username} e-mail`, sure(change), perhaps(change), mails.get(`${username}@example.org`)?.size ?? 0)
      }
      return wrong
    },
    /** Logs in, as each user who acknowledgedly changed the password, with it. Returns the users who can't. */
    async passwordsLost(): Promise<string[]> {
      const users = lives.filter(({ acknowledged }) => acknowledged.includes('user.change-password'))
      const lost: string[] = []
      const next = async () => {
        for (let life = users.pop(); life; life = users.pop()) {
          const { username } = life
          const { status } = await requests[0]!('POST', '/users/login', { body: { username, password: changed } })
          if (status !== 200) lost.push(`${username} can’t log in: ${status}`)
        }
      }
      await Promise.all(Array.from({ length: 8 }, next))
      return lost
    },
    summary: () =>
      `${times.length} writes of ${lives.length} users, the slowest answer after ${(slowest / 1000).toFixed(1)} s`,
  }
}

/** A part of the answer to `GET /cluster`. */
interface Member {
  readonly name: string
  readonly role: string
  readonly state: string
  readonly lag?: number | 'unknown'
}

const names = ['db1', 'db2', 'db3'] as const
type Name = (typeof names)[number]

/** The ports in the files, and those of each node here. */
const ports = ['5432', '6432', '8008', '2379', '2380'] as const
type Ports = Readonly<Record<(typeof ports)[number], number>>

/** The folder of PostgreSQL's programs: that of Patroni's setting, else the newest of Debian. */
function programsOfPostgres(): string {
  if (process.env.PATRONI_POSTGRESQL_BIN_DIR) return process.env.PATRONI_POSTGRESQL_BIN_DIR
  const debian = '/usr/lib/postgresql'
  const versions = existsSync(debian) ? readdirSync(debian).map(Number) : []
  return `${debian}/${Math.max(...versions)}/bin`
}

/** The path of a program: a variable such as `PATRONI`, else where users or root look. */
function findTool(name: string): string | undefined {
  const folders = name === 'patroni' ? [] : `${process.env.PATH}:/usr/sbin`.split(':')
  return process.env[name.toUpperCase()] || folders.map(each => join(each, name)).find(existsSync)
}

/** What is missing here to run a cluster. */
function missingTools(): string[] {
  const missing = ['patroni', 'etcd', 'pgbouncer', 'haproxy'].filter(name => !findTool(name))
  return existsSync(`${programsOfPostgres()}/pg_rewind`) ? missing : [...missing, 'postgresql']
}

const passwords = { superuser: 'change-me-1', restapi: 'change-me-4', auth: 'senha-do-servico' }

type PatroniCluster = Awaited<ReturnType<typeof startCluster>>
type PatroniNode = ReturnType<typeof createNode>

/**
 * Starts three nodes of PostgreSQL on this machine, configured by the files of deploy/patroni, with an empty database `auth`, whose
 * role owns it; they end with the test. Each runs etcd, Patroni, PostgreSQL and PgBouncer. Only names, ports and paths differ.
 * Patroni reaches etcd through a relay, so that a test can cut it off.
 */
async function startCluster(t: Teardown) {
  const folder = await temporaryFolder(t)
  await chmod(folder, 0o755)
  const user = chooseUser(join(folder, 'none'))
  const programs = programsOfPostgres()
  const start = startAs(user, { postgres: `${programs}/postgres`, initdb: '', pg_ctl: '' }, folder, () => {})
  const of = {} as Record<Name, Ports>
  for (const name of names) {
    const own: Partial<Record<string, number>> = {}
    for (const port of ports) own[port] = await freePort()
    of[name] = own as Ports
  }

  const authority = createAuthority('Authority')
  const rootCertificate = join(folder, 'ca.crt')
  await writeFile(rootCertificate, authority.certificate)

  /** A file of deploy/patroni with the addresses and paths of this machine. */
  async function adapt(file: string, name: Name): Promise<string> {
    const at = join(folder, name)
    const text = await readFile(new URL(`../../../deploy/patroni/${file}`, import.meta.url), 'utf8')
    return (
      text
        .replace(/^(?!ETCD_INITIAL_CLUSTER=).*$/gm, line => (file === 'node.env' ? line.replaceAll('db1', name) : line))
        .replace(
          /\b(db\d):6432 check port 8008/g,
          (_, db: Name) => `127.0.0.1:${of[db][6432]} check port ${of[db][8008]}`,
        )
        // All addresses are one here.
        .replace(',http://127.0.0.1:2379', '')
        .replace(/\b(db\d|0\.0\.0\.0|192\.0\.2\.1):(\d+)/g, (_, host: string, port: keyof Ports) => {
          return `127.0.0.1:${(of[host as Name] ?? of[name])[port]}`
        })
        .replace(/port( ?= ?)(\d+)/g, (_, is: string, port: keyof Ports) => `port${is}${of[name][port]}`)
        .replace('0.0.0.0', '127.0.0.1')
        .replace(/\/etc\/(patroni|pgbouncer)(\/tls)?/g, at)
        .replace('/run/postgresql', at)
        .replace(/\/var\/lib\/(postgresql|etcd)\//, `${at}/`)
        // It would reset this machine.
        .replace('mode: automatic', 'mode: off')
    )
  }

  const nodes = await Promise.all(
    names.map(async (name): Promise<PatroniNode> => {
      const at = join(folder, name)
      await mkdir(at)
      const { cert, key } = authority.issue({ name, addresses: ['127.0.0.1'] })
      const files = {
        'node.crt': cert,
        'node.key': key,
        'ca.crt': authority.certificate,
        'userlist.txt': `"auth" "${passwords.auth}"\n`,
        'patroni.yaml': await adapt('patroni.yaml', name),
        'pgbouncer.ini': await adapt('pgbouncer.ini', name),
      }
      for (const [file, content] of Object.entries(files)) await writeFile(join(at, file), content, { mode: 0o600 })
      if (user) for (const path of ['', ...Object.keys(files)]) await chown(join(at, path), user.uid, user.gid)
      const relay = await startRelay(t, `http://127.0.0.1:${of[name][2379]}`)
      return createNode(t, {
        name,
        at,
        start,
        ports: of[name],
        env: {
          PATH: process.env.PATH,
          HOME: at,
          ...Object.fromEntries(
            [...(await adapt('node.env', name)).matchAll(/^(\w+)=(.*)$/gm)].map(([, k, v]) => [k, v]),
          ),
          PATRONI_POSTGRESQL_BIN_DIR: programs,
          PATRONI_ETCD3_HOSTS: `127.0.0.1:${relay.port}`,
          // Otherwise Patroni learns the addresses behind the relay from etcd.
          PATRONI_ETCD3_USE_PROXIES: 'true',
        },
        relay,
      })
    }),
  )
  for (const node of nodes) node.start()

  const tls = `sslmode=verify-full&sslrootcert=${encodeURIComponent(rootCertificate)}`
  const urlOf = (hosts: string, role: keyof typeof passwords = 'auth', database = 'auth') =>
    `postgres://${role === 'superuser' ? 'postgres' : role}:${passwords[role]}@${hosts}/${database}?${tls}`

  /** What the first node that answers says of all. */
  async function members(): Promise<readonly Member[]> {
    const answers = nodes.map(node => node.call('GET', '/cluster').then(answer => answer.json()))
    return ((await Promise.any(answers).catch(() => ({}))) as { members?: Member[] }).members ?? []
  }

  /** The node of a member. */
  const find = async (is: (member: Member) => boolean): Promise<PatroniNode | undefined> => {
    const name = (await members()).find(is)?.name
    return nodes.find(node => node.name === name)
  }
  const leader = () => find(({ role }) => role === 'leader')

  /** Waits until a primary has two standbys, one of which commits wait for. */
  const healthy = () =>
    waitFor(async () => {
      const all = await members()
      const count = (is: (member: Member) => boolean) => all.filter(is).length
      return (
        count(({ role, state }) => role === 'leader' && state === 'running') === 1 &&
        count(({ role, state, lag }) => role !== 'leader' && state === 'streaming' && lag === 0) === 2 &&
        count(({ role }) => role === 'sync_standby') === 1
      )
    }, members)

  await healthy()
  const admin = urlOf((await leader())!.postgres, 'superuser', 'postgres')
  await ask(admin, `CREATE ROLE auth LOGIN PASSWORD '${passwords.auth}'`)
  await ask(admin, 'CREATE DATABASE auth OWNER auth')

  return {
    nodes,
    find,
    leader,
    healthy,
    /** The database URL of a node. */
    urlOf: (node: PatroniNode) => urlOf(node.postgres),
    /** The same through PgBouncer. */
    pooledUrlOf: (node: PatroniNode) => urlOf(node.pgbouncer),
    /** Starts HAProxy in front of PgBouncer of the nodes, and returns the database URL. */
    async startHaproxy() {
      const port = await freePort()
      const file = join(folder, 'haproxy.cfg')
      await writeFile(file, (await adapt('haproxy.cfg', 'db1')).replaceAll('127.0.0.1:5432', `127.0.0.1:${port}`))
      await startProxy(t, findTool('haproxy')!, ['-db', '-f', file], port)
      return urlOf(`127.0.0.1:${port}`)
    },
  }
}

/** A node, which `start` starts. */
function createNode(
  t: Teardown,
  {
    name,
    at,
    start,
    ports,
    env,
    relay,
  }: {
    name: Name
    at: string
    start: Start
    ports: Ports
    env: NodeJS.ProcessEnv
    relay: Relay
  },
) {
  const children = new Map<string, ChildProcess>()
  const run = (program: string, ...args: string[]) => {
    const log = openSync(join(at, `${program}.log`), 'a')
    children.set(program, start(findTool(program)!, args, { cwd: at, env, stdio: ['ignore', log, log] }))
    closeSync(log)
  }
  /** Processes of PostgreSQL, the first one first. They aren't Patroni's: init is their parent. */
  const postgres = (): number[] => {
    const data = join(at, 'data')
    try {
      const [first = ''] = readFileSync(join(data, 'postmaster.pid'), 'utf8').split('\n')
      // The file outlives a killed process.
      if (readlinkSync(`/proc/${first}/cwd`) !== data) return []
      const { stdout } = spawnSync('pgrep', ['-P', first], { encoding: 'utf8' })
      return [first, ...stdout.split('\n').filter(Boolean)].map(Number)
    } catch {
      return []
    }
  }
  /** Sends a signal to the programs of the node, by default all. */
  const signal = (name: NodeJS.Signals, programs = ['patroni', 'etcd', 'pgbouncer', 'postgres']) => {
    const pids = programs.flatMap(program => (program === 'postgres' ? postgres() : (children.get(program)?.pid ?? [])))
    for (const pid of pids) {
      try {
        process.kill(pid, name)
      } catch {
        // It has ended.
      }
    }
  }
  /** Calls its Patroni. */
  const call = (method: string, path: string, body?: object) =>
    fetch(`http://127.0.0.1:${ports[8008]}${path}`, {
      method,
      headers: { authorization: `Basic ${Buffer.from(`patroni:${passwords.restapi}`).toString('base64')}` },
      ...(body && { body: JSON.stringify(body) }),
      signal: AbortSignal.timeout(60_000),
    })
  t.teardown(async () => {
    const ended = [...children.values()].map(child => child.exitCode ?? child.signalCode ?? finish(child))
    signal('SIGKILL')
    await Promise.all(ended)
  })
  return {
    name,
    postgres: `127.0.0.1:${ports[5432]}`,
    pgbouncer: `127.0.0.1:${ports[6432]}`,
    /** The path to etcd. */
    relay,
    start() {
      run('etcd')
      run('patroni', join(at, 'patroni.yaml'))
      run('pgbouncer', '-q', join(at, 'pgbouncer.ini'))
    },
    signal,
    call,
    /** When its PostgreSQL started. */
    startTime: async () =>
      ((await (await call('GET', '/patroni')).json()) as Record<string, string>).postmaster_start_time,
  }
}
