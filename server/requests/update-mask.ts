import type { FieldMask } from '@bufbuild/protobuf/wkt'
import { wrongField } from './wrong-fields.js'

/** The fields that an update mask names (AIP-134), each once. Refuses an empty mask and unknown fields with INVALID_ARGUMENT. */
export function readMask<F>(mask: FieldMask | undefined, fields: readonly F[], nameOf: (field: F) => string): F[] {
  const byName = new Map(fields.map(field => [nameOf(field), field]))
  const named = [...new Set(mask?.paths)].map(path => byName.get(path))
  if (named.length === 0 || named.includes(undefined)) {
    const message = `Name one or more of ${[...byName.keys()].join(', ')}.`
    wrongField('update_mask', 'UNKNOWN_VALUE', message)
  }
  return named as F[]
}
