/** Whether response times reveal which accounts exist: each sign-in is timed for every kind of account, in turns. */

import { randomInt, randomUUID } from 'node:crypto'
import { Agent, request as httpRequest } from 'node:http'
import test, { type ExecutionContext } from 'ava'
import { sql } from '../../server/database/sql.js'
import { suspend } from '../_helpers/models.js'
import { password, serviceForFile, signUpForm } from '../_helpers/service.js'
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
function time(path: string, query: Record<string, string>, body?: object): Promise<{ ms: number; status: number }> {
  serial = (serial + 1) % (1 << 24)
  const address = `10.${serial >> 16}.${(serial >> 8) & 255}.${serial & 255}`
  const url = `${service.http}${path}?${new URLSearchParams(query)}`
  return new Promise((resolve, reject) => {
    const startedAt = performance.now()
    const headers = { 'x-forwarded-for': address, ...(body && { 'content-type': 'application/json' }) }
    httpRequest(url, { method: 'POST', agent, headers }, response => {
      response.resume().once('end', () => resolve({ ms: performance.now() - startedAt, status: response.statusCode! }))
    })
      .once('error', reject)
      .end(body && JSON.stringify(body))
  })
}

type Asked = { ms: number; status: number }
type Kinds = Record<string, (round: number) => Promise<Asked>>

/** Measures all kinds in every round, each time in another order, and fails if any two can be distinguished by time. */
async function indistinguishable(t: ExecutionContext, status: number, kinds: Kinds, times = rounds) {
  const taken = new Map(Object.keys(kinds).map(name => [name, [] as number[]]))
  for (let round = -5; round < times; round++) {
    // No account may reach ten failures.
    if (round % 100 === 99 && times > rounds) await forget()
    const order = Object.entries(kinds).map(kind => ({ kind, place: Math.random() }))
    for (const { kind } of order.sort((a, b) => a.place - b.place)) {
      const [name, ask] = kind
      const answer = await ask(round + 5)
      if (answer.status !== status) t.fail(`${name}: ${answer.status}`)
      // The first rounds warm up connections and statements.
      if (round >= 0) taken.get(name)!.push(answer.ms)
    }
  }
  for (const [index, [name, some]] of [...taken].entries()) {
    for (const [other, others] of [...taken].slice(index + 1)) {
      const { distinguishable, chance, share, gap } = separation(some, others)
      const percent = (part: number) => `${(100 * part).toFixed(0)}%`
      const said = `${name} / ${other}: a guess is right in ${percent(chance)}, ${percent(share)} of the fastest are of one kind, medians ${gap.toFixed(2)} ms apart`
      t.log(said)
      t.false(distinguishable, said)
    }
  }
}

const forget = () => service.registry.database.run(sql`DELETE FROM attempts`)

const kinds = ['inactive', 'active', 'suspended'] as const
const signedUp = { inactive: [], active: [], suspended: [] } as Record<(typeof kinds)[number], string[]>
test.before(async () => {
  const { database } = service.registry
  const count = Math.ceil((rounds + 5) / 9)
  for (const kind of kinds) {
    for (let index = 0; index < 2 * count; index++) {
      const { token, username } = await service.signUp('ROLE_CLIENT', { email: `${randomUUID()}@example.org` })
      const id = idOf(token)
      if (kind === 'active') await database.run(sql`UPDATE users SET active = true WHERE id = ${id}`)
      if (kind === 'suspended') await suspend(service.registry, id)
      signedUp[kind].push(username)
    }
  }
})

/** A user of a kind with fewer than ten failures: 9 attempts each, from the first half or the second. */
const userOf = (kind: keyof typeof signedUp, half: 0 | 1, round: number) => {
  const list = signedUp[kind]
  return list[half * (list.length / 2) + (Math.floor(round / 9) % (list.length / 2))]!
}
const unknownName = () => `(11)9${randomInt(1000, 10_000)}-${randomInt(1000, 10_000)}`

const login = (username: string, secret = 'not the password') => time('/users/login', { username, password: secret })

test.serial('a wrong login takes the same time for existing and unknown users', t =>
  indistinguishable(t, 404, {
    unknown: () => login(unknownName()),
    inactive: round => login(userOf('inactive', 0, round)),
    active: round => login(userOf('active', 0, round)),
    'suspended, with the right password': round => login(userOf('suspended', 0, round), password),
    'a password that can be none': round => login(userOf('active', 1, round), '\u0000'),
  }),
)

test.serial('a wrong mailed key takes the same time for existing and unknown users', async t => {
  await forget()
  const ask = (username: string) => time('/forgotpasswords/loginbyusernameandkey', { username, key: 'ABCD2345' })
  const all: Kinds = { unknown: () => ask(unknownName()) }
  for (const kind of kinds) all[kind] = round => ask(userOf(kind, 0, round))
  // There is less work here than for a password, so a leak would be smaller.
  await indistinguishable(t, 422, all, 400)
})

test.serial('a request for a key takes the same time for existing and unknown users', t => {
  const ask = (username: string) => {
    const email = `${randomUUID()}@example.org`
    return time('/forgotpasswords/sendkeybyemail', { username, email })
  }
  return indistinguishable(t, 200, {
    unknown: () => ask(unknownName()),
    active: round => ask(userOf('active', 1, round)),
    suspended: round => ask(userOf('suspended', 1, round)),
  })
})

test.serial(
  'a sign-up that repeats another in all but one field takes the same time whether its password is right or not',
  async t => {
    const own = { securityquestion: 'Nome do meu barco?', securityanswer: 'Saveiro' }
    const forms = Array.from({ length: rounds + 5 }, () => signUpForm(own))
    for (const form of forms) await service.signUp('ROLE_CLIENT', form)
    const again = (round: number, other: object) => time('/users/signup', {}, { ...forms[round], ...other })
    await indistinguishable(t, 422, {
      'another password': round => again(round, { password: 'not the password' }),
      'another city': round => again(round, { city: 'Olinda' }),
      'another address': round => again(round, { email: 'ana@example.org' }),
      'another answer': round => again(round, { securityanswer: 'Jangada' }),
    })
  },
)

test.serial('a login to a locked account takes the same time whether it exists or not', async t => {
  await forget()
  const [known, unknown] = [signedUp.active[0]!, unknownName()]
  for (let index = 0; index < 11; index++) for (const username of [known, unknown]) await login(username)
  await indistinguishable(t, 429, {
    known: () => login(known, password),
    unknown: () => login(unknown, password),
  })
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
