/**
 * The output of the services of a test file: shown with each failed test, with the load of the machine, and stored for run.ts,
 * which searches it for secrets. Importing this is enough.
 */
import { writeFileSync } from 'node:fs'
import { availableParallelism, loadavg } from 'node:os'
import { join } from 'node:path'
import test from 'ava'
import { outputFolder } from './secrets.js'

/** Lines shown at most, the last ones, and characters of each. */
const shown = { lines: 20, characters: 500 }

const written: string[] = []
const secrets = new Set<string>()
let tests = 0

/** Stores output of a service, whole lines or parts of them. */
export function keepLog(text: string): void {
  written.push(text)
}

/** Adds a secret of this run to those that the output is searched for. */
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
  // Access lines would displace all others.
  const lines = written
    .join('')
    .trimEnd()
    .split('\n')
    .filter(line => line !== '' && !/^\{"level":"info".*"msg":"(call|request)"\}$/.test(line))
  const last = lines.slice(-shown.lines).map(line => line.slice(0, shown.characters))
  t.log([...last, `load ${loadavg()[0]!.toFixed(1)} on ${availableParallelism()} processors`].join('\n'))
}

test.afterEach.always('log of the services', t => {
  tests++
  if (!t.passed) show(t)
})

// If a hook fails before the first test, the log of its service has the cause.
test.after.always('log of the services', t => {
  if (tests === 0) show(t)
})
