/** An upgrade under load: old and new processes side by side, and migrations before and after the rollout. */
import { hostname } from 'node:os'
import { join } from 'node:path'
import test from 'ava'
import { spawnServer } from '../_helpers/apart.js'
import { done } from '../_helpers/backups.js'
import { ask, freshDatabase, hold } from '../_helpers/database.js'
import { grpcOf } from '../_helpers/grpc.js'
import { freePorts, startHaproxy, withBalancer } from '../_helpers/haproxy.js'
import { grpcReadsOf, login, readsOf, usesAll, writesOf } from '../_helpers/load.js'
import { freePort } from '../_helpers/relay.js'
import { createRequest } from '../_helpers/service.js'
import { launch, serviceEnv } from '../_helpers/spawned.js'
import { migrations, nextVersion, root, runVersion } from '../_helpers/versions.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

const version = { '9998-next.sql': '-- expand\nALTER TABLE users ADD COLUMN extra text;' }
const contract = { '9999-last.sql': '-- contract\nALTER TABLE users DROP COLUMN extra;' }

withBalancer(
  'an upgrade under load, behind deploy/haproxy, fails no call over HTTP or gRPC: `expand` before the rollout, `contract` after it, and not before',
  async t => {
    const DATABASE_URL = await freshDatabase(t)
    const next = await nextVersion(t, { ...version, ...contract })
    const env = await serviceEnv(t, { DATABASE_URL })
    const ports = [await freePorts(), await freePorts()] as const
    const start = (folder: string, { env: own }: (typeof ports)[number]) =>
      spawnServer(t, { DATABASE_URL, AUTH_DRAIN: '', ...own }, join(folder, 'dist/server/main.js'))
    const servers = [await start(root, ports[0]), await start(root, ports[1])]
    const balancer = await startHaproxy(t, ports)
    const request = createRequest(balancer.http)
    const token = await login(request)
    await usesAll(request, token, servers)
    const known = async () =>
      (await ask(DATABASE_URL, 'SELECT kind, migration FROM processes ORDER BY migration')).map(
        ({ kind, migration }) => `${kind} ${migration}`,
      )
    const newest = `all-in-one ${migrations.at(-1)}`
    t.deepEqual(await known(), [newest, newest])

    const loads = [
      readsOf(t, request, token),
      writesOf(t, request),
      grpcReadsOf(t, grpcOf(t, balancer.grpc), token),
    ] as const
    const more = () => Promise.all(loads.map((load, index) => load.more(index === 1 ? 20 : 50)))
    const up = (...args: string[]) => runVersion(next, env, ['migrate', 'up', '--json', ...args])
    const refused = async (older: readonly { pid: number }[]) => {
      const { code, stderr } = await up('--contract')
      t.is(code, 5, stderr)
      for (const { pid } of older) t.true(stderr.includes(`all-in-one ${hostname()}/${pid}/`), stderr)
      t.is(stderr.split('all-in-one ').length - 1, older.length)
    }
    await more()
    t.deepEqual(JSON.parse(done(await up())).migrations, ['9998-next.sql'])
    await refused(servers)
    for (const [index, port] of ports.entries()) {
      await more()
      servers[index]!.child.kill('SIGTERM')
      t.is(await servers[index]!.ended, 0)
      t.is((await known()).length, 1)
      servers[index] = await start(next, port)
      await usesAll(request, token, servers)
      if (index === 0) await refused([servers[1]!])
    }
    t.deepEqual(await known(), ['all-in-one 9999-last.sql', 'all-in-one 9999-last.sql'])
    t.deepEqual(await ask(DATABASE_URL, `SELECT name FROM migrations WHERE name = '9999-last.sql'`), [])
    await more()
    t.deepEqual(JSON.parse(done(await up('--contract'))).migrations, ['9999-last.sql'])
    await more()
    await Promise.all(loads.map(load => load.end()))
    const [reads, writes, calls] = loads.map(load => load.summary())
    t.log(`reads: ${reads}; sign-ups: ${writes}; reads over gRPC: ${calls}`)
    t.deepEqual([...new Set(loads.flatMap(({ statuses }) => statuses))], [200])

    const late = launch(t, env)
    t.is(await late.ended, 1)
    t.regex(late.output(), /newer version .*\(9999-last\.sql\): run that version instead/)
  },
)

withBalancer('while no server passes its readiness check, deploy/haproxy sends requests to all of them', async t => {
  const DATABASE_URL = await freshDatabase(t)
  const ports = [await freePorts(), await freePorts()] as const
  const servers = await Promise.all(ports.map(({ env }) => spawnServer(t, { DATABASE_URL, ...env })))
  const metrics = await freePort()
  const balancer = await startHaproxy(t, [
    { ...ports[0], metrics },
    { ...ports[1], metrics },
  ])
  const request = createRequest(balancer.http)
  const token = await login(request)
  const loads = [readsOf(t, request, token), grpcReadsOf(t, grpcOf(t, balancer.grpc), token)]
  // They take 5 s at least; the checks fail in 2.
  await Promise.all(loads.map(each => each.more(800)))
  await usesAll(request, token, servers)
  await Promise.all(loads.map(each => each.end()))
  t.deepEqual([...new Set(loads.flatMap(({ statuses }) => statuses))], [200], loads.map(each => each.summary()).join())
})

test('a process that starts while a `contract` runs waits for it, and refuses', async t => {
  const env = await serviceEnv(t)
  const holder = await hold(t, env.DATABASE_URL!)
  // As in a migration.
  await holder.query('BEGIN; SELECT pg_advisory_xact_lock(7264001)')
  const program = launch(t, env)
  const waiting = `SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 7264001 AND NOT granted`
  await waitFor(async () => (await ask(env.DATABASE_URL!, waiting)).length > 0 || !program.alive(), program.output)
  await holder.query(`INSERT INTO migrations (name, kind, digest) VALUES ('9999-next.sql', 'contract', ''); COMMIT`)
  t.is(await program.ended, 1)
  t.regex(program.output(), /newer version .*\(9999-next\.sql\): run that version instead/)
  t.deepEqual(await ask(env.DATABASE_URL!, 'SELECT id FROM processes'), [])
})

test('a process renews its row, also after a fault of the database, and removes it when it stops', async t => {
  const server = await spawnServer(t)
  const url = server.databaseUrl
  const rows = () => ask(url, 'SELECT id, seen_at > now() AS renewed FROM processes')
  const later = `UPDATE processes SET seen_at = now() - interval '1 hour'`
  const [{ id }] = (await rows()) as [{ id: string }]
  t.true(id.startsWith(`${hostname()}/${server.pid}/`), id)
  await ask(url, later)
  const renewed = `SELECT count(*)::int AS n FROM processes WHERE seen_at > now() - interval '30 s'`
  await waitForValue(async () => (await ask(url, renewed))[0]!.n, 1)
  await ask(url, `ALTER TABLE processes RENAME TO away`)
  await waitFor(() => server.output().includes('can’t record that it runs'), server.output)
  await ask(url, `ALTER TABLE away RENAME TO processes; ${later}`)
  await waitForValue(async () => (await ask(url, renewed))[0]!.n, 1)
  server.child.kill('SIGTERM')
  t.is(await server.ended, 0)
  t.deepEqual(await rows(), [])
})
