import { create, toJson } from '@bufbuild/protobuf'
import { type AdministeredUser, AdministeredUserSchema } from '../../../proto/gen/auth/v1/administration_pb.js'
import { inTerminalLanguage } from '../../terminal/language.js'
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

/** Whether a user can sign in, in a word. */
export function statusOf({ record, suspended, deleteTime }: AdministeredUser): string {
  if (deleteTime) return 'deleted'
  return suspended ? 'suspended' : record?.active === 1 ? 'active' : 'inactive'
}

/** Users as lists show them. */
export const userList: List<AdministeredUser, 'users'> = {
  name: 'users',
  toOutput: userOutput,
  head: {
    titles: ['id', 'username', 'nickname', 'role', 'status', 'state', 'organization'],
    whole: ['username'],
  },
  toCells(user) {
    const { id, username, nickname, role, state, partnerOrganization } = user.record!
    return [id, username, nickname, role, inTerminalLanguage(statusOf(user)), state, partnerOrganization?.name]
  },
  empty: 'No users match.',
}
