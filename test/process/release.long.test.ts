/**
 * An upgrade from a release, under load: `RELEASE=folder npm run test:long`, where the folder is a clone of the release after
 * `npm ci && npm run build`.
 */
import { randomUUID } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'ava'
import { type ServerProcess, spawnServer } from '../_helpers/apart.js'
import { done } from '../_helpers/backups.js'
import { ask, freshDatabase } from '../_helpers/database.js'
import { freePorts, startHaproxy } from '../_helpers/haproxy.js'
import { type Load, load, login, readsOf, usesAll, writesOf } from '../_helpers/load.js'
import { createRequest, password, type TestService } from '../_helpers/service.js'
import { launch, serviceEnv } from '../_helpers/spawned.js'
import { temporaryFolder } from '../_helpers/temporary-folder.js'
import { root, runVersion } from '../_helpers/versions.js'

const release = process.env.RELEASE

const fields = { password, state: 'CE', city: 'Crato', termsofusage: true, roles: ['ROLE_CLIENT'] }

/** Signs a user up, and returns its username and token. */
async function signUp(request: TestService['request']) {
  const username = randomUUID()
  const { text } = await request('POST', '/users/signup', { body: { username, nickname: username, ...fields } })
  return { username, token: text }
}

/** Edits, logins and refreshes of users of their own, and what they acknowledged. */
async function manyLoads(t: Parameters<typeof load>[0], request: TestService['request']) {
  const people = await Promise.all(Array.from({ length: 16 }, () => signUp(request)))
  const cities = new Map<string, string>()
  let turn = 0
  let again = 0
  const next = () => people[turn++ % people.length]!
  // Of two edits of a user at once, which comes last isn't known.
  const idle = [...people]
  const edits = load(t, async headers => {
    const person = idle.shift()!
    const city = randomUUID()
    const body = { record: { city } }
    try {
      const answer = await request('PATCH', '/users/me', { token: person.token, body, headers, once: true })
      if (answer.status === 200) cities.set(person.username, city)
      return answer
    } finally {
      idle.push(person)
    }
  })
  const logins = load(t, headers =>
    request('POST', '/users/login', { body: { username: next().username, password }, headers, once: true }),
  )
  const refreshes = load(t, async headers => {
    const person = next()
    const answer = await request('GET', '/users/refresh', { token: person.token, headers, once: true })
    if (answer.status === 200) person.token = answer.text
    if (answer.status !== 500) return answer
    // The release refuses tokens that a newer version refreshed: their user logs in again.
    again++
    person.token = await login(request, person.username)
    return { ...answer, status: 200 }
  })
  return { people, cities, again: () => again, loads: { edits, logins, refreshes } }
}

;(release ? test : test.skip)('an upgrade from a release under load fails no call and loses no write', async t => {
  const DATABASE_URL = await freshDatabase(t, { from: 'template0' })
  const env = await serviceEnv(t, { DATABASE_URL })
  const ports = [await freePorts(), await freePorts()] as const
  const start = (folder: string, { env: own }: (typeof ports)[number]) =>
    spawnServer(t, { DATABASE_URL, AUTH_DRAIN: '', ...own }, join(folder, 'dist/server/main.js'))
  const servers: ServerProcess[] = [await start(release!, ports[0]), await start(release!, ports[1])]
  const request = createRequest((await startHaproxy(t, ports)).http)
  const token = await login(request)
  const { people, cities, again, loads } = await manyLoads(t, request)
  const all: Record<string, Load> = { ...loads, reads: readsOf(t, request, token), 'sign-ups': writesOf(t, request) }
  const more = () => Promise.all(Object.values(all).map(each => each.more(20)))
  const imports = async (folder: string) => {
    const rows = Array.from(
      { length: 20 },
      () => `${randomUUID()},${randomUUID()},CE,Crato,ROLE_CLIENT,true,${password}`,
    )
    const file = join(await temporaryFolder(t), 'users.csv')
    await writeFile(file, ['username,nickname,state,city,role,termsofusage,password', ...rows].join('\n'))
    done(await runVersion(folder, env, ['users', 'import', file, '--json']))
  }

  await more()
  await imports(release!)
  t.log(done(await runVersion(root, env, ['migrate', 'up', '--json'])))
  // The release goes on beside the new schema.
  await more()
  await imports(release!)
  for (const [index, port] of ports.entries()) {
    servers[index]!.child.kill('SIGTERM')
    t.is(await servers[index]!.ended, 0)
    servers[index] = await start(root, port)
    await usesAll(request, token, servers)
    await more()
    await imports(root)
  }
  // The way back, one server after the other, before the contract.
  for (const folder of [release!, root]) {
    servers[0]!.child.kill('SIGTERM')
    t.is(await servers[0]!.ended, 0)
    servers[0] = await start(folder, ports[0])
    await usesAll(request, token, servers)
    await more()
  }
  t.log(done(await runVersion(root, env, ['migrate', 'up', '--contract', '--json'])))
  await more()
  await Promise.all(Object.values(all).map(each => each.end()))
  for (const [name, each] of Object.entries(all)) t.log(`${name}: ${each.summary()}`)
  t.log(`logged in again: ${again()}`)
  for (const [name, { statuses }] of Object.entries(all)) t.deepEqual([name, ...new Set(statuses)], [name, 200])

  const [{ n }] = (await ask(DATABASE_URL, `SELECT count(*)::int AS n FROM users WHERE city = 'Crato'`)) as [
    { n: number },
  ]
  t.log(`users in Crato: ${n}`)
  t.true(n >= all['sign-ups']!.statuses.length + 20 * 4)
  for (const { username, token } of people) {
    const { json } = await request('GET', '/users/me', { token })
    if (cities.has(username)) t.is(json?.city, cities.get(username))
  }
  const late = launch(t, env, { program: join(release!, 'dist/server/main.js') })
  t.is(await late.ended, 1)
})
