import type { Command } from '../command.js'
import { announce, type Session, withRegistry } from '../local.js'
import { canAsk, confirm } from '../terminal/ask.js'
import { printFields, printJson, say, warn } from '../terminal/output.js'
import { withProgress } from '../terminal/progress.js'

/** Adds `auth-admin install`. */
export function addInstall(program: Command): void {
  program
    .command('install')
    .local()
    .description('Install the registry, or update its tables. It keeps existing data, and you can run it again.')
    .option('--yes', 'don’t ask at a terminal')
    .json()
    .remarks(`
Creates or updates the tables and, if missing, issuer and audience of tokens
(AUTH_ISSUER, AUTH_AUDIENCE), the first signing key, and security questions in
Portuguese. The first run creates the default administrator AUTH_ADMIN_USERNAME
with AUTH_ADMIN_PASSWORD. If that isn't set, it generates a password, keeps it
in the file initial-admin-password of AUTH_DATA_DIR (with an id at its end if
another registry has that file), and prints it only at a terminal.

It names the database first. A terminal asks before it updates existing tables.

Examples:
  $ auth-admin install
  $ AUTH_ADMIN_PASSWORD_FILE=/run/secrets/admin auth-admin install`)
    .action(async (options: { yes?: boolean; json?: boolean }) => {
      const database = await announce('Installing in', options)
      const work = async ({ registry, settings, actor, passwords }: Session) => {
        const [{ install }, { readMigrations }] = await Promise.all([
          import('../../server/installation.js'),
          import('../../server/database/migrate.js'),
        ])
        const { done, pending } = await readMigrations(registry.database)
        // A pipeline has decided already.
        if (done.length > 0 && pending.length > 0 && canAsk(options)) {
          const names = pending.map(({ name }) => name).join(', ')
          await confirm(`It holds a registry. Update its tables (${names})?`, options)
        }
        return withProgress('Installing', report =>
          install(registry, { ...settings, migrate: 'on' }, passwords, actor, {
            onLocked: () => report('waiting for another transaction'),
          }),
        )
      }
      const done = await withRegistry(work, { create: true })
      const { migrations, signingKey, questions, administrator, password, weakness } = done
      if (weakness) warn(`AUTH_ADMIN_PASSWORD is weak: ${weakness}`)
      if (options.json) {
        printJson({ database, migrations, signingKey, questions, administrator, passwordFile: password?.file })
        return
      }
      printFields({
        tables: migrations.length > 0 ? migrations.join(', ') : undefined,
        'signing key': signingKey,
        questions: questions > 0 ? `${questions} added` : undefined,
        administrator,
        // Without a terminal, the output may be stored.
        password: process.stdout.isTTY ? password?.text : undefined,
        'kept in': password?.file,
      })
      const changed = migrations.length > 0 || signingKey || questions > 0 || administrator
      say(changed ? 'The registry is installed.' : 'The registry is installed already; nothing changed.')
    })
}
