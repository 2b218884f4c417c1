import type { MessageInitShape } from '@bufbuild/protobuf'
import type { PartnerOrganizationSchema, UserSchema } from '../../proto/gen/auth/v1/records_pb.js'
import { activationKeyUse } from '../models/activation-key.js'
import type { DataKeys } from '../models/data-key.js'
import type { User } from '../models/user.js'
import { activeUser } from '../models/user-state.js'
import { organizationFields } from '../rules/organization.js'
import { profile, profileFields } from '../rules/profile.js'

/** Each field of a profile with its attribute, read once: a call has some microseconds for a record. */
const profilePairs = profileFields.map(field => [field, profile[field].attribute] as const)

/** The same for its organization. */
const organizationPairs = organizationFields
  .filter(({ alone }) => !alone)
  .map(
    ({ attribute }) =>
      [attribute, `organization${attribute[0]!.toUpperCase()}${attribute.slice(1)}` as keyof User] as const,
  )

function organizationOf(user: User): MessageInitShape<typeof PartnerOrganizationSchema> {
  const record: Record<string, unknown> = {
    id: user.organizationId!,
    active: String(user.organizationActive),
  }
  for (const [field, attribute] of organizationPairs) record[field] = user[attribute] ?? undefined
  return record
}

/**
 * Returns the record of a user, with absent fields where there is no value. Active ROLE_INSTITUTION members and
 * administrators see the activation key of the organization, the user itself and administrators the provider key;
 * services, without a `caller`, see neither.
 */
export function toUserRecord(
  user: User,
  caller: { readonly user: User; readonly admin: boolean } | undefined,
  dataKeys: DataKeys,
): MessageInitShape<typeof UserSchema> {
  const { user: viewer, admin = false } = caller ?? {}
  const own = viewer?.id === user.id
  const colleague =
    viewer?.role === 'ROLE_INSTITUTION' && activeUser.of(viewer) && viewer.organizationId === user.organizationId
  const open = (sealed: Buffer | null, visible: boolean) =>
    sealed && visible ? dataKeys.open(activationKeyUse, sealed) : undefined
  const record: MessageInitShape<typeof UserSchema> = {
    id: user.id,
    username: user.username,
    securityquestion: user.securityQuestion ?? undefined,
    termsofusage: user.termsOfUsage,
    role: user.role,
    active: activeUser.of(user) ? 1 : 0,
    partnerOrganization:
      user.organizationId === null
        ? undefined
        : {
            ...organizationOf(user),
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
  }
  for (const [field, attribute] of profilePairs) record[field] = user[attribute] ?? undefined
  return record
}
