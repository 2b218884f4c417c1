/** Floods of e-mails: how many an unknown client can have sent to a user or an organization, and the quota it can use up. */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import ava from 'ava'
import type { Email } from 'postal-mime'
import { sql } from '../../server/database/sql.js'
import { openLocal } from '../_helpers/administration.js'
import { type Clock, createClock } from '../_helpers/clock.js'
import { anyAddress, from, known, login, statuses } from '../_helpers/crowd.js'
import { hold, recordStatements, type Teardown } from '../_helpers/database.js'
import { databaseFor } from '../_helpers/installed.js'
import { type Mailbox, openMailbox, type RefusalOf } from '../_helpers/mailbox.js'
import { lockWaiters } from '../_helpers/models.js'
import { refused } from '../_helpers/problem.js'
import { enterByKey, sendKey, updatePassword } from '../_helpers/recovery.js'
import { password, type SignedUp, startTestService, type TestService } from '../_helpers/service.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

const test = ava.serial

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

/** A function that changes the password of a new account as its owner. */
async function passwordChanger({ service }: Scene, email: string): Promise<() => Promise<unknown>> {
  const { username } = await service.signUp('ROLE_CLIENT', { email })
  let secret = password
  return async () => {
    const token = await service.login(username, secret)
    secret = `${password} ${randomUUID()}`
    const { status, text } = await updatePassword(service, token, secret)
    if (status !== 200) throw new Error(text)
  }
}

/** Waits until no e-mail in the queue is due. */
const settled = ({ service }: Scene) =>
  waitFor(async () => {
    const due = sql`SELECT FROM emails WHERE next_attempt_at <= now()
      OR next_attempt_at IS NOT NULL AND attempts > 0 AND last_error IS NULL`
    return (await service.registry.database.run(due)).length === 0
  })

/** The e-mails to an address, once none is due. */
async function received(on: Scene, address: string): Promise<Email[]> {
  await settled(on)
  return on.mailbox.emails.filter(({ to }) => to?.some(each => each.address?.toLowerCase() === address))
}
const count = async (on: Scene, address: string) => (await received(on, address)).length

/** Asks for an activation key for an account, mailed to its organization. */
const askPartner = ({ service }: Scene, { username, token }: SignedUp, emailpartner: string) =>
  service.request('POST', '/1.0.0/users/sendadminkeybyemailpartner', {
    token,
    query: { username, emailpartner },
    headers: from(anyAddress()),
  })

const keyIn = ({ text }: Email) => /: ([2-9A-HJ-NP-Z]{8})\n/.exec(text ?? '')?.[1] ?? ''
const victim = 'vitima@example.org'

test('of 100 notices to one victim, 5 are sent within an hour, 20 within a day, and none is lost', async t => {
  const on = await scene(t)
  const spellings = [victim, 'Vitima@EXAMPLE.org', 'VITIMA@example.org']
  const changers = await Promise.all(spellings.map(email => passwordChanger(on, email)))
  // The limit holds in every window of an hour.
  await changers[0]!()
  t.is(await count(on, victim), 1)
  await on.clock.pass(3500)
  const flood = changers.map(async change => {
    for (let index = 0; index < 33; index++) await change()
  })
  await Promise.all(flood)
  t.is(await count(on, victim), 5)
  await on.clock.pass(200)
  t.is(await count(on, victim), 6)
  for (const sent of [11, 16, 20]) {
    await on.clock.pass(3600)
    await settled(on)
    for (const change of [...changers, ...changers]) await change()
    t.is(await count(on, victim), sent)
  }
  await on.clock.pass(19 * 3600)
  t.is(await count(on, victim), 20)
  await on.clock.pass(24 * 3600)
  const all = await received(on, victim)
  const events = all.map(({ text }) => Number(/(\d+) vezes, a última/.exec(text ?? '')?.[1] ?? 1))
  t.is(
    events.reduce((sum, each) => sum + each, 0),
    1 + 39 * changers.length,
  )
  t.true(all.length <= 20 + changers.length, 'of one kind for one user they are merged, and the last one is shown')
  const [last] = await on.service.registry.audit.list({ action: 'user.change-password', limit: 1 })
  t.true(all.some(({ text }) => text?.includes(`${last!.address}.`)))
})

test('an organization is mailed 60 keys per hour, and an account has 10 mailed a day', async t => {
  const on = await scene(t)
  const { service } = on
  const [{ email }, other] = [await service.organization(), await service.organization()]
  const users = await Promise.all(Array.from({ length: 20 }, () => service.signUp('ROLE_INSTITUTION')))
  const ask = (user: SignedUp, to = email) => askPartner(on, user, to)
  // 65 in all, of each user one after another: beyond the first 50 they are accepted at the rate at which e-mails are sent.
  const asked = users.map(async (user, index) => {
    const answers = [await ask(user), await ask(user), await ask(user)]
    return index < 5 ? [...answers, await ask(user)] : answers
  })
  const answers = (await Promise.all(asked)).flat()
  t.deepEqual(statuses(answers), { 200: 60, 429: 5 })
  const waits = answers.filter(({ status }) => status === 429).map(({ headers }) => Number(headers.get('retry-after')))
  t.true(
    waits.every(seconds => seconds > 3400 && seconds <= 3600),
    `${waits}`,
  )
  t.is(await count(on, email), 60)

  // Refused requests don't count for the account, and need no query for a second.
  const newcomer = await service.signUp('ROLE_INSTITUTION')
  const { database } = service.registry
  await waitForValue(async () => {
    refused(t, await ask(newcomer), 429, 'TOO_MANY_ATTEMPTS')
    const asked = database.transact(async transaction => {
      await database.run(sql`LOCK TABLE users, organizations, email_quotas IN ACCESS EXCLUSIVE MODE`, transaction)
      return (await ask(users[0]!)).status
    })
    // On a busy machine the second may be over.
    return asked.catch(String)
  }, 429)
  const own = await Promise.all(Array.from({ length: 12 }, () => ask(newcomer, other.email)))
  t.deepEqual(statuses(own), { 200: 10, 429: 2 })
  const seconds = Number(own.find(({ status }) => status === 429)!.headers.get('retry-after'))
  t.true(seconds > 86_000 && seconds <= 86_400, `${seconds}`)

  await on.clock.pass(3601)
  const [{ username }] = users as [SignedUp]
  t.is((await ask({ ...users[0]!, token: await service.login(username) })).status, 200)
})

test('requests for e-mails use one database connection at a time, however many arrive', async t => {
  const on = await scene(t)
  const { service } = on
  const { email } = await service.organization()
  const users = await Promise.all(Array.from({ length: 7 }, () => service.signUp('ROLE_INSTITUTION')))
  const holder = await hold(t, service.env.DATABASE_URL!)
  // No request can add to the queue in the meantime.
  await holder.query('BEGIN; LOCK TABLE emails IN EXCLUSIVE MODE')
  const asked = users.flatMap(user => [askPartner(on, user, email), sendKey(service, 'ninguém', email)])
  const waiting = () => lockWaiters(service.registry.database, '%INSERT INTO "emails" %')
  await waitForValue(waiting, count => count > 0)
  await sleep(200)
  t.is(await waiting(), 1)
  await holder.query('ROLLBACK')
  t.deepEqual(statuses(await Promise.all(asked)), { 200: 14 })
})

test('a recovery e-mail is sent once a minute and five times an hour, and requests that send nothing use no quota', async t => {
  const on = await scene(t)
  const email = 'ana@example.org'
  const { username } = await on.service.signUp('ROLE_CLIENT', { email })
  const ask = async (to = email) => {
    t.is((await sendKey(on.service, username, to)).status, 200)
    return count(on, email)
  }
  const seen = await Promise.all(Array.from({ length: 15 }, (_, index) => ask(`x${index}@example.org`)))
  t.deepEqual(seen, Array(15).fill(0))
  for (let sent = 1; sent <= 5; sent++) {
    t.deepEqual(await Promise.all([ask(), ask()]), [sent, sent])
    await on.clock.pass(61)
  }
  t.is(await ask(), 5)
  await on.clock.pass(3600)
  t.is(await ask(), 6)

  // Nor do those that the recipient’s limit refuses.
  await on.clock.pass(3600)
  for (let index = 0; index < 5; index++)
    await sendKey(on.service, (await on.service.signUp('ROLE_CLIENT', { email })).username, email)
  await settled(on)
  await on.clock.pass(3555)
  t.is(await ask(), 11)
  await on.clock.pass(50)
  t.is(await ask(), 12)
})

test('an owner at a known address or network recovers although strangers used up the quota and the attempts', async t => {
  const on = await scene(t)
  const { service } = on
  const email = 'ana@example.org'
  const { username } = await service.signUp('ROLE_CLIENT', { email })
  const net = anyAddress().replace(/\d+$/, '')
  const [home, near, outsider] = [`${net}1`, `${net}2`, anyAddress()]
  t.is((await login(service, username, home)).status, 200)
  const ask = async (address: string) => {
    t.is((await sendKey(service, username, email, address)).status, 200)
    return (await received(on, email)).map(keyIn).filter(Boolean)
  }
  for (let sent = 1; sent <= 5; sent++) {
    t.is((await ask(outsider)).length, sent)
    await on.clock.pass(61)
  }
  t.is((await ask(outsider)).length, 5)
  for (const [index, address] of [home, near].entries()) {
    const keys = await ask(address)
    t.is(keys.length, 6 + index)
    const key = keys.at(-1)!
    for (let times = 0; times < 5; times++)
      refused(t, await enterByKey(service, username, 'ABCD2345', outsider), 422, 'INVALID_KEY')
    // The stranger has no attempt left for this key, the owner has.
    refused(t, await enterByKey(service, username, key, outsider), 422, 'INVALID_KEY')
    t.is((await enterByKey(service, username, key, address)).status, 200)
  }
})

test('codes, notices and keys of strangers’ accounts to an address keep no key from its owner at a new network, and administrators can send one', async t => {
  const on = await scene(t)
  const { service, clock } = on
  const admin = await openLocal(t, service)
  const email = 'ana@example.org'
  const owners = {
    active: await known(service, anyAddress(), { email }),
    proved: await service.signUp('ROLE_CLIENT', { email }),
    // Nothing tells it from an account of a stranger: it shares the count of their keys alone.
    new: await service.signUp('ROLE_CLIENT', { email }),
  }
  const asked = async ({ username }: SignedUp) => {
    const before = (await received(on, email)).length
    t.is((await sendKey(service, username, email)).status, 200)
    return (await received(on, email)).slice(before).map(keyIn).filter(Boolean)
  }
  const [key = ''] = await asked(owners.proved)
  t.is((await enterByKey(service, owners.proved.username, key)).status, 200)
  // The notice of it counts now, not an hour later.
  await settled(on)
  await clock.pass(3600)
  const first = await count(on, email)
  const strangers = await Promise.all(Array.from({ length: 6 }, () => service.signUp('ROLE_CLIENT')))
  for (const { token } of strangers)
    t.is((await service.request('POST', '/users/setemail', { token, body: { email, password } })).status, 200)
  const change = await passwordChanger(on, email)
  await change()
  t.is(await count(on, email), first + 5)
  for (const [kind, owner] of Object.entries(owners)) t.is((await asked(owner)).length, 1, kind)

  // They sign in, and ask for keys, at networks of their own and at others.
  for (let index = 0; index < 6; index++) {
    const { username } = await service.signUp('ROLE_CLIENT', { email })
    const home = anyAddress()
    t.is((await login(service, username, home)).status, 200)
    for (const address of [home, anyAddress()]) await sendKey(service, username, email, address)
  }
  await settled(on)
  await clock.pass(61)
  for (const kind of ['active', 'proved'] as const) t.is((await asked(owners[kind])).length, 1, kind)
  for (const kind of ['active', 'new'] as const) {
    const before = await count(on, email)
    await admin.sendRecoveryKey({ user: owners[kind].username })
    t.is(await count(on, email), before + 1, kind)
  }
})

test('accounts created with a victim’s address reach it five times an hour, times AUTH_LIMIT_FACTOR, and active ones that share an address each as often', async t => {
  const on = await scene(t, { AUTH_LIMIT_FACTOR: '0.5' })
  const { service } = on
  const school = 'escola@example.org'
  const address = anyAddress()
  const organization = await service.organization()
  const members: string[] = []
  for (let index = 0; index < 8; index++) {
    for (const email of [victim, school]) {
      const { username, token } = await service.signUp('ROLE_INSTITUTION', { email })
      if (email === school) {
        members.push(username)
        const query = { username, activationkey: organization.activationkey }
        t.is((await service.request('POST', '/users/activate', { token, query })).status, 200)
      }
      await login(service, username, address)
      await sendKey(service, username, email, address)
    }
  }
  // A whole number.
  t.is(await count(on, victim), 3)
  t.is(await count(on, school), 8)
  for (let times = 0; times < 4; times++) {
    await on.clock.pass(61)
    await sendKey(service, members[0]!, school, address)
    await settled(on)
  }
  t.is(await count(on, school), 10)
})

test('a client that uses up the requests of a network doesn’t keep an active account there from recovering', async t => {
  const held: (() => void)[] = []
  let holding = false
  const release = async () => {
    holding = false
    for (const each of held.splice(0)) each()
  }
  // Of a network 60 requests at once.
  const on = await scene(t, { AUTH_LIMIT_FACTOR: '0.1' }, async (command, of) => {
    if (command !== 'RCPT TO' || !of.endsWith('@slow.example')) return undefined
    if (holding) await new Promise<void>(resolve => held.push(resolve))
    return 550
  })
  t.teardown(release)
  const { service } = on
  const school = anyAddress()
  const email = 'ana@example.org'
  const { username } = await known(service, school, { email })
  const inactive = await service.signUp('ROLE_CLIENT', { email: 'bia@example.org' })
  await login(service, inactive.username, school)
  const { database, counterKeys } = service.registry
  const bind = { subject: counterKeys.address('recoveryRequests', school) }
  await database.sequelize.query('INSERT INTO buckets VALUES ($subject, 60, clock_timestamp())', { bind })
  const elsewhere = await known(service, anyAddress())
  for (const each of [inactive, elsewhere])
    refused(t, await sendKey(service, each.username, 'bia@example.org', school), 429, 'TOO_MANY_ATTEMPTS')
  await settled(on)

  // No e-mail leaves the queue.
  holding = true
  for (let index = 0; index < 4; index++) {
    const to = `ativa${index}@slow.example`
    t.is((await sendKey(service, (await known(service, anyAddress(), { email: to })).username, to)).status, 200)
  }
  await waitForValue(() => held.length, 4)

  // The same statements for any address, whether or not a request is already waiting. Other services have statements, too, and
  // the limit of a network is read once in 250 ms.
  const asked: string[] = []
  for (const to of ['x1@example.org', email, 'x2@example.org', email.toUpperCase()]) {
    using statements = recordStatements(service.settings.databaseUrl)
    const { status, text } = await sendKey(service, username, to, school)
    t.deepEqual([status, text], [200, ''])
    const names = statements.names.filter(name => name !== 'email-claim' && name !== 'bucket-read')
    asked.push(names.filter(name => /^(user|email|bucket|attempt)(?!.*prune)/.test(name)).join(' '))
  }
  t.is(new Set(asked).size, 1, asked.join('\n'))
  t.regex(asked[0]!, /email-replace-request$/)

  for (let index = 0; index < 16; index++)
    t.is((await sendKey(service, username, `y${index}@example.org`, school)).status, 200)
  const requests = sql`SELECT FROM emails WHERE kind = 'recovery-key' AND stage = 'requested'`
  t.is((await database.run(requests)).length, 2)

  await release()
  const key = keyIn(await on.mailbox.nextEmail(email))
  t.is(await count(on, email), 1)
  t.is((await enterByKey(service, username, key, school)).status, 200)
})
