/** The primary vanishes from the network under load, and its standby is promoted. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { ask, type Teardown } from '../_helpers/database.js'
import { startHaproxy } from '../_helpers/haproxy.js'
import { startRelay } from '../_helpers/relay.js'
import { startTestService } from '../_helpers/service.js'
import { addressesOf, launch, serviceEnv } from '../_helpers/spawned.js'
import { startPair } from '../_helpers/standby.js'
import { waitFor } from '../_helpers/wait.js'

/** How the service finds the one of two servers that takes writes: the database URL it is given. */
const ways: Record<string, (t: Teardown, urls: readonly [string, string]) => Promise<string>> = {
  'several hosts': async (_, [first, second]) => {
    const { username, password, host } = new URL(first)
    return `postgres://${username}:${password}@${host},${new URL(second).host}/auth`
  },
  ...(process.env.HAPROXY && { HAProxy: startHaproxy }),
}
for (const [name, start] of Object.entries(ways)) {
  test.serial(`behind ${name} a promotion causes seconds of 503, and no acknowledged write is lost`, async t => {
    const { primary, standby } = await startPair(t)
    const relay = await startRelay(t, primary)
    const service = await startTestService(t, {
      DATABASE_URL: await start(t, [relay.url, standby]),
      AUTH_LIMIT_FACTOR: '1000',
    })
    const { token } = await service.signUp('ROLE_CLIENT')

    const acknowledged: string[] = []
    const answers: Record<string, number> = {}
    let ended = false
    t.teardown(() => {
      ended = true
    })
    let recovered = 0
    const note = ({ status, json }: { status: number; json?: { reason?: string } }) => {
      const key = [status, json?.reason].filter(Boolean).join(' ')
      answers[key] = (answers[key] ?? 0) + 1
    }
    const write = async () => {
      while (!ended) {
        const name = randomUUID()
        const form = { password: 'cavalo-marinho-azul-42', state: 'SP', city: 'Bauru', termsofusage: true }
        const body = { ...form, username: name, nickname: name, roles: ['ROLE_CLIENT'] }
        const answer = await service.request('POST', '/users/signup', { body, once: true })
        note(answer)
        if (answer.status === 200) acknowledged.push(name)
      }
    }
    const read = async () => {
      while (!ended) {
        const answer = await service.request('GET', '/users/me', { token, once: true })
        note(answer)
        if (answer.status === 200) recovered++
      }
    }
    const load = [write(), write(), write(), read(), read()]
    await waitFor(() => acknowledged.length > 50)

    relay.goDark()
    const darkSince = performance.now()
    const before = acknowledged.length
    await ask(standby, 'SELECT pg_promote()')
    await waitFor(() => acknowledged.length > before)
    const first = ((performance.now() - darkSince) / 1000).toFixed(1)
    await waitFor(
      () => acknowledged.length > before + 50,
      () => acknowledged.length,
    )
    const seconds = ((performance.now() - darkSince) / 1000).toFixed(1)
    recovered = 0
    await waitFor(
      () => recovered > 50,
      () => recovered,
    )
    ended = true
    await Promise.all(load)
    t.log(
      `${acknowledged.length} acknowledged, the first again after ${first} s, 50 after ${seconds} s, ${JSON.stringify(answers)}`,
    )
    t.deepEqual(
      Object.keys(answers).filter(key => !['200', '503 UNAVAILABLE'].includes(key)),
      [],
    )
    const kept = new Set((await ask(standby, 'SELECT username FROM users')).map(row => row.username))
    t.deepEqual(
      acknowledged.filter(name => !kept.has(name)),
      [],
    )
  })
}

test.serial('a start waits until a standby is promoted and takes writes', async t => {
  const { standby } = await startPair(t)
  const programs = await Promise.all(
    ['any', 'read-write'].map(async attributes =>
      launch(t, await serviceEnv(t, { DATABASE_URL: `${standby}?target_session_attrs=${attributes}` })),
    ),
  )
  for (const program of programs)
    await waitFor(() => {
      if (!program.alive()) throw new Error(`the service ended: ${program.output()}`)
      return program.output().includes('waiting for the database')
    })
  await ask(standby, 'SELECT pg_promote()')
  for (const program of programs) t.truthy((await addressesOf(program)).http)
})
