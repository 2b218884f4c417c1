import type { AdministeredUser } from '../../../proto/gen/auth/v1/administration_pb.js'
import type { Api } from '../../administration.js'
import type { Command } from '../../command.js'
import { misuse } from '../../exit-codes.js'
import { canAsk, confirm, given, missingYes } from '../../terminal/ask.js'
import { printJson, say } from '../../terminal/output.js'
import { userOutput } from './output.js'

/** The options of every command about a user. */
export interface Named {
  readonly json?: boolean
}

/** Adds what names a user to a command. */
export function withUser(command: Command): Command {
  return command.reference('user', 'username or id').json()
}

/** The name on the command line, or the answer to a prompt. */
export function userName(name: string | undefined, options: Named): Promise<string> {
  return given(name, 'Which user (username or id)?', 'Name the user: pass a username or an id.', options)
}

/** The user that a command names, without its keys, and by what. */
export async function readUser(
  api: Api,
  name: string | undefined,
  options: Named,
): Promise<{ reference: string; user: AdministeredUser }> {
  const reference = await userName(name, options)
  return { reference, user: (await api.getUser({ user: reference, omitKeys: true })).user! }
}

/**
 * Changes the user that a command names, after a confirmation: --yes, or the answer at a terminal after a check for other
 * obstacles. The change then needs the etag of the user as it was shown.
 */
export async function changeConfirmed<T>(
  api: Api,
  name: string | undefined,
  options: Named & { yes?: boolean },
  sentence: (who: string) => string,
  change: (request: { user: string; etag: string; validateOnly: boolean }) => Promise<T>,
): Promise<T> {
  const user = await userName(name, options)
  if (options.yes) return change({ user, etag: '', validateOnly: false })
  if (!canAsk(options)) misuse(missingYes)
  const { record, etag } = (await api.getUser({ user, omitKeys: true })).user!
  await confirm(sentence(`User ${record!.id} (${record!.username})`), options, () =>
    change({ user, etag, validateOnly: true }),
  )
  return change({ user, etag, validateOnly: false })
}

/** Prints a user as JSON, or a sentence that begins with its name. */
export function printUser(user: AdministeredUser, { json }: Named, what: string): void {
  if (json) printJson(userOutput(user))
  else say(`User ${user.record!.id} (${user.record!.username}) ${what}`)
}
