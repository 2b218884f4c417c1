// `auth-admin users delete`: one user, several, or those of a flood of sign-ups.
import type { Api } from '../../administration.js'
import { readReference } from '../../arguments.js'
import type { Command } from '../../command.js'
import { end, explain, misuse } from '../../exit-codes.js'
import { confirm, readId } from '../../terminal/ask.js'
import { printJson, warn } from '../../terminal/output.js'
import { changeConfirmed, type Named, printUser } from './name.js'
import { userOutput } from './output.js'
import { areUnactivated, eraseUnactivated, type Unactivated, withUnactivated } from './unactivated.js'

type Options = Named & Unactivated & { readonly yes?: boolean }

/** Adds `auth-admin users delete`. */
export function addDelete(users: Command): void {
  const command = users
    .command('delete')
    .signIn('deleteUser')
    .argument('[users...]', 'usernames or ids', (name: string, before: string[] = []) => [
      ...before,
      readReference(name),
    ])
    .option('--id <id>', 'id of the user, instead of a username', readId)
    .json()
  withUnactivated(command)
    .description('Delete users. You can undelete them for 30 days. After that, they are erased.')
    .yes()
    .remarks('If some of several users can’t be deleted, the exit code is 6.')
    .examples(
      "users delete '(11)98765-4321'",
      'users delete ana 7 --yes',
      'users delete --unactivated --from 2001:db8:1::/48 --since 2d',
    )
    .administers(async (api, names: readonly string[] = [], options: Options) => {
      const { id } = options
      if (areUnactivated(names[0], options)) return eraseUnactivated(api, options)
      if (names.length > 1) {
        if (id !== undefined) misuse('Pass a username or --id, not both.')
        return deleteSeveral(api, [...new Set(names)], options)
      }
      const { user, changed } = await changeConfirmed(
        api,
        names[0],
        options,
        who => `${who} can no longer sign in, and is erased 30 days from now. Delete it?`,
        api.deleteUser,
      )
      printUser(user!, options, `is deleted${changed ? '' : ' already'}.`)
    })
}

const consequence = 'can no longer sign in, and are erased 30 days from now. Delete them?'

async function deleteSeveral(api: Api, names: readonly string[], options: Options): Promise<void> {
  await confirm(`${names.length} users (${names.join(', ')}) ${consequence}`, options)
  const deleted: object[] = []
  const failed = await deleteEach(api, names, ({ user, changed }) => {
    if (options.json) deleted.push(userOutput(user!))
    else printUser(user!, options, `is deleted${changed ? '' : ' already'}.`)
  })
  if (options.json) printJson({ users: deleted, failed })
  if (failed.length > 0) end(failed.length < names.length ? 6 : failed[0]!.exitCode)
}

/** Deletes users one by one, and returns those that are refused, with a warning for each. Another failure ends it. */
async function deleteEach(
  api: Api,
  names: readonly string[],
  done: (answer: Awaited<ReturnType<Api['deleteUser']>>) => void,
) {
  const failed = []
  for (const user of names) {
    try {
      done(await api.deleteUser({ user }))
    } catch (error) {
      const { exitCode, message = '', reason } = await explain(error)
      if (exitCode !== 2 && exitCode !== 3 && exitCode !== 5) throw error
      warn(`${user}: ${message}`)
      failed.push({ user, message, reason, exitCode })
    }
  }
  return failed
}
