/**
 * Creates every fault that the service must survive, one after another:
 * `npm run test:faults -- NAME…`, or all of them without a name. Prints the results of clients and the missing tools.
 * docs/faults.md describes each fault.
 */
import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'

/** A fault: the tests that create it, and the replacement of a missing tool. */
interface Fault {
  readonly file: string
  /** Titles of the tests; all of the file by default. */
  readonly match?: string
  readonly tool?: string
}

const faults: Readonly<Record<string, Fault>> = {
  'frozen-replica': { file: 'races/frozen.slow', match: 'a replica that freezes*' },
  'frozen-holder': { file: 'faults/locks.slow' },
  'silent-connections': { file: 'faults/blackhole.slow' },
  'full-volume': { file: 'faults/full-volume.slow' },
  'read-only': { file: 'faults/read-only.slow' },
  'other-port': { file: 'faults/other-port.slow' },
  promotion: {
    file: 'faults/promotion.slow',
    ...(!process.env.HAPROXY && { tool: 'HAProxy (HAPROXY=path): a promotion under load is skipped' }),
  },
  patroni: {
    file: 'faults/patroni.slow',
    ...(!process.env.PATRONI && { tool: 'Patroni (PATRONI=path): skipped' }),
  },
  pooler: {
    file: 'faults/pooler.slow',
    ...(!process.env.PGBOUNCER && { tool: 'PgBouncer (PGBOUNCER=path); a pooler of the tests’ own takes its place' }),
  },
  clock: {
    file: 'process/starts.slow',
    match: 'processes whose clocks*',
    tool: 'libfaketime; Node.js is started with another clock instead',
  },
  'several-addresses': { file: 'process/starts.slow', match: 'replicas at different*' },
  'wrong-key': { file: 'process/starts.slow', match: 'a wrong master key*' },
  'older-version': { file: 'process/starts.slow', match: 'a version*' },
  'database-down': { file: 'process/starts.slow', match: 'a start*' },
  signals: { file: 'process/stops.slow', match: '*SIG*' },
  'hanging-stop': { file: 'process/stops.slow', match: '*keep a process from ending*' },
  upgrade: { file: 'process/upgrade.slow', match: 'an upgrade*' },
  outage: { file: 'faults/outage.slow' },
  'full-mail-folder': { file: 'outbox/folder' },
}

const runner = fileURLToPath(new URL('run.js', import.meta.url))
const names = process.argv.slice(2)
const unknown = names.filter(name => !faults[name])
if (unknown.length > 0) {
  console.error(`No such fault: ${unknown.join(', ')}. There are: ${Object.keys(faults).join(', ')}.`)
  process.exit(2)
}

const failed: string[] = []
for (const name of names.length > 0 ? names : Object.keys(faults)) {
  const { file, match, tool } = faults[name]!
  console.log(`\n${name}${tool ? ` (missing: ${tool})` : ''}`)
  const options = match === undefined ? [] : [`--match=${match}`]
  const { status } = spawnSync(process.execPath, [runner, `dist/test/${file}.test.js`, ...options], {
    stdio: 'inherit',
  })
  if (status !== 0) failed.push(name)
}
console.log(failed.length > 0 ? `\nfailed: ${failed.join(', ')}` : '\nno fault failed a test')
process.exitCode = failed.length > 0 ? 1 : 0
