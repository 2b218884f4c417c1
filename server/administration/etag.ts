import { createHash } from 'node:crypto'
import { create, type Message, type MessageInitShape, type MessageShape, toBinary } from '@bufbuild/protobuf'
import type { GenMessage } from '@bufbuild/protobuf/codegenv2'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { refuse } from '../requests/refusal.js'

/** A message with the etag (AIP-154) of its content. */
export function withEtag<D extends GenMessage<Message & { etag: string }>>(
  schema: D,
  init: MessageInitShape<D>,
): MessageShape<D> {
  const message = create(schema, init)
  message.etag = createHash('sha256').update(toBinary(schema, message)).digest('base64url').slice(0, 22)
  return message
}

/** Refuses with STALE_ETAG when an etag is given and is not that of the record. */
export function checkEtag(given: string | undefined, { etag }: { readonly etag: string }): void {
  if (given && given !== etag) refuse(Reason.STALE_ETAG)
}
