import type { AdministeredUser } from '../../../proto/gen/auth/v1/administration_pb.js'
import type { Api } from '../../administration.js'
import { readReference } from '../../arguments.js'
import type { Command } from '../../command.js'
import { misuse } from '../../exit-codes.js'
import { askText, canAsk, confirm, missingYes, readId } from '../../terminal/ask.js'
import { printJson, say } from '../../terminal/output.js'
import { userOutput } from './output.js'

/** How a command names a user. */
export interface Named {
  readonly id?: number
  readonly json?: boolean
}

/** Adds what names a user to a command. */
export function withUser(command: Command): Command {
  return command
    .argument('[user]', 'username or id', readReference)
    .option('--id <id>', 'id of the user, instead of a username', readId)
    .json()
}

/** The name on the command line, `#id` for an id, or the answer to a prompt. */
export async function userName(name: string | undefined, options: Named): Promise<string> {
  if (name !== undefined && options.id !== undefined) misuse('Pass a username or --id, not both.')
  if (options.id !== undefined) return `#${options.id}`
  if (name !== undefined && name.trim() !== '') return name
  if (name !== undefined || !canAsk(options)) misuse('Name the user: pass a username, an id or --id.')
  return askText('Which user (username or id)?', { required: true })
}

/** The arguments of a command that takes a user and a value: with --id the only one is the value. */
export function userAnd(
  first: string | undefined,
  second: string | undefined,
  { id }: Named,
): [name: string | undefined, value: string | undefined] {
  return id !== undefined && second === undefined ? [undefined, first] : [first, second]
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
