import type { MessageInitShape } from '@bufbuild/protobuf'
import type { User as UserMessage, UserSchema } from '../../proto/gen/auth/v1/records_pb.js'
import type { Caller } from '../access/caller.js'
import type { MasterKey } from '../models/master-key.js'
import { activationKeyUse } from '../models/organization.js'
import type { Profile, User } from '../models/user.js'

/** The field of the contract for an attribute: the name in lower case, with one exception. */
type FieldOf<A extends string> = A extends 'dateOfBirth' ? 'dateofborn' : Lowercase<A>

/** The fields of a profile: an attribute without a field in the contract or in `toUserRecord` is a compile error. */
type ProfileFields = { readonly [F in FieldOf<keyof Profile>]: UserMessage[F] }

/**
 * Returns the record of a user, with absent fields where there is no value. Active ROLE_INSTITUTION members and
 * administrators see the activation key of the organization, the user itself and administrators the provider key;
 * services, without a `caller`, see neither.
 */
export function toUserRecord(
  user: User,
  caller: Pick<Caller, 'user' | 'admin'> | undefined,
  masterKey: MasterKey,
): MessageInitShape<typeof UserSchema> {
  const { user: viewer, admin = false } = caller ?? {}
  const own = viewer?.id === user.id
  const colleague =
    viewer?.role === 'ROLE_INSTITUTION' && viewer.active && viewer.organizationId === user.organizationId
  const open = (sealed: Buffer | null, visible: boolean) =>
    sealed && visible ? masterKey.open(activationKeyUse, sealed) : undefined
  const profile: ProfileFields = {
    username: user.username,
    nickname: user.nickname,
    dateofborn: user.dateOfBirth ?? undefined,
    gender: user.gender ?? undefined,
    state: user.state,
    city: user.city,
    institutiontype: user.institutionType ?? undefined,
    institution: user.institution ?? undefined,
    securityquestion: user.securityQuestion ?? undefined,
    termsofusage: user.termsOfUsage,
    role: user.role,
  }
  return {
    id: user.id,
    active: user.active && !user.suspended ? 1 : 0,
    partnerOrganization:
      user.organizationId === null
        ? undefined
        : {
            id: user.organizationId,
            active: String(user.organizationActive),
            address: user.organizationAddress ?? undefined,
            creationDate: user.organizationCreationDate ?? undefined,
            inepCode: user.organizationInepCode ?? undefined,
            login: user.organizationLogin ?? undefined,
            name: user.organizationName ?? undefined,
            phone: user.organizationPhone ?? undefined,
            responsible: user.organizationResponsible ?? undefined,
            type: user.organizationType ?? undefined,
            website: user.organizationWebsite ?? undefined,
            email: user.organizationEmail ?? undefined,
            activationkey: open(user.organizationKeySealed, admin || colleague),
          },
    providerActivationKey:
      user.providerKeyId !== null && (own || admin)
        ? {
            id: user.providerKeyId,
            usersid: user.id,
            activationkey: open(user.providerKeySealed, true),
          }
        : undefined,
    // The spread is last: in Node.js 20 each property after a spread costs 4 µs.
    ...profile,
  }
}
