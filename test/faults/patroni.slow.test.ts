/**
 * A cluster of deploy/patroni fails in several ways, under the load of two gateways with two servers. Needs `PATRONI`, the path of
 * its program, and etcd, HAProxy, PgBouncer and PostgreSQL.
 */
import test, { type ExecutionContext } from 'ava'
import { spawnGateway, spawnServer } from '../_helpers/apart.js'
import { runCli } from '../_helpers/cli.js'
import { ask, type Teardown } from '../_helpers/database.js'
import { startLedger } from '../_helpers/ledger.js'
import { openMailbox } from '../_helpers/mailbox.js'
import { missingTools, type PatroniCluster, type PatroniNode, startCluster } from '../_helpers/patroni.js'
import { serviceEnv, spawnService } from '../_helpers/spawned.js'
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

/** How the service reaches the primary: its database URL, and that of a process that knows one node alone. */
type Way = (cluster: PatroniCluster) => Promise<{ all: string; only(node: PatroniNode): string }>
const ways: Record<string, Way> = {
  'all nodes in DATABASE_URL': async ({ nodes, urlOf }) => ({ all: urlOf(...nodes), only: urlOf }),
  'HAProxy and PgBouncer': async ({ startHaproxy, pooledUrlOf }) => ({
    all: await startHaproxy(),
    only: pooledUrlOf,
  }),
}

/** Ends what `startAll` started. */
let stop = async () => {}
test.after.always(() => stop())

/** Ends the cluster before, and starts one, with two gateways before two servers on it. */
async function startAll(connect: Way) {
  await stop()
  const cleanUps: (() => Promise<void>)[] = []
  const t: Teardown = { teardown: work => void cleanUps.push(work) }
  stop = async () => {
    for (const work of cleanUps.splice(0).reverse()) await work()
  }
  const cluster = await startCluster(t)
  const { all, only } = await connect(cluster)
  const mailbox = await openMailbox(t)
  const env = { DATABASE_URL: all, SMTP_URL: mailbox.url, AUTH_LIMIT_FACTOR: '1000' }
  const target = [await spawnServer(t, env), await spawnServer(t, env)].map(({ grpc }) => grpc).join(',')
  const gateways = [(await spawnGateway(t, target)).http, (await spawnGateway(t, target)).http]
  return { cluster, mailbox, gateways, env: await serviceEnv(t, env), only }
}

const missing = missingTools()
for (const [way, connect] of Object.entries(ways)) {
  let started: ReturnType<typeof startAll> | undefined
  for (const [name, create] of Object.entries(faults)) {
    const title = `${name} (${way}): no acknowledged write is lost or doubled`
    if (missing.length > 0) {
      test.skip(`${title} (missing: ${missing})`, () => {})
      continue
    }
    test.serial(title, async t => {
      t.timeout(900_000)
      started ??= startAll(connect)
      const { cluster, mailbox, gateways, env, only } = await started
      await cluster.healthy()
      const primary = (await cluster.leader())!
      // It knows no other node, and believes in this one as long as it runs.
      const believer = await spawnService(t, { ...env, DATABASE_URL: only(primary) })
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
