import { timestampDate, timestampFromDate } from '@bufbuild/protobuf/wkt'
import { InvalidArgumentError, Option } from 'commander'
import type { AuditLogEvent } from '../../proto/gen/auth/v1/administration_pb.js'
import { auditActions } from '../../server/policy/audit-actions.js'
import type { Api, GlobalOptions } from '../administration.js'
import type { Command } from '../command.js'
import { nameServer } from '../contexts.js'
import { end, fail } from '../exit-codes.js'
import { nameDatabase } from '../local.js'
import { readText, readTime } from '../terminal/ask.js'
import { printJson, say, warn } from '../terminal/output.js'
import { type List, type ListOptions, printPages } from '../terminal/pages.js'
import { withProgress } from '../terminal/progress.js'

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
  const audit = program.command('audit').description('Read and verify the audit log: events of sign-ins and changes.')

  withFilter(audit.command('list'))
    .pages()
    .description('List events, newest first.')
    .remarks(`
Events that aren't sealed into the chain yet have no id. A change is shown as
before->after, and a user who was erased by id alone.`)
    .examples(
      "audit list --user '(11)98765-4321' --since 7d",
      "audit list --action 'session.*' --outcome refused --json",
    )
    .administers((api, options: Filter & ListOptions) => printPages(eventList, options, readEvents(api, options)))

  audit
    .command('verify')
    .description('Check that no event was altered, removed or inserted. If one was, print the first and exit with 1.')
    .option('--known <link>', 'newest link of an earlier check, id:hash, kept elsewhere', readLink)
    .json()
    .remarks(`
Events are sealed shortly after they are written. Until then, the check covers
only their MACs. Events older than AUTH_AUDIT_RETENTION are deleted behind a
signed checkpoint, where the check begins.`)
    .examples('audit verify')
    .administers(async (api, options: GlobalOptions & { known?: string }) => {
      const found = await withProgress('Checking', report => verify(api, options.known, report))
      const { events, staged, newest, forgotten, broken } = found
      if (options.json) printJson(found)
      const where = (await nameServer(options)) ?? (await nameDatabase())
      if (broken !== undefined) {
        if (options.json) end(1)
        fail(`The audit log of ${where} is broken at ${place(broken)} (${events} events before it are intact).`)
      }
      if (forgotten) warn('The event of --known is older than the audit log: --known was not checked.')
      const waiting = staged > 0 ? `, ${staged} not sealed yet` : ''
      if (!options.json)
        say(`${events} events of ${where}${waiting}, all intact. Keep the newest link elsewhere: ${newest}`)
    })
}

/** Checks stretch by stretch, with the events that are written meanwhile. */
async function verify(api: Api, known: string | undefined, report: (done: string) => void) {
  let pageToken = ''
  for (;;) {
    const found = await api.verifyAuditLog({ pageToken, known })
    const { events, staged, newest, forgotten, broken, nextPageToken } = found
    pageToken = nextPageToken
    report(`${events} events`)
    if (pageToken !== '' && broken === undefined) continue
    return { events: Number(events), staged: Number(staged), newest, forgotten, broken }
  }
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

function withFilter(command: Command): Command {
  return command
    .option('--user <name>', 'only events about this user: username or #id; of an erased user, #id', readText)
    .option('--actor <name>', 'only events caused by this user: username or #id; of an erased user, #id', readText)
    .option('--action <name>', 'only this action; * matches any text, as in user.*', readAction)
    .addOption(new Option('--outcome <outcome>', 'only events with this outcome').choices(['ok', 'refused']))
    .option('--since <time>', 'only events since this time: 90s, 15m, 2h, 7d ago, or ISO 8601', readTime)
    .option('--until <time>', 'only events before this time', readTime)
}

/** Reads an action; a pattern can be of a newer server. */
function readAction(text: string): string {
  const action = readText(text)
  if (action.includes('*') || (auditActions as readonly string[]).includes(action)) return action
  const nouns = [...new Set(auditActions.map(known => `${known.split('.')[0]}.*`))]
  throw new InvalidArgumentError(`There is no such action. Use ${nouns.join(', ')}, or one of these with its verb.`)
}

function toRequest({ user, actor, action, outcome, since, until }: Filter) {
  return {
    user,
    actor,
    action,
    outcome,
    timeFrom: since && timestampFromDate(since),
    timeTo: until && timestampFromDate(until),
  }
}

function readEvents(api: Api, filter: Filter) {
  const request = toRequest(filter)
  return (page: { pageSize: number; pageToken: string }) => api.listAuditEvents({ ...request, ...page })
}

/** An event as documents have it; what is absent is left out. */
function toOutput({ $typeName: _, $unknown: __, id, time, ...rest }: AuditLogEvent) {
  return { ...(id !== undefined && { id: Number(id) }), time: timestampDate(time!), ...rest }
}

const eventList: List<AuditLogEvent, 'events'> = {
  name: 'events',
  toOutput,
  head: { titles: ['id', 'time', 'what', 'by', 'whom', 'from'], whole: ['by'] },
  toCells(event) {
    const { id, time, address } = event
    return [id === undefined ? '-' : String(id), timestampDate(time!), what(event), by(event), whom(event), address]
  },
  empty: 'No events match.',
}

function what({ action, outcome, reason }: AuditLogEvent): string {
  return `${action}${outcome === 'ok' ? '' : ` ${outcome}`}${reason ? ` (${reason})` : ''}`
}

function by({ actor, actorId, actorUsername }: AuditLogEvent): string {
  return actorId === undefined ? actor : who(actorId, actorUsername)
}

function whom({ subjectId, subjectUsername, object }: AuditLogEvent): string {
  return [subjectId && who(subjectId, subjectUsername), object].filter(Boolean).join(' ')
}

/** A user by username and id, or by id alone once erased. */
function who(id: number, username: string | undefined): string {
  return username === undefined ? `#${id}` : `${username} #${id}`
}
