/** Lets few tests of a process run at once: those of a bundle of several files (deploy/bundle.mjs) would all start together. */
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
