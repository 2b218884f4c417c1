/** The volume of the database is full: PostgreSQL refuses writes with class 53 of SQLSTATE. */
import { execFileSync, spawnSync } from 'node:child_process'
import { chmod, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'ava'
import { ask, type Teardown } from '../_helpers/database.js'
import { scrape } from '../_helpers/metrics.js'
import { refused } from '../_helpers/problem.js'
import { password, signUpForm, startTestService } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { waitForValue } from '../_helpers/wait.js'

const scraped = { AUTH_METRICS_ADDRESS: '127.0.0.1:0' }

test('writes that fail on a full volume are answered with 503 and counted; reads continue, and the service stays ready', async t => {
  const { env, request, signUp, service } = await startTestService(t, scraped)
  const { username, token } = await signUp('ROLE_CLIENT')
  const login = () => request('POST', '/users/login', { query: { username, password }, once: true })
  const counted = async () => (await scrape({ service })).value('auth_database_errors_total', { class: '53' })
  // An alert sees the first error as an increase.
  t.is(await counted(), 0)
  await ask(
    env.DATABASE_URL!,
    `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
      AS 'BEGIN RAISE EXCEPTION ''could not extend file'' USING ERRCODE = ''disk_full''; END'`,
  )
  for (const table of ['attempts', 'audit_staged', 'users'])
    await ask(
      env.DATABASE_URL!,
      `CREATE TRIGGER full_volume BEFORE INSERT OR UPDATE ON ${table} EXECUTE FUNCTION refuse()`,
    )
  for (let times = 0; times < 10; times++) {
    refused(t, await login(), 503, 'UNAVAILABLE')
    refused(t, await request('POST', '/users/signup', { body: signUpForm(), once: true }), 503, 'UNAVAILABLE')
    t.is((await request('GET', '/users/me', { token, once: true })).status, 200)
    t.is((await request('GET', '/readyz')).status, 200)
  }
  t.true((await counted())! >= 20)
  t.is((await scrape({ service })).value('auth_ready'), 1)
})

/** Mounts a small volume. Returns undefined without permission to mount. */
async function mountVolume(t: Teardown): Promise<string | undefined> {
  const volume = await temporaryFolder(t)
  // The embedded PostgreSQL of root runs as another user.
  await chmod(volume, 0o755)
  if (spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=200m,mode=755', 'tmpfs', volume]).status !== 0) return undefined
  t.teardown(async () => void execFileSync('umount', [volume]))
  return volume
}

test('an embedded database on a volume that is really full serves reads, loses no user, and writes again once there is space', async t => {
  const volume = await mountVolume(t)
  // The test above causes the same errors without a volume.
  if (!volume) return t.pass('no right to mount a volume')
  const service = await spawnService(t, { ...scraped, DATABASE_URL: '', AUTH_DATA_DIR: join(volume, 'auth') })
  const metrics = /metrics +(http\S+)/.exec(service.output())![1]!
  const tokens: string[] = []
  const signUp = async () => {
    const headers = { 'content-type': 'application/json' }
    const answer = await fetch(`${service.http}/users/signup`, {
      method: 'POST',
      headers,
      body: JSON.stringify(signUpForm()),
    })
    if (answer.status === 200) tokens.push(await answer.text())
    return answer.status
  }
  t.is(await signUp(), 200)
  const me = async (token: string) =>
    (await fetch(`${service.http}/users/me`, { headers: { authorization: `Bearer ${token}` } })).status
  const ready = () => fetch(metrics.replace('/metrics', '/readyz'))
  const before = await scrape(metrics)
  const size = before.value('auth_data_volume_size_bytes')!
  t.is(size, 200 * 1024 * 1024)
  t.true(before.value('auth_data_volume_free_bytes')! > size / 4)

  const filler = join(volume, 'filler')
  await t.throwsAsync(writeFile(filler, Buffer.alloc(size)), { code: 'ENOSPC' })
  // PostgreSQL has some free space in its files.
  await waitForValue(signUp, 503)
  t.is(await me(tokens[0]!), 200)
  t.is((await ready()).status, 200)
  const full = await scrape(metrics)
  t.true(full.value('auth_database_errors_total', { class: '53' })! > 0)
  t.true(full.value('auth_data_volume_free_bytes')! < size / 100)

  await rm(filler)
  await waitForValue(signUp, 200)
  t.is((await ready()).status, 200)
  for (const token of tokens) t.is(await me(token), 200)
})
