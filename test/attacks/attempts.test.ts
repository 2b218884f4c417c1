/** Guessing at accounts: in parallel, over replicas, at names nobody has, from many addresses and behind forged ones. */
import { randomInt, randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { usernameKey } from '../../server/names.js'
import { openGrpc, refusalOf } from '../_helpers/grpc.js'
import { replicasForFile } from '../_helpers/replicas.js'
import { type Answer, password, startTestService, type TestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

/** Some address that nobody else uses. */
const anyAddress = () => `10.${randomInt(256)}.${randomInt(256)}.${randomInt(1, 255)}`
const from = (address: string) => ({ 'x-forwarded-for': address })

/** A wrong login from an address. */
const guess = (service: TestService, username: string, address: string, wrong = 'not the password') =>
  service.request('POST', '/users/login', { query: { username, password: wrong }, headers: from(address) })

const sql = (text: string) => first.registry.database.sequelize.query(text)

/** An answer but for what differs from one request to the next. */
const gist = ({ status, json }: Answer) => JSON.stringify({ status, ...json, requestId: undefined })

const count = (answers: readonly Answer[]) => {
  const counts: Record<string, number> = {}
  for (const { status, json } of answers) {
    const key = `${status} ${json?.reason ?? ''}`
    counts[key] = (counts[key] ?? 0) + 1
  }
  return counts
}

const replicas = replicasForFile(3) as readonly [TestService, TestService, TestService]
const [first, second, third] = replicas

test('of 200 guesses at once over three replicas 10 are evaluated, whether the account exists or not', async t => {
  const { username } = await first.signUp('ROLE_CLIENT')
  for (const name of [username, `ninguém ${randomUUID()}`]) {
    const guesses = Array.from({ length: 200 }, (_, index) => guess(replicas[index % 3]!, name, anyAddress()))
    const answers = await Promise.all(guesses)
    t.deepEqual(count(answers), { '404 INVALID_CREDENTIALS': 10, '429 TOO_MANY_ATTEMPTS': 190 }, name)
    for (const { status, headers } of answers) {
      if (status !== 429) continue
      const wait = Number(headers.get('retry-after'))
      t.true(Number.isInteger(wait) && wait >= 1 && wait <= 900, String(wait))
    }
  }
})

test('an account that doesn’t exist answers guesses letter for letter like one that does', async t => {
  const { username } = await first.signUp('ROLE_CLIENT')
  const suspended = await first.signUp('ROLE_CLIENT')
  await first.registry.database.transact(transaction =>
    first.registry.users.suspend(idOf(suspended.token), transaction),
  )
  const ways: Record<string, (name: string, service: TestService) => Promise<Answer>> = {
    login: (name, service) => guess(service, name, anyAddress()),
    'login, suspended': (name, service) =>
      guess(service, name === username ? suspended.username : name, anyAddress(), password),
    'mailed key': (name, service) =>
      service.request('POST', '/forgotpasswords/loginbyusernameandkey', {
        query: { username: name, key: 'ABCD2345' },
        headers: from(anyAddress()),
      }),
  }
  for (const [way, ask] of Object.entries(ways)) {
    // Each way of signing in counts on the same account, so each begins with a clean one.
    await first.registry.attempts.clear([first.registry.subjects.account(usernameKey(username))])
    const nobody = `ninguém ${randomUUID()}`
    for (let index = 0; index < 13; index++) {
      const service = index % 2 ? first : second
      const [known, unknown] = [await ask(username, service), await ask(nobody, service)]
      t.is(gist(known), gist(unknown), `${way} ${index}`)
      t.is(known.status === 429, index >= 10, `${way} ${index}`)
    }
  }
})

test('answers and mailed keys count with passwords, each try before it is compared', async t => {
  const questions = (await first.request('GET', '/forgotpasswords/findallforgotpasswordquestions')).json
  const { username, token } = await first.signUp('ROLE_CLIENT')
  for (const { id } of questions.slice(0, 2)) {
    const body = { forgotpasswordquestionsid: id, answer: 'azul' }
    await first.request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body })
  }
  const body = questions
    .slice(0, 2)
    .map(({ id }: { id: number }) => ({ forgotpasswordquestionsid: id, answer: 'verde' }))
  const ask = (index: number): Promise<Answer> => {
    const service = [first, second, third][index % 3]!
    const headers = from(anyAddress())
    if (index % 4 === 0) return guess(service, username, anyAddress())
    if (index % 4 === 1) {
      const path = '/forgotpasswords/loginbyusernameandkey'
      return service.request('POST', path, { query: { username, key: 'ABCD2345' }, headers })
    }
    const path = '/forgotpasswords/loginbyusernameandanswers'
    return service.request('POST', path, { query: { username }, body, headers })
  }
  const counts = count(await Promise.all(Array.from({ length: 60 }, (_, index) => ask(index))))
  t.is(counts['429 TOO_MANY_ATTEMPTS'], 50, JSON.stringify(counts))
})

test('all spellings of a username are one account to a guesser', async t => {
  const service = first
  await service.signUp('ROLE_CLIENT', { username: '(11)98765-4321' })
  const spellings = [
    '(11)98765-4321',
    '11987654321',
    '+55 11 98765-4321',
    '(11) 98765-4321',
    ' 11 98765 4321 ',
    '11‑98765‑4321',
  ]
  const answers = []
  for (let index = 0; index < 15; index++) answers.push(await guess(service, spellings[index % 6]!, anyAddress()))
  t.deepEqual(count(answers), { '404 INVALID_CREDENTIALS': 10, '429 TOO_MANY_ATTEMPTS': 5 })
})

test('an address is held up after 100 failures over any number of accounts, and its own success buys it only that one', async t => {
  const address = anyAddress()
  const own = await first.signUp('ROLE_CLIENT')
  const answers: Answer[] = []
  for (let round = 0; round < 12; round++) {
    const guesses = Array.from({ length: 10 }, (_, index) => guess(index % 2 ? first : second, randomUUID(), address))
    answers.push(...(await Promise.all(guesses)))
    if (round === 5) {
      const query = { username: own.username, password }
      const { status } = await first.request('POST', '/users/login', { query, headers: from(address) })
      t.is(status, 200)
    }
  }
  t.deepEqual(count(answers), { '404 INVALID_CREDENTIALS': 100, '429 TOO_MANY_ATTEMPTS': 20 })
  t.is((await guess(first, own.username, anyAddress())).status, 404)
})

test('nobody locks the owner out: a known address keeps its own count, and the attacker stays locked after its success', async t => {
  const { username } = await first.signUp('ROLE_CLIENT')
  const home = anyAddress()
  const owner = (service: TestService, secret = password) =>
    service.request('POST', '/users/login', { query: { username, password: secret }, headers: from(home) })
  t.is((await owner(first)).status, 200)
  for (let index = 0; index < 30; index++) await guess(index % 2 ? first : second, username, anyAddress())
  t.is((await guess(first, username, anyAddress(), password)).status, 429)
  for (let round = 0; round < 3; round++) {
    t.is((await owner(second)).status, 200)
    t.is((await guess(second, username, anyAddress(), password)).status, 429)
  }
  // What is known is no licence to guess: it has a limit of its own, for this account alone.
  const answers = []
  for (let index = 0; index < 12; index++) answers.push(await owner(first, 'not the password'))
  t.deepEqual(count(answers), { '404 INVALID_CREDENTIALS': 10, '429 TOO_MANY_ATTEMPTS': 2 })
  // An address is known to the account that signed in from it, not to others.
  const other = await first.signUp('ROLE_CLIENT')
  for (let index = 0; index < 11; index++) await guess(first, other.username, anyAddress())
  t.is((await guess(first, other.username, home, password)).status, 429)
})

test('an address is known for 30 days', async t => {
  const service = first
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const home = anyAddress()
  t.is((await guess(service, username, home, password)).status, 200)
  await sql(`UPDATE known_addresses SET seen_at = now() - interval '31 days' WHERE user_id = ${idOf(token)}`)
  for (let index = 0; index < 11; index++) await guess(service, username, anyAddress())
  t.is((await guess(service, username, home, password)).status, 429)
})

test('a success clears the count of the account', async t => {
  const service = first
  const { username } = await service.signUp('ROLE_CLIENT')
  for (let round = 0; round < 3; round++) {
    for (let index = 0; index < 9; index++) t.is((await guess(service, username, anyAddress())).status, 404)
    t.is((await guess(service, username, anyAddress(), password)).status, 200)
  }
})

test('a lock ends with its time, neither sooner nor later for being tried', async t => {
  const service = first
  const { username } = await service.signUp('ROLE_CLIENT')
  for (let index = 0; index < 12; index++) await guess(service, username, anyAddress())
  const before = Number((await guess(service, username, anyAddress())).headers.get('retry-after'))
  for (let index = 0; index < 30; index++) await guess(service, username, anyAddress())
  const after = Number((await guess(service, username, anyAddress())).headers.get('retry-after'))
  t.true(before > 880 && after > 870 && after <= before, `${before} ${after}`)
  const subject = service.registry.subjects.account(usernameKey(username)).toString('hex')
  await sql(`UPDATE attempts SET window_ends = now() WHERE subject = '\\x${subject}'`)
  t.is((await guess(service, username, anyAddress(), password)).status, 200)
})

/** Ways to say that one comes from elsewhere. */
const disguises = (index: number): Record<string, string>[] => [
  { 'x-forwarded-for': `203.0.113.${index}` },
  { 'x-forwarded-for': `127.0.0.1, 198.51.100.${index}` },
  { 'X-Forwarded-For': `2001:db8:${index}::1` },
  { 'x-forwarded-for': `'; DROP TABLE attempts --${index}` },
  { 'x-real-ip': `203.0.113.${index}` },
  { forwarded: `for=203.0.113.${index}` },
  { 'x-client-ip': `203.0.113.${index}` },
  { 'true-client-ip': `203.0.113.${index}` },
  { 'cf-connecting-ip': `203.0.113.${index}` },
  { via: `1.1 proxy${index}` },
]

test('who isn’t a trusted proxy can name no other address, over HTTP or gRPC', async t => {
  const service = await startTestService(t, { AUTH_TRUSTED_PROXIES: '192.0.2.1' })
  const client = openGrpc(service.grpc)
  t.teardown(async () => client.close())
  const answers: number[] = []
  for (let index = 0; index < 110; index++) {
    const headers = disguises(index)[index % 10]!
    const query = { username: randomUUID(), password: 'wrong' }
    if (index % 3) answers.push((await service.request('POST', '/users/login', { query, headers })).status)
    else {
      const { info, retryInfo } = await client
        .call(Users.method.login, query, { metadata: headers })
        .then(() => t.fail() as never, refusalOf)
      answers.push(info?.reason === 'INVALID_CREDENTIALS' ? 404 : 429)
      if (info?.reason === 'TOO_MANY_ATTEMPTS') {
        const wait = Number(retryInfo?.retryDelay?.seconds)
        t.true(wait >= 1 && wait <= 900)
      }
    }
  }
  t.deepEqual(answers, [...Array(100).fill(404), ...Array(10).fill(429)])
})

test('behind a trusted proxy only what it added counts, not what the client put before it', async t => {
  const service = first
  const address = anyAddress()
  const answers: number[] = []
  for (let index = 0; index < 110; index++) {
    const lists = [
      `198.51.100.${index}, ${address}`,
      `127.0.0.1, 198.51.100.${index},${address}`,
      `garbage, ${address}:${1000 + index}`,
    ]
    answers.push((await guess(service, randomUUID(), lists[index % 3]!)).status)
  }
  t.deepEqual(answers, [...Array(100).fill(404), ...Array(10).fill(429)])
})

test('a whole /64 of IPv6 counts as one address, however it is written', async t => {
  const service = first
  const client = openGrpc(service.grpc)
  t.teardown(async () => client.close())
  const block = `2001:db8:${randomInt(1, 0xffff).toString(16)}:a`
  const answers: number[] = []
  for (let index = 0; index < 110; index++) {
    const host = randomInt(0xffff).toString(16)
    const forms = [
      `${block}::${host}`,
      `${block}:${host}:0:0:1`,
      `[${block.toUpperCase()}::${host}]:4711`,
      block.replace('2001:db8', '2001:0db8').concat(`:0:0:0:${host}`),
    ]
    answers.push((await guess(service, randomUUID(), forms[index % 4]!)).status)
  }
  t.deepEqual(answers, [...Array(100).fill(404), ...Array(10).fill(429)])
  t.is((await guess(service, randomUUID(), `${block.slice(0, -1)}b::1`)).status, 404)
})

test('IPv4 in the clothes of IPv6 is the same address, and not one with all the others', async t => {
  const service = first
  const address = anyAddress()
  const answers: number[] = []
  for (let index = 0; index < 104; index++) {
    answers.push((await guess(service, randomUUID(), index % 2 ? address : `::ffff:${address}`)).status)
  }
  t.deepEqual(answers, [...Array(100).fill(404), ...Array(4).fill(429)])
  t.is((await guess(service, randomUUID(), `::ffff:${anyAddress()}`)).status, 404)
})

test('a gRPC client behind a trusted gateway is counted by its own address', async t => {
  const service = first
  const client = openGrpc(service.grpc)
  t.teardown(async () => client.close())
  const tell = async (address: string) => {
    const options = { metadata: { 'x-forwarded-for': address } }
    const call = client.call(
      ForgotPasswords.method.loginByUsernameAndKey,
      { username: randomUUID(), key: 'ABCD2345' },
      options,
    )
    return call.then(
      () => 'OK',
      error => refusalOf(error).info?.reason,
    )
  }
  const block = `2001:db8:${randomInt(1, 0xffff).toString(16)}:c`
  const reasons: (string | undefined)[] = []
  for (let index = 0; index < 104; index++) {
    reasons.push(await tell(index % 2 ? `${block}::${index + 1}` : `${block}:1:2:3:${index}`))
  }
  t.deepEqual(reasons, [...Array(100).fill('INVALID_KEY'), ...Array(4).fill('TOO_MANY_ATTEMPTS')])
})

test('what its caller cut short is compared for nobody and held against nobody', async t => {
  const service = await startTestService(t, { DATABASE_URL: first.env.DATABASE_URL!, AUTH_BCRYPT_COST: '11' })
  const { username } = await service.signUp('ROLE_CLIENT')
  let cut = 0
  for (let index = 0; index < 60 && cut < 12; index++) {
    const headers = { 'connect-timeout-ms': '40', ...from(anyAddress()) }
    const body = { username, password: index % 2 ? password : 'not the password' }
    const { status, text } = await service.request('POST', '/auth.v1.Users/Login', { body, headers })
    // 429 is of a busy service, which begins nothing that can't be done in time.
    t.true([504, 429].includes(status), text)
    if (status === 504) cut++
    // The thread is still at it.
    await sleep(150)
  }
  t.true(cut >= 11)
  t.is((await guess(service, username, anyAddress(), password)).status, 200)
})
