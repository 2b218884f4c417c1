// Who becomes a member of an organization, in whatever way, gets a place here. The models that store memberships take nothing
// else, so a rule of membership is stated once.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Transaction } from '../database/database.js'
import type { HeldOrganization } from '../models/activation-key.js'
import type { Organizations, Place } from '../models/organization.js'
import type { User } from '../models/user.js'
import { accepted, Refusal } from '../requests/refusal.js'

/** Who is to be a member of an organization, or of none; what is undefined stays. */
interface Joining {
  readonly organizationId?: number | null | undefined
  /** The user, if it exists. */
  readonly user?: Pick<User, 'organizationId'>
}

/** Who has the place that it is to have. */
export interface Placed {
  readonly organizationId?: Place | null | undefined
}

/**
 * Holds the organizations as they are until the transaction ends, and returns what takes a place in one of them, or says why it
 * takes no member. A member keeps its place. `continued` memberships began in another system, and go on in inactive ones, too.
 */
export async function openPlaces(
  organizations: Pick<Organizations, 'hold'>,
  all: readonly Joining[],
  t: Transaction,
  { continued = false }: { readonly continued?: boolean } = {},
) {
  const ids = all.flatMap(({ organizationId }) => organizationId ?? [])
  const rows = ids.length > 0 ? await organizations.hold(ids, t) : []
  const held = new Map(rows.map(row => [row.id, row]))
  return <J extends Joining>(joining: J) => take(joining, held.get(joining.organizationId ?? 0), continued)
}

/** Takes a place in an organization that is held for a user, or refuses. */
export function takePlace(organization: HeldOrganization, user: Pick<User, 'organizationId'>): Place {
  return accepted(take({ organizationId: organization.id, user }, organization)).organizationId
}

/** Takes the place that a user is to have in an organization that is held, or says why it takes no member. */
function take<J extends Joining>(
  joining: J,
  organization: HeldOrganization | undefined,
  continued = false,
): Refusal | (J & Placed) {
  const { organizationId: id, user } = joining
  if (id !== null && id !== undefined && id !== user?.organizationId) {
    if (!organization) return new Refusal(Reason.RECORD_NOT_FOUND, { text: `Organization #${id} no longer exists.` })
    if (!organization.active && !continued)
      return new Refusal(Reason.WRONG_STATE, { text: `Organization #${id} is inactive: activate it first.` })
  }
  return joining as J & Placed
}
