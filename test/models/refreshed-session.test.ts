/** Lines of tokens: what a token gets by its place, and what holds when many are exchanged at once. */
import test from 'ava'
import { type Bearer, refreshOf } from '../../server/models/refreshed-session.js'

// newest, former, age of the newest, number → result for an app, a client with a secret, and one without
const table = `
-  -  -      0  next     next     next
-  -  -      1  refused  refused  refused
1  0  young  1  next     next     next
1  0  young  0  newest   copied   copied
1  0  old    0  copied   copied   copied
3  2  young  3  next     next     next
3  2  old    3  next     next     next
3  2  young  2  newest   newest   copied
3  2  old    2  sibling  newest   copied
3  2  young  1  copied   copied   copied
3  2  old    0  copied   copied   copied
5  2  young  2  newest   newest   copied
5  2  old    2  sibling  newest   copied
5  2  old    3  copied   copied   copied
5  2  old    4  copied   copied   copied
3  2  young  4  refused  refused  refused
3  2  ended  3  refused  refused  refused
3  2  ended  2  refused  refused  refused
3  2  ended  1  refused  refused  refused
`

test('what a token gets, by its place in its line and by who presents it', t => {
  for (const row of table.trim().split('\n')) {
    const [newest, former, age, number, ...expected] = row.split(/ +/)
    const line = { newest: Number(newest), former: Number(former), recent: age === 'young', ended: age === 'ended' }
    for (const [index, bearer] of (['app', 'confidential', 'public'] as Bearer[]).entries()) {
      const result = refreshOf(newest === '-' ? undefined : line, Number(number), bearer)
      t.is(result, expected[index] as typeof result, `${row} ${bearer}`)
    }
  }
})
