// `auth-admin users delete`: one user, or those of a flood of sign-ups.
import type { Command } from '../../command.js'
import { changeConfirmed, type Named, printUser, withUser } from './name.js'
import { areUnactivated, eraseUnactivated, type Unactivated, withUnactivated } from './unactivated.js'

/** Adds `auth-admin users delete`. */
export function addDelete(users: Command): void {
  withUnactivated(withUser(users.command('delete').signIn('deleteUser')))
    .description('Delete a user. You can undelete it for 30 days. After that, it is erased.')
    .yes()
    .remarks('To undelete user 7: `auth-admin api UndeleteUser \'{"user": "#7"}\' --yes`.')
    .examples("users delete '(11)98765-4321'", 'users delete --unactivated --from 2001:db8:1::/48 --since 2d')
    .administers(async (api, name: string | undefined, options: Named & Unactivated & { readonly yes?: boolean }) => {
      if (areUnactivated(name, options)) return eraseUnactivated(api, options)
      const { user, changed } = await changeConfirmed(
        api,
        name,
        options,
        who => `${who} can no longer sign in, and is erased 30 days from now. Delete it?`,
        api.deleteUser,
      )
      printUser(user!, options, `is deleted${changed ? '' : ' already'}.`)
    })
}
