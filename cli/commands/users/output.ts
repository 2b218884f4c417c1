import { create, toJson } from '@bufbuild/protobuf'
import { timestampDate } from '@bufbuild/protobuf/wkt'
import { type AdministeredUser, AdministeredUserSchema } from '../../../proto/gen/auth/v1/administration_pb.js'
import { printTable } from '../../terminal/output.js'
import type { Listed } from '../../terminal/pages.js'

/** A user in the fields of the contract, and what else administrators see; what is absent is left out. */
export function userOutput(user: AdministeredUser) {
  const { record, ...more } = toJson(AdministeredUserSchema, create(AdministeredUserSchema, user)) as unknown as Json
  return { ...record, suspended: user.suspended, ...more }
}

interface Json {
  record: object
}

/** State of a user in a word. */
export function stateOf({ record, suspended, deleteTime }: AdministeredUser): string {
  if (deleteTime) return 'deleted'
  return suspended ? 'suspended' : record?.active === 1 ? 'active' : 'inactive'
}

/** Prints users in columns. */
export function printUsers(listed: Listed<AdministeredUser>): void {
  const cells = listed.rows.map(user => {
    const { id, username, nickname, role, partnerOrganization } = user.record!
    const created = user.createTime && timestampDate(user.createTime).toISOString().slice(0, 10)
    return [id, username, nickname, role, stateOf(user), partnerOrganization?.name, created]
  })
  const head = ['id', 'username', 'nickname', 'role', 'state', 'organization', 'created']
  printTable(head, cells, 'No users match.', listed)
}
