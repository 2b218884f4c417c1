/**
 * What the services of a test file wrote: shown with each of its tests that fails, and left for run.ts to search for
 * secrets. Importing this is enough.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import test from 'ava'
import { outputFolder } from './secrets.js'

/** Lines shown at most, the last ones, and characters of each. */
const shown = { lines: 20, characters: 500 }

const written: string[] = []
const secrets = new Set<string>()
let tests = 0

/** Keeps what a service wrote, whole lines or parts of them. */
export function keepLog(text: string): void {
  written.push(text)
}

/** Has everything that services write searched for a secret, which only this run knows. */
export function plantSecret(secret: string): string {
  secrets.add(secret)
  return secret
}

process.once('exit', () => {
  if (!outputFolder || written.length === 0) return
  writeFileSync(join(outputFolder, `${process.pid}.log`), written.join(''))
  writeFileSync(join(outputFolder, `${process.pid}.secrets`), [...secrets].join('\n'))
})

function show(t: { log(text: string): void }): void {
  // Access lines would push out everything else.
  const lines = written
    .join('')
    .trimEnd()
    .split('\n')
    .filter(line => line !== '' && !/^\{"level":"info".*"msg":"(call|request)"\}$/.test(line))
  if (lines.length === 0) return
  const last = lines.slice(-shown.lines)
  t.log(last.map(line => line.slice(0, shown.characters)).join('\n'))
}

test.afterEach.always('log of the services', t => {
  tests++
  if (!t.passed) show(t)
})

// When a hook fails before the first test, its service has told why.
test.after.always('log of the services', t => {
  if (tests === 0) show(t)
})
