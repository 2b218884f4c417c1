/** Reads share a few connections without affecting each other. */
import test from 'ava'
import { sql } from '../../server/database/sql.js'
import { anyAddress, from } from '../_helpers/crowd.js'
import { serviceForFile } from '../_helpers/service.js'
import { waitFor } from '../_helpers/wait.js'

const service = serviceForFile()

/** Processes of PostgreSQL in which a reading statement waits for a lock. */
async function held(): Promise<number[]> {
  const text = `SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'SELECT u.id, u.username%'`
  const rows = await service.registry.database.run<{ pid: number }>(sql.text(text))
  return rows.map(({ pid }) => pid)
}

test.serial(
  'each of many concurrent calls gets its own user, and only that with a revoked token is refused',
  async t => {
    const users = await Promise.all(Array.from({ length: 8 }, () => service.signUp('ROLE_CLIENT')))
    const revoked = users[3]!
    t.is((await service.request('POST', '/users/revokemytokens', { token: revoked.token })).status, 200)
    const asked = Array.from({ length: 400 }, (_, index) => users[index % users.length]!)
    const answers = await Promise.all(asked.map(({ token }) => service.request('GET', '/users/me', { token })))
    t.deepEqual(
      answers.map(({ json }) => json.username ?? json.reason),
      asked.map(user => (user === revoked ? 'INVALID_TOKEN' : user.username)),
    )
  },
)

test.serial('queries that wait on a broken connection fail at once, and the next query succeeds', async t => {
  const { request, registry, signUp } = service
  const { token, username } = await signUp('ROLE_CLIENT')
  const waiting = await registry.database.transact(async transaction => {
    await registry.database.run(sql`LOCK TABLE users`, transaction)
    // As many as are in progress at one time, each from a separate address: beyond the share of one address, fewer start.
    const asked = Array.from({ length: 30 }, () =>
      request('GET', '/users/me', { token, once: true, headers: from(anyAddress()) }),
    )
    const answers: Awaited<(typeof asked)[number]>[] = []
    for (const each of asked) void each.then(answer => answers.push(answer))
    await waitFor(
      async () => {
        await registry.database.run(sql`SELECT pg_terminate_backend(pid) FROM unnest(${await held()}::int[]) pid`)
        return answers.length === asked.length
      },
      () => answers.length,
    )
    return answers
  })
  t.deepEqual([...new Set(waiting.map(({ status, json }) => `${status} ${json.reason}`))], ['503 UNAVAILABLE'])
  const after = await Promise.all(Array.from({ length: 40 }, () => request('GET', '/users/me', { token })))
  t.deepEqual([...new Set(after.map(({ json }) => json.username))], [username])
})
