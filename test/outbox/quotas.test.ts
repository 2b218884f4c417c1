/** How e-mails are counted, and how long refusals are cached. */
import test from 'ava'
import { createQuotas } from '../../server/outbox/quotas.js'
import { openModels } from '../_helpers/models.js'

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
