// Who becomes a member of an organization, in whatever way, gets a place here. The models that store memberships take nothing
// else, so a rule of membership is stated once.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Transaction } from '../database/connection.js'
import type { Organizations, Place } from '../models/organization.js'
import { Refusal } from '../requests/refusal.js'

/** Places in organizations, which stay as they are until the transaction ends. */
export interface Places {
  /** Takes a place in one of the organizations, or says why it takes no member. */
  take(id: number): Place | Refusal
}

/** Opens the places of organizations. `continued` memberships began in another system, and go on in inactive ones, too. */
export async function openPlaces(
  organizations: Pick<Organizations, 'hold'>,
  ids: readonly number[],
  t: Transaction,
  { continued = false }: { readonly continued?: boolean } = {},
): Promise<Places> {
  const held = new Map((await organizations.hold(ids, t)).map(({ id, active }) => [id, active]))
  return {
    take(id) {
      if (!held.has(id)) return new Refusal(Reason.RECORD_NOT_FOUND, { text: `Organization #${id} no longer exists.` })
      if (!held.get(id) && !continued)
        return new Refusal(Reason.WRONG_STATE, { text: `Organization #${id} is inactive: activate it first.` })
      return id as Place
    },
  }
}

/** Takes a place in an organization, or refuses. */
export async function takePlace(
  organizations: Pick<Organizations, 'hold'>,
  id: number,
  t: Transaction,
): Promise<Place> {
  const place = (await openPlaces(organizations, [id], t)).take(id)
  if (place instanceof Refusal) throw place
  return place
}
