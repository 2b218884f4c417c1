/** Obstacles between `auth-admin` and a registry, and the error for each. */
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { ExecutionContext } from 'ava'
import pg from 'pg'
import type { Run } from './cli.js'
import { freshDatabase } from './database.js'

/** Runs a command against every obstacle: it reports each in one sentence, without secrets, and creates no database. */
export async function meetObstacles(
  t: ExecutionContext,
  run: (env: Record<string, string>) => Promise<Run>,
): Promise<void> {
  const AUTH_DATA_DIR = await mkdtemp(join(tmpdir(), 'auth-test-'))
  t.teardown(() => rm(AUTH_DATA_DIR, { recursive: true, force: true }))
  const [empty, ready] = [await freshDatabase(t, { from: 'template0' }), await freshDatabase(t)]
  const secret = 'verywrong'
  // As unique as the database.
  const username = new URL(ready).pathname.slice(1)
  const client = new pg.Client({ connectionString: ready })
  await client.connect()
  await client.query(`CREATE ROLE ${username} LOGIN PASSWORD '${secret}'`)
  await client.end()

  const at = (database: string, change: Partial<URL> = {}) => ({
    DATABASE_URL: Object.assign(new URL(database), change).href,
    AUTH_MASTER_KEY: 'a'.repeat(64),
    AUTH_DATA_DIR,
  })
  const obstacles: [what: string, env: Record<string, string>, code: number, says: RegExp][] = [
    ['no data folder', { AUTH_DATA_DIR }, 5, /`auth-admin login`.*`auth-admin install`/],
    ['no tables', at(empty), 5, /auth-admin install/],
    ['no server', at(`postgres://u:${secret}@127.0.0.1:1/x`), 7, /can’t be reached/],
    ['no database', at(empty, { pathname: '/there_is_none' }), 1, /does not exist/],
    ['a wrong password', at(empty, { password: secret }), 1, /refuses the user or password/],
    ['no rights', at(ready, { username, password: secret }), 1, /lacks the rights.*`GRANT SELECT, /],
  ]
  for (const [what, env, expected, says] of obstacles) {
    const { code, stdout, stderr } = await run(env)
    t.is(code, expected, `${what}: ${stderr}`)
    // With --json a failure is a document, too.
    t.is(`error: ${JSON.parse(stdout).error.message}\n`, stderr, what)
    t.regex(stderr, says, what)
    t.regex(stderr, /^error: [^\n]+\n$/, what)
    t.notRegex(stderr, new RegExp(`${secret}| {4}at |select\\s`, 'i'), what)
  }
  t.deepEqual(await readdir(AUTH_DATA_DIR), [])
}
