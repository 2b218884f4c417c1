import type { Command } from '../command.js'
import { explain, misuse } from '../exit-codes.js'
import { askSecret, canAsk, readSecret } from '../terminal/ask.js'
import { referenceTo, withRecord } from './nouns.js'
import { type Named, printUser } from './users/named-user.js'

/** Adds `auth-admin users set-password`. */
export function addSetPassword(users: Command): void {
  withRecord(users.command('set-password').signIn('setPassword'), 'user')
    .description('Set a password and sign the user out everywhere. The user gets an e-mail about it.')
    .option('--password-file <file>', 'file with the password; - for standard input')
    .remarks(`
The rules of sign-up apply to the password. A line break at the end of the file
is ignored. A terminal prompts for it twice, without showing it. There is no
flag for the password itself, because other users of the system could see it.

Examples:
  $ auth-admin users set-password '(11)98765-4321'
  $ auth-admin users set-password admin --password-file /run/secrets/admin
  $ generate-password | auth-admin users set-password admin --password-file - \\
      --local --reason 'lost, called in'`)
    .administers(async (api, name: string | undefined, options: Named & { passwordFile?: string }) => {
      const { passwordFile: file } = options
      if (file === undefined && !canAsk(options)) {
        misuse('Without a terminal, pass --password-file; - is standard input.')
      }
      const user = await referenceTo('user', name, options)
      let password: string
      if (file === undefined) {
        // What no password could change is refused, or asked, before the prompt.
        await api.setPassword({ user, password: '', validateOnly: true }).catch(async error => {
          if ((await explain(error)).reason !== 'INVALID_PASSWORD') throw error
        })
        password = await askSecret('password', text =>
          problemOf(api.setPassword({ user, password: text, validateOnly: true })),
        )
      } else {
        password = await readSecret(file, '--password-file')
      }
      const { user: after } = await api.setPassword({ user, password })
      printUser(after!, options, 'has the new password.')
    })
}

/** What a call is refused for, as a sentence; undefined when it isn't. */
async function problemOf(call: Promise<unknown>): Promise<string | undefined> {
  try {
    await call
    return undefined
  } catch (error) {
    return (await explain(error)).message
  }
}
