import { timestampDate } from '@bufbuild/protobuf/wkt'
import type { Command } from 'commander'
import { type Api, administering } from '../administration.js'
import { withRegistry } from '../session.js'
import { jsonOption, printJson, printTable, say } from '../terminal/output.js'
import { withProgress } from '../terminal/progress.js'

interface Options {
  readonly json?: boolean
}

/** Migrations can be told of, and run, before there is a registry. */
const opening = { installed: false }

/** Adds `auth-admin migrate`. */
export function addMigrate(program: Command): void {
  const migrate = program
    .command('migrate')
    .description('Bring the tables up to date, as a step of its own. It may be run again.')
    .addHelpText(
      'after',
      `
Without a command it does what \`migrate up\` does. A start of the service does
the same, unless AUTH_MIGRATE=off: then it refuses a database that is behind.

Examples:
  $ auth-admin migrate plan
  $ auth-admin migrate up`,
    )

  migrate
    .command('status')
    .description('List what was run and what is pending.')
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
States: done, pending, newer (run by a newer version; this one goes on with an
\`expand\`, and refuses to start after a \`contract\`). Times are in UTC.

Example:
  $ auth-admin migrate status`,
    )
    .action(administering(status, opening))

  migrate
    .command('plan')
    .description('List what `migrate up` would run, and whether the version before can go on meanwhile.')
    .addOption(jsonOption())
    .addHelpText('after', '\nExample:\n  $ auth-admin migrate plan')
    .action(
      administering(async (api, { json }: Options) => {
        const { pending } = await read(api)
        if (json) return printJson(pending)
        const cells = pending.map(({ name, kind }) => [
          name,
          kind,
          kind === 'expand' ? 'processes of the version before go on' : 'end all processes of the version before first',
        ])
        printTable(['migration', 'kind', 'meanwhile'], cells, 'The tables are up to date.')
      }, opening),
    )

  migrate
    .command('up', { isDefault: true })
    .description('Bring the tables up to date. It works on the database itself.')
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
It takes no context: a service refuses to start on tables that are behind, so
there may be none to ask. All that is pending is applied, or nothing of it; of
several at once one does the work. It may run while processes of the version
before serve, unless a pending migration is a \`contract\`: those end first.

Example:
  $ auth-admin migrate up`,
    )
    .action(bringUp)
}

async function bringUp({ json }: Options): Promise<void> {
  const migrations = await withRegistry(async ({ registry }) => {
    const { migrate } = await import('../../server/database/migrate.js')
    return withProgress('Bringing the tables up to date', () => migrate(registry.database))
  }, opening)
  if (json) return printJson({ migrations })
  say(migrations.length > 0 ? `Done: ${migrations.join(', ')}.` : 'The tables are up to date; nothing was changed.')
}

async function status(api: Api, { json }: Options): Promise<void> {
  const found = await read(api)
  if (json) return printJson(found)
  const cells = Object.entries(found).flatMap(([state, migrations]) =>
    migrations.map(({ name, kind, run_at }) => [name, kind, state, run_at]),
  )
  printTable(['migration', 'kind', 'state', 'run at'], cells, 'There are no migrations.')
}

/** Migrations by their state. */
async function read(api: Api) {
  const all = (await api.getMigrations({})).migrations.map(({ name, kind, runTime, known }) => ({
    state: !known ? 'newer' : runTime ? 'done' : 'pending',
    row: { name, kind, ...(runTime && { run_at: timestampDate(runTime) }) },
  }))
  const those = (wanted: string) => all.filter(({ state }) => state === wanted).map(({ row }) => row)
  return { done: those('done'), pending: those('pending'), newer: those('newer') }
}
