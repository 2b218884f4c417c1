/** A pooler in transaction mode stands before the database, and keeps no names of statements. */
import test, { type ExecutionContext } from 'ava'
import { freshDatabase } from '../_helpers/database.js'
import { startPgbouncer } from '../_helpers/pgbouncer.js'
import { startPooler } from '../_helpers/pooler.js'
import { createRequest, password, startTestService, type TestService } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { waitFor } from '../_helpers/wait.js'

/** How often each answer came to 300 requests, 20 at once, which read and which write. */
async function ask(t: ExecutionContext, { request, signUp }: TestService): Promise<Record<string, number>> {
  const users = await Promise.all(Array.from({ length: 6 }, () => signUp('ROLE_CLIENT')))
  const body = { forgotpasswordquestionsid: 1, answer: 'azul' }
  const send = (index: number) => {
    const { username, token } = users[index % users.length]!
    if (index < users.length) return request('POST', '/users/login', { query: { username, password }, once: true })
    return index % 3 === 0
      ? request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body, once: true })
      : request('GET', '/users/me', { token, once: true })
  }
  const counts: Record<string, number> = {}
  let sent = 0
  const work = async () => {
    while (sent < 300) {
      const { status, json } = await send(sent++)
      const key = [status, json?.reason].filter(Boolean).join(' ')
      counts[key] = (counts[key] ?? 0) + 1
    }
  }
  await Promise.all(Array.from({ length: 20 }, work))
  t.log(counts)
  return counts
}

const poolers = {
  'a pooler': async (t: ExecutionContext, url: string) => {
    const pooler = await startPooler(t, url)
    pooler.lendForTransactions()
    return pooler.url
  },
  ...(process.env.PGBOUNCER && { PgBouncer: startPgbouncer }),
}
for (const [name, start] of Object.entries(poolers)) {
  test.serial(`behind ${name} in transaction mode everything is answered as without, from the start`, async t => {
    const service = await startTestService(t, { DATABASE_URL: await start(t, await freshDatabase(t)) })
    t.deepEqual(await ask(t, service), { 200: 300 })
  })

  test.serial(`behind ${name} a process goes without names before its first call`, async t => {
    const DATABASE_URL = await freshDatabase(t)
    await startTestService(t, { DATABASE_URL })
    const { http, output } = await spawnService(t, { DATABASE_URL: await start(t, DATABASE_URL) })
    await createRequest(http)('GET', '/forgotpasswords/findallforgotpasswordquestions')
    await waitFor(() => output().includes('"msg":"call"'), output)
    // A call that learned it in a transaction would be refused.
    t.regex(output(), /statements run unprepared.*\n(.*\n)*.*"msg":"call"/)
  })
}

test.serial('a pooler that comes to transaction mode later is noticed, and nothing is a fault of ours', async t => {
  const pooler = await startPooler(t, await freshDatabase(t), 16)
  const service = await startTestService(t, { DATABASE_URL: pooler.url })
  t.deepEqual(await ask(t, service), { 200: 300 })
  pooler.lendForTransactions()
  await waitFor(async () => {
    const { 200: _, '503 UNAVAILABLE': __, ...others } = await ask(t, service)
    t.deepEqual(others, {})
    return true
  })
  t.deepEqual(await ask(t, service), { 200: 300 })
})
