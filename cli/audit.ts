import { setTimeout as sleep } from 'node:timers/promises'
import { type Command, InvalidArgumentError, Option } from 'commander'
import type { AuditFilter, RecordedEvent } from '../server/models/audit.js'
import type { Registry } from '../server/models/definemodels.js'
import { readNumber, readText } from './ask.js'
import { fail } from './failure.js'
import { jsonOption, printable, printJson, printTable, say, warn } from './output.js'
import { withRegistry } from './session.js'
import { findUser } from './user.js'

/** Milliseconds between two polls for new events. */
const pollEvery = 1000

/** More events than happen between two polls. */
const many = 100_000

interface Filter {
  readonly user?: string
  readonly action?: string
  readonly outcome?: string
  readonly since?: Date
  readonly limit: number
  readonly json?: boolean
}

/** Adds `auth-admin audit`. */
export function addAudit(program: Command): void {
  const audit = program.command('audit').description('The audit log: who did what to whom, when, and how it ended')

  withFilter(audit.command('list'), '50')
    .description('List the newest events that match, oldest first. Times are in UTC.')
    .addHelpText(
      'after',
      `
The last ones may not be sealed into the chain yet: they have no id.

Examples:
  $ auth-admin audit list --user '(11)98765-4321' --since 7d
  $ auth-admin audit list --action 'session.*' --outcome refused --json`,
    )
    .action(async (options: Filter) => {
      const events = await withRegistry(async ({ registry }) => registry.audit.list(await toFilter(options, registry)))
      if (options.json) return printJson(events.map(toJson))
      const head = ['id', 'time (utc)', 'what', 'by', 'whom', 'from']
      const cells = events.map(event => [event.id ?? '-', event.at, what(event), by(event), whom(event), event.address])
      printTable(head, cells, 'There are no such events.')
    })

  withFilter(audit.command('tail'), '10')
    .description(
      'Print the newest events that match, then each new one, until Ctrl-C. With --json, one document per line.',
    )
    .addHelpText('after', "\nExample:\n  $ auth-admin audit tail --action 'user.*'")
    .action(async (options: Filter) => {
      const ended = new AbortController()
      const end = () => ended.abort()
      await withRegistry(async ({ registry }) => {
        // Replaces the session's own handler: Ctrl-C is how this command is meant to end.
        process.removeAllListeners('SIGINT').on('SIGINT', end)
        let filter: AuditFilter = { ...(await toFilter(options, registry)), sealed: true }
        while (!ended.signal.aborted) {
          for (const event of await registry.audit.list(filter)) {
            process.stdout.write(`${options.json ? JSON.stringify(toJson(event)) : line(event)}\n`)
            filter = { ...filter, afterId: event.id! }
          }
          filter = { ...filter, limit: many }
          await sleep(pollEvery, undefined, { signal: ended.signal }).catch(() => {})
        }
      })
      process.off('SIGINT', end)
    })

  audit
    .command('verify')
    .description('Check that no event was altered, removed or inserted. If one was, name the first and end with 1.')
    .addOption(
      new Option('--known <link>', 'the newest link of an earlier check, id:hash, kept elsewhere').argParser(readLink),
    )
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
Events are sealed a moment after they are written: those that still wait are
checked by their MACs alone. Events older than AUTH_AUDIT_RETENTION are deleted
behind a signed checkpoint, from which the check begins.

Example:
  $ auth-admin audit verify`,
    )
    .action(async (options: { json?: boolean; known?: string }) => {
      const found = await withRegistry(({ registry }) => registry.audit.verify(options.known))
      const { events, staged, newest, forgotten, broken } = found
      if (options.json) printJson(found)
      if (broken !== undefined) fail(`The audit log is broken at ${place(broken)} (${events} events there).`)
      if (forgotten) warn('The event of --known was deleted by its age: nothing was compared with it.')
      const waiting = staged > 0 ? `, ${staged} not sealed yet` : ''
      if (!options.json) say(`${events} events${waiting}, all intact. Keep the newest link elsewhere: ${newest}`)
    })
}

/** Where the audit log is broken, in words. */
function place(broken: string): string {
  if (broken === 'checkpoint') return 'the checkpoint that it begins with'
  return broken.startsWith('staged:') ? `the unsealed event ${broken.slice(7)}` : `event ${broken}`
}

function readLink(text: string): string {
  if (!/^\d{1,18}:[\da-f]{64}$/.test(text)) throw new InvalidArgumentError('Give a link as `audit verify` prints it.')
  return text
}

function withFilter(command: Command, limit: string): Command {
  return command
    .addOption(new Option('--user <name>', 'only what was done to this user: username or #id').argParser(readText))
    .addOption(
      new Option('--action <name>', 'only this action; * stands for any text, as in user.*').argParser(readText),
    )
    .addOption(new Option('--outcome <outcome>', 'only events with this outcome').choices(['ok', 'refused']))
    .addOption(
      new Option('--since <time>', 'only events since: 90s, 15m, 2h, 7d ago, or a time in ISO 8601').argParser(
        readTime,
      ),
    )
    .addOption(
      new Option('--limit <number>', 'at most so many events, the newest')
        .argParser(readNumber(1))
        .default(Number(limit)),
    )
    .addOption(jsonOption())
}

function readTime(value: string): Date {
  const { digits, unit } = /^(?<digits>\d{1,6})(?<unit>[smhd])$/.exec(value.trim())?.groups ?? {}
  const time = digits
    ? new Date(Date.now() - Number(digits) * { s: 1, m: 60, h: 3600, d: 86400 }[unit!]! * 1000)
    : new Date(/^\d{4}-\d\d-\d\d/.test(value.trim()) ? value.trim() : Number.NaN)
  if (Number.isNaN(time.getTime()))
    throw new InvalidArgumentError('Give 90s, 15m, 2h, 7d, or a time as 2026-01-31T12:00:00Z.')
  return time
}

async function toFilter({ user, action, outcome, since, limit }: Filter, registry: Registry): Promise<AuditFilter> {
  const subject = user === undefined ? {} : { subjectId: (await findUser(registry, user)).id }
  return { ...subject, ...(action && { action }), ...(outcome && { outcome }), ...(since && { since }), limit }
}

/** An event in the names of its columns; what is absent is left out. */
function toJson(event: RecordedEvent) {
  return Object.fromEntries(Object.entries(event).filter(([, value]) => value !== null))
}

function what({ action, outcome, reason }: RecordedEvent): string {
  return `${action}${outcome === 'ok' ? '' : ` ${outcome}`}${reason ? ` (${reason})` : ''}`
}

function by({ actor, actor_id }: RecordedEvent): string {
  return actor_id ? `${actor} #${actor_id}` : actor
}

function whom({ subject_id, object }: RecordedEvent): string {
  return [subject_id && `#${subject_id}`, object].filter(Boolean).join(' ')
}

function line(event: RecordedEvent): string {
  const parts = [event.id, event.at.toISOString(), what(event), 'by', by(event), whom(event), event.address]
  return printable(parts.filter(Boolean).join(' '))
}
