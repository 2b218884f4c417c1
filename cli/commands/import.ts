// `auth-admin import database` runs on the machine itself, never on a remote service: it reads one database and fills another.
import { readFile } from 'node:fs/promises'
import type { Analysis, Choice, ReportLine } from '../../server/predecessor/decide.js'
import type { Source } from '../../server/predecessor/source.js'
import { openPrivateFile } from '../../server/process/private-file.js'
import type { Command } from '../command.js'
import { end, fail, misuse } from '../exit-codes.js'
import { announce, withRegistry } from '../local.js'
import { askText, canAsk, confirm, missingYes, readSecret } from '../terminal/ask.js'
import { printFields, printJson, say, warn } from '../terminal/output.js'
import { withProgress } from '../terminal/progress.js'

interface Options {
  readonly onCollision?: string
  readonly dryRun?: boolean
  readonly report?: string
  readonly yes?: boolean
  readonly json?: boolean
  readonly reason?: string
}

/** Users that are printed one by one; a report has all. */
const maxPrinted = 20

/** Adds `auth-admin import`. */
export function addImport(program: Command): void {
  const group = program.command('import').description('Import a whole registry from another system.')
  group
    .command('database')
    .local()
    .description('Import the database of the older implementation. It connects directly to the database.')
    .argument('<url>', 'database to read, postgres://user@host/name; - for standard input. PGPASSWORD has its password')
    .option('--on-collision <choice>', 'skip, suffix, or a file with a decision for each user')
    .option('--dry-run', 'analyze and compare only')
    .option('--report <file>', 'file for everything that is omitted or listed, one JSON document per line')
    .yes()
    .json()
    .addHelpText(
      'after',
      `
It imports organizations, security questions, and users with their ids,
passwords, answers and keys. This registry must have no user but its default
administrator, or only users of earlier imports. It reads one snapshot of the
source and changes nothing there, so the older service can keep running. Don't
open this registry to clients until the last import ends. If the import is
interrupted, run the command again to resume it.

It first analyzes all users. A user needs a decision if:

- a name is taken in another spelling, looks like another name, or is invalid
- the user has no role or several roles
- the organization is missing, or there are several
- the id is that of the administrator of this registry

Without --on-collision, it lists these users, imports nothing, and ends with
exit code 5. The choices are:

  skip    omits these users; of users with the same name, one keeps it and is
          imported, an active one if possible
  suffix  appends the id to names; assigns the role with the fewest permissions,
          and the organization of the key that was used, or none; omits a user
          with the id of the administrator
  FILE    lines of a report, with other names, or with "skip": true,
          "role": "ROLE_CLIENT", "organization": 3 (null for none)

Administrators are imported as inactive. Active users without an organization
stay active and are listed. Exit code 6 means that users were omitted.

If you run the command again, it imports users that were added or changed in the
source. If users were added or changed in this registry, it imports nothing and
ends with exit code 5. See docs/moving-in.md.

Examples:
  $ export PGPASSWORD
  $ auth-admin import database postgres://reader@old.example.org/auth --dry-run
  $ auth-admin import database postgres://reader@old.example.org/auth \\
      --on-collision suffix --report report.jsonl --reason 'moving in'`,
    )
    .action(async (url: string, _: Options, command: Command) => {
      const options = command.optsWithGlobals<Options>()
      const choice = await readChoice(options.onCollision)
      const source = url === '-' ? (await readSecret('-', '')).trim() : url
      if (!options.dryRun && !options.yes && !canAsk(options)) misuse(missingYes)
      if (!options.dryRun && !options.reason && !canAsk(options)) misuse('This changes passwords: pass --reason.')
      const database = await announce('Importing into', options)
      const { openMove } = await import('../../server/predecessor/import.js')
      const { withSource } = await import('../../server/predecessor/source.js')
      const out = options.report === undefined ? undefined : await openPrivateFile(options.report).catch(explainReport)
      const report = (line: ReportLine) => void out?.stream.write(`${JSON.stringify(line)}\n`)
      const { json, dryRun = false } = options
      const exitCode = await withRegistry(async ({ registry, passwords, settings: { timeZone }, actor }) => {
        const reason = dryRun
          ? undefined
          : (options.reason ?? (await askText('Reason, for the audit log:', { required: true })))
        return withSource(source, async there => {
          const move = await openMove(registry, passwords, there, timeZone)
          if (move.problem !== undefined) fail(move.problem, 5)
          const found = await withProgress('Analyzing', tell => move.analyze({ choice, report, tell }))
          const { administratorThere: administrator = null, listed, unsettled } = found
          if (!json) printFound(there, found)
          const isOpen = unsettled.length > 0
          if (!dryRun && !isOpen) await confirm(`Import ${there.userCount} users into ${database}?`, options)
          const write = (tell: (done: string) => void) => move.write(found, { dryRun, actor, reason }, tell)
          const done = isOpen ? undefined : await withProgress(dryRun ? 'Comparing' : 'Importing', write)
          if (json) {
            const { id, state, sourceDigest, nextRow } = done?.import ?? {}
            const { organizations = there.organizations.length, counts } = done ?? {}
            printJson({
              ...{ id, state, sourceDigest, nextRow, kind: 'predecessor', dryRun, ...counts, users: there.userCount },
              ...{ organizations, questions: there.questions.length, administrator, listed, unsettled },
            })
          } else if (done) {
            say(done.import ? `Import ${done.import.id} is finished.` : 'An import would do this:')
            printFields({ ...done.counts })
          } else warn(`${unsettled.length} users need a decision: nothing was written. Pass --on-collision.`)
          return done ? (done.counts.rejected > 0 ? 6 : 0) : 5
        })
      })
      await out?.commit().catch(explainReport)
      if (exitCode !== 0) end(exitCode)
    })
}

async function readChoice(given: string | undefined): Promise<Choice | undefined> {
  if (given === undefined || given === 'skip' || given === 'suffix') return given
  const { readDecisions } = await import('../../server/predecessor/decide.js')
  return readDecisions(
    await readFile(given, 'utf8').catch(({ code }) => fail(`The file of --on-collision can’t be read (${code}).`)),
  )
}

/** It holds names of users. */
function explainReport({ code, message }: NodeJS.ErrnoException): never {
  fail(code ? `The file of --report can’t be written (${code}).` : message)
}

function printFound(
  { userCount, organizations, questions }: Source,
  { listed, administratorThere, unsettled }: Analysis,
): void {
  printFields({ 'users there': userCount, organizations: organizations.length, questions: questions.length, ...listed })
  if (administratorThere !== undefined)
    say(`User #${administratorThere} there has the name of the administrator here: it stays as it is here.`)
  for (const { id, username, problems } of unsettled.slice(0, maxPrinted)) {
    const why = problems.map(({ field, problem, by }) => `${field} ${problem}${by ? ` (#${by.join(', #')})` : ''}`)
    say(`#${id} ${username}: ${why.join(', ')}`)
  }
  if (unsettled.length > maxPrinted) say(`… and ${unsettled.length - maxPrinted} more: --report has all.`)
}
