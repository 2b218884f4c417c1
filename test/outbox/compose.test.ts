/** How queued e-mails are composed when they are due, because conditions may have changed. */
import test from 'ava'
import { sql } from '../../server/database/sql.js'
import type { Models } from '../../server/models/define-models.js'
import type { EmailIntent } from '../../server/models/email.js'
import { createComposer } from '../../server/outbox/compose.js'
import { createQuotas } from '../../server/outbox/quotas.js'
import { addUser, endsOrWaits, openModels, suspend } from '../_helpers/models.js'

const to = 'ana@example.org'

/** An active user, an organization, and the outcome of an e-mail that is queued for them. */
async function scene(models: Models) {
  const { database, organizations, emails, users } = models
  const userId = await addUser(models, 'ana', 'ROLE_INSTITUTION', to)
  await database.transact(t => users.activate({ id: userId, role: 'ROLE_INSTITUTION' } as never, null, t))
  const details = { name: 'Escola', nameKey: 'escola', email: 'escola@example.org' }
  const { id: organizationId } = await database.transact(t => organizations.add(details, t))
  const composer = createComposer(models, { recoveryEmail: 'registered', limitFactor: 1 }, Date.now)
  const request = { usernameKey: 'ana', email: to, address: '192.0.2.1', requestId: 'r1' }
  return {
    userId,
    organizationId,
    intents: {
      'recovery-request': { kind: 'recovery-key', stage: 'requested', parameters: request },
      'recovery-key': { kind: 'recovery-key', stage: 'ready', parameters: { userId, to } },
      'activation-key': { kind: 'activation-key', stage: 'ready', parameters: { userId, organizationId } },
      'password-changed': {
        kind: 'password-changed',
        stage: 'requested',
        parameters: { userId, at: '2026-11-21', address: '192.0.2.1' },
      },
    } satisfies Record<string, EmailIntent>,
    async compose(intent: EmailIntent, minutesAgo = 0) {
      await emails.add(intent, 'en')
      const text = 'UPDATE emails SET created_at = now() - make_interval(mins => $1)'
      await database.run({ text, values: [minutesAgo] })
      return composer((await emails.claim(60, true))!)
    },
  }
}

/** The stages of all queued e-mails, sorted. */
async function stagesOf({ database }: Models) {
  const rows = await database.run<{ stage: string }>(sql`SELECT stage FROM emails ORDER BY stage`)
  return rows.map(({ stage }) => stage)
}

test('a recovery request becomes a key to the registered address, and leaves an event', async t => {
  const models = await openModels(t)
  const { compose, intents, userId } = await scene(models)
  const sent = await compose(intents['recovery-request'], 30)
  t.is(typeof sent === 'object' && sent.to, to)
  const [event] = await models.audit.list({ limit: 9 })
  t.is(`${event?.action} ${event?.subject_id} ${event?.request_id}`, `recovery.send-key ${userId} r1`)
  t.is(await models.emails.claim(60, true), undefined, 'it is still on loan')
  const [{ id } = { id: '' }] = await models.emails.list({ limit: 9 })
  await models.database.transact(t => models.emails.retry(id, t))
  const { kind, stage, parameters, attempts, createdAt } = (await models.emails.claim(60, true))!
  t.true(createdAt.getTime() < Date.now() - 29 * 60_000, 'it is as old as the request')
  t.deepEqual({ kind, stage, parameters, attempts }, { ...intents['recovery-key'], attempts: 2 })
  t.is(
    typeof sent === 'object' && sent.name,
    `auth.${id}.${createdAt.getTime()}`,
    'it has the same name at each attempt',
  )
})

for (const kind of ['recovery-request', 'recovery-key'] as const) {
  test(`${kind}: an hour after the request no key is made, and none counts`, async t => {
    const models = await openModels(t)
    const { compose, intents, userId } = await scene(models)
    t.is(await compose(intents[kind], 61), 'expired')
    t.is(await models.mailedKeys.attempt(userId, 'recovery', '192.0.2.1'), undefined)
    const sent = await compose(intents[kind], 59)
    t.is(typeof sent === 'object' && sent.to, to)
  })
}

for (const kind of ['recovery-request', 'password-changed'] as const) {
  test(`${kind}: an e-mail for an inactive account returns to the end of the queue without a counted attempt`, async t => {
    const models = await openModels(t)
    const { compose, intents, userId } = await scene(models)
    await models.database.run(sql`UPDATE users SET active = false`)
    t.is(await compose(intents[kind]), 'held')
    t.is(await models.mailedKeys.attempt(userId, 'recovery', '192.0.2.1'), undefined, 'no key is made yet')
    t.is(await models.emails.claim(60, false), undefined)
    const entry = (await models.emails.claim(60, true))!
    t.deepEqual([entry.kind, entry.stage, entry.attempts, entry.priority], [intents[kind].kind, 'ready', 1, 2])
    const composer = createComposer(models, { recoveryEmail: 'registered', limitFactor: 1 }, Date.now)
    const sent = await composer(entry)
    t.is(typeof sent === 'object' && sent.to, to)
  })
}

test('a user who is suspended after the request was queued gets no key', async t => {
  const models = await openModels(t)
  const { compose, intents, userId } = await scene(models)
  await suspend(models, userId)
  t.is(await compose(intents['recovery-request']), 'unwanted')
  t.deepEqual(await models.audit.list({ action: 'recovery.*', limit: 9 }), [])
})

for (const kind of ['recovery-key', 'activation-key'] as const) {
  test(`${kind}: the e-mail is sent, but not to a user suspended since it was queued`, async t => {
    const models = await openModels(t)
    const { compose, intents, userId } = await scene(models)
    const sent = await compose(intents[kind])
    t.is(typeof sent === 'object' && sent.to, kind === 'recovery-key' ? to : 'escola@example.org')
    const purpose = kind === 'recovery-key' ? 'recovery' : 'activation'
    t.truthy(await models.mailedKeys.attempt(userId, purpose, '192.0.2.1'))
    await suspend(models, userId)
    t.is(await compose(intents[kind]), 'unwanted')
    t.is(await models.mailedKeys.attempt(userId, purpose, '192.0.2.1'), undefined, 'and no key is left or made')
  })
}

test('activation-key: no e-mail is sent for an organization that was deactivated or lost its address since it was queued', async t => {
  const models = await openModels(t)
  const { organizations } = models
  const { compose, intents, userId, organizationId } = await scene(models)
  await organizations.setActive(organizationId, false)
  t.is(await compose(intents['activation-key']), 'unwanted')
  await organizations.setActive(organizationId, true)
  await organizations.edit(organizationId, { email: null })
  t.is(await compose(intents['activation-key']), 'unwanted')
  t.is(await models.mailedKeys.attempt(userId, 'activation', '192.0.2.1'), undefined)
})

test('activation-key: an e-mail that is composed while the address changes goes to the new one, and no key stays for the former', async t => {
  const models = await openModels(t)
  const { database, organizations, mailedKeys } = models
  const { compose, intents, userId, organizationId } = await scene(models)
  const change = (email: string, work: () => Promise<unknown>) =>
    database.transact(async transaction => {
      await organizations.edit(organizationId, { email }, transaction)
      await work()
    })
  let sent: ReturnType<typeof compose> | undefined
  await change('nova@example.org', async () => {
    sent = compose(intents['activation-key'])
    t.is(await endsOrWaits(database, sent), 'waits')
  })
  const composed = await sent!
  t.is(typeof composed === 'object' && composed.to, 'nova@example.org')
  t.truthy(await mailedKeys.attempt(userId, 'activation', '192.0.2.1'))
  await change('outra@example.org', async () => {})
  t.is(await mailedKeys.attempt(userId, 'activation', '192.0.2.1'), undefined)
})

const happened = { userId: 1, at: '2026-11-21', address: '192.0.2.1' }
const notice = { kind: 'password-changed', stage: 'ready', parameters: happened } as const

test('an active account has 10 notices an hour to an address, which no other e-mail and no other account uses up', async t => {
  const models = await openModels(t)
  const { compose, intents } = await scene(models)
  // Strangers sign up with the address, and have e-mails sent there.
  const strangerId = await addUser(models, 'stranger', 'ROLE_CLIENT', to)
  await models.database.run(sql`UPDATE users SET unactivated_seen_at = now() WHERE id = ${strangerId}`)
  const stranger = {
    kind: 'password-changed',
    stage: 'requested',
    parameters: { ...intents['password-changed'].parameters, userId: strangerId },
  } as const
  // Each is admitted, and returns to the end of the queue.
  for (let times = 1; times <= 7; times++) t.is(await compose(stranger), 'held')
  t.deepEqual(await stagesOf(models), ['held', ...Array(5).fill('ready')], 'five an hour, the others are merged')

  const composeAll = async () => {
    const outcomes: unknown[] = []
    for (let times = 1; times <= 11; times++) {
      const sent = await compose(intents['password-changed'])
      outcomes.push(typeof sent === 'object' ? sent.to : sent)
    }
    return outcomes
  }
  t.deepEqual(await composeAll(), [...Array(10).fill(to), 'held'])

  const other = await addUser(models, 'other', 'ROLE_INSTITUTION', to)
  await models.database.transact(x => models.users.activate({ id: other, role: 'ROLE_INSTITUTION' } as never, null, x))
  const sent = await compose({ ...stranger, parameters: { ...stranger.parameters, userId: other } })
  t.is(typeof sent === 'object' && sent.to, to)
})

for (const what of ['deactivated', 'deleted'] as const) {
  test(`a notice of an account that was ${what} has its own quota, too`, async t => {
    const models = await openModels(t)
    const { compose, intents, userId } = await scene(models)
    const quotas = createQuotas(models.emailQuotas, models.counterKeys, 1, Date.now)
    for (let times = 1; times <= 5; times++) await models.database.transact(x => quotas.recipient(to, false, x))
    t.true((await models.database.transact(x => quotas.recipient(to, false, x))) > 0)
    const change = { deactivated: 'active = false', deleted: 'suspended = true, deleted_at = now()' }[what]
    await models.database.run(sql`UPDATE users SET ${sql.text(change)} WHERE id = ${userId}`)
    const kind = ({ deactivated: 'member-deactivated', deleted: 'account-deleted' } as const)[what]
    await compose({ ...intents['password-changed'], kind })
    t.deepEqual(await stagesOf(models), ['ready'])
  })
}

test('an event that is merged into a held notice while another process sends it is not lost', async t => {
  const models = await openModels(t)
  const { intents } = await scene(models)
  const event = intents['password-changed']
  await models.emails.add({ ...event, stage: 'held' }, 'en')
  const leased = (await models.emails.claim(60, true))!
  // Another process merges an event meanwhile.
  await models.emails.add({ ...event, parameters: { ...event.parameters, at: '2026-11-22' } }, 'en')
  const fresh = (await models.emails.claim(60, true))!
  await models.database.transact(x => models.emails.hold(fresh.id, 60, x))
  const sent = await createComposer(models, { recoveryEmail: 'registered', limitFactor: 1 }, Date.now)(leased)
  t.regex(typeof sent === 'object' ? sent.text : String(sent), /2 times/)
})

test('held notices are merged by kind and recipient: one to a former address is sent there', async t => {
  const models = await openModels(t)
  const { database, emails } = models
  const { intents } = await scene(models)
  const event = intents['password-changed']
  const former = { ...event, parameters: { ...event.parameters, to: 'antiga@example.org' } }
  for (const intent of [former, event, event, { ...event, kind: 'answer-saved' } as const, former, event]) {
    await emails.add(intent, 'en')
    const { id } = (await emails.claim(60, true))!
    await database.transact(x => emails.hold(id, 60, x))
  }
  // Beyond the quota still, they are held again.
  for (const { id } of await emails.list({ limit: 9 })) await database.transact(x => emails.hold(id, 0, x))
  const composer = createComposer(models, { recoveryEmail: 'registered', limitFactor: 1 }, Date.now)
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
  const models = await openModels(t)
  const { compose, intents, userId } = await scene(models)
  const sent = await compose(notice)
  t.is(typeof sent === 'object' && sent.to, to)
  await models.database.transact(transaction =>
    models.users.setEmail({ id: userId, email: null }, null, { address: '192.0.2.1', locale: 'en' }, transaction),
  )
  t.is(await compose(notice), 'unwanted')
  t.is(await compose(intents['password-changed']), 'unwanted')
})

for (const kind of ['recovery-key', 'activation-key', 'email-code'] as const) {
  test(`${kind}: no key is made for an e-mail discarded while it was composed`, async t => {
    const models = await openModels(t)
    const { intents, userId } = await scene(models)
    const code: EmailIntent = { kind: 'email-code', stage: 'ready', parameters: { userId, to, generation: 0 } }
    const purpose = { 'recovery-key': 'recovery', 'activation-key': 'activation', 'email-code': 'email' } as const
    await models.emails.add(kind === 'email-code' ? code : intents[kind], 'en')
    const entry = (await models.emails.claim(60, true))!
    const composer = createComposer(models, { recoveryEmail: 'registered', limitFactor: 1 }, Date.now)
    const keyOf = () => models.mailedKeys.attempt(userId, purpose[kind], '192.0.2.1')
    let composing: ReturnType<typeof composer> | undefined
    await models.database.transact(async transaction => {
      await models.emails.discard(userId, [purpose[kind]], transaction)
      composing = composer(entry)
      t.is(await endsOrWaits(models.database, composing), 'waits')
    })
    t.is(await composing, 'unwanted')
    t.is(await keyOf(), undefined)
  })
}

// The queue of e-mails: their order, and the limit on requests that no bucket counts.

const run = ({ database }: Models, text: string) => database.run<Record<string, unknown>>(sql.text(text))

/** Queues an e-mail that has been due for some minutes, after so many attempts. */
async function queue(models: Models, locale: string, minutesDue: number, priority: number) {
  await run(
    models,
    `INSERT INTO emails (kind, stage, parameters, locale, priority, next_attempt_at)
      VALUES ('recovery-key', 'ready', '{"userId": 1}', '${locale}', ${priority}, now() - interval '${minutesDue} minutes')`,
  )
}

test('first attempts precede retries, and both precede e-mails for inactive accounts', async t => {
  const models = await openModels(t)
  const { emails, database } = models
  await queue(models, 'inactive', 30, 2)
  await queue(models, 'retry', 20, 1)
  await queue(models, 'later first', 1, 0)
  await queue(models, 'first', 2, 0)
  await queue(models, 'not due', -1, 0)
  const claimed: (string | undefined)[] = []
  for (const retries of [false, true, false, true, true, true]) {
    claimed.push((await emails.claim(60, retries))?.locale)
  }
  t.deepEqual(claimed, ['first', 'later first', undefined, 'retry', 'inactive', undefined])

  // A failed e-mail is a retry from then on; one to an active account stays a first attempt until then.
  await run(models, 'DELETE FROM emails')
  await emails.add({ kind: 'recovery-key', stage: 'ready', parameters: { userId: 1, to: 'a@example.org' } }, 'en')
  const { id } = (await emails.claim(60, false))!
  t.is((await database.transact(transaction => emails.admit(id, true, undefined, transaction)))?.priority, 0)
  await emails.failed(id, 'Error', 0)
  t.is(await emails.claim(60, false), undefined)
  t.is((await emails.claim(60, true))?.priority, 1)
  // An e-mail for an inactive account stays one when it fails.
  await database.transact(transaction => emails.admit(id, false, undefined, transaction))
  await emails.claim(60, true)
  await emails.failed(id, 'Error', 0)
  t.is((await emails.claim(60, true))?.priority, 2)
})

test('of a thousand requests that no bucket counts, one waits per account, network and kind of address', async t => {
  const models = await openModels(t)
  const { emails } = models
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
  const rows = await run(
    models,
    `SELECT concat_ws(' ', parameters ->> 'usernameKey', parameters ->> 'network', parameters ->> 'email',
      parameters ->> 'requestId', locale) AS request FROM emails ORDER BY id`,
  )
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

test('a refusal is cached for a minute without a query, and never applies to earlier times', async t => {
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

  time += 59_500
  for (const again of [take(), quotas.partner(1)]) t.is(await again, Math.ceil(wait - 59.5))
  t.is(asked, 11)
  t.is(await quotas.partner(2), 0)
  t.deepEqual(refusals, ['partner', 'partner', 'partner'])

  time += 500
  t.is(await quotas.partner(1), 0)
  t.true((await take()) > 0)
  t.is(asked, 12)
  time -= 1
  t.true((await take()) > 0)
  t.is(asked, 13)
})
