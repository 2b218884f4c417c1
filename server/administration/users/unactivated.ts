// Erases all accounts of a network that were never activated, as a wave of sign-ups leaves them.

import { timestampDate } from '@bufbuild/protobuf/wkt'
import { Administration as AdministrationService } from '../../../proto/gen/auth/v1/administration_pb.js'
import type { AdministrationRpcs } from '../../calls/context.js'
import type { Models } from '../../models/index.js'
import { canonicalBlock } from '../../requests/client-address.js'
import type { OpenPage } from '../../requests/paging.js'
import { wrongField } from '../../requests/wrong-fields.js'
import { requireConfirmation } from '../confirmation.js'

/** Accounts that a call looks at, and that it erases, at most: about a second each. */
const stretch = 10_000
const mostErased = 100

/** Erases accounts that were never activated, or counts them. */
export function eraseUnactivatedUsers(
  { administeredUsers, erasure }: Models,
  openPage: OpenPage,
): AdministrationRpcs['eraseUnactivatedUsers'] {
  return async (request, { transact }) => {
    const { network: given = '', createTimeFrom, createTimeTo, confirm, validateOnly } = request
    const network = canonicalBlock(given.trim())
    if (network === undefined)
      wrongField('network', 'MALFORMED', 'Use an IP address or a CIDR block, such as 2001:db8:1::/48.')
    if (!validateOnly) requireConfirmation(given, confirm)
    const rpc = AdministrationService.method.eraseUnactivatedUsers
    const page = openPage<number>(rpc, { ...request, pageSize: 0 })
    const { ids, next } = await administeredUsers.signedUpFrom(network, {
      afterId: page.after,
      createdFrom: createTimeFrom && timestampDate(createTimeFrom),
      createdTo: createTimeTo && timestampDate(createTimeTo),
      limit: validateOnly ? stretch : mostErased,
      stretch,
    })
    const erase = (id: number) =>
      transact(
        async ({ t, record }) => {
          // The user may have been activated since.
          if (!(await administeredUsers.lockUnactivated(id, t))) return false
          await erasure.erase(id, t)
          await record({ action: 'user.erase', subject_id: id, object: 'state:unactivated' })
          return true
        },
        { unlimited: true },
      )
    let users = 0
    if (validateOnly) users = ids.length
    else for (const id of ids) if (await erase(id)) users++
    return { users, nextPageToken: next === undefined ? undefined : page.next(next) }
  }
}
