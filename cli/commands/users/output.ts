import { create, type DescMessage, toJson } from '@bufbuild/protobuf'
import { type AdministeredUser, AdministeredUserSchema } from '../../../proto/gen/auth/v1/administration_pb.js'
import { UserSchema } from '../../../proto/gen/auth/v1/records_pb.js'
import type { List } from '../../terminal/pages.js'

/** A user in the fields of the contract, and what else administrators see; what is absent is left out. */
export function userOutput(user: AdministeredUser) {
  const { record, ...more } = toJson(AdministeredUserSchema, create(AdministeredUserSchema, user)) as unknown as Json
  const { suspended, emailProved } = user
  return { ...record, status: statusOf(user), suspended, emailProved, ...more }
}

interface Json {
  record: object
}

/** The fields that a record of the contract has in a list, as JSON names them; `a.b` is one within another. */
export function listedFields({ fields }: DescMessage): string[] {
  return fields
    .flatMap(({ jsonName, message }) => [
      jsonName,
      ...(message?.file.proto.package === 'auth.v1' ? listedFields(message).map(name => `${jsonName}.${name}`) : []),
    ])
    .filter(name => !/securityanswer|activationkey/i.test(name))
}

/** Whether a user can sign in, in a word. */
export function statusOf({ record, suspended, deleteTime }: AdministeredUser): string {
  if (deleteTime) return 'deleted'
  return suspended ? 'suspended' : record?.active === 1 ? 'active' : 'inactive'
}

/** Users as lists show them. */
export const userList: List<AdministeredUser, 'users'> = {
  name: 'users',
  fields: [
    ...listedFields(UserSchema),
    'email',
    'emailProved',
    'status',
    'suspended',
    'createTime',
    'deleteTime',
    'purgeTime',
    'etag',
  ],
  toOutput: userOutput,
  head: {
    titles: ['id', 'username', 'nickname', 'role', 'status', 'state', 'organization'],
    whole: ['username'],
  },
  toCells(user) {
    const { id, username, nickname, role, state, partnerOrganization } = user.record!
    return [id, username, nickname, role, statusOf(user), state, partnerOrganization?.name]
  },
  empty: 'No users match.',
}
