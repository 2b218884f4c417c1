import { timestampDate } from '@bufbuild/protobuf/wkt'
import type { Api, GlobalOptions as Options } from '../administration.js'
import type { Command } from '../command.js'
import { fail } from '../exit-codes.js'
import { announce, withRegistry } from '../local.js'
import { inTerminalLanguage } from '../terminal/language.js'
import { printJson, printTable, say, warn } from '../terminal/output.js'
import { withProgress } from '../terminal/progress.js'

/** Migrations can be listed and run before the registry is installed. */
const opening = { installed: false }

/** Adds `auth-admin migrate`. */
export function addMigrate(program: Command): void {
  const migrate = program
    .command('migrate')
    .description('Show and run the migrations of the tables.')
    .remarks(`
Without a command it runs \`migrate up\`. The service does the same at its start,
unless AUTH_MIGRATE=off: then it refuses a database that \`migrate up\` would change.
After all processes are updated, run \`migrate up --contract\`.`)
    .examples('migrate status', 'migrate up', 'migrate up --contract')

  migrate
    .command('status')
    .description('Show the migrations that ran, and those that are pending with the command that runs them.')
    .json()
    .remarks(`
States: done, pending, newer (run by a newer version; this version starts after
an \`expand\`, and refuses to start after a \`contract\`).`)
    .examples('migrate status')
    .administers(async (api, { json }: Options) => {
      const found = await read(api)
      if (json) return printJson(found)
      const cells = Object.entries(found).flatMap(([state, migrations]) =>
        migrations.map(({ name, kind, runTime }) => [
          name,
          kind,
          inTerminalLanguage(state),
          state === 'pending' ? inTerminalLanguage(howToRun(kind)) : runTime,
        ]),
      )
      printTable({ titles: ['migration', 'kind', 'state', 'run'] }, cells, 'There are no migrations.')
    }, opening)

  migrate
    .command('up', { isDefault: true })
    .local()
    .description('Run pending migrations. It works on the database itself.')
    .option('--contract', 'also those that processes of the previous version can’t work with')
    .json()
    .remarks(`
It names the database first. It uses no context, because a service doesn't start
with pending migrations. It applies all migrations or none. If you run it
several times at once, only one run applies them. While a long transaction holds
a table, it lets calls continue, and tries again for 5 minutes.

Without --contract it runs only \`expand\` migrations, during which processes of
the previous version continue. Run it with --contract after you have updated all
processes: it runs the rest, and refuses with exit code 5, naming them, while
processes that don't know these migrations run or have run in the last 30 s.
In an empty database it runs all migrations.`)
    .examples('migrate up', 'migrate up --contract')
    .action(bringUp)
}

async function bringUp({ contract, json }: Options & { contract?: boolean }): Promise<void> {
  const where = await announce('Migrating', { json })
  const { migrations, left } = await withRegistry(async ({ registry: { database, processes } }) => {
    const { migrate, readMigrations } = await import('../../server/database/migrate.js')
    const permit = async (name: string, t: Parameters<typeof processes.without>[1]) => {
      const older = await processes.without(name, t)
      if (older.length > 0)
        fail(
          `Processes of an older version would break by ${name}: ${older.join(', ')}. Update or stop them first; one that crashed counts for 30 s.`,
          5,
        )
    }
    const migrations = await withProgress('Migrating', report =>
      migrate(database, {
        permit: contract ? permit : undefined,
        onLocked: () => report('waiting for another transaction'),
      }),
    )
    return { migrations, left: (await readMigrations(database)).pending.map(({ name }) => name) }
  }, opening)
  if (left.length > 0) warn(`${left.join(', ')} is left: run \`migrate up --contract\` once all processes are updated.`)
  if (json) return printJson({ database: where, migrations })
  if (migrations.length > 0) return say(`Done: ${migrations.join(', ')}.`)
  say(left.length > 0 ? 'Nothing changed.' : 'The tables are up to date; nothing changed.')
}

/** The command that runs a pending migration, and when. */
function howToRun(kind: string): string {
  return kind === 'expand' ? 'by migrate up, before the update' : 'by migrate up --contract, after the update'
}

/** Migrations by their state. */
async function read(api: Api) {
  const all = (await api.getMigrations({})).migrations.map(({ name, kind, runTime, known }) => ({
    state: !known ? 'newer' : runTime ? 'done' : 'pending',
    row: { name, kind, runTime: runTime && timestampDate(runTime) },
  }))
  const those = (wanted: string) => all.filter(({ state }) => state === wanted).map(({ row }) => row)
  return { done: those('done'), pending: those('pending'), newer: those('newer') }
}
