// The promise of `request_id`: a repeated request gets the first answer, and nothing is created again.
import {
  create,
  type DescMethodUnary,
  fromBinary,
  type Message,
  type MessageInitShape,
  toBinary,
} from '@bufbuild/protobuf'
import type { Transaction } from '../database/database.js'
import type { AuditEvent } from '../models/audit.js'
import type { CreationRequests } from '../models/creation-request.js'
import type { MasterKey } from '../models/master-key.js'
import { wrongFields } from '../requests/wrong-fields.js'

/** What keeps the answers. */
export interface RepetitionDeps {
  readonly masterKey: Pick<MasterKey, 'digest' | 'seal' | 'open'>
  readonly creationRequests: CreationRequests
}

/**
 * Does what a request with a `request_id` asks for, and keeps the answer; or returns the answer to the same request of the
 * same caller.
 */
export async function answerOnce<T>(
  { masterKey, creationRequests }: RepetitionDeps,
  { method, request }: { readonly method: DescMethodUnary; readonly request: Message },
  { requestId, actor, actor_id }: { readonly requestId: string } & Pick<AuditEvent, 'actor' | 'actor_id'>,
  { t, events }: { readonly t: Transaction; readonly events: readonly Pick<AuditEvent, 'subject_id'>[] },
  work: () => Promise<T>,
): Promise<T> {
  const id = { actor: actor_id ? `${actor} #${actor_id}` : actor, requestId }
  const form = Buffer.from(toBinary(method.input, request)).toString('base64')
  const digest = masterKey.digest('creation-request', `${method.name} ${form}`)
  const use = `creation-request ${requestId}`
  const before = await creationRequests.claim(id, t)
  if (before && !before.digest.equals(digest))
    wrongFields([{ field: 'request_id', message: 'Already used by another request: use a new one.' }])
  if (before) return fromBinary(method.output, Buffer.from(masterKey.open(use, before.answerSealed), 'base64')) as T
  const answer = create(method.output, (await work()) as MessageInitShape<DescMethodUnary['output']>)
  // A key that is shown once is never stored, even sealed.
  const bytes = toBinary(method.output, 'key' in answer ? Object.assign({}, answer, { key: '' }) : answer)
  const answerSealed = masterKey.seal(use, Buffer.from(bytes).toString('base64'))
  await creationRequests.add({ ...id, digest, answerSealed, userId: events.at(-1)?.subject_id ?? null }, t)
  return answer as T
}
