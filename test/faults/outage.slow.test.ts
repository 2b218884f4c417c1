/** The log of an outage: a line a second and reason, without stack traces. */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import test, { type ExecutionContext } from 'ava'
import { startEmbedded } from '../../server/embedded/start.js'
import { spawnGateway, spawnServer } from '../_helpers/apart.js'
import { login, readsOf, retriesOf, writesOf } from '../_helpers/load.js'
import { createRequest } from '../_helpers/service.js'
import { type Program, spawnService } from '../_helpers/spawned.js'

/** A PostgreSQL that a test can stop. */
async function startPostgres(t: ExecutionContext) {
  const dataDir = await mkdtemp(join(tmpdir(), 'auth-test-'))
  const postgres = await startEmbedded({ dataDir, log: { info() {}, warn() {} }, durable: false })
  const stop = () => postgres.stop()
  t.teardown(async () => {
    await stop()
    await rm(dataDir, { recursive: true, force: true })
  })
  return { url: postgres.url, stop }
}

interface Line {
  readonly level: string
  readonly time: string
  readonly msg: string
  readonly suppressed?: number
  readonly err?: object
}

/** Asserts that the log without access lines has a line for each second and reason, and that it counts all failed calls. */
function quiet(t: ExecutionContext, what: string, { output }: Program, from: number, failed: number) {
  const lines = output()
    .split('\n')
    .filter(line => line.startsWith('{'))
    .map(line => JSON.parse(line) as Line)
    .filter(({ msg, time }) => msg !== 'call' && msg !== 'request' && Date.parse(time) >= from)
  const seconds = (Date.now() - from) / 1000
  const reasons = new Map<string, number>()
  for (const { msg, err } of lines) {
    const reason = `${msg} ${JSON.stringify(err ?? '')}`
    reasons.set(reason, (reasons.get(reason) ?? 0) + 1)
  }
  const counted = lines.reduce((sum, { err, suppressed = 0 }) => sum + (err ? 1 + suppressed : 0), 0)
  t.log(`${what}: ${failed} failed calls in ${seconds.toFixed(1)} s, ${lines.length} lines:`)
  for (const [reason, count] of reasons) t.log(`${count} × ${reason}`)
  t.notRegex(JSON.stringify(lines), /"stack"/)
  for (const [reason, count] of reasons) t.true(count <= seconds + 1, `${count} × ${reason}`)
  // The last second isn't counted yet.
  t.true(counted > failed / 2, `${counted} of ${failed}`)
}

test.serial('a database that stops under load is logged once a second and reason, without stack traces', async t => {
  const postgres = await startPostgres(t)
  const service = await spawnService(t, {
    DATABASE_URL: postgres.url,
    AUTH_LIMIT_FACTOR: '1000',
  })
  const request = createRequest(service.http)
  const token = await login(request)
  const [reads, writes] = [readsOf(t, request, token), writesOf(t, request)]
  await Promise.all([reads.more(200), writes.more(50)])
  const from = Date.now()
  await postgres.stop()
  await sleep(10_000)
  await Promise.all([reads.end(), writes.end()])
  const failed = retriesOf(reads.statuses) + retriesOf(writes.statuses)
  t.true(failed > 100, `${failed}`)
  await sleep(1_500)
  quiet(t, 'PostgreSQL stopped', service, from, failed)
})

test.serial('a lost server is logged once a second and reason by its gateway, without stack traces', async t => {
  const server = await spawnServer(t)
  const gateway = await spawnGateway(t, server.grpc)
  const request = createRequest(gateway.http)
  const token = await login(request)
  const reads = readsOf(t, request, token)
  await reads.more(200)
  const from = Date.now()
  server.child.kill('SIGKILL')
  await sleep(5_000)
  await reads.end()
  const failed = retriesOf(reads.statuses)
  t.true(failed > 100, `${failed}`)
  await sleep(1_500)
  quiet(t, 'server killed', gateway, from, failed)
})
