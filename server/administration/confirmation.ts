import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { refuse } from '../requests/refusal.js'

/** Refuses with CONFIRMATION_NEEDED unless `repeated` is `name`, the target of an operation that can’t be undone. */
export function requireConfirmation(name: string, repeated: string | undefined): void {
  if (repeated?.trim() === name.trim()) return
  refuseUnconfirmed(name, `This can’t be undone. To confirm, repeat the name: ${name}`)
}

/** Refuses with CONFIRMATION_NEEDED: `confirm` must be what is expected. */
export function refuseUnconfirmed(expected: string | number, text: string): never {
  refuse(Reason.CONFIRMATION_NEEDED, {
    text,
    fields: [{ field: 'confirm', reason: 'MISMATCH', message: `Type ${expected} to confirm.` }],
  })
}
