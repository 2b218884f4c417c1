/** What the services of a test file logged, shown with each of its tests that fails. Importing this is enough. */
import test from 'ava'

/** Lines shown at most, the last ones, and characters of each. */
const shown = { lines: 20, characters: 500 }

let log = ''
let tests = 0

/** Keeps what a service wrote, whole lines or parts of them. */
export function keepLog(text: string): void {
  log += text
}

function show(t: { log(text: string): void }): void {
  const lines = log.trimEnd().split('\n').slice(-shown.lines)
  if (log !== '') t.log(lines.map(line => line.slice(0, shown.characters)).join('\n'))
}

test.afterEach.always('log of the services', t => {
  tests++
  if (!t.passed) show(t)
})

// When a hook fails before the first test, its service has told why.
test.after.always('log of the services', t => {
  if (tests === 0) show(t)
})
