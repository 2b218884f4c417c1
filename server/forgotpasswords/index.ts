// This folder owns the RPCs of the service `auth.v1.ForgotPasswords`: recovery by answers (answers.ts), recovery by a mailed
// key (recovery-key.ts), and the new password (password.ts). outbox/ composes and sends e-mails, access/ limits attempts.
import type { ForgotPasswordsRpcs } from '../calls/context.js'
import type { Parts } from '../calls/parts.js'
import { answerRpcs } from './answers.js'
import { passwordUpdateByUsername } from './password.js'
import { recoveryKeyRpcs } from './recovery-key.js'

/** Makes the RPCs of `ForgotPasswords`. */
export function createForgotPasswordsRpcs(parts: Parts): ForgotPasswordsRpcs {
  const { registry, limits, hashing, access, outbox, registration, settings } = parts
  return {
    ...answerRpcs(registry, hashing, access, outbox),
    ...recoveryKeyRpcs(registry, limits, access, outbox, settings),
    passwordUpdateByUsername: passwordUpdateByUsername(registry, hashing, access, outbox, registration, settings),
  }
}
