import { timestampDate } from '@bufbuild/protobuf/wkt'
import type { Command } from 'commander'
import { type Api, administering } from '../administration.js'
import { withRegistry, worksLocally } from '../session.js'
import { jsonOption, printJson, printTable, say } from '../terminal/output.js'
import { withProgress } from '../terminal/progress.js'

interface Options {
  readonly json?: boolean
}

/** Migrations can be listed and run before the registry is installed. */
const opening = { installed: false }

/** Adds `auth-admin migrate`. */
export function addMigrate(program: Command): void {
  const migrate = program
    .command('migrate')
    .description('Migrate the tables in a separate step. You can run it again.')
    .addHelpText(
      'after',
      `
Without a command it runs \`migrate up\`. The service does the same at its start,
unless AUTH_MIGRATE=off: then it refuses a database with pending migrations.

Examples:
  $ auth-admin migrate plan
  $ auth-admin migrate up`,
    )

  migrate
    .command('status')
    .description('Show the migrations that ran and those that are pending.')
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
States: done, pending, newer (run by a newer version; this version starts after
an \`expand\`, and refuses to start after a \`contract\`).

Example:
  $ auth-admin migrate status`,
    )
    .action(
      administering(async (api, { json }: Options) => {
        const found = await read(api)
        if (json) return printJson(found)
        const cells = Object.entries(found).flatMap(([state, migrations]) =>
          migrations.map(({ name, kind, runTime }) => [name, kind, state, runTime]),
        )
        printTable({ titles: ['migration', 'kind', 'state', 'run at'] }, cells, 'There are no migrations.')
      }, opening),
    )

  migrate
    .command('plan')
    .description('Show what `migrate up` would run, and whether the previous version can run during it.')
    .addOption(jsonOption())
    .addHelpText('after', '\nExample:\n  $ auth-admin migrate plan')
    .action(
      administering(async (api, { json }: Options) => {
        const { pending } = await read(api)
        if (json) return printJson({ pending })
        const cells = pending.map(({ name, kind }) => [
          name,
          kind,
          kind === 'expand'
            ? 'processes of the previous version can run'
            : 'stop all processes of the previous version first',
        ])
        printTable({ titles: ['migration', 'kind', 'meanwhile'] }, cells, 'The tables are up to date.')
      }, opening),
    )

  worksLocally(migrate.command('up', { isDefault: true }))
    .description('Run all pending migrations. It works on the database itself.')
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
It uses no context, because a service doesn't start with pending migrations. It
applies all migrations or none. If you run it several times at once, only one
run applies them. Processes of the previous version can continue, unless
a pending migration is a \`contract\`. In that case, stop them first.

Example:
  $ auth-admin migrate up`,
    )
    .action(bringUp)
}

async function bringUp({ json }: Options): Promise<void> {
  const migrations = await withRegistry(async ({ registry }) => {
    const { migrate } = await import('../../server/database/migrate.js')
    return withProgress('Migrating', () => migrate(registry.database))
  }, opening)
  if (json) return printJson({ migrations })
  say(migrations.length > 0 ? `Done: ${migrations.join(', ')}.` : 'The tables are up to date; nothing changed.')
}

/** Migrations by their state. */
async function read(api: Api) {
  const all = (await api.getMigrations({})).migrations.map(({ name, kind, runTime, known }) => ({
    state: !known ? 'newer' : runTime ? 'done' : 'pending',
    row: { name, kind, ...(runTime && { runTime: timestampDate(runTime) }) },
  }))
  const those = (wanted: string) => all.filter(({ state }) => state === wanted).map(({ row }) => row)
  return { done: those('done'), pending: those('pending'), newer: those('newer') }
}
