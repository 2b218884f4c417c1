import type { MessageInitShape } from '@bufbuild/protobuf'
import type { UserSchema } from '../proto/gen/auth/v1/records_pb.js'
import type { Caller } from './caller.js'
import { activationKeyUse } from './models/organization.js'
import type { Person } from './models/user.js'
import type { Vault } from './vault.js'

/** The record of a person with what this caller may see of it; absent fields stay absent. */
export function toRecord(
  person: Person,
  caller: Pick<Caller, 'person' | 'admin'>,
  vault: Vault,
): MessageInitShape<typeof UserSchema> {
  const viewer = caller.person
  const own = viewer.id === person.id
  const colleague =
    viewer.role === 'ROLE_INSTITUTION' && viewer.active && viewer.organizationId === person.organizationId
  const open = (sealed: Buffer | null, visible: boolean) =>
    sealed && visible ? vault.open(activationKeyUse, sealed) : undefined
  return {
    id: person.id,
    username: person.username,
    nickname: person.nickname,
    dateofborn: person.dateOfBirth ?? undefined,
    gender: person.gender ?? undefined,
    state: person.state,
    city: person.city,
    institutiontype: person.institutionType ?? undefined,
    institution: person.institution ?? undefined,
    securityquestion: person.securityQuestion ?? undefined,
    termsofusage: person.termsOfUsage,
    active: person.active && !person.suspended ? 1 : 0,
    role: person.role,
    partnerOrganization:
      person.organizationId === null
        ? undefined
        : {
            id: person.organizationId,
            active: String(person.organizationActive),
            address: person.organizationAddress ?? undefined,
            creationDate: person.organizationCreationDate ?? undefined,
            inepCode: person.organizationInepCode ?? undefined,
            login: person.organizationLogin ?? undefined,
            name: person.organizationName ?? undefined,
            phone: person.organizationPhone ?? undefined,
            responsible: person.organizationResponsible ?? undefined,
            type: person.organizationType ?? undefined,
            website: person.organizationWebsite ?? undefined,
            email: person.organizationEmail ?? undefined,
            activationkey: open(person.organizationKeySealed, caller.admin || colleague),
          },
    providerActivationKey:
      person.providerKeyId !== null && (own || caller.admin)
        ? {
            id: person.providerKeyId,
            usersid: person.id,
            activationkey: open(person.providerKeySealed, true),
          }
        : undefined,
  }
}
