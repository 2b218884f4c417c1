/** How the feed resumes: no change is lost with concurrent writers, and a changed history is detected. */
import { randomInt } from 'node:crypto'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { timestampMs } from '@bufbuild/protobuf/wkt'
import test from 'ava'
import pg from 'pg'
import type { Registry, User } from '../../proto/client/index.js'
import { ChangeKind, Restart } from '../../proto/gen/auth/v1/changes_pb.js'
import { done, newIdentity } from '../_helpers/backups.js'
import { runCli } from '../_helpers/cli.js'
import { freshDatabase, hold } from '../_helpers/database.js'
import { grpcOf, openGrpc } from '../_helpers/grpc.js'
import { suspend } from '../_helpers/models.js'
import { replicasForFile } from '../_helpers/replicas.js'
import { startTestService, type TestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { idOf } from '../_helpers/tokens.js'
import { move, registryOf } from '../_helpers/verifiers.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'
import { asOf, pollWith, readPages, watch } from '../_helpers/watcher.js'

const replicas = replicasForFile(2)
const [service, other] = replicas as [TestService, TestService]
const polls: ReturnType<typeof pollWith>[] = []
const clients: { close(): void }[] = []
test.before(async () => {
  const key = await serviceKey(service, ['tokens.watch', 'users.watch'])
  for (const { grpc } of replicas) {
    const client = openGrpc(grpc)
    clients.push(client)
    polls.push(pollWith(client, key))
  }
})
test.after.always(() => {
  for (const client of clients) client.close()
})

/** A user with a revocation. */
async function revoked({ signUp, registry }: TestService): Promise<string> {
  const { token } = await signUp('ROLE_CLIENT')
  await suspend(registry, idOf(token))
  return String(idOf(token))
}

/** The lock that a process holds while it seals events. */
const sealer = 7264004

test.serial(
  'with 200 concurrent writers, no watcher misses a revocation that was acknowledged before as_of',
  async t => {
    const [writers, rounds, width] = [200, 4, 40]
    const { sequelize } = service.registry.database
    const [rows] = await sequelize.query(
      `INSERT INTO users (username, username_key, username_skeleton, nickname, nickname_key, nickname_skeleton,
      password_hash, state, city, terms_of_usage, role)
    SELECT 'f' || n, 'f' || n, 'f' || n, 'f' || n, 'f' || n, 'f' || n, '', 'SP', 'Bauru', true, 'ROLE_CLIENT'
    FROM generate_series(1, ${writers}) n RETURNING id`,
    )
    const ids = (rows as { id: number }[]).map(({ id }) => id)

    /** Revocations that were acknowledged: the generation of a user, and the time of the database after that. */
    const acknowledged: { id: number; generation: number; at: number }[] = []
    const faults: string[] = []
    const watchers = await Promise.all(
      [[polls[0]!], [polls[1]!], polls, [...polls].reverse(), polls].map((polls, index) =>
        watch(polls, {
          kinds: index === 4 ? [ChangeKind.REVOCATIONS, ChangeKind.USERS] : [ChangeKind.REVOCATIONS],
          onResponse(response, { generations }) {
            if (response.restart !== Restart.UNSPECIFIED) faults.push(`restart ${response.restart}`)
            if (response.more) return
            for (const { id, generation, at } of acknowledged)
              if (at < asOf(response) && (generations.get(id) ?? 0) < generation)
                faults.push(`${index}: ${id} has ${generations.get(id)}, not ${generation}, at ${asOf(response) - at}`)
          },
        }),
      ),
    )

    const pool = new pg.Pool({ connectionString: service.env.DATABASE_URL!, max: width })
    t.teardown(() => pool.end())
    async function write(id: number) {
      const client = await pool.connect()
      try {
        const event = { action: 'user.suspend', outcome: 'ok', actor: 'service', subject_id: id } as const
        await client.query('BEGIN')
        await client.query('SELECT audit_append($1)', [service.registry.audit.stamp(event)])
        const { rows } = await client.query(
          'UPDATE users SET token_generation = token_generation + 1 WHERE id = $1 RETURNING token_generation AS n',
          [id],
        )
        // Transactions commit in another order than they wrote their events.
        await sleep(randomInt(0, 60))
        await client.query('COMMIT')
        const now = await client.query<{ at: Date }>('SELECT clock_timestamp() AS at')
        acknowledged.push({ id, generation: rows[0]!.n, at: now.rows[0]!.at.getTime() })
      } finally {
        client.release()
      }
    }
    await Promise.all(
      ids.map(async id => {
        for (let round = 0; round < rounds; round++) await write(id)
      }),
    )
    const expected = new Map(ids.map(id => [id, rounds]))
    for (const { generations } of watchers) {
      const seen = () => new Map(ids.map(id => [id, generations.get(id) ?? 0]))
      await waitForValue(seen, expected)
    }
    t.true(ids.every(id => watchers[4]!.users.has(id)))
    for (const { stop } of watchers) await stop()
    t.is(acknowledged.length, writers * rounds)
    t.deepEqual(faults, [])
  },
)

test.serial('a cursor of one server is valid at another, even at one that started later', async t => {
  const before = (await readPages(polls[0]!)).at(-1)!.cursor
  const sub = await revoked(service)
  const third = await startTestService(t, { DATABASE_URL: service.env.DATABASE_URL! })
  const client = grpcOf(t, third.grpc)
  const poll = pollWith(client, await serviceKey(service, ['tokens.watch']))
  for (const ask of [...polls, poll]) {
    const { revocations, restart } = await ask({ cursor: before, ms: 10_000 })
    t.true(revocations.some(each => each.sub === sub))
    t.is(restart, Restart.UNSPECIFIED)
  }
})

test.serial('for an unknown cursor the response is CURSOR_LOST and a new snapshot', async t => {
  const sub = await revoked(other)
  const { cursor } = await waitFor(async () => {
    const pages = await readPages(polls[0]!)
    return pages.some(({ revocations }) => revocations.some(each => each.sub === sub)) && pages.at(-1)
  })
  const [id = '', hash = ''] = cursor.split(':')
  const unknown = {
    'another hash': `${id}:${hash.replace(/^./, first => (first === '0' ? '1' : '0'))}`,
    'no hash': `${id}:`,
    'of the future': `${Number(id) + 1_000_000}:${hash}`,
  }
  for (const [what, cursor] of Object.entries(unknown)) {
    for (const poll of polls) {
      const { restart, revocations } = await poll({ cursor, ms: 10_000 })
      t.is(restart, Restart.CURSOR_LOST, what)
      t.like(
        revocations.find(each => each.sub === sub),
        { sub },
        what,
      )
    }
  }
})

/** Keeps a copy of users as in the README of the client package, from a stored cursor. */
function keepCopy(registry: Registry, copy: Map<number, User>, stored: string) {
  const alls: boolean[] = []
  let cursor = stored
  const watch = registry.watchUsers(
    async change => {
      const ids = change.all ? [...copy.keys()] : change.ids
      const references = ids.map(value => ({ user: { case: 'id' as const, value } }))
      const { users, missing } = await registry.users.batchGetUsers({ references })
      for (const user of users) copy.set(user.id!, user)
      for (const { user } of missing) copy.delete(Number(user.value))
      alls.push(change.all)
      cursor = change.cursor
    },
    { cursor },
  )
  return { ...watch, alls, cursor: () => cursor }
}

test('after a restore from a backup, later cursors are lost, earlier ones are valid, and copies start from a new snapshot', async t => {
  const first = await startTestService(t)
  const connect = async (service: TestService) => {
    const client = grpcOf(t, service.grpc)
    return pollWith(client, await serviceKey(service, ['tokens.watch']))
  }
  const poll = await connect(first)
  const kept = await revoked(first)
  await waitFor(async () => (await readPages(poll)).flatMap(({ revocations }) => revocations).length > 0)
  const early = (await readPages(poll)).at(-1)!.cursor
  const copy = new Map<number, User>()
  const before = keepCopy(await registryOf(first), copy, '')
  await waitForValue(() => before.alls, [true])
  const user = await first.signUp('ROLE_CLIENT')
  const id = idOf(user.token)
  const { city } = await waitFor(() => copy.get(id))
  const folder = await temporaryFolder(t)
  const { recipient, identity } = await newIdentity(folder)
  const file = join(folder, 'registry.age')
  done(await runCli(first.env, ['backup', file, '--recipient', recipient]))
  await move(first, user)
  const gone = idOf((await first.signUp('ROLE_CLIENT')).token)
  const lost = await revoked(first)
  await waitFor(() => copy.get(id)?.city !== city && copy.has(gone))
  await before.close()
  const { cursor: late, revocations } = await poll({ cursor: early, ms: 10_000 })
  t.true(revocations.some(({ sub }) => sub === lost))

  const url = await freshDatabase(t, { from: 'template0' })
  const env = { DATABASE_URL: url, AUTH_MASTER_KEY: first.env.AUTH_MASTER_KEY! }
  done(await runCli(env, ['restore', file, '--identity', identity]))
  const again = await startTestService(t, { ...env, AUTH_ISSUER: first.settings.issuer ?? first.http })
  const ask = await connect(again)
  // Events that are sealed after the restore have other hashes.
  for (let n = 0; n < 3; n++) await revoked(again)
  const answer = await ask({ cursor: late })
  t.is(answer.restart, Restart.CURSOR_LOST)
  t.true(answer.revocations.some(({ sub }) => sub === kept))
  t.false(answer.revocations.some(({ sub }) => sub === lost))
  t.is((await ask({ cursor: early })).restart, Restart.UNSPECIFIED)
  t.is((await ask({ cursor: answer.cursor })).restart, Restart.UNSPECIFIED)

  const warnings: string[] = []
  const registry = await registryOf(again, { onWarning: ({ code }) => void warnings.push(code) })
  const after = keepCopy(registry, copy, before.cursor())
  await waitForValue(() => after.alls, [true])
  t.deepEqual([warnings, copy.get(id)?.city, copy.has(gone)], [['CURSOR_LOST'], city, false])
  const next = idOf((await again.signUp('ROLE_CLIENT')).token)
  await waitFor(() => copy.has(next))
  t.deepEqual(new Set(after.alls.slice(1)), new Set([false]))
  await after.close()
})

test.serial('while the audit log isn’t sealed, as_of stays before the first unsealed event', async t => {
  const poll = polls[0]!
  const { token } = await service.signUp('ROLE_CLIENT')
  const { audit, database } = service.registry
  await waitForValue(async () => (await audit.backlog()).staged, 0)
  const lock = await hold(t, service.env.DATABASE_URL!)
  await lock.query(`SELECT pg_advisory_lock(${sealer})`)
  // Without staged events, everything is sealed.
  const first = (await readPages(poll)).at(-1)!
  const second = await poll({ cursor: first.cursor, ms: 3_000 })
  t.true(asOf(second) > asOf(first) + 300)
  await suspend(service.registry, idOf(token))
  const [{ now }] = (await database.sequelize.query('SELECT now()'))[0] as [{ now: Date }]
  const third = await poll({ cursor: second.cursor, ms: 3_000 })
  const fourth = await poll({ cursor: third.cursor, ms: 3_000 })
  t.true(asOf(third) <= now.getTime())
  t.is(asOf(fourth), asOf(third))
  // Each time is that of a shared read, which may be as old as the interval between two.
  t.true(timestampMs(fourth.now!) > timestampMs(third.now!) + 300)
  t.deepEqual([third.revocations, fourth.revocations], [[], []])
  await lock.query(`SELECT pg_advisory_unlock(${sealer})`)
  const fifth = await poll({ cursor: fourth.cursor, ms: 10_000 })
  t.is(fifth.revocations[0]?.sub, String(idOf(token)))
  t.true(asOf(fifth) >= now.getTime())
})

// The last one with these services.
test.serial('a cursor older than the retention of the audit log is expired, and the newest one is not', async t => {
  const poll = polls[0]!
  const old = (await readPages(poll)).at(-1)!.cursor
  await revoked(service)
  const { cursor } = await poll({ cursor: old, ms: 10_000 })
  const { audit } = service.registry
  await waitForValue(async () => (await audit.backlog()).staged, 0)
  const newest = (await poll({ cursor })).cursor
  await sleep(1_100)
  t.is(await audit.pruneOlder(1), undefined)
  // This process still has the links in memory; another process reads them.
  const another = await startTestService(t, { DATABASE_URL: service.env.DATABASE_URL! })
  const fresh = grpcOf(t, another.grpc)
  const ask = pollWith(fresh, await serviceKey(service, ['tokens.watch']))
  t.is((await ask({ cursor: old })).restart, Restart.CURSOR_EXPIRED)
  t.is((await ask({ cursor: newest })).restart, Restart.UNSPECIFIED)
  // A watcher of users starts from a new snapshot, without a warning.
  const late = keepCopy(await registryOf(another, { onWarning: ({ code }) => t.fail(code) }), new Map(), old)
  await waitForValue(() => late.alls, [true])
  await late.close()
})
