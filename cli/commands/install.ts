import type { Command } from 'commander'
import { type Session, withRegistry } from '../session.js'
import { jsonOption, printFields, printJson, say, warn } from '../terminal/output.js'
import { withProgress } from '../terminal/progress.js'

/** Adds `auth-admin install`. */
export function addInstall(program: Command): void {
  program
    .command('install')
    .description('Prepare the database, or bring it up to date. It keeps what is there and may be run again.')
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
Creates or updates the tables, and where there is none yet: issuer and audience
of tokens (AUTH_ISSUER, AUTH_AUDIENCE), the first signing key, and security
questions in Portuguese. The first time it makes the default administrator
AUTH_ADMIN_USERNAME with AUTH_ADMIN_PASSWORD. Without AUTH_ADMIN_PASSWORD a
random password is made and kept in the file initial-admin-password of
AUTH_DATA_DIR; it is printed only at a terminal.

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
        // Where no terminal shows it, something may keep what is printed here.
        password: process.stdout.isTTY ? password?.text : undefined,
        'kept in': password?.file,
      })
      const changed = migrations.length > 0 || signingKey || questions > 0 || administrator
      say(changed ? 'The registry is installed.' : 'The registry is installed already; nothing was changed.')
    })
}
