/** Lets a few tests of a file run at once: AVA starts all of them. Importing this is enough. */
import test from 'ava'

let free = 6
const waiting: (() => void)[] = []

test.beforeEach('turn', async () => {
  if (free > 0) free--
  else await new Promise<void>(resolve => waiting.push(resolve))
})

test.afterEach.always('turn', () => {
  const next = waiting.shift()
  if (next) next()
  else free++
})
