import type { Database, Statement } from '../database/connection.js'
import { knownAddressDays } from './attempt.js'

const statements: Statement[] = [
  {
    name: 'tidy-attempts',
    // Passes over rows in use, so that it never waits for a sign-in while one waits for it.
    text: `DELETE FROM attempts WHERE subject IN
      (SELECT subject FROM attempts WHERE window_ends < now() FOR UPDATE SKIP LOCKED)`,
  },
  {
    name: 'tidy-known-addresses',
    text: `DELETE FROM known_addresses WHERE seen_at < now() - interval '${knownAddressDays} days'`,
  },
  { name: 'tidy-mailed-keys', text: 'DELETE FROM mailed_keys WHERE expires_at < now()' },
]

/** Deletes what has lapsed. Several replicas may do so at once. */
export async function tidy(database: Database): Promise<void> {
  for (const statement of statements) await database.run(statement, [])
}
