import { type Command, Option } from 'commander'
import type { User } from '../server/models/user.js'
import type { Settings } from '../server/settings.js'
import { askSecret, canAsk, readSecret } from './ask.js'
import { fail, misuse } from './failure.js'
import { withPasswords } from './session.js'
import { changeUser, type Named, withUser } from './user.js'

/** Where the change came from, as the e-mail about it says. */
const place = 'auth-admin'

/** Adds `auth-admin users set-password`. */
export function addSetPassword(users: Command): void {
  withUser(users.command('set-password'))
    .description('Set a password and log the user out everywhere. The user is told by e-mail.')
    .addOption(new Option('--password-file <file>', 'file that holds the password; - for standard input'))
    .addHelpText(
      'after',
      `
The password obeys the rules of sign-up. A line break at the end of the file
doesn't count. At a terminal it is asked for twice, without showing it. It can't
be given on the command line, where other users of the system could see it.

Examples:
  $ auth-admin users set-password '(11)98765-4321'
  $ auth-admin users set-password admin --password-file /run/secrets/admin
  $ generate-password | auth-admin users set-password admin --password-file -`,
    )
    .action(async (name: string | undefined, options: Named & { passwordFile?: string }) => {
      if (options.passwordFile === undefined && !canAsk(options)) {
        misuse('Give the file with the new password with --password-file, or - for standard input.')
      }
      await changeUser(name, options, async (session, user) => {
        const { users, emails } = session.registry
        const check = await createCheck(user, session.settings)
        const password = await choosePassword(options.passwordFile, check)
        const waiter = { known: false, address: '', account: user.usernameKey, deadline: Number.POSITIVE_INFINITY }
        const [hash] = await withPasswords(session, passwords =>
          passwords.hash([{ context: 'password', text: password }], waiter),
        )
        return {
          event: { action: 'user.set-password' },
          async work(t) {
            const changed = await users.changePassword(user.id, hash!, null, t)
            if (!changed) fail('The user is gone.')
            const parameters = { userId: user.id, at: new Date().toISOString(), address: place }
            const { mailLocale } = session.settings
            if (changed.email) await emails.add({ kind: 'password-changed', parameters }, mailLocale, t)
            return true
          },
          done: 'has the new password',
        }
      })
    })
}

async function createCheck(user: User, settings: Settings): Promise<(password: string) => string | undefined> {
  const { checkPassword, createPasswordPolicy } = await import('../server/passwords/policy.js')
  const { passwordMinLength: minLength, passwordDenylist: denylistFile } = settings
  const policy = createPasswordPolicy({ minLength, denylistFile })
  const words = { ...user, institution: user.institution ?? undefined, email: user.email ?? undefined }
  return password => checkPassword(password, words, policy)
}

async function choosePassword(
  file: string | undefined,
  check: (password: string) => string | undefined,
): Promise<string> {
  if (file === undefined) return askSecret('password', check)
  const password = await readSecret(file, '--password-file')
  const problem = check(password)
  return problem ? fail(`The new password is not acceptable. ${problem}`) : password
}
