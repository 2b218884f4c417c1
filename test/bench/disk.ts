/**
 * What users, sign-ins and events take of a disk, and how long reading takes at that size; docs/operations.md has the
 * figures. Makes a service on a database of its own, fills that with as many users as the argument says (1,000,000
 * unless told), each with two answers, two addresses that it signed in from and three events, and prints what a row takes
 * in each table, indexes included; then what a login writes, and how long look-ups, logins, clearing up and sealing take.
 *
 *     node dist/test/bench/disk.js 5000000
 */
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { startEmbedded } from '../../server/embedded/start.js'
import { addressIn, password, usernameOf } from './operations.js'
import { stopAll } from './processes.js'
import { serviceOn } from './world.js'

const population = Number(process.argv[2] ?? 1_000_000)
/** Users that `serviceOn` makes. */
const first = 20

const folder = await mkdtemp(join(tmpdir(), 'auth-disk-'))
await chmod(folder, 0o755)
const log = { info() {}, warn: (text: string) => console.error(text) }
const embedded = await startEmbedded({ dataDir: join(folder, 'database'), log })
try {
  const bench = { server: embedded.url, folder, seconds: 0, users: 0, cost: 4 }
  const { service, url, world } = await serviceOn(bench, first, 4, { AUTH_TRUSTED_PROXIES: '127.0.0.0/8' })
  const client = new pg.Client({ connectionString: url })
  // Else an error before the end would be hidden by that of the connection's end.
  client.on('error', () => {})
  await client.connect()
  const login = async (number: number, from: number) => {
    const headers = { 'x-forwarded-for': addressIn(20, from), 'content-type': 'application/x-www-form-urlencoded' }
    const body = new URLSearchParams({ username: usernameOf(number), password })
    const answer = await fetch(`http://127.0.0.1:${service.http}/users/login`, { method: 'POST', headers, body })
    if (!answer.ok) throw new Error(`login: ${answer.status} ${await answer.text()}`)
    await answer.text()
  }
  const lookUp = async (number: number) => {
    const headers = { authorization: `Bearer ${world.adminToken}` }
    const path = encodeURIComponent(usernameOf(number))
    const answer = await fetch(`http://127.0.0.1:${service.http}/users/${path}`, { headers })
    if (!answer.ok) throw new Error(`look-up: ${answer.status} ${await answer.text()}`)
    await answer.text()
  }
  await login(1, 1)
  await fill(client)
  await sizes(client)
  await written(client, login)
  const numbers = Array.from({ length: 2_000 }, (_, index) => ((index * 7_919_993) % population) + 1)
  console.log(`look-up, one after another: ${await median(numbers, lookUp)} ms`)
  console.log(`login at cost 4, likewise: ${await median(numbers.slice(0, 1_000), number => login(number, number))} ms`)
  await clearing(client)
  await sealing(client)
  await client.end()
} finally {
  await stopAll()
  await embedded.stop()
  await rm(folder, { recursive: true, force: true })
}

/** Copies the model and what belongs to it. */
async function fill(client: pg.Client): Promise<void> {
  const statements = [
    // The installation has limited both for this role.
    'SET statement_timeout = 0; SET transaction_timeout = 0',
    `UPDATE users SET email = 'pessoa@example.org', date_of_birth = '2001-02-03', gender = 'F', city = 'São José dos Campos',
       institution_type = 'E', institution = 'Escola Estadual do Jardim Paulista' WHERE nickname = 'Modelo'`,
    `INSERT INTO users SELECT copy.* FROM generate_series(${first + 1}, ${population}) number,
      LATERAL (SELECT (900000000 + number)::text AS digits) d, users model,
      LATERAL jsonb_populate_record(model, jsonb_build_object('id', model.id + number,
        'username', '(11)' || left(digits, 5) || '-' || right(digits, 4), 'username_key', 'tel:+5511' || digits,
        'username_skeleton', 'tel:+55ll' || digits, 'nickname', 'Pessoa ' || number, 'nickname_key', 'pessoa ' || number,
        'nickname_skeleton', 'pessoa ' || number, 'email', 'pessoa' || number || '@example.org', 'active', true,
        'organization_id', number % 20 + 1)) copy
      WHERE model.nickname = 'Modelo'`,
    `INSERT INTO answers (user_id, question_id, answer_hash)
      SELECT u.id, q.id, (SELECT answer_hash FROM answers LIMIT 1)
      FROM users u, (SELECT id FROM questions ORDER BY id LIMIT 2) q ON CONFLICT DO NOTHING`,
    `INSERT INTO known_addresses (user_id, address, seen_at)
      SELECT u.id, uuid_send(gen_random_uuid()), now() - random() * interval '30 days' FROM users u, generate_series(1, 2)`,
    // As they come with time: the events of a user lie far apart.
    `INSERT INTO audit_events SELECT copy.* FROM audit_events model,
      generate_series(0, 2) round, users u,
      LATERAL jsonb_populate_record(model, jsonb_build_object('id', 1000 + round * 2 * ${population}::bigint + u.id,
        'actor_id', u.id, 'subject_id', u.id, 'request_id', gen_random_uuid(), 'hash', '\\x' || encode(sha256(u.id::text::bytea), 'hex'),
        'mac', '\\x' || encode(sha256(u.id::text::bytea), 'hex'), 'salt', '\\x' || encode(uuid_send(gen_random_uuid()), 'hex'))) copy
      WHERE model.id = (SELECT min(id) FROM audit_events WHERE action = 'session.login')`,
    `INSERT INTO attempts (subject, count, window_ends) SELECT uuid_send(gen_random_uuid()), 0, now() + interval '1 hour'
      FROM generate_series(1, ${population / 10})`,
    `SELECT setval(pg_get_serial_sequence('users', 'id'), max(id)) FROM users`,
    'UPDATE audit_head SET id = (SELECT max(id) FROM audit_events)',
    'VACUUM ANALYZE',
    'CHECKPOINT',
  ]
  for (const statement of statements) await client.query(statement)
}

async function sizes(client: pg.Client): Promise<void> {
  const names = ['users', 'answers', 'known_addresses', 'audit_events', 'attempts']
  for (const name of names) {
    const { rows } = await client.query(`SELECT count(*)::float8 AS rows, pg_table_size('${name}')::float8 AS heap,
      pg_indexes_size('${name}')::float8 AS indexes FROM ${name}`)
    const { rows: count, heap, indexes } = rows[0]
    const each = (bytes: number) => Math.round(bytes / count)
    console.log(`${name}: ${count} rows, each ${each(heap)} bytes and ${each(indexes)} of indexes`)
  }
  const { rows } = await client.query('SELECT pg_database_size(current_database())::float8 AS size')
  console.log(`database: ${Math.round(rows[0].size / 1e6)} MB`)
}

/** What a login adds to PostgreSQL's log, on which standbys and archives live, and how many transactions it takes. */
async function written(client: pg.Client, login: (number: number, from: number) => Promise<void>): Promise<void> {
  const logins = 500
  const now = async () => {
    // Statistics of other sessions come late.
    await new Promise(resolve => setTimeout(resolve, 2_000))
    const { rows } = await client.query(`SELECT pg_current_wal_lsn() - '0/0' AS wal, xact_commit::float8 AS commits
      FROM pg_stat_database WHERE datname = current_database()`)
    return { wal: Number(rows[0].wal), commits: rows[0].commits as number, at: performance.now() }
  }
  const ofTime = async (work: () => Promise<void>) => {
    const before = await now()
    await work()
    const after = await now()
    return { wal: after.wal - before.wal, commits: after.commits - before.commits, ms: after.at - before.at }
  }
  // The first write to a page after a checkpoint takes the whole page along.
  for (const state of ['after a checkpoint', 'later']) {
    if (state !== 'later') await client.query('CHECKPOINT')
    const busy = await ofTime(async () => {
      for (let index = 0; index < logins; index++) await login(index + 1, index)
    })
    const idle = await ofTime(() => new Promise(resolve => setTimeout(resolve, 5_000)))
    const extra = (of: 'wal' | 'commits') => (busy[of] - (idle[of] * busy.ms) / idle.ms) / logins
    console.log(
      `a login ${state}: ${Math.round(extra('wal'))} bytes of WAL, ${extra('commits').toFixed(1)} transactions`,
    )
  }
}

/** How long maintenance looks for addresses that are to be forgotten, which it does every 10 minutes in each process. */
async function clearing(client: pg.Client): Promise<void> {
  const from = performance.now()
  await client.query("DELETE FROM known_addresses WHERE seen_at < now() - interval '31 days'")
  console.log(`clearing up of known addresses: ${Math.round(performance.now() - from)} ms`)
}

/** How many events a second are chained at most, when many wait. */
async function sealing(client: pg.Client): Promise<void> {
  const events = 50_000
  const from = performance.now()
  await client.query(`INSERT INTO audit_staged (at, action, outcome, actor, subject_id, request_id, mac)
    SELECT clock_timestamp(), 'session.login', 'ok', 'user', number, gen_random_uuid(), sha256(number::text::bytea)
    FROM generate_series(1, ${events}) number`)
  const staged = performance.now()
  while ((await client.query('SELECT FROM audit_staged LIMIT 1')).rowCount !== 0)
    await new Promise(resolve => setTimeout(resolve, 100))
  const seconds = (performance.now() - staged) / 1000
  console.log(
    `sealing: ${Math.round(events / seconds)} events a second (${Math.round(staged - from)} ms to stage them)`,
  )
}

async function median(numbers: readonly number[], work: (number: number) => Promise<void>): Promise<string> {
  const times: number[] = []
  for (const number of numbers) {
    const from = performance.now()
    await work(number)
    times.push(performance.now() - from)
  }
  return times.sort((a, b) => a - b)[Math.floor(times.length / 2)]!.toFixed(1)
}
