import type { Command } from 'commander'
import { jsonOption, printJson, printTable, say } from './output.js'
import { withRegistry } from './session.js'

/** Adds `auth-admin migrate`. */
export function addMigrate(program: Command): void {
  program
    .command('migrate')
    .description('Bring the tables up to date, as a step of its own. It may be run again.')
    .option('--status', 'change nothing: list what was run and what is pending')
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
A start of the service does the same, unless AUTH_MIGRATE=off: then it refuses a
database that is behind. All that is pending is applied, or nothing of it; of
several at once one does the work. It may run while processes of the version
before serve, unless a pending migration is a \`contract\`: those end first.

States: done, pending, newer (run by a newer version; this one goes on with an
\`expand\`, and refuses to start after a \`contract\`).

Examples:
  $ auth-admin migrate --status
  $ auth-admin migrate`,
    )
    .action(async (options: { status?: boolean; json?: boolean }) => {
      if (options.status) return printStatus(options)
      const migrations = await withRegistry(
        async ({ registry }) => {
          const { migrate } = await import('../server/database/migrate.js')
          return migrate(registry.database)
        },
        { installed: false },
      )
      if (options.json) return printJson({ migrations })
      say(migrations.length > 0 ? `Done: ${migrations.join(', ')}.` : 'The tables are up to date; nothing was changed.')
    })
}

async function printStatus(options: { json?: boolean }): Promise<void> {
  const status = await withRegistry(
    async ({ registry }) => {
      const { readMigrations } = await import('../server/database/migrate.js')
      return readMigrations(registry.database)
    },
    { installed: false },
  )
  if (options.json) return printJson(status)
  const cells = [...status.done, ...status.pending, ...status.newer].map(({ name, kind }) => {
    const isIn = (list: readonly { name: string }[]) => list.some(each => each.name === name)
    return [name, kind, isIn(status.newer) ? 'newer' : isIn(status.done) ? 'done' : 'pending']
  })
  printTable(['migration', 'kind', 'state'], cells, 'There are no migrations.')
}
