/** The primary vanishes from the network under load, and its standby is promoted. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { ask } from '../_helpers/database.js'
import { waitFor } from '../_helpers/patience.js'
import { startRelay } from '../_helpers/relay.js'
import { startTestService } from '../_helpers/service.js'
import { startPair } from '../_helpers/standby.js'

test('behind several hosts a promotion is seconds of 503, and no acknowledged write is lost', async t => {
  const { primary, standby } = await startPair(t)
  const relay = await startRelay(t, primary)
  const { port, username, password } = new URL(standby)
  const service = await startTestService(t, {
    DATABASE_URL: `postgres://${username}:${password}@127.0.0.1:${relay.port},127.0.0.1:${port}/auth`,
    AUTH_LIMIT_FACTOR: '1000',
  })
  const { token } = await service.signUp('ROLE_CLIENT')

  const acknowledged: string[] = []
  const answers: Record<string, number> = {}
  let ended = false
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
