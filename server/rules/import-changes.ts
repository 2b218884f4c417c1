import { organizationFields } from './organization.js'

/**
 * What an import changes of existing records only on request, because it opens access to them: by kind of the import, as the
 * option names it.
 */
export const changeableAccounts = {
  organizations: organizationFields.filter(({ opens }) => opens).map(({ field }) => field),
  users: ['username', 'email', 'active', 'organization', 'password'],
} as const
