// Secrets of users and organizations, for exports.

import type { AdministrationRpcs } from '../calls/context.js'
import type { Models } from '../models/index.js'
import type { Hashing } from '../passwords/index.js'
import { wrongField } from '../requests/wrong-fields.js'
import { formatIds } from '../rules/id-ranges.js'

/** Maximum ids of a request. */
const maxIds = 1_000

/** The RPCs that export secrets. */
export function secretRpcs({ userBatches, organizations }: Models, { passwords }: Hashing) {
  return {
    /** Returns password hashes and provider keys. */
    async getUserSecrets({ ids }, { transact }) {
      checkIds(ids)
      const secrets = await userBatches.secrets(ids)
      await transact(({ record }) =>
        record({ action: 'user.export-secrets', object: `users:${formatIds(secrets.map(({ id }) => id))}` }),
      )
      return {
        secrets: secrets.map(({ id, passwordHash, providerKey }) => ({
          id,
          passwordHash: passwords.opened(passwordHash) || undefined,
          providerKey: providerKey || undefined,
        })),
      }
    },

    /** Returns activation keys. */
    async getOrganizationSecrets({ ids }, { transact }) {
      checkIds(ids)
      const keys = await organizations.keys(ids)
      await transact(({ record }) =>
        record({
          action: 'organization.export-secrets',
          object: `organizations:${formatIds(keys.map(({ id }) => id))}`,
        }),
      )
      return { secrets: keys.map(key => ({ id: key.id, activationkey: organizations.activationKey(key) })) }
    },
  } satisfies Partial<AdministrationRpcs>
}

function checkIds(ids: readonly number[]): void {
  if (ids.length === 0 || ids.length > maxIds) wrongField('ids', 'OUT_OF_RANGE', `Use 1 to ${maxIds} ids.`)
}
