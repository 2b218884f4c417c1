/** How queued e-mails are composed when they are due, because conditions may have changed. */
import test, { type ExecutionContext } from 'ava'
import { sql } from '../../server/database/sql.js'
import type { EmailIntent } from '../../server/models/email.js'
import type { Models } from '../../server/models/index.js'
import { createComposer } from '../../server/outbox/compose.js'
import { createQuotas } from '../../server/outbox/quotas.js'
import { addUser, endsOrWaits, openModels, suspend } from '../_helpers/models.js'

const to = 'ana@example.org'

type Kind = 'recovery-request' | 'recovery-key' | 'activation-key' | 'email-code' | 'password-changed'

/** An active user, an organization, e-mails for them, and the outcome of one that is queued. */
async function scene(t: ExecutionContext) {
  const models = await openModels(t)
  const { database, organizations, emails, users } = models
  const userId = await addUser(models, 'ana', 'ROLE_INSTITUTION', to)
  const activate = (id: number) =>
    database.transact(x => users.activate({ id, role: 'ROLE_INSTITUTION' } as never, null, x))
  await activate(userId)
  const details = { name: 'Escola', nameKey: 'escola', email: 'escola@example.org' }
  const { id: organizationId } = await database.transact(x => organizations.add(details, x))
  const composer = createComposer(models, { recoveryEmail: 'registered', limitFactor: 1, timeZone: 'UTC' }, Date.now)
  const request = { usernameKey: 'ana', email: to, address: '192.0.2.1', requestId: 'r1' }
  const happened = { userId, at: '2026-11-21', address: '192.0.2.1' }
  const intents = {
    'recovery-request': { kind: 'recovery-key', stage: 'requested', parameters: request },
    'recovery-key': { kind: 'recovery-key', stage: 'ready', parameters: { userId, to } },
    'activation-key': { kind: 'activation-key', stage: 'ready', parameters: { userId, organizationId } },
    'email-code': { kind: 'email-code', stage: 'ready', parameters: { userId, to, generation: 0 } },
    'password-changed': { kind: 'password-changed', stage: 'requested', parameters: happened },
  } satisfies Record<Kind, EmailIntent>
  /** The address to which an e-mail is sent, or why it isn't. */
  const compose = async (intent: Kind | EmailIntent, minutesAgo = 0) => {
    await emails.add(typeof intent === 'string' ? intents[intent] : intent, 'en')
    await database.run(sql`UPDATE emails SET created_at = now() - make_interval(mins => ${minutesAgo})`)
    const sent = await composer((await emails.claim(60, true))!)
    return typeof sent === 'object' ? sent.to : sent
  }
  /** Whether a mailed key is stored. */
  const hasKey = async (purpose: 'recovery' | 'activation' | 'email') =>
    (await database.run(sql`SELECT FROM mailed_keys WHERE user_id = ${userId} AND purpose = ${purpose}`)).length > 0
  return { ...models, models, userId, organizationId, activate, composer, intents, compose, hasKey }
}

/** The stages of all queued e-mails, sorted. */
async function stagesOf({ database }: Models) {
  const rows = await database.run<{ stage: string }>(sql`SELECT stage FROM emails ORDER BY stage`)
  return rows.map(({ stage }) => stage)
}

test('a recovery request becomes a key to the registered address, and leaves an event', async t => {
  const { models, compose, composer, intents, userId, audit, emails } = await scene(t)
  t.is(await compose('recovery-request', 30), to)
  const [event] = await audit.list({ limit: 9 })
  t.is(`${event?.action} ${event?.subject_id} ${event?.request_id}`, `recovery.send-key ${userId} r1`)
  t.is(await emails.claim(60, true), undefined, 'it is still on loan')
  const names: string[] = []
  for (const attempts of [2, 3]) {
    const [{ id } = { id: '' }] = await emails.list({ limit: 9 })
    await models.database.transact(x => emails.retry(id, x))
    const entry = (await emails.claim(60, true))!
    t.true(entry.createdAt.getTime() < Date.now() - 29 * 60_000, 'it is as old as the request')
    t.like(entry, { ...intents['recovery-key'], attempts })
    const sent = await composer(entry)
    names.push(typeof sent === 'object' ? sent.name : sent)
    t.is(names[0], `auth.${id}.${entry.createdAt.getTime()}`)
  }
  t.is(names[0], names[1], 'it has the same name at each attempt')
})

test('an hour after the request no recovery key is made, and none counts', async t => {
  for (const kind of ['recovery-request', 'recovery-key'] as const) {
    const { compose, hasKey } = await scene(t)
    t.is(await compose(kind, 61), 'expired')
    t.false(await hasKey('recovery'))
    t.is(await compose(kind, 59), to)
  }
})

test('an e-mail for an inactive account returns to the end of the queue without a counted attempt', async t => {
  for (const kind of ['recovery-request', 'password-changed'] as const) {
    const { database, emails, compose, composer, intents, hasKey } = await scene(t)
    await database.run(sql`UPDATE users SET active = false`)
    t.is(await compose(kind), 'held')
    t.false(await hasKey('recovery'), 'no key is made yet')
    t.is(await emails.claim(60, false), undefined)
    const entry = (await emails.claim(60, true))!
    t.like(entry, { kind: intents[kind].kind, stage: 'ready', attempts: 1, priority: 2 })
    const sent = await composer(entry)
    t.is(typeof sent === 'object' && sent.to, to)
  }
})

test('no key is sent to a user who was suspended since the e-mail was queued, and none is left', async t => {
  const { models, userId, audit, compose, hasKey } = await scene(t)
  t.deepEqual([await compose('recovery-key'), await compose('activation-key')], [to, 'escola@example.org'])
  t.deepEqual([await hasKey('recovery'), await hasKey('activation')], [true, true])
  await suspend(models, userId)
  for (const kind of ['recovery-request', 'recovery-key', 'activation-key'] as const)
    t.is(await compose(kind), 'unwanted', kind)
  t.deepEqual([await hasKey('recovery'), await hasKey('activation')], [false, false])
  t.deepEqual(await audit.list({ action: 'recovery.*', limit: 9 }), [])
})

test('no activation key is sent for an organization that was deactivated or lost its address since it was queued', async t => {
  const { organizations, compose, organizationId, hasKey } = await scene(t)
  await organizations.setActive(organizationId, false)
  t.is(await compose('activation-key'), 'unwanted')
  await organizations.setActive(organizationId, true)
  await organizations.edit(organizationId, { email: null })
  t.is(await compose('activation-key'), 'unwanted')
  t.false(await hasKey('activation'))
})

test('an activation key that is composed while the address changes goes to the new one, and no key stays for the former', async t => {
  const { database, organizations, compose, organizationId, hasKey } = await scene(t)
  let sent: ReturnType<typeof compose> | undefined
  await database.transact(async transaction => {
    await organizations.edit(organizationId, { email: 'nova@example.org' }, transaction)
    sent = compose('activation-key')
    t.is(await endsOrWaits(database, sent), 'waits')
  })
  t.is(await sent, 'nova@example.org')
  t.true(await hasKey('activation'))
  await database.transact(x => organizations.edit(organizationId, { email: 'outra@example.org' }, x))
  t.false(await hasKey('activation'))
})

test('an active account has 10 notices an hour to an address, which no other e-mail and no other account uses up', async t => {
  const { models, database, compose, intents, activate } = await scene(t)
  const ofOther = (userId: number) => {
    const { parameters } = intents['password-changed']
    return compose({ kind: 'password-changed', stage: 'requested', parameters: { ...parameters, userId } })
  }
  // Strangers sign up with the address, and have e-mails sent there.
  const stranger = await addUser(models, 'stranger', 'ROLE_CLIENT', to)
  await database.run(sql`UPDATE users SET unactivated_seen_at = now() WHERE id = ${stranger}`)
  // Each is admitted, and returns to the end of the queue.
  for (let times = 1; times <= 7; times++) t.is(await ofOther(stranger), 'held')
  t.deepEqual(await stagesOf(models), ['held', ...Array(5).fill('ready')], 'five an hour, the others are merged')

  const outcomes: string[] = []
  for (let times = 1; times <= 11; times++) outcomes.push(await compose('password-changed'))
  t.deepEqual(outcomes, [...Array(10).fill(to), 'held'])
  const other = await addUser(models, 'other', 'ROLE_INSTITUTION', to)
  await activate(other)
  t.is(await ofOther(other), to)
})

test('a notice of an account that was deactivated or deleted has its own quota, too', async t => {
  for (const [kind, change] of Object.entries({
    'member-deactivated': 'active = false',
    'account-deleted': 'suspended = true, deleted_at = now()',
  })) {
    const { models, database, emailQuotas, counterKeys, compose, intents, userId } = await scene(t)
    const quotas = createQuotas(emailQuotas, counterKeys, 1, Date.now)
    const used = () => database.transact(x => quotas.recipient(to, undefined, x))
    for (let times = 1; times <= 5; times++) t.is(await used(), 0)
    t.true((await used()) > 0)
    await database.run(sql`UPDATE users SET ${sql.text(change)} WHERE id = ${userId}`)
    await compose({ ...intents['password-changed'], kind } as EmailIntent)
    t.deepEqual(await stagesOf(models), ['ready'], kind)
  }
})

test('an event that is merged into a held notice while another process sends it is not lost', async t => {
  const { emails, database, composer, intents } = await scene(t)
  const event = intents['password-changed']
  await emails.add({ ...event, stage: 'held' }, 'en')
  const leased = (await emails.claim(60, true))!
  // Another process merges an event meanwhile.
  await emails.add({ ...event, parameters: { ...event.parameters, at: '2026-11-22' } }, 'en')
  const fresh = (await emails.claim(60, true))!
  await database.transact(x => emails.hold(fresh.id, 60, x))
  const sent = await composer(leased)
  t.regex(typeof sent === 'object' ? sent.text : String(sent), /2 times/)
})

test('held notices are merged by kind and recipient: one to a former address is sent there', async t => {
  const { database, emails, composer, intents } = await scene(t)
  const event = intents['password-changed']
  const former = { ...event, parameters: { ...event.parameters, to: 'antiga@example.org' } }
  for (const intent of [former, event, event, { ...event, kind: 'answer-saved' } as const, former, event]) {
    await emails.add(intent, 'en')
    const { id } = (await emails.claim(60, true))!
    await database.transact(x => emails.hold(id, 60, x))
  }
  // Beyond the quota still, they are held again.
  for (const { id } of await emails.list({ limit: 9 })) await database.transact(x => emails.hold(id, 0, x))
  const sent: string[] = []
  for (let entry = await emails.claim(60, true); entry; entry = await emails.claim(60, true)) {
    const mail = await composer(entry)
    sent.push(typeof mail === 'object' ? `${entry.kind} ${mail.to} ${/\d+ times/.exec(mail.text)}` : mail)
  }
  t.deepEqual(sent.sort(), [
    `answer-saved ${to} null`,
    `password-changed ${to} 3 times`,
    'password-changed antiga@example.org 2 times',
  ])
})

test('a notice isn’t sent to an address removed since it was queued', async t => {
  const { database, users, compose, intents, userId } = await scene(t)
  const ready = { ...intents['password-changed'], stage: 'ready' } as const
  t.is(await compose(ready), to)
  const cause = { address: '192.0.2.1', locale: 'en' } as const
  await database.transact(x => users.setEmail({ id: userId, email: null }, null, cause, x))
  t.deepEqual([await compose(ready), await compose('password-changed')], ['unwanted', 'unwanted'])
})

test('no key is made for an e-mail discarded while it was composed', async t => {
  const purposes = { 'recovery-key': 'recovery', 'activation-key': 'activation', 'email-code': 'email' } as const
  for (const [kind, purpose] of Object.entries(purposes)) {
    const { database, emails, composer, intents, userId, hasKey } = await scene(t)
    await emails.add(intents[kind as Kind], 'en')
    const entry = (await emails.claim(60, true))!
    let composing: ReturnType<typeof composer> | undefined
    await database.transact(async transaction => {
      await emails.discard(userId, [purpose], transaction)
      composing = composer(entry)
      t.is(await endsOrWaits(database, composing), 'waits')
    })
    t.is(await composing, 'unwanted')
    t.false(await hasKey(purpose), kind)
  }
})

// The queue of e-mails: their order, and the limit on requests that no bucket counts.

test('first attempts precede retries, and both precede e-mails for inactive accounts', async t => {
  const { emails, database } = await openModels(t)
  await database.run(sql`
    INSERT INTO emails (kind, stage, parameters, locale, priority, next_attempt_at)
      SELECT 'recovery-key', 'ready', '{"userId": 1}', locale, priority, now() - make_interval(mins => minutes)
      FROM (VALUES ('inactive', 30, 2), ('retry', 20, 1), ('later first', 1, 0), ('first', 2, 0), ('not due', -1, 0))
        AS v(locale, minutes, priority)`)
  const claimed: (string | undefined)[] = []
  for (const retries of [false, true, false, true, true, true]) {
    claimed.push((await emails.claim(60, retries))?.locale)
  }
  t.deepEqual(claimed, ['first', 'later first', undefined, 'retry', 'inactive', undefined])

  // A failed e-mail is a retry from then on; one to an active account stays a first attempt until then.
  await database.run(sql`DELETE FROM emails`)
  await emails.add({ kind: 'recovery-key', stage: 'ready', parameters: { userId: 1, to: 'a@example.org' } }, 'en')
  const { id } = (await emails.claim(60, false))!
  const admit = (active: boolean) => database.transact(transaction => emails.admit(id, active, undefined, transaction))
  t.is((await admit(true))?.priority, 0)
  await emails.failed(id, 'Error', 0)
  t.is(await emails.claim(60, false), undefined)
  t.is((await emails.claim(60, true))?.priority, 1)
  // An e-mail for an inactive account stays one when it fails.
  await admit(false)
  await emails.claim(60, true)
  await emails.failed(id, 'Error', 0)
  t.is((await emails.claim(60, true))?.priority, 2)
})

test('of a thousand requests that no bucket counts, one waits per account, network and kind of address', async t => {
  const { emails, database } = await openModels(t)
  const request = { usernameKey: 'ana', email: 'ana@example.org', address: '192.0.2.1', requestId: 'r' }
  const exempt = { ...request, network: '192.0.2.1', registered: true }
  await emails.add({ kind: 'recovery-key', stage: 'requested', parameters: request }, 'en')
  await emails.add({ kind: 'recovery-key', stage: 'requested', parameters: request }, 'en')
  await emails.replaceRequest(exempt, 'en')
  for (let n = 0; n < 1000; n++) {
    await emails.replaceRequest({ ...exempt, email: `x${n}@example.org`, registered: false }, 'pt-BR')
  }
  await emails.replaceRequest({ ...exempt, requestId: 'again' }, 'en')
  await emails.replaceRequest({ ...exempt, network: '192.0.2.2' }, 'en')
  await emails.replaceRequest({ ...exempt, usernameKey: 'bia' }, 'en')
  const rows = await database.run<{ request: string }>(sql`
    SELECT concat_ws(' ', parameters ->> 'usernameKey', parameters ->> 'network', parameters ->> 'email',
      parameters ->> 'requestId', locale) AS request FROM emails ORDER BY id`)
  t.deepEqual(
    rows.map(row => row.request),
    [
      'ana ana@example.org r en',
      'ana ana@example.org r en',
      'ana 192.0.2.1 ana@example.org again en',
      'ana 192.0.2.1 x999@example.org r pt-BR',
      'ana 192.0.2.2 ana@example.org r en',
      'bia 192.0.2.1 ana@example.org r en',
    ],
  )
})

// How e-mails are counted, and how long refusals are cached.

test('a refusal is cached for a second without a query, and never applies to earlier times', async t => {
  const { database, emailQuotas, counterKeys } = await openModels(t)
  let [asked, time] = [0, Date.now()]
  const counts: typeof emailQuotas = {
    ...emailQuotas,
    take(...values) {
      asked++
      return emailQuotas.take(...values)
    },
  }
  const refusals: string[] = []
  const quotas = createQuotas(
    counts,
    counterKeys,
    1,
    () => time,
    limit => refusals.push(limit),
  )
  const take = () => database.transact(transaction => quotas.partner(1, transaction))
  for (let times = 1; times <= 10; times++) t.is(await take(), 0)
  t.is(await quotas.partner(1), 0, 'nothing is known yet')
  const wait = await take()
  t.true(wait > 86_000 && wait <= 86_400, `${wait}`)
  t.is(asked, 11)

  time += 900
  for (const again of [take(), quotas.partner(1)]) t.is(await again, Math.ceil(wait - 0.9))
  t.is(asked, 11)
  t.is(await quotas.partner(2), 0)
  t.deepEqual(refusals, ['partner', 'partner', 'partner'])

  time += 100
  t.is(await quotas.partner(1), 0)
  t.true((await take()) > 0)
  t.is(asked, 12)
  time -= 1
  t.true((await take()) > 0)
  t.is(asked, 13)
})
