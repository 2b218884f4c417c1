/** The gate and the matrix of what ends which credential say the same of each state of a user. */
import test from 'ava'
import { states, type Way } from '../../server/access/gate.js'
import { readTakingAway, stateEvents, waysOf } from './taking-away.matrix.js'

test('each state of a user has its events in the matrix, where it ends each credential whose way it closes', t => {
  const table = readTakingAway()
  t.deepEqual(Object.keys(stateEvents).sort(), Object.keys(states).sort())
  for (const [state, events] of Object.entries(stateEvents))
    for (const event of events) {
      const opens: readonly Way[] = states[state as keyof typeof states].opens
      for (const [credential, cell] of table.get(event)!) {
        const way = waysOf[credential] as Way | undefined
        if (way && !opens.includes(way) && !/^\w$/.test(cell)) t.is(cell, 'ends', `${event}: ${credential}`)
      }
    }
})
