/** Whether response times reveal which accounts exist: each sign-in is timed for every kind of account, in turns. */

import { randomInt, randomUUID } from 'node:crypto'
import { Agent, request as httpRequest } from 'node:http'
import test, { type ExecutionContext } from 'ava'
import { suspend } from '../_helpers/models.js'
import { password, type SignedUp, serviceForFile } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

/** Standard deviations beyond which a difference isn't chance: about one false alarm in 10⁹ tests. */
const beyondChance = 6

/**
 * Returns whether two samples of times can be distinguished, by either of two statistics that ignore outliers:
 * - the chance that a guess "the longer one is of the second kind" is right for a pair of them (Mann and Whitney);
 * - the share of one kind in the fastest quarter of all, which has the least noise, because noise only adds time.
 *
 * Both are 0.5 if there is no difference. The kinds are distinguishable if one statistic is farther from 0.5 than
 * chance explains, so a noisy machine doesn't look like a leak. More samples detect smaller differences.
 */
function separation(some: readonly number[], others: readonly number[]) {
  let longer = 0
  for (const a of some) for (const b of others) longer += b > a ? 1 : b === a ? 0.5 : 0
  const right = longer / (some.length * others.length)
  const chance = Math.max(right, 1 - right)

  const all = [...some.map(ms => ({ ms, first: true })), ...others.map(ms => ({ ms, first: false }))]
  const fastest = all.sort((a, b) => a.ms - b.ms).slice(0, Math.floor(all.length / 4))
  const ofFirst = fastest.filter(({ first }) => first).length / fastest.length
  const share = Math.max(ofFirst, 1 - ofFirst)
  const [n, m] = [some.length, others.length]
  const distinguishable =
    chance - 0.5 > beyondChance * Math.sqrt((n + m + 1) / (12 * n * m)) ||
    share - 0.5 > beyondChance * Math.sqrt((0.25 * 0.75) / fastest.length)
  return { distinguishable, chance, share, gap: Math.abs(median(others) - median(some)) }
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN
}

// A hash must take long enough to be measurable among all other work.
const service = serviceForFile(() => ({ AUTH_BCRYPT_COST: '6' }))

/** How often each kind is measured. */
const rounds = 150

const agent = new Agent({ keepAlive: true, maxSockets: 1 })
test.after.always(() => agent.destroy())

let serial = randomInt(1 << 22)

/** Milliseconds from a request to the end of its answer, each from a unique address, and the status. */
function time(path: string, query: Record<string, string>): Promise<{ ms: number; status: number }> {
  serial = (serial + 1) % (1 << 24)
  const address = `10.${serial >> 16}.${(serial >> 8) & 255}.${serial & 255}`
  const url = `${service.http}${path}?${new URLSearchParams(query)}`
  return new Promise((resolve, reject) => {
    const startedAt = performance.now()
    httpRequest(url, { method: 'POST', agent, headers: { 'x-forwarded-for': address } }, response => {
      response.resume().once('end', () => resolve({ ms: performance.now() - startedAt, status: response.statusCode! }))
    })
      .once('error', reject)
      .end()
  })
}

type Kind = { name: string; ask: (round: number) => Promise<{ ms: number; status: number }> }

/** Measures all kinds in every round, each time in another order, and returns the times. */
async function measure(t: ExecutionContext, kinds: readonly Kind[], status: number, times = rounds) {
  const taken = new Map(kinds.map(({ name }) => [name, [] as number[]]))
  for (let round = -5; round < times; round++) {
    // No account may reach ten failures.
    if (round % 100 === 99 && times > rounds) await service.registry.database.sequelize.query('DELETE FROM attempts')
    const order = kinds.map(kind => ({ kind, place: Math.random() })).sort((a, b) => a.place - b.place)
    for (const { kind } of order) {
      const answer = await kind.ask(round + 5)
      if (answer.status !== status) t.fail(`${kind.name}: ${answer.status}`)
      // The first rounds warm up connections and statements.
      if (round >= 0) taken.get(kind.name)!.push(answer.ms)
    }
  }
  return taken
}

/** Fails if any two kinds can be distinguished by time. */
function indistinguishable(t: ExecutionContext, times: Map<string, number[]>): void {
  const entries = [...times]
  for (const [index, [name, some]] of entries.entries()) {
    for (const [other, others] of entries.slice(index + 1)) {
      const { distinguishable, chance, share, gap } = separation(some, others)
      const said = `${name} / ${other}: a guess is right ${(100 * chance).toFixed(0)} times of 100, ${(100 * share).toFixed(0)} % of the fastest are of one kind, medians ${gap.toFixed(2)} ms apart`
      t.log(said)
      t.false(distinguishable, said)
    }
  }
}

const signedUp: Record<'inactive' | 'active' | 'suspended', SignedUp[]> = { inactive: [], active: [], suspended: [] }
test.before(async () => {
  const { database } = service.registry
  const count = Math.ceil((rounds + 5) / 9)
  for (const kind of ['inactive', 'active', 'suspended'] as const) {
    for (let index = 0; index < 2 * count; index++) {
      const email = `${randomUUID()}@example.org`
      const user = await service.signUp('ROLE_CLIENT', { email })
      const id = idOf(user.token)
      if (kind === 'active') await database.sequelize.query(`UPDATE users SET active = true WHERE id = ${id}`)
      if (kind === 'suspended') await suspend(service.registry, id)
      signedUp[kind].push(user)
    }
  }
})

/** A user of a kind with fewer than ten failures: 9 attempts each, from the first half or the second. */
const userOf = (kind: keyof typeof signedUp, half: 0 | 1, round: number) => {
  const list = signedUp[kind]
  return list[half * (list.length / 2) + (Math.floor(round / 9) % (list.length / 2))]!.username
}
const unknownName = () => `(11)9${randomInt(1000, 10_000)}-${randomInt(1000, 10_000)}`

test.serial('a wrong login takes the same time for existing and unknown users', async t => {
  const login = (username: string, secret = 'not the password') => time('/users/login', { username, password: secret })
  const times = await measure(
    t,
    [
      { name: 'unknown', ask: () => login(unknownName()) },
      { name: 'inactive', ask: round => login(userOf('inactive', 0, round)) },
      { name: 'active', ask: round => login(userOf('active', 0, round)) },
      { name: 'suspended, with the right password', ask: round => login(userOf('suspended', 0, round), password) },
      { name: 'a password that can be none', ask: round => login(userOf('active', 1, round), '\u0000') },
    ],
    404,
  )
  indistinguishable(t, times)
})

test.serial('a wrong mailed key takes the same time for existing and unknown users', async t => {
  await service.registry.database.sequelize.query('TRUNCATE attempts')
  const ask = (username: string) => time('/forgotpasswords/loginbyusernameandkey', { username, key: 'ABCD2345' })
  const times = await measure(
    t,
    [
      { name: 'unknown', ask: () => ask(unknownName()) },
      { name: 'inactive', ask: round => ask(userOf('inactive', 0, round)) },
      { name: 'active', ask: round => ask(userOf('active', 0, round)) },
      { name: 'suspended', ask: round => ask(userOf('suspended', 0, round)) },
    ],
    422,
    // There is less work here than for a password, so a leak would be smaller.
    400,
  )
  indistinguishable(t, times)
})

test.serial('a request for a key takes the same time for existing and unknown users', async t => {
  const ask = (username: string, email: string) => time('/forgotpasswords/sendkeybyemail', { username, email })
  const foreign = () => `${randomUUID()}@example.org`
  const times = await measure(
    t,
    [
      { name: 'unknown', ask: () => ask(unknownName(), foreign()) },
      { name: 'active', ask: round => ask(userOf('active', 1, round), foreign()) },
      { name: 'suspended', ask: round => ask(userOf('suspended', 1, round), foreign()) },
    ],
    200,
  )
  indistinguishable(t, times)
})

test.serial('a login to a locked account takes the same time whether it exists or not', async t => {
  await service.registry.database.sequelize.query('TRUNCATE attempts')
  const known = signedUp.active[0]!.username
  const unknown = unknownName()
  const login = (username: string) => time('/users/login', { username, password })
  for (let index = 0; index < 11; index++) {
    for (const username of [known, unknown]) await time('/users/login', { username, password: 'not the password' })
  }
  const kinds = [
    { name: 'known', ask: () => login(known) },
    { name: 'unknown', ask: () => login(unknown) },
  ]
  indistinguishable(t, await measure(t, kinds, 429))
})

test.serial('the comparison detects a difference of one millisecond in noise, and none where there is none', t => {
  // The noise of an idle machine and of a busy one: a tail longer than the difference to detect.
  const noise = () => 4 + Math.random() * 0.6 + (Math.random() < 0.15 ? Math.random() * 20 : 0)
  const sample = (more: number) => Array.from({ length: rounds }, () => noise() + more)
  for (let index = 0; index < 200; index++) {
    t.false(separation(sample(0), sample(0)).distinguishable)
    t.true(separation(sample(0), sample(1)).distinguishable)
  }
})
