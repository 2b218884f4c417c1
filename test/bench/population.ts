/** Makes large registries: users like one that signed up, with all that belongs to users. */
import { randomUUID } from 'node:crypto'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import pg from 'pg'
import { from } from 'pg-copy-streams'
import { keysOf } from '../../server/backup/restore.js'
import { openDatabase } from '../../server/database/database.js'
import { newActivationKey } from '../../server/models/activation-key.js'
import { linkText, stampEvent } from '../../server/models/audit-chain.js'
import { createStoredKeys, type StoredKeys } from '../../server/models/data-key.js'
import { nicknameSkeleton } from '../../server/rules/look-alikes.js'
import { firstNames } from './operations.js'

/** The key of all registries: it opens those that are kept. */
export const masterKey = Buffer.alloc(32, 7)

/** Organizations: a tenth of all users is in the first one, and 45 in each of the others. */
const organizationsOf = (population: number) => 1 + Math.ceil(population / 50)

/** The tables that are filled. */
const tables = ['organizations', 'users', 'answers', 'known_addresses', 'refreshed_sessions', 'audit_events']

/**
 * Adds active clients 1 to `population`, each with the answers to two questions, a known network, a line of refresh tokens and the
 * event of its sign-up in the chain, to an installed registry that no service uses, in which only the user with this username signed up.
 */
export async function fill(url: string, model: string, population: number): Promise<void> {
  const database = openDatabase(url, 1)
  const keys = createStoredKeys(database, masterKey)
  await keys.load()
  await database.close()
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  // The service sets the timeouts.
  await client.query(`SET statement_timeout = 0; SET transaction_timeout = 0; SET idle_in_transaction_session_timeout = 0;
    SET synchronous_commit = off; SET maintenance_work_mem = '1GB'`)
  await client.query(`ALTER SYSTEM SET max_wal_size = '8GB'`)
  await client.query('SELECT pg_reload_conf()')
  const { text, values } = keysOf(tables)
  const { rows: indexes } = await client.query<{ drop: string; make: string }>(text, [...values])
  for (const { drop } of indexes.toReversed()) await client.query(drop)
  const stored = Array.from({ length: organizationsOf(population) }, () => newActivationKey(keys, randomUUID()))
  await client.query(
    `INSERT INTO organizations (id, name, name_key, email, activation_key_digest, activation_key_sealed)
      SELECT id, 'Escola ' || id, 'escola ' || id, 'escola' || id || '@example.org', digest, sealed
      FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS o (digest, sealed, id)`,
    [stored.map(({ digest }) => digest), stored.map(({ sealed }) => sealed)],
  )
  const {
    rows: [{ id: first }],
  } = await client.query('SELECT id FROM users WHERE username = $1', [model])
  await client.query(
    `INSERT INTO users (id, username, username_key, username_skeleton, nickname, nickname_key, nickname_skeleton, email, active,
        organization_id, created_at, activated_at, password_hash, state, city, terms_of_usage, role)
      SELECT $1 + number, '(11)' || left(digits, 5) || '-' || right(digits, 4), 'tel:+5511' || digits, 'tel:+5511' || digits,
        names[rank] || ' ' || number, lower(names[rank]) || ' ' || number,
        skeletons[rank] || ' ' || translate(number::text, '0123456789', $5), 'pessoa' || number || '@example.org', true,
        CASE WHEN number % 10 = 0 THEN 1 ELSE 2 + (number - 1) / 50 END, at, at,
        password_hash, state, city, terms_of_usage, role
      FROM generate_series(1, $2::int) number, LATERAL (SELECT (900000000 + number)::text AS digits,
          strpos(reverse(number::bit(32)::text), '1') AS rank, now() - ($2 - number) * (interval '300 days' / $2) AS at) d,
        (SELECT $3::text[] AS names, $4::text[] AS skeletons, * FROM users WHERE id = $1) model`,
    [first, population, firstNames, firstNames.map(nicknameSkeleton), nicknameSkeleton('0123456789')],
  )
  await client.query(
    `INSERT INTO answers SELECT u.id, q.id, a.answer_hash FROM answers a, questions q, users u
      WHERE a.user_id = $1 AND q.id <= 2 AND u.id > $1`,
    [first],
  )
  await client.query(
    `INSERT INTO known_addresses SELECT id, substr(sha256(int4send(id)), 1, 16), now() - random() * interval '20 days'
      FROM users WHERE id > $1`,
    [first],
  )
  await client.query(
    `INSERT INTO refreshed_sessions (user_id, id, newest, ends_at)
      SELECT id, 'own:' || gen_random_uuid(), 1, now() + interval '60 days' - random() * interval '20 days'
      FROM users WHERE id > $1`,
    [first],
  )
  await addEvents(client, keys, first, population)
  for (const { make } of indexes) await client.query(make)
  await client.query(`SELECT setval(pg_get_serial_sequence('users', 'id'), max(id)) FROM users`)
  // Here, so that it doesn't run during a measurement.
  await client.query('VACUUM ANALYZE')
  await client.query('ALTER SYSTEM RESET max_wal_size')
  await client.query('SELECT pg_reload_conf()')
  await client.query('CHECKPOINT')
  await client.end()
}

/** Adds the events of the sign-ups to the chain. */
async function addEvents(client: pg.Client, keys: StoredKeys, first: number, population: number): Promise<void> {
  const head = (await client.query('SELECT id, hash FROM audit_head')).rows[0] as { id: string; hash: Buffer }
  const seconds = Math.floor(Date.now() / 1000)
  let { hash } = head
  function* lines() {
    let text = ''
    for (let number = 1; number <= population; number++) {
      const id = Number(head.id) + number
      const at = seconds - Math.floor(((population - number) * 300 * 86_400) / population)
      const event = { action: 'user.sign-up', outcome: 'ok', actor: 'anonymous', subject_id: first + number }
      const mac = Buffer.from(JSON.parse(stampEvent(event, keys)).mac.slice(2), 'hex')
      hash = keys.mac(linkText(hash, id, `${at}.000000`, mac))
      const hex = (bytes: Buffer) => `\\\\x${bytes.toString('hex')}`
      const cells = [id, new Date(at * 1000).toISOString(), ...Object.values(event), hex(mac), hex(hash)]
      text += `${cells.join('\t')}\n`
      if (number % 500 > 0 && number < population) continue
      yield text
      text = ''
    }
  }
  const copy = 'COPY audit_events (id, at, action, outcome, actor, subject_id, mac, hash) FROM STDIN'
  await pipeline(Readable.from(lines()), client.query(from(copy)))
  await client.query('UPDATE audit_head SET id = $1, hash = $2', [Number(head.id) + population, hash])
}
