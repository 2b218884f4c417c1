/**
 * Three nodes of PostgreSQL on this machine, configured by the files of deploy/patroni: each runs etcd, Patroni, PostgreSQL and
 * PgBouncer. Only names, ports and paths differ. Patroni reaches etcd through a relay, so that a test can cut it off.
 */
import { type ChildProcess, spawnSync } from 'node:child_process'
import { closeSync, existsSync, openSync, readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { chmod, chown, mkdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { finish } from '../../server/embedded/cluster.js'
import { chooseUser, type Start, startAs } from '../../server/embedded/programs.js'
import { createAuthority } from './certificates.js'
import { ask, type Teardown } from './database.js'
import { startProxy } from './front.js'
import { freePort, type Relay, startRelay } from './relay.js'
import { temporaryFolder } from './temporary-folder.js'
import { waitFor } from './wait.js'

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

const debian = '/usr/lib/postgresql'

/** The folder of PostgreSQL's programs: that of Patroni's setting, else the newest of Debian. */
function programsOfPostgres(): string {
  if (process.env.PATRONI_POSTGRESQL_BIN_DIR) return process.env.PATRONI_POSTGRESQL_BIN_DIR
  const versions = existsSync(debian) ? readdirSync(debian).map(Number) : []
  return `${debian}/${Math.max(...versions)}/bin`
}

/** The path of a program: a variable such as `PATRONI`, else where users or root look. */
function findTool(name: string): string | undefined {
  const folders = name === 'patroni' ? [] : `${process.env.PATH}:/usr/sbin`.split(':')
  return process.env[name.toUpperCase()] || folders.map(each => join(each, name)).find(existsSync)
}

/** What is missing here to run a cluster. */
export function missingTools(): string[] {
  const missing = ['patroni', 'etcd', 'pgbouncer', 'haproxy'].filter(name => !findTool(name))
  return existsSync(`${programsOfPostgres()}/pg_rewind`) ? missing : [...missing, 'postgresql']
}

const passwords = { superuser: 'change-me-1', restapi: 'change-me-4', auth: 'senha-do-servico' }

export type PatroniCluster = Awaited<ReturnType<typeof startCluster>>
export type PatroniNode = ReturnType<typeof createNode>

/** Starts a cluster with an empty database `auth`, whose role owns it; it ends with the test. */
export async function startCluster(t: Teardown) {
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
        .replace(/\b(db\d|0\.0\.0\.0):(\d+)/g, (_, host: string, port: keyof Ports) => {
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
    /** The database URL of nodes, as the service uses it. */
    urlOf: (...of: readonly PatroniNode[]) => urlOf(of.map(({ postgres }) => postgres).join(',')),
    /** The same through PgBouncer. */
    pooledUrlOf: (node: PatroniNode) => urlOf(node.pgbouncer),
    /** Starts HAProxy in front of PgBouncer of the nodes, and returns the database URL. */
    async startHaproxy() {
      const port = await freePort()
      const file = join(folder, 'haproxy.cfg')
      await writeFile(file, (await adapt('haproxy.cfg', 'db1')).replaceAll('127.0.0.1:5432', `127.0.0.1:${port}`))
      await startProxy(t, findTool('haproxy')!, ['-db', '-f', file], port)
      return `${urlOf(`127.0.0.1:${port}`)}&target_session_attrs=read-write`
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
