/** The users of the benchmark: loaded in bulk, with passwords and organizations that the service itself accepts. */
import pg from 'pg'
import { openDatabase } from '../../server/database/connection.js'
import { migrate } from '../../server/database/migrate.js'
import { createMasterKey } from '../../server/masterkey.js'
import { createOrganizations } from '../../server/models/organization.js'
import { nicknameKey, usernameKey } from '../../server/names.js'
import { createPasswords } from '../../server/passwords/hash.js'
import { createHashing } from '../../server/passwords/pool.js'

/** Password of everybody, the administrator included. */
export const password = 'cavalo-marinho-azul-42'

/** How many users hold a token in a run; they are spread evenly over the table. */
export const holders = 200

/** Username of user number 1, 2, 3, …: a telephone number. */
export function usernameOf(number: number): string {
  const digits = String(900_000_000 + number)
  return `(11)${digits.slice(0, 5)}-${digits.slice(5)}`
}

/** Numbers of the users who get tokens; their hashes have cost 4. */
export function holdersOf(population: number): number[] {
  return Array.from({ length: holders }, (_, index) => ((index + 1) * population) / holders)
}

/** Numbers of up to 400 users whose hashes have a cost: even ones 10, odd ones 12, holders excepted. */
export function accountsOf(population: number, cost: 10 | 12): number[] {
  const step = population / holders
  const parity = cost === 10 ? 0 : 1
  return Array.from({ length: Math.min(population, 1000) }, (_, index) => index + 1).filter(
    number => number % step !== 0 && number % 2 === parity,
  )
}

/** Makes the tables in an empty database and fills them with active clients of 20 organizations. */
export async function loadUsers(url: string, population: number, masterKeyBytes: Buffer): Promise<void> {
  const database = openDatabase(url, 2)
  const masterKey = createMasterKey(masterKeyBytes)
  const hashing = createHashing({ cost: 12 })
  try {
    await migrate(database)
    const organizations = createOrganizations(database, masterKey)
    await database.transact(async t => {
      for (let index = 1; index <= 20; index++) {
        const name = `Escola ${index}`
        await organizations.add({ name, nameKey: nicknameKey(name), email: `escola${index}@example.org` }, t)
      }
    })
    const hashes: Record<number, string> = {}
    for (const cost of [4, 10, 12]) {
      const passwords = createPasswords({ pepper: masterKey.pepper, cost, hashing })
      const turn = { account: '', deadline: Number.POSITIVE_INFINITY }
      hashes[cost] = await passwords.hash(password, 'password', turn)
    }
    await fill(url, population, hashes)
  } finally {
    await hashing.close()
    await database.close()
  }
}

async function fill(url: string, population: number, hashes: Record<number, string>): Promise<void> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    await client.query(
      `INSERT INTO users (username, username_key, nickname, nickname_key, password_hash, email, date_of_birth, gender,
        state, city, terms_of_usage, role, active, organization_id)
      SELECT '(11)' || left(digits, 5) || '-' || right(digits, 4), 'tel:+5511' || digits, 'Pessoa ' || number,
        'pessoa ' || number, CASE WHEN number % ($1::int / ${holders}) = 0 THEN $2 WHEN number % 2 = 0 THEN $3 ELSE $4 END,
        'pessoa' || number || '@example.org', date '1960-01-01' + number % 18000, 'N', 'SP', 'São José dos Campos', true,
        'ROLE_CLIENT', true, number % 20 + 1
      FROM (SELECT number, (900000000 + number)::text AS digits FROM generate_series(1, $1::int) number) each`,
      [population, hashes[4], hashes[10], hashes[12]],
    )
    // Here and not in the middle of a measurement.
    await client.query('VACUUM ANALYZE')
    await client.query('CHECKPOINT')
    const { rows } = await client.query('SELECT username, username_key FROM users WHERE username_key = $1', [
      usernameKey(usernameOf(population)),
    ])
    if (rows[0]?.username !== usernameOf(population)) throw new Error('The users in the table aren’t those expected.')
  } finally {
    await client.end()
  }
}
