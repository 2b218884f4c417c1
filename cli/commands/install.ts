import type { Command } from 'commander'
import { type Session, withRegistry } from '../session.js'
import { jsonOption, printFields, printJson, say, warn } from '../terminal/output.js'
import { withProgress } from '../terminal/progress.js'

/** Adds `auth-admin install`. */
export function addInstall(program: Command): void {
  program
    .command('install')
    .description('Install the registry, or update its tables. It keeps existing data, and you can run it again.')
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
Creates or updates the tables and, if missing, issuer and audience of tokens
(AUTH_ISSUER, AUTH_AUDIENCE), the first signing key, and security questions in
Portuguese. The first run creates the default administrator AUTH_ADMIN_USERNAME
with AUTH_ADMIN_PASSWORD. If that isn't set, it generates a password, keeps it
in the file initial-admin-password of AUTH_DATA_DIR, and prints it only at a
terminal.

Examples:
  $ auth-admin install
  $ AUTH_ADMIN_PASSWORD_FILE=/run/secrets/admin auth-admin install`,
    )
    .action(async (options: { json?: boolean }) => {
      const work = async ({ registry, settings, actor, passwords }: Session) => {
        const { install } = await import('../../server/installation.js')
        return install(registry, { ...settings, migrate: 'on' }, passwords, actor)
      }
      const done = await withProgress('Installing', () => withRegistry(work, { create: true }))
      const { migrations, signingKey, questions, administrator, password, weakness } = done
      if (weakness) warn(`AUTH_ADMIN_PASSWORD is weak: ${weakness}`)
      if (options.json) {
        printJson({ migrations, signingKey, questions, administrator, passwordFile: password?.file })
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
