import { setTimeout as sleep } from 'node:timers/promises'
import { timestampDate, timestampFromDate } from '@bufbuild/protobuf/wkt'
import { type Command, InvalidArgumentError, Option } from 'commander'
import type { AuditLogEvent } from '../../proto/gen/auth/v1/administration_pb.js'
import { type Api, administering } from '../administration.js'
import { end, fail } from '../exit-codes.js'
import { readNumber, readText, readTime } from '../terminal/ask.js'
import { jsonOption, printable, printJson, printTable, say, warn } from '../terminal/output.js'
import { type ListOptions, printList, readPages } from '../terminal/pages.js'
import { withProgress } from '../terminal/progress.js'

/** Milliseconds between two polls for new events. */
const pollEvery = 1000

/** Events of a page of an export. */
const pageSize = 1000

interface Filter {
  readonly user?: string
  readonly actor?: string
  readonly action?: string
  readonly outcome?: string
  readonly since?: Date
  readonly until?: Date
}

/** Adds `auth-admin audit`. */
export function addAudit(program: Command): void {
  const audit = program.command('audit').description('Events of sign-ins and changes')

  withFilter(audit.command('list'))
    .description('List the newest matching events, oldest first. Times are in UTC.')
    .addOption(limitOption(50))
    .addOption(new Option('--all', 'all events').conflicts('limit'))
    .addOption(new Option('--page-token <token>', 'continue with older events where an earlier list ended'))
    .addOption(jsonOption())
    .addOption(new Option('--jsonl', 'print one JSON document per line').conflicts('json'))
    .addHelpText(
      'after',
      `
Events that aren't sealed into the chain yet have no id. For many events, use
\`audit export\`.

Examples:
  $ auth-admin audit list --user '(11)98765-4321' --since 7d
  $ auth-admin audit list --action 'session.*' --outcome refused --json`,
    )
    .action(
      administering(async (api, options: Filter & ListOptions & { all?: boolean }) => {
        const { limit, all, ...rest } = options
        const filter = toRequest(options)
        const listed = await readPages({ ...rest, ...(all ? { all } : { limit: limit! }) }, async page => {
          const { events, nextPageToken } = await api.listAuditEvents({ ...filter, ...page })
          return { rows: events, nextPageToken }
        })
        const events = { ...listed, rows: listed.rows.toReversed() }
        if (options.json) return printList('events', { ...events, rows: events.rows.map(toOutput) }, options)
        const head = ['id', 'time (utc)', 'what', 'by', 'whom', 'from']
        const cells = events.rows.map(event => {
          const { id, time, address } = event
          return [
            id === undefined ? '-' : String(id),
            timestampDate(time!),
            what(event),
            by(event),
            whom(event),
            address,
          ]
        })
        printTable(head, cells, 'No events match.', events)
      }),
    )

  withFilter(audit.command('tail'))
    .description(
      'Print the newest matching events, then each new one, until Ctrl-C. With --json, one document per line.',
    )
    .addOption(limitOption(10))
    .addOption(jsonOption())
    .addHelpText('after', "\nExample:\n  $ auth-admin audit tail --action 'user.*'")
    .action(
      administering(async (api, options: Filter & { limit: number; json?: boolean }) => {
        const filter = { ...toRequest(options), pageSize }
        const ended = new AbortController()
        const stop = () => ended.abort()
        // What is sealed after this comes with the token, so that nothing falls between the two lists.
        let { nextPageToken: pageToken } = await api.listAuditEvents({ ...filter, follow: true })
        // Replaces the handlers of a connection: Ctrl-C is how this command is meant to end.
        process.removeAllListeners('SIGINT').on('SIGINT', stop)
        const newest = await readPages({ limit: options.limit }, async page => {
          const { events, nextPageToken } = await api.listAuditEvents({ ...filter, ...page })
          return { rows: events, nextPageToken }
        })
        let last = 0n
        const report = (events: readonly AuditLogEvent[]) => {
          for (const event of events) {
            // What isn't sealed yet follows once it is.
            if (event.id === undefined || event.id <= last) continue
            last = event.id
            process.stdout.write(`${options.json ? JSON.stringify(toOutput(event)) : line(event)}\n`)
          }
        }
        report(newest.rows.toReversed())
        while (!ended.signal.aborted) {
          const { events, nextPageToken } = await api.listAuditEvents({ ...filter, follow: true, pageToken })
          report(events)
          pageToken = nextPageToken
          if (events.length < pageSize) await sleep(pollEvery, undefined, { signal: ended.signal }).catch(() => {})
        }
        process.off('SIGINT', stop)
      }),
    )

  withFilter(audit.command('export'))
    .description('Print all matching events, newest first, one JSON document per line; with --json, one document.')
    .addOption(jsonOption())
    .addHelpText('after', '\nExample:\n  $ auth-admin audit export --since 2026-01-01 --until 2026-02-01')
    .action(
      administering(async (api, options: Filter & { json?: boolean }) => {
        const filter = toRequest(options)
        let count = 0
        const printAll = async (report: (done: string) => void) => {
          let pageToken = ''
          do {
            const { events, nextPageToken } = await api.listAuditEvents({ ...filter, pageSize, pageToken })
            for (const event of events) {
              const text = JSON.stringify(toOutput(event))
              await write(options.json ? `${count === 0 ? '[' : ','}\n${text}` : `${text}\n`)
              count++
            }
            report(`${count} so far`)
            pageToken = nextPageToken
          } while (pageToken !== '')
        }
        await withProgress('Exporting', printAll, { prints: true })
        if (options.json) await write(count === 0 ? '[]\n' : '\n]\n')
      }),
    )

  audit
    .command('verify')
    .description('Check that no event was altered, removed or inserted. If one was, print the first and exit with 1.')
    .addOption(
      new Option('--known <link>', 'newest link of an earlier check, id:hash, kept elsewhere').argParser(readLink),
    )
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
Events are sealed shortly after they are written. Until then, the check covers
only their MACs. Events older than AUTH_AUDIT_RETENTION are deleted behind a
signed checkpoint, where the check begins.

Example:
  $ auth-admin audit verify`,
    )
    .action(
      administering(async (api, options: { json?: boolean; known?: string }) => {
        const found = await withProgress('Checking', report => verify(api, options.known, report))
        const { events, staged, newest, forgotten, broken } = found
        if (options.json) printJson(found)
        if (broken !== undefined) {
          if (options.json) end(1)
          fail(`The audit log is broken at ${place(broken)} (${events} events before it are intact).`)
        }
        if (forgotten) warn('The event of --known is older than the audit log: --known was not checked.')
        const waiting = staged > 0 ? `, ${staged} not sealed yet` : ''
        if (!options.json) say(`${events} events${waiting}, all intact. Keep the newest link elsewhere: ${newest}`)
      }),
    )
}

/** Checks stretch by stretch, with the events that are written meanwhile. */
async function verify(api: Api, known: string | undefined, report: (done: string) => void) {
  let pageToken = ''
  for (;;) {
    const found = await api.verifyAuditLog({ pageToken, ...(known !== undefined && { known }) })
    const { events, staged, newest, forgotten, broken, nextPageToken } = found
    pageToken = nextPageToken
    report(`${events} events`)
    if (pageToken !== '' && broken === undefined) continue
    return { events: Number(events), staged: Number(staged), newest, forgotten, broken }
  }
}

/** Writes, and waits while the reader has too much of it. */
async function write(text: string): Promise<void> {
  if (!process.stdout.write(text)) await new Promise(resolve => process.stdout.once('drain', resolve))
}

/** Where the audit log is broken, in words. */
function place(broken: string): string {
  if (broken === 'checkpoint') return 'the checkpoint that it begins with'
  return broken.startsWith('staged:') ? `the unsealed event ${broken.slice(7)}` : `event ${broken}`
}

function readLink(text: string): string {
  if (!/^\d{1,15}:[\da-f]{64}$/.test(text)) throw new InvalidArgumentError('Use a link that `audit verify` printed.')
  return text
}

function limitOption(limit: number): Option {
  return new Option('--limit <number>', 'maximum number of events, newest first')
    .argParser(readNumber(1))
    .default(limit)
}

function withFilter(command: Command): Command {
  return command
    .addOption(new Option('--user <name>', 'only events about this user: username or #id').argParser(readText))
    .addOption(new Option('--actor <name>', 'only events caused by this user: username or #id').argParser(readText))
    .addOption(new Option('--action <name>', 'only this action; * matches any text, as in user.*').argParser(readText))
    .addOption(new Option('--outcome <outcome>', 'only events with this outcome').choices(['ok', 'refused']))
    .addOption(
      new Option('--since <time>', 'only events since this time: 90s, 15m, 2h, 7d ago, or ISO 8601').argParser(
        readTime,
      ),
    )
    .addOption(new Option('--until <time>', 'only events before this time').argParser(readTime))
}

function toRequest({ user, actor, action, outcome, since, until }: Filter) {
  return {
    ...(user && { user }),
    ...(actor && { actor }),
    ...(action && { action }),
    ...(outcome && { outcome }),
    ...(since && { timeFrom: timestampFromDate(since) }),
    ...(until && { timeTo: timestampFromDate(until) }),
  }
}

/** An event in the names of its columns; what is absent is left out. */
function toOutput(event: AuditLogEvent) {
  const { id, time, action, outcome, reason, actor, actorId, subjectId, object, address, requestId } = event
  return {
    id: id === undefined ? undefined : String(id),
    at: timestampDate(time!),
    action,
    outcome,
    reason,
    actor,
    actor_id: actorId,
    subject_id: subjectId,
    object,
    address,
    request_id: requestId,
  }
}

function what({ action, outcome, reason }: AuditLogEvent): string {
  return `${action}${outcome === 'ok' ? '' : ` ${outcome}`}${reason ? ` (${reason})` : ''}`
}

function by({ actor, actorId }: AuditLogEvent): string {
  return actorId ? `${actor} #${actorId}` : actor
}

function whom({ subjectId, object }: AuditLogEvent): string {
  return [subjectId && `#${subjectId}`, object].filter(Boolean).join(' ')
}

function line(event: AuditLogEvent): string {
  const time = timestampDate(event.time!).toISOString()
  const parts = [event.id, time, what(event), 'by', by(event), whom(event), event.address]
  return printable(parts.filter(Boolean).join(' '))
}
