/** Reads share a few connections, and nobody notices. */
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import { serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()

/** Processes of PostgreSQL in which a reading statement waits for a lock. */
async function held(): Promise<number[]> {
  const text = `SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'SELECT u.id, u.username%'`
  const rows = await service.registry.database.run<{ pid: number }>({ name: '', text }, [])
  return rows.map(({ pid }) => pid)
}

test.serial('of many who ask at once each gets an answer of their own', async t => {
  const users = await Promise.all(Array.from({ length: 8 }, () => service.signUp('ROLE_CLIENT')))
  const asked = Array.from({ length: 400 }, (_, index) => users[index % users.length]!)
  const answers = await Promise.all(asked.map(({ token }) => service.request('GET', '/users/me', { token })))
  t.deepEqual(
    answers.map(({ json }) => json.username),
    asked.map(({ username }) => username),
  )
})

test.serial('who waits on a connection that breaks learns it at once, and the next one is answered', async t => {
  const { request, registry, signUp } = service
  const { token, username } = await signUp('ROLE_CLIENT')
  const waiting = await registry.database.transact(async transaction => {
    await registry.database.run({ name: '', text: 'LOCK TABLE users' }, [], transaction)
    const asked = Array.from({ length: 40 }, () => request('GET', '/users/me', { token, once: true }))
    let pids: number[] = []
    while (pids.length < 3) {
      await sleep(20)
      pids = await held()
    }
    await registry.database.run({ name: '', text: 'SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) pid' }, [
      pids,
    ])
    return Promise.all(asked)
  })
  t.deepEqual([...new Set(waiting.map(({ status, json }) => `${status} ${json.reason}`))], ['503 UNAVAILABLE'])
  const after = await Promise.all(Array.from({ length: 40 }, () => request('GET', '/users/me', { token })))
  t.deepEqual([...new Set(after.map(({ json }) => json.username))], [username])
})
