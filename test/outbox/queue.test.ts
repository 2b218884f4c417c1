/** The queue of e-mails: their order, and the limit on requests that no bucket counts. */
import test from 'ava'
import { sql } from '../../server/database/sql.js'
import type { Models } from '../../server/models/define-models.js'
import { openModels } from '../_helpers/models.js'

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
