import type { AdministeredUser } from '../../../proto/gen/auth/v1/administration_pb.js'
import type { Api } from '../../administration.js'
import { printJson, say } from '../../terminal/output.js'
import { referenceTo } from '../nouns.js'
import { userOutput } from './output.js'

/** The options of every command about a user. */
export interface Named {
  readonly json?: boolean
}

/** The user that a command names, without its keys, and by what. */
export async function readUser(
  api: Api,
  name: string | undefined,
  options: Named,
): Promise<{ reference: string; user: AdministeredUser }> {
  const reference = await referenceTo('user', name, options)
  return { reference, user: (await api.getUser({ user: reference, omitKeys: true })).user! }
}

/** Prints a user as JSON, or a sentence that begins with its name. */
export function printUser(user: AdministeredUser, { json }: Named, what: string): void {
  if (json) printJson(userOutput(user))
  else say(`User ${user.record!.id} (${user.record!.username}) ${what}`)
}
