import type { Command } from '../command.js'
import { addImport } from './lists/import.js'
import { addSetPassword } from './set-password.js'
import { addUserCreateUpdate } from './users/create-update.js'
import { addUserData } from './users/data.js'
import { addIssueKeys } from './users/issue-keys.js'
import { addUserLists } from './users/list.js'
import { addLockouts } from './users/lockouts.js'
import { addUserState } from './users/state.js'

/** Adds `auth-admin users`. */
export function addUsers(program: Command): void {
  const users = program
    .command('users')
    .description('Manage users: look-up, registration, activation, roles, suspension, passwords, locks, data, files.')
    .remarks('Name a user by username, whose case doesn’t matter, or by id: 7 or #7.')
  addUserLists(users)
  addUserCreateUpdate(users)
  addUserState(users)
  addIssueKeys(users)
  addSetPassword(users)
  addLockouts(users)
  addUserData(users)
  addImport(users, 'users')
}
