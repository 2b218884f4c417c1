import { create } from '@bufbuild/protobuf'
import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import { type AdministeredUser, AdministeredUserSchema } from '../../../proto/gen/auth/v1/administration_pb.js'
import { UserSchema } from '../../../proto/gen/auth/v1/records_pb.js'
import type { AdministeredUserRow } from '../../models/administered-user.js'
import type { DataKeys } from '../../models/data-key.js'
import { daysUntilErasure } from '../../models/erasure.js'
import { toUserRecord } from '../../users/user-record.js'
import { withEtag } from '../etag.js'

/**
 * A user as administrators see it; with `keys`, also its provider key and, for a ROLE_INSTITUTION, the key of its organization,
 * which activates no other user.
 */
export function toAdministeredUser(
  row: AdministeredUserRow,
  dataKeys: DataKeys,
  { keys = false }: { keys?: boolean } = {},
): AdministeredUser {
  // The etag doesn't cover keys, so a list shows the same one.
  const shown = withEtag(AdministeredUserSchema, {
    record: toUserRecord(
      { ...row, organizationKeySealed: null, providerKeyId: null },
      { user: row, admin: true },
      dataKeys,
    ),
    email: row.email ?? undefined,
    emailProved: row.emailProved,
    suspended: row.suspended,
    desk: row.desk,
    createTime: timestampFromDate(row.createdAt),
    ...(row.deletedAt && {
      deleteTime: timestampFromDate(row.deletedAt),
      purgeTime: timestampFromDate(new Date(row.deletedAt.getTime() + daysUntilErasure * 86_400_000)),
    }),
  })
  if (!keys) return shown
  const organizationKeySealed = row.role === 'ROLE_INSTITUTION' ? row.organizationKeySealed : null
  const record = create(
    UserSchema,
    toUserRecord({ ...row, organizationKeySealed }, { user: row, admin: true }, dataKeys),
  )
  return { ...shown, record }
}
