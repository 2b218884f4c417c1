/** Lines of tokens: what a token gets by its place, and what holds when many are exchanged at once. */
import test from 'ava'
import { refreshOf } from '../../server/models/refreshed-session.js'
import { addUser, openModels } from '../_helpers/models.js'

// newest, ended, number → result
const table = `
-  -      0  next
-  -      1  refused
1  -      1  next
1  -      0  newest
3  -      3  next
3  -      2  newest
3  -      1  copied
3  -      0  copied
3  -      4  refused
3  ended  3  refused
3  ended  2  refused
3  ended  1  refused
`

test('what a token gets, by its place in the line of its session', t => {
  for (const row of table.trim().split('\n')) {
    const [newest, ended, number, expected] = row.split(/ +/)
    const line = newest === '-' ? undefined : { newest: Number(newest), ended: ended === 'ended' }
    t.is(refreshOf(line, Number(number)), expected as ReturnType<typeof refreshOf>, row)
  }
})

test('of tokens that are exchanged at once, one adds to the line, and none once it has ended or the user is gone', async t => {
  const models = await openModels(t)
  const { database, refreshedSessions: lines, erasure } = models
  const userId = await addUser(models, 'ana')
  const of = { userId, id: 'a', endsAt: new Date(Date.now() + 60_000) }
  const advance = async (number: number) =>
    (await Promise.all(Array.from({ length: 8 }, () => lines.advance(of, number)))).filter(Boolean).length
  t.is(await lines.find(userId, 'a'), undefined)
  for (const number of [0, 1, 2]) {
    t.is(await advance(number), 1)
    t.like(await lines.find(userId, 'a'), { newest: number + 1, ended: false })
  }
  t.is(await advance(1), 0)
  const end = () => database.transact(transaction => lines.end(userId, 'a', transaction))
  t.deepEqual([await end(), await end()], [true, false])
  t.is(await advance(3), 0)
  t.is(await lines.find(userId, 'b'), undefined)
  await database.transact(transaction => erasure.erase(userId, transaction))
  t.is(await lines.advance({ ...of, id: 'b' }, 0), false)
})
