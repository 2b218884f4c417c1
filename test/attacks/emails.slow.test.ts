/** Floods of e-mails: how many an unknown client can have sent to a user or an organization, and the quota it can use up. */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import pg from 'pg'
import type { Email } from 'postal-mime'
import { sql } from '../../server/database/sql.js'
import { startMaintenance } from '../../server/jobs/maintenance.js'
import { createLog } from '../../server/observability/log.js'
import { createQuotas } from '../../server/outbox/quotas.js'
import { type Clock, createClock } from '../_helpers/clock.js'
import { anyAddress, known } from '../_helpers/crowd.js'
import type { Teardown } from '../_helpers/database.js'
import { databaseFor } from '../_helpers/installed.js'
import { type Mailbox, openMailbox, type RefusalOf } from '../_helpers/mailbox.js'
import { lockWaiters } from '../_helpers/models.js'
import { refused } from '../_helpers/problem.js'
import { password, type SignedUp, startTestService, type TestService } from '../_helpers/service.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

interface Scene {
  readonly service: TestService
  readonly clock: Clock
  readonly mailbox: Mailbox
}

/** A service with a mail server, both on a clock that the test moves. */
async function scene(t: Teardown, env: Record<string, string> = {}, refusalOf?: RefusalOf): Promise<Scene> {
  const mailbox = await openMailbox(t, refusalOf)
  const url = await databaseFor(t)
  const clock = await createClock(url)
  const service = await startTestService(t, { DATABASE_URL: url, SMTP_URL: mailbox.url, ...env }, { clock })
  return { service, clock, mailbox }
}

const post = (
  { service }: Scene,
  path: string,
  query: Record<string, string>,
  { address = anyAddress(), token }: { address?: string; token?: string } = {},
) => service.request('POST', path, { query, headers: { 'x-forwarded-for': address }, ...(token && { token }) })

/** A function that changes an account's password as its owner, and returns the client address. */
async function passwordChanger(on: Scene, email: string, { active = false } = {}): Promise<() => Promise<string>> {
  const user = await on.service.signUp(active ? 'ROLE_INSTITUTION' : 'ROLE_CLIENT', { email })
  const { username, token } = user
  if (active) {
    const { activationkey } = await on.service.organization()
    const { status, text } = await post(on, '/users/activate', { username, activationkey }, { token })
    if (status !== 200) throw new Error(text)
  }
  let secret = password
  return async () => {
    const token = await on.service.login(username, secret)
    secret = `${password} ${randomUUID()}`
    const address = anyAddress()
    const path = '/forgotpasswords/passwordupdatebyusername'
    const { status, text } = await post(on, path, { newPassword: secret }, { address, token })
    if (status !== 200) throw new Error(text)
    return address
  }
}

/** Waits until no e-mail in the queue is due. */
const settled = ({ service }: Scene) =>
  waitFor(async () => {
    const text =
      'SELECT FROM emails WHERE next_attempt_at <= now() OR next_attempt_at IS NOT NULL AND attempts > 0 AND last_error IS NULL'
    return (await service.registry.database.run(sql.text(text))).length === 0
  })

const received = ({ mailbox }: Scene, to: string) =>
  mailbox.emails.filter(email => email.to?.some(({ address }) => address?.toLowerCase() === to))

/** How many events the e-mails report. */
const eventsIn = (emails: readonly Email[]) =>
  emails.reduce((sum, { text }) => sum + Number(/(\d+) vezes, a última/.exec(text ?? '')?.[1] ?? 1), 0)

const keyIn = ({ text }: Email) => /: ([2-9A-HJ-NP-Z]{8})\n/.exec(text ?? '')?.[1] ?? ''

test.serial(
  'of 100 notices to one victim, 5 are sent within an hour and 20 within a day, and none is lost',
  async t => {
    const on = await scene(t)
    const victim = 'vitima@example.org'
    const changers = await Promise.all(
      [victim, 'Vitima@EXAMPLE.org', 'VITIMA@example.org'].map(email => passwordChanger(on, email)),
    )
    const flood = changers.map(async change => {
      for (let index = 0; index < 33; index++) await change()
    })
    await Promise.all(flood)
    await settled(on)
    t.is(received(on, victim).length, 5)

    let events = 33 * changers.length
    for (let hour = 1; hour < 4; hour++) {
      await on.clock.pass(3600)
      await settled(on)
      for (const change of [...changers, ...changers]) await change()
      events += 2 * changers.length
      await settled(on)
      t.is(received(on, victim).length, 5 + 5 * hour)
    }
    await on.clock.pass(20 * 3600)
    await settled(on)
    t.is(received(on, victim).length, 20)

    await on.clock.pass(24 * 3600)
    await settled(on)
    t.is(eventsIn(received(on, victim)), events)
    t.true(received(on, victim).length <= 20 + changers.length, 'of one kind for one user they are merged')
  },
)

test.serial('the limit of a recipient holds in every window of an hour, and the last held notice is shown', async t => {
  const on = await scene(t)
  const victim = 'vitima@example.org'
  const changers = await Promise.all([1, 2, 3].map(() => passwordChanger(on, victim)))
  const [a, b] = [changers[0]!, changers[1]!]
  const count = async () => {
    await settled(on)
    return received(on, victim).length
  }
  await a()
  t.is(await count(), 1)
  await on.clock.pass(3500)
  for (let index = 0; index < 4; index++) await b()
  t.is(await count(), 5)
  for (const change of changers) await change()
  t.is(await count(), 5)
  // All three are due, one may be sent, the others wait.
  await on.clock.pass(200)
  t.is(await count(), 6)
  await on.clock.pass(3300)
  const [first, last] = [await a(), await a()]
  t.is(await count(), 6)
  await on.clock.pass(3600)
  await settled(on)
  t.is(eventsIn(received(on, victim)), 10)
  const shows = (address: string) => received(on, victim).some(({ text }) => text?.includes(`${address}.`))
  t.deepEqual([shows(first), shows(last)], [false, true])
})

test.serial(
  '20 accounts can have 60 keys per hour sent to their organization, 10 per account and day, and then get the seconds until a retry',
  async t => {
    const on = await scene(t)
    const { email } = await on.service.organization({ email: 'escola@example.org' })
    const users = await Promise.all(Array.from({ length: 20 }, () => on.service.signUp('ROLE_INSTITUTION')))
    const ask = ({ username, token }: SignedUp) =>
      post(on, '/1.0.0/users/sendadminkeybyemailpartner', { username, emailpartner: email }, { token })
    // 65 in all: beyond the first 50 they are accepted at the rate at which e-mails are sent.
    const asked = users.flatMap((user, index) => Array(index < 5 ? 4 : 3).fill(user) as SignedUp[])
    const answers = await Promise.all(asked.map(ask))
    t.is(answers.length, 65)
    t.is(answers.filter(({ status }) => status === 200).length, 60)
    for (const answer of answers.filter(({ status }) => status !== 200)) {
      refused(t, answer, 429, 'TOO_MANY_ATTEMPTS')
      const seconds = Number(answer.headers.get('retry-after'))
      t.true(seconds > 3400 && seconds <= 3600, `${seconds}`)
    }
    await settled(on)
    t.is(received(on, email).length, 60)

    // Another organization has a separate limit, so that only the account's limit applies.
    const other = await on.service.organization({ email: 'outra@example.org' })
    const newcomer = await on.service.signUp('ROLE_INSTITUTION')
    const askOther = () =>
      post(
        on,
        '/1.0.0/users/sendadminkeybyemailpartner',
        { username: newcomer.username, emailpartner: other.email },
        newcomer,
      )
    // Requests refused by the organization's limit didn't count for the account.
    for (let index = 0; index < 3; index++) refused(t, await ask(newcomer), 429, 'TOO_MANY_ATTEMPTS')
    const own = await Promise.all(Array.from({ length: 12 }, askOther))
    t.is(own.filter(({ status }) => status === 200).length, 10)
    const seconds = Number(own.find(({ status }) => status === 429)!.headers.get('retry-after'))
    t.true(seconds > 86_000 && seconds <= 86_400, `${seconds}`)

    await on.clock.pass(3601)
    const [again] = await Promise.all([on.service.login(users[0]!.username)])
    t.is((await ask({ ...users[0]!, token: again })).status, 200)
  },
)

test.serial(
  'requests for e-mails that send nothing, or a flood of them, use at most one database connection',
  async t => {
    const on = await scene(t)
    const { registry } = on.service
    const { email, id } = await on.service.organization({ email: 'escola@example.org' })
    const quotas = createQuotas(registry.emailQuotas, registry.counterKeys, 1, Date.now)
    const users = await Promise.all(Array.from({ length: 7 }, () => on.service.signUp('ROLE_INSTITUTION')))
    const ask = ({ username, token }: SignedUp) =>
      post(on, '/1.0.0/users/sendadminkeybyemailpartner', { username, emailpartner: email }, { token })
    const forget = () => post(on, '/forgotpasswords/sendkeybyemail', { username: 'ninguém', email })
    const waiting = () => lockWaiters(registry.database, '%INSERT INTO emails %')
    // No request can add to the queue in the meantime.
    const answers = await registry.database.transact(async transaction => {
      await registry.database.sequelize.query('LOCK TABLE emails IN EXCLUSIVE MODE', { transaction })
      const asked = users.flatMap(user => [ask(user), forget()])
      await waitForValue(waiting, value => value >= 1)
      await sleep(200)
      t.is(await waiting(), 1)
      return asked
    })
    for (const { status } of await Promise.all(answers)) t.is(status, 200)

    for (let times = users.length; times < 60; times++)
      await registry.database.transact(transaction => quotas.organization(id, transaction))
    for (const user of users) refused(t, await ask(user), 429, 'TOO_MANY_ATTEMPTS')
    await registry.database.transact(async transaction => {
      const lock = 'LOCK TABLE users, organizations, email_quotas IN ACCESS EXCLUSIVE MODE'
      await registry.database.sequelize.query(lock, { transaction })
      for (const user of users) refused(t, await ask(user), 429, 'TOO_MANY_ATTEMPTS')
    })
  },
)

test.serial(
  'at most one recovery e-mail is sent per minute and five per hour, and requests that send nothing use no quota',
  async t => {
    const on = await scene(t)
    const email = 'ana@example.org'
    const { username } = await on.service.signUp('ROLE_CLIENT', { email })
    const ask = async (to: string) => {
      t.is((await post(on, '/forgotpasswords/sendkeybyemail', { username, email: to })).status, 200)
      await settled(on)
      return received(on, email).length
    }
    const others = Array.from({ length: 15 }, (_, index) => ask(`mallory${index}@example.org`))
    t.deepEqual(await Promise.all(others), Array(15).fill(0))
    for (let sent = 1; sent <= 5; sent++) {
      t.deepEqual(await Promise.all([ask(email), ask(email)]), [sent, sent])
      await on.clock.pass(61)
    }
    t.is(await ask(email), 5)
    await on.clock.pass(3600)
    t.is(await ask(email), 6)

    // Nor do those that the recipient’s limit refuses.
    await on.clock.pass(3600)
    const change = await passwordChanger(on, email)
    for (let index = 0; index < 5; index++) await change()
    await settled(on)
    await on.clock.pass(3555)
    t.is(await ask(email), 11)
    await on.clock.pass(50)
    t.is(await ask(email), 12)
  },
)

test.serial(
  'an owner at a known address or network recovers by e-mail although unknown clients used up the quota and the attempts',
  async t => {
    const on = await scene(t)
    const email = 'ana@example.org'
    const { username } = await on.service.signUp('ROLE_CLIENT', { email })
    const net = anyAddress().replace(/\d+$/, '')
    const [home, near, outsider] = [`${net}1`, `${net}2`, anyAddress()]
    const login = await post(on, '/users/login', { username, password }, { address: home })
    t.is(login.status, 200)
    const ask = async (address: string) => {
      t.is((await post(on, '/forgotpasswords/sendkeybyemail', { username, email }, { address })).status, 200)
      await settled(on)
      return received(on, email).filter(each => keyIn(each) !== '')
    }
    const enter = (key: string, address: string) =>
      post(on, '/forgotpasswords/loginbyusernameandkey', { username, key }, { address })

    for (let sent = 1; sent <= 5; sent++) {
      t.is((await ask(outsider)).length, sent)
      await on.clock.pass(61)
    }
    t.is((await ask(outsider)).length, 5)
    for (let index = 0; index < 5; index++) refused(t, await enter('ABCD2345', outsider), 422, 'INVALID_KEY')
    for (const [index, address] of [home, near].entries()) {
      const emails = await ask(address)
      t.is(emails.length, 6 + index)
      const key = keyIn(emails.at(-1)!)
      for (let times = 0; times < 5; times++) refused(t, await enter('ABCD2345', outsider), 422, 'INVALID_KEY')
      // The unknown client has no attempt left for this key, the owner has.
      refused(t, await enter(key, outsider), 422, 'INVALID_KEY')
      t.is((await enter(key, address)).status, 200)
    }
  },
)

test.serial(
  'accounts created with a victim’s e-mail address reach it five times an hour, also from client addresses that they know',
  async t => {
    const on = await scene(t)
    const victim = 'vitima@example.org'
    const address = anyAddress()
    for (let index = 0; index < 8; index++) {
      const { username } = await on.service.signUp('ROLE_CLIENT', { email: victim })
      await post(on, '/users/login', { username, password }, { address })
      await post(on, '/forgotpasswords/sendkeybyemail', { username, email: victim }, { address })
    }
    await settled(on)
    t.is(received(on, victim).length, 5)
  },
)

test.serial(
  'active accounts that share an e-mail address, as in a school, all get their keys at a client address that they know',
  async t => {
    const on = await scene(t)
    const email = 'escola@example.org'
    const address = anyAddress()
    const organization = await on.service.organization()
    const users: SignedUp[] = []
    for (let index = 0; index < 8; index++) {
      const user = await on.service.signUp('ROLE_INSTITUTION', { email })
      users.push(user)
      const { username, token } = user
      await post(on, '/users/activate', { username, activationkey: organization.activationkey }, { token })
      await post(on, '/users/login', { username, password }, { address })
      await post(on, '/forgotpasswords/sendkeybyemail', { username, email }, { address })
    }
    await settled(on)
    t.is(received(on, email).length, 8)

    // Each of them also has five an hour there.
    const { username } = users[0]!
    for (let sent = 2; sent <= 6; sent++) {
      await on.clock.pass(61)
      await post(on, '/forgotpasswords/sendkeybyemail', { username, email }, { address })
      await settled(on)
    }
    t.is(received(on, email).length, 12)
  },
)

test.serial('AUTH_LIMIT_FACTOR multiplies the e-mail limits', async t => {
  const on = await scene(t, { AUTH_LIMIT_FACTOR: '0.5' })
  const victim = 'vitima@example.org'
  const change = await passwordChanger(on, victim)
  for (let index = 0; index < 6; index++) await change()
  await settled(on)
  // A whole number, at least one.
  t.is(received(on, victim).length, 3)
})

/** How a mail server refuses recipients of the domain slow.example: at once, or when the test releases it. */
function slowly() {
  const held: (() => void)[] = []
  let holding = false
  let refusals = 0
  const refusalOf: RefusalOf = async (command, of) => {
    if (command !== 'RCPT TO' || !of.endsWith('@slow.example')) return undefined
    if (holding) await new Promise<void>(resolve => held.push(resolve))
    refusals++
    return 550
  }
  return {
    refusalOf,
    held,
    refusals: () => refusals,
    hold(on: boolean) {
      holding = on
      if (!on) for (const release of held.splice(0)) release()
    },
  }
}

test.serial(
  'recipients that the mail server refuses, however slowly, don’t delay an active account’s e-mail',
  async t => {
    const server = slowly()
    const on = await scene(t, {}, server.refusalOf)
    t.teardown(async () => server.hold(false))
    const [home, email] = [anyAddress(), 'ana@example.org']
    const { username } = await known(on.service, home, { email })
    const ask = async (name: string, to: string, address = anyAddress()) =>
      t.is((await post(on, '/forgotpasswords/sendkeybyemail', { username: name, email: to }, { address })).status, 200)

    // Active accounts, whose e-mails are due for a second attempt.
    for (let index = 0; index < 5; index++) {
      const to = `ativa${index}@slow.example`
      await ask((await known(on.service, anyAddress(), { email: to })).username, to)
    }
    await settled(on)
    server.hold(true)
    await on.clock.pass(1801)
    await waitForValue(() => server.held.length, 2)
    await ask(username, email)
    await on.mailbox.nextEmail(email)
    t.is(server.held.length, 2)

    // Others, for a first attempt.
    server.hold(false)
    await waitForValue(() => server.refusals(), 10)
    server.hold(true)
    for (let index = 0; index < 5; index++) {
      const to = `nova${index}@slow.example`
      await ask((await on.service.signUp('ROLE_CLIENT', { email: to })).username, to)
    }
    await waitForValue(() => server.held.length, 2)
    await ask(username, email, home)
    await on.mailbox.nextEmail(email)
    t.is(server.held.length, 2)
  },
)

test.serial(
  'a client that uses up the requests of a network doesn’t keep an active account there from recovering',
  async t => {
    const server = slowly()
    // Of a network 6 requests an hour.
    const on = await scene(t, { AUTH_LIMIT_FACTOR: '0.1' }, server.refusalOf)
    t.teardown(async () => server.hold(false))
    const school = anyAddress()
    const email = 'ana@example.org'
    const ana = await known(on.service, school, { email })
    const inactive = await on.service.signUp('ROLE_CLIENT', { email: 'bia@example.org' })
    await on.service.request('POST', '/users/login', {
      body: { username: inactive.username, password },
      headers: { 'x-forwarded-for': school },
    })
    const ask = (username: string, to: string, address = school) =>
      post(on, '/forgotpasswords/sendkeybyemail', { username, email: to }, { address })
    for (let index = 0; index < 6; index++) t.is((await ask('ninguém', 'x@example.org')).status, 200)
    const elsewhere = await known(on.service, anyAddress())
    for (const { username } of [inactive, elsewhere])
      refused(t, await ask(username, 'bia@example.org'), 429, 'TOO_MANY_ATTEMPTS')
    await settled(on)

    // No e-mail leaves the queue.
    server.hold(true)
    for (let index = 0; index < 4; index++) {
      const to = `ativa${index}@slow.example`
      const { username } = await known(on.service, anyAddress(), { email: to })
      t.is((await ask(username, to, anyAddress())).status, 200)
    }
    await waitForValue(() => server.held.length, 4)

    // The same statements for any address, whether or not a request is already waiting. The sender, and services of other
    // tests, have statements, too.
    const named: string[][] = []
    const database = new URL(on.service.settings.databaseUrl!).pathname.slice(1)
    const own = pg.Client.prototype.query
    pg.Client.prototype.query = function (this: pg.Client, ...given: unknown[]) {
      const name = String((given[0] as { name?: string })?.name)
      if (this.database === database && name !== 'email-claim') named.at(-1)?.push(name)
      return Reflect.apply(own, this, given)
    } as typeof own
    try {
      for (const to of ['x1@example.org', email, 'x2@example.org', email.toUpperCase()]) {
        named.push([])
        const { status, text } = await ask(ana.username, to)
        t.deepEqual([status, text], [200, ''])
      }
    } finally {
      pg.Client.prototype.query = own
    }
    const asked = named.map(names => names.filter(name => /^(user|email|bucket|attempt)/.test(name)).join(' '))
    t.is(new Set(asked).size, 1, asked.join('\n'))
    t.regex(asked[0]!, /email-replace-request$/)

    for (let index = 0; index < 16; index++) t.is((await ask(ana.username, `y${index}@example.org`)).status, 200)
    const requests = sql`SELECT FROM emails WHERE kind = 'recovery-key' AND stage = 'requested'`
    t.is((await on.service.registry.database.run(requests)).length, 2)

    server.hold(false)
    const key = keyIn(await on.mailbox.nextEmail(email))
    await settled(on)
    t.is(received(on, email).length, 1)
    const entered = await post(
      on,
      '/forgotpasswords/loginbyusernameandkey',
      { username: ana.username, key },
      { address: school },
    )
    t.is(entered.status, 200)
  },
)

test.serial('an e-mail that can’t be delivered is attempted for 72 hours and deleted after 7 days', async t => {
  const on = await scene(t)
  const { registry } = on.service
  const times = { first: 2 ** 31 - 1, interval: 2 ** 31 - 1 }
  const maintenance = startMaintenance(
    registry,
    { tokenTtl: 3600, auditRetention: 86_400, unactivatedRetention: undefined, dataDir: '' },
    createLog('silent'),
    times,
  )
  t.teardown(() => maintenance.stop())
  const queued = async () => {
    const rows = await registry.database.run<{ due: boolean }>(
      sql`SELECT next_attempt_at IS NOT NULL AS due FROM emails`,
    )
    return rows.map(({ due }) => due)
  }
  on.mailbox.refuse(1_000)
  const change = await passwordChanger(on, 'ana@example.org')
  await change()
  await settled(on)
  await on.clock.pass(71 * 3600)
  await settled(on)
  t.deepEqual(await queued(), [true])
  await on.clock.pass(2 * 3600)
  // A retry in progress looks like one that waits for its time.
  await waitForValue(queued, [false])
  await maintenance.round()
  t.deepEqual(await queued(), [false])
  await on.clock.pass(90 * 3600)
  await maintenance.round()
  t.deepEqual(await queued(), [false])
  await on.clock.pass(6 * 3600)
  await maintenance.round()
  t.deepEqual(await queued(), [])
})
