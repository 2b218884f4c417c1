/**
 * What an import changes of existing records only on request, because it opens access to them: by kind of the import, as the
 * option names it.
 */
export const changeableAccounts = {
  organizations: ['email', 'inep_code'],
  users: ['username', 'email', 'active', 'organization', 'password'],
} as const
