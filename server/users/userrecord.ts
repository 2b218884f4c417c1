import type { MessageInitShape } from '@bufbuild/protobuf'
import type { UserSchema } from '../../proto/gen/auth/v1/records_pb.js'
import type { Caller } from '../access/caller.js'
import type { MasterKey } from '../masterkey.js'
import { activationKeyUse } from '../models/organization.js'
import type { User } from '../models/user.js'

/** The record of a user with what this caller may see of it; absent fields stay absent. */
export function toRecord(
  user: User,
  caller: Pick<Caller, 'user' | 'admin'>,
  masterKey: MasterKey,
): MessageInitShape<typeof UserSchema> {
  const viewer = caller.user
  const own = viewer.id === user.id
  const colleague = viewer.role === 'ROLE_INSTITUTION' && viewer.active && viewer.organizationId === user.organizationId
  const open = (sealed: Buffer | null, visible: boolean) =>
    sealed && visible ? masterKey.open(activationKeyUse, sealed) : undefined
  return {
    id: user.id,
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
    active: user.active && !user.suspended ? 1 : 0,
    role: user.role,
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
            activationkey: open(user.organizationKeySealed, caller.admin || colleague),
          },
    providerActivationKey:
      user.providerKeyId !== null && (own || caller.admin)
        ? {
            id: user.providerKeyId,
            usersid: user.id,
            activationkey: open(user.providerKeySealed, true),
          }
        : undefined,
  }
}
