import type { FieldMask } from '@bufbuild/protobuf/wkt'
import { wrongFields } from './wrong-fields.js'

/** The fields that an update mask names (AIP-134), each once. Refuses an empty mask and unknown fields with INVALID_ARGUMENT. */
export function readMask<F extends string>(mask: FieldMask | undefined, fields: readonly F[]): F[] {
  const paths = [...new Set(mask?.paths)]
  const unknown = paths.filter(path => !(fields as readonly string[]).includes(path))
  if (paths.length === 0 || unknown.length > 0) {
    const message = `Name one or more of ${fields.join(', ')}.`
    wrongFields([{ field: 'update_mask', message }])
  }
  return paths as F[]
}
