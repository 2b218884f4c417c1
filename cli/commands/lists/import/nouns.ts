// The kinds of lists: what identifies a record of each, and how its rows are read.
import {
  ImportedOrganizationSchema,
  ImportedUserSchema,
  ImportKind,
} from '../../../../proto/gen/auth/v1/administration_pb.js'
import { organizationColumns, toOrganizationRow, toUserRow, userColumns } from '../../../files/columns.js'

export type Noun = 'organizations' | 'users'

export const nouns = {
  organizations: {
    kind: ImportKind.ORGANIZATIONS,
    schema: ImportedOrganizationSchema,
    columns: organizationColumns,
    toRow: toOrganizationRow,
    identifying: ['id', 'inep_code', 'name'],
  },
  users: {
    kind: ImportKind.USERS,
    schema: ImportedUserSchema,
    columns: userColumns,
    toRow: toUserRow,
    identifying: ['id', 'username'],
  },
} as const satisfies Record<Noun, object>
